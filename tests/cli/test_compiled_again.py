"""What `dtypeguard run` says of functions that are compiled again: lines and remedies."""

import re

import pytest

from tests.support.advice import short_path
from tests.support.helpers import IS_RECORDED, need, run_python

pytestmark = pytest.mark.third_party
# Then it is known which line made what a function was given.

# Scripts, each with parts of its list in their order. {mark} is the line that ends with
# `# mark`; what follows a `|` is there only if values are recorded.
LISTED = {
    "types before shapes": (
        """
        import jax, jax.numpy as jnp

        scaled = jax.jit(lambda row, x: row.sum() * x)
        scaled(jnp.ones(2), jnp.ones(3, jnp.bfloat16))
        scaled(jnp.ones(4), jnp.ones(3))
        """,
        ["x  bfloat16 -> float32", "row  float32[2] -> float32[4]"],
    ),
    "made in the call": (
        """
        import jax, jax.numpy as jnp

        total = jax.jit(lambda x: x.sum())
        half = jnp.ones(3, jnp.bfloat16)
        total(half)
        total(half.astype(jnp.float32))  # the cast
        """,
        [
            "x  bfloat16 -> float32",
            "|becomes float32 {the cast}",
            "|Cast it at {the cast}: x.astype(jnp.bfloat16).",
        ],
    ),
    "an optimizer": (
        """
        import jax, jax.numpy as jnp, optax

        params = {"w": jnp.ones((4, 4), jnp.bfloat16)}
        opt = optax.adam(1e-3)
        state = opt.init(params)

        @jax.jit
        def step(params, state):
            grads = {"w": params["w"].astype(jnp.float32)}  # the cast
            updates, state = opt.update(grads, state, params)  # the update
            return {"w": params["w"] + updates["w"]}, state, grads["w"].sum()

        for _ in range(3):
            params, state, value = step(params, state)
        """,
        [
            "state[0].mu['w']  bfloat16 -> float32",
            "becomes float32 {the update}",
            "because of float32 {the cast}",
            "guard_step(step, carry=('params', 'state'), returned=(0, 1)), or",
        ],
    ),
    "a wrapper whose signature is another one, and a rule for derivatives": (
        """
        import functools, jax, jax.numpy as jnp

        def inner(x):
            return x * 2

        outer = functools.wraps(inner)(lambda scale, x: inner(x) * scale)
        act = jax.custom_jvp(lambda params: params["w"] * 2)
        act.defjvp(lambda params, tangents: (act(*params), act(*tangents)))
        for dtype in (jnp.float32, jnp.bfloat16):
            x = jnp.ones(3, dtype)  # the array
            jax.jit(outer)(1.0, x)
            jax.jit(act)({"w": x})
        """,
        ["args[1]  float32 -> bfloat16", "params['w']  float32 -> bfloat16"],
    ),
    "what a function closes over, and the culprit first": (
        """
        import jax, jax.numpy as jnp, numpy as np

        @jax.jit
        def grad(state, x):
            return {"mean": state["mean"] * x}

        def train(steps):
            scale = np.full(3, 2, np.float32)  # the constant

            @jax.jit
            def apply(state, grads, batch):
                mean = state["mean"] - grads["mean"] * scale  # the product
                return {"mean": mean, "n": state["n"] + batch}  # the sum

            state = {"mean": jnp.zeros(3, jnp.float16), "n": jnp.zeros((), jnp.int32)}
            for _ in range(steps):
                grads = grad(state, jnp.ones(3, jnp.float16))
                state = apply(state, grads, jnp.float32(1))

        train(3)
        """,
        [
            "run: apply",
            "state['mean']  float16 -> float32",
            "becomes float32 {the product}",
            "|because of float32 {the constant}",
            "state['n']  int32 -> float32",
            "becomes float32 {the sum}",
            "Begin state['n'] as float32",
            "run: grad",
            "state['mean']  float16 -> float32",
        ],
    ),
    "Python numbers": (
        """
        import jax, jax.numpy as jnp

        @jax.jit
        def step(state, x):
            return {"average": 0.9 * state["average"] + 0.1 * jnp.mean(x)}  # the average

        @jax.jit
        def count(n):
            return n + 0.5  # the half

        @jax.jit
        def sample(x, temperature):
            return x * temperature

        state = {"average": 0.0}  # the state
        total = 0
        for _ in range(3):
            state = step(state, jnp.ones(3))
            total = count(total)  # the call
        sample(jnp.ones(3), temperature=1)  # the int
        sample(jnp.ones(3), temperature=0.5)
        """,
        [
            "state['average']  float32 (weak) -> float32",
            "|begins as float32 (weak) {the state}",
            "becomes float32 {the average}",
            "dtypeguard.strong(state)",
            "n  int32 (weak) -> float32 (weak)",
            "begins as int32 (weak) {the call}",
            "becomes float32 (weak) {the half}",
            "Begin temperature as float32 at {the int}: jnp.asarray(x, jnp.float32).",
        ],
    ),
    "types and shapes from elsewhere": (
        """
        import jax, jax.numpy as jnp

        @jax.jit
        def double(params):
            return {"w": params["w"] * 2}

        @jax.jit
        def means(params):  # whose results have the shapes of an argument
            return {"mean": params["b"].astype(jnp.bfloat16), "spread": params["w"] * 1}

        def load(params):
            return jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)  # the loading

        params = {"b": jnp.ones(3), "w": jnp.ones(3)}
        double(params)
        double(load(params))
        means(params)
        params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)  # the cast
        means(params)

        @jax.jit
        def step(x):
            return x * 2

        for n in (4, 4, 3):
            step(jnp.ones(n))  # the call

        @jax.jit
        def total(d):
            return sum(d.values())

        for given in ({"a": 1.0}, {"a": 1.0, "b": 2.0}):
            total(given)  # the sum

        Node = jax.tree_util.Partial  # it has no keys

        @jax.jit
        def halve(node):
            return Node(node.func, node.args[0].astype(jnp.bfloat16))  # the half

        halve(halve(Node(min, jnp.ones(3))))
        """,
        [
            "run: halve",
            "node[<flat index 0>][0]  float32 -> bfloat16",
            "becomes bfloat16 {the half}",
            "run: double",
            "params['b'], params['w']  float32 -> bfloat16",
            "|becomes bfloat16 {the loading}",
            "|Cast it at {the loading}: x.astype(jnp.float32).",
            "run: means",
            "params['b'], params['w']  float32 -> bfloat16",
            "|becomes bfloat16 {the cast}",
            "run: step",
            "x  float32[4] -> float32[3]",
            "called {the call}",
            "run: total",
            "arguments of another tree",
            "called {the sum}",
        ],
    ),
    "constants and new functions": (
        """
        import functools, jax, jax.numpy as jnp

        x = jnp.ones((1, 2))
        for _ in range(5):
            x = jax.jit(lambda a: a * 2)(x)  # the lambda

        class Config:
            pass

        @functools.partial(jax.jit, static_argnames=("config", "epoch"))  # the function
        def train(x, config, epoch):
            return x

        config = Config()
        for _ in range(3):
            fresh = Config()  # the object
            train(x, fresh, 1)
        for epoch in range(1, 7):
            train(x, config, epoch)

        grid = jax.jit(jnp.zeros, static_argnums=0)
        made = functools.partial(jax.jit, static_argnums=1)(lambda x, n: x + grid(n))
        for n in (5, 7):
            made(1.0, n)
        """,
        [
            "train ({the function}) was compiled 9 times",
            "config  another Config each time",
            "|made {the object}",
            "epoch  1 -> 2",
            "Make config once",
            "epoch is a constant",
            "n  5 -> 7",
            "n is a size of the program's arrays, of which each compiles anew.",
            "<lambda> ({the lambda}) was compiled 5 times, because it is a function",
        ],
    ),
    "pmap": (
        """
        import functools, jax, jax.numpy as jnp

        @functools.partial(jax.pmap, static_broadcasted_argnums=2)
        def step(state, x, depth):
            return {"w": state["w"] * x}  # the product

        state = {"w": jnp.ones((1, 3), jnp.bfloat16)}
        for n in range(3):
            state = step(state, jnp.ones((1, 3)), 2)
        """,
        [
            "run: step",
            "state['w']  bfloat16 -> float32",
            "becomes float32 {the product}",
            "guard_step(step), or",
        ],
    ),
    "equinox": (
        """
        import equinox as eqx, jax, jax.numpy as jnp, optax

        class Model(eqx.Module):
            weight: jax.Array
            forward: object
            temperature: float = 2.0

        @eqx.filter_jit
        def step(model, x):
            weight = model.weight + x.sum() * jnp.ones(3)  # the sum
            return Model(weight, model.forward, model.temperature)

        @eqx.filter_jit
        def new(model):
            return model.forward(model.weight)

        model = Model(jnp.ones(3, jnp.bfloat16), jax.jit(jnp.sin))
        for _ in range(4):
            model = step(model, jnp.ones(3, jnp.bfloat16))
            model = Model(model.weight, model.forward, model.temperature - 0.1)
        for _ in range(2):
            model = Model(jnp.ones(3), jax.jit(lambda x: x))  # the model
            new(model)

        @eqx.filter_jit
        def count(state):
            return {"turn": state["turn"] + 1}

        state = {"turn": 0}  # the turn
        for _ in range(3):
            state = count(state)

        @eqx.filter_jit
        def update(grads, opt):
            return opt.update(grads, opt.init(grads))

        for _ in range(2):
            opt = optax.sgd(0.1)  # the optimizer
            update(jnp.ones(3), opt)
        """,
        [
            "model.weight  bfloat16 -> float32",
            "becomes float32 {the sum}",
            "model.temperature  2.0 -> 1.9",
            "model.temperature is a constant",
            "model.forward  another PjitFunction each time",
            "|made {the model}",
            "Make model once",
            "|made {the turn}",
            "|made {the optimizer}",
        ],
    ),
    "flax.nnx": (
        """
        import jax, jax.numpy as jnp, optax
        from flax import nnx

        class Model(nnx.Module):
            def __init__(self):
                make = dict(rngs=nnx.Rngs(0), param_dtype=jnp.bfloat16)
                self.layers = nnx.List([nnx.Linear(2, 2, **make)])
                self.count = nnx.Variable(jnp.zeros((), jnp.int32))

        @nnx.jit
        def train(model, losses, x):
            kernel = model.layers[0].kernel
            kernel.set_value(kernel.get_value() * jnp.ones((2, 2)))  # the product
            model.count.set_value(model.count.get_value() + 1)
            losses.update(loss=x)

        @nnx.jit
        def update(model, optimizer):
            return model.count.get_value()

        model, losses = Model(), nnx.metrics.Average("loss")
        for _ in range(3):
            train(model, losses, jnp.ones(2))
        for _ in range(2):
            optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)  # anew
            update(model, optimizer)
        """,
        [
            "model.layers[0].kernel  bfloat16 -> float32",
            "becomes float32 {the product}",
            "run: update",
            "optimizer.tx.init, optimizer.tx.update  another function each time",
            "|made {anew}",
            "Make optimizer once",
        ],
    ),
}


@pytest.mark.parametrize("case", LISTED)
def test_the_list_names_the_lines(case, run, script):
    if case in ("equinox", "flax.nnx"):
        need(case)
    source, parts = LISTED[case]
    file = script(source)
    marks = {
        text.partition("  # ")[2]: f"{short_path(str(file))}:{number}"
        for number, text in enumerate(file.read_text().splitlines(), 1)
    }
    code, out, err = run(file)
    assert (code, out) == (0, "")
    place, text = 0, re.sub(" +", " ", err)
    for part in parts:
        if IS_RECORDED or part[0] != "|":
            part = re.sub(r"{([^}]+)}", lambda match: marks[match[1]], part)
            part = re.sub(" +", " ", part.removeprefix("|"))
            assert part in text[place:], (part, err)
            place = text.index(part, place)


def test_what_runs_well_or_is_only_traced_has_no_list(run, script):
    """Nor a package of which two lines ask for other types or trees."""
    assert run(
        script("""
        import equinox as eqx, jax, jax.numpy as jnp, optax

        @jax.jit
        def f(x):
            return x * 2

        @jax.jit
        def outer(x):
            return f(x), f(x.astype(jnp.bfloat16)), jnp.where(x > 0, x, 1)

        x, half = jnp.zeros(3), jnp.zeros(3, jnp.bfloat16)
        for value in (x, half):
            jax.eval_shape(f, value), jax.make_jaxpr(f)(value), f.lower(value).compile()
            jax.lax.scan(lambda c, _: (f(c), None), value, None, 2)
            jnp.cumsum(value) + jax.nn.gelu(value)
            opt = optax.adam(1e-3, mu_dtype=value.dtype)  # has a `jit` of its own
            opt.update(x, opt.init(x))
        outer(x), f(x), f(x)

        @eqx.filter_jit
        def apply(module, x):
            return x if module is None else module(x)

        apply(eqx.nn.Linear(3, 3, key=jax.random.key(0)), x)
        apply(None, x)
    """)
    ) == (0, "", "")


def test_what_stays_the_same_is_not_named(run, script):
    """Nor is a guard advised where no step gives back the other type."""
    code, out, err = run(
        script("""
        import functools, jax, jax.numpy as jnp

        class Net:
            def rule(self, x):
                return x

        @functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
        def step(x, rule, act, dtype, kind):
            return rule(x)

        net = Net()
        for n in (3, 4):
            step(jnp.ones(n), net.rule, jax.nn.relu, jnp.dtype("float32"), jnp.float32)

        @functools.partial(jax.jit, static_argnames="depth")
        def deep(x, i, depth):
            return x * i * depth

        deep(jnp.ones(3), 0, depth=1), deep(jnp.ones(3, jnp.bfloat16), 1, depth=2)
    """)
    )
    assert (code, out) == (0, "")
    assert re.findall("^  ([^ ].*)", err, re.MULTILINE) == [
        "x  float32[3] -> float32[4]",
        "x  float32 -> bfloat16",
        "depth  1 -> 2",
    ]
    assert "guard_step" not in err


def test_no_array_is_kept(script):
    """As many arrays live while a program trains as under `python`.

    In a process of its own: the record would hold these lines for arrays of other tests.
    """
    file = script("""
        import gc, jax, jax.numpy as jnp, numpy as np

        def train(steps):
            scale = jnp.ones((50, 50))

            @jax.jit
            def step(state, x):
                return {"w": state["w"] * scale + x, "n": state["n"] + 1}

            state = {"w": jnp.ones((50, 50), jnp.bfloat16), "n": 0}
            for _ in range(steps):
                state = step(state, jnp.ones((50, 50)))
            del scale, step
            gc.collect()
            return sum(x.shape == (50, 50) for x in jax.live_arrays())

        print(train(4), sum(x.shape == (50, 50) for x in jax.live_arrays()))
    """)
    done = run_python("-m", "dtypeguard", "run", file)
    assert (done.returncode, done.stdout) == (0, "1 0\n")
    assert "bfloat16 -> float32" in done.stderr


def test_nothing_of_the_users_runs(run, script):
    """A static argument is compared by JAX alone, which asks for its hash."""
    code, out, err = run(
        script("""
        import functools, jax, jax.numpy as jnp

        class Config:
            asked = []
            __repr__ = lambda self: Config.asked.append("repr") or "Config"
            __bool__ = lambda self: Config.asked.append("bool") or True

            def __getattr__(self, name):
                Config.asked.append(name)
                raise AttributeError(name)

        @functools.partial(jax.jit, static_argnums=1)
        def step(x, config):
            return x

        configs = Config(), Config()
        jax.tree_util.tree_leaves(configs)
        before = list(Config.asked)
        for config in configs:
            step(jnp.ones(3), config)
        print(*Config.asked[len(before):])
    """)
    )
    assert (code, out.strip()) == (0, "")
    assert "config another Config each time" in re.sub(" +", " ", err)
