"""What `dtypeguard run` says of functions that are compiled again: the lines."""

import re
import sys

import jax
import pytest
from helpers import need

from dtypeguard._source.files import short_path

_INFO = getattr(jax.make_jaxpr(lambda x: x)(1.0).jaxpr, "debug_info", None)
pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(
        not getattr(_INFO, "result_paths", None), reason="results have no names here"
    ),
]

# Scripts, each with rows of its list. A name after a `#` stands for its line.
# Then it is known which line inside of a function made what it returned.
IS_RECORDED = sys.version_info >= (3, 12)
LISTED = {
    "an optimizer": (
        """
        import jax, jax.numpy as jnp, optax

        params = {"w": jnp.ones((4, 4), jnp.bfloat16)}
        opt = optax.adam(1e-3)
        state = opt.init(params)

        @jax.jit
        def step(params, state, x):
            grads = jax.grad(lambda p: jnp.sum((x @ p["w"]) ** 2))(params)
            grads = {"w": grads["w"].astype(jnp.float32)}  # the cast
            updates, state = opt.update(grads, state, params)  # the update
            return {"w": params["w"] + updates["w"]}, state, grads["w"].sum()

        for _ in range(3):
            params, state, value = step(params, state, jnp.ones((8, 4), jnp.bfloat16))
        """,
        [
            r"\n    state\[0\]\.mu\['w'\]  bfloat16 -> float32  {the update}",
            r"{the update} .*  forced by {the cast}",
        ],
    ),
    "what a function closes over": (
        """
        import jax, jax.numpy as jnp, numpy as np

        def train(steps):
            scale = np.full(3, 2, np.float32)  # the constant

            @jax.jit
            def update(state, batch):
                mean = state["mean"] * scale  # the product
                return {"mean": mean, "n": state["n"] + batch["n"]}, mean.sum()  # the sum

            state = {"mean": jnp.zeros(3, jnp.float16), "n": jnp.zeros((), jnp.int32)}
            for _ in range(steps):
                state, loss = update(state, {"n": jnp.float32(1)})  # the call

        train(3)
        """,
        [
            r"state\['mean'\]  float16 -> float32  {the product}  .* by {the constant}",
            r"state\['n'\] +int32 -> float32 +{the sum}  forced by {the call}",
            r"\n(?:S|At \S+ s)tart state\['n'\] as float32 .*, or return jnp\.round\(x\)",
        ],
    ),
    "the culprit first": (
        """
        import jax, jax.numpy as jnp

        @jax.jit
        def grad(params, x):
            return jax.tree.map(lambda p: p * x, params)

        @jax.jit
        def apply(params, grads):
            add = lambda p, g: p - jnp.float32(0.1) * g  # the sum
            return jax.tree.map(add, params, grads)

        params = {"w": jnp.ones(3, jnp.bfloat16)}
        for _ in range(3):
            grads = grad(params, jnp.ones(3, jnp.bfloat16))
            params = apply(params, grads)  # the call
        """,
        [
            r"\n  apply .*\n    params\['w'\]  bfloat16 -> float32  {the sum} [^$]*\n  gr",
            r"\n  grad .*\n    params\['w'\]  bfloat16 -> float32  made at {"
            f"the {'sum' if IS_RECORDED else 'call'}}}\\n",
        ],
    ),
    "a carry of several arguments": (
        """
        import jax, jax.numpy as jnp

        @jax.jit
        def step(params, x, state):
            params = {"w": params["w"] - jnp.float32(0.1) * params["w"]}
            return x.sum(), params, {"mu": 0.9 * state["mu"] + 0.1 * params["w"]}

        params = {"w": jnp.ones(3, jnp.bfloat16)}
        state = {"mu": jnp.zeros(3, jnp.bfloat16)}
        for _ in range(3):
            loss, params, state = step(params, jnp.ones(3), state)
        """,
        [
            r"dtypeguard\.guard_step\(step, carry=\('params', 'state'\), "
            r"returned=\(1, 2\)\), or",
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

        state = {"average": 0.0}  # the state
        total = 0  # the total
        for _ in range(3):
            state = step(state, jnp.ones(3))
            total = count(total)
        """,
        [
            r"float32  begins at {the state}  promoted at {the average}",
            r"n  int32 \(weak\) -> float32 \(weak\)  {the half}  begins at {the total}\n",
        ],
    ),
    "a parameter of a name that variables of Flax have": (
        """
        import jax, jax.numpy as jnp

        @jax.jit
        def smooth(average, value):
            return 0.9 * average + 0.1 * value  # the average

        average = 0  # the start
        for n in range(3):
            average = smooth(average, jnp.float32(n))
        """,
        [
            r"average  int32 \(weak\) -> float32  begins at {the start}  "
            r"promoted at {the average}\n",
            r"\n(?:S|At \S+ s)tart average as float32: jnp\.asarray\(x, jnp\.float32\)\.",
        ],
    ),
    "an optimizer's state narrower than its params": (
        """
        import jax, jax.numpy as jnp

        def zeros(param):
            return jnp.zeros_like(param, dtype=jnp.bfloat16)  # the zeros

        @jax.jit
        def step(params, state):
            moments = lambda p, s: (0.9 * s[0] + 0.1 * p, 0.999 * s[1] + 0.001 * p * p)
            return jax.tree.map(moments, params, state)

        params = {"w": jnp.ones((3, 4)), "b": jnp.ones(4)}
        state = jax.tree.map(lambda p: (zeros(p), zeros(p)), params)
        for _ in range(3):
            state = step(params, state)
        """,
        [r"\nAt {the zeros} begin 4 leaves of [^\n]* as float32\.\nWhere a step"]
        if IS_RECORDED
        else [],
    ),
    "a weak variable of a model": (
        """
        import jax, jax.numpy as jnp

        class Model:
            def __init__(self):
                self.weight = jnp.ones(3)
                self.average = jnp.asarray(0)  # the average

        model = Model()
        tree = {"model": (model.weight, model.average)}

        @jax.jit
        def step(tree):
            weight, average = tree["model"]
            return {"model": (weight * 2, 0.9 * average + 0.1 * weight.mean())}

        for _ in range(3):
            tree = step(tree)
        """,
        [r"  begins at {the average}  promoted at "] if IS_RECORDED else [],
    ),
    "a number that is an int in one call": (
        """
        import jax, jax.numpy as jnp

        @jax.jit
        def sample(x, temperature):
            return x * temperature

        sample(jnp.ones(3), temperature=1)  # the int
        sample(jnp.ones(3), temperature=0.5)
        """,
        [r"\nAt {the int} give temperature as a Python float, such as 1\.0 for 1\.\n"],
    ),
    "a first value in 16 bits": (
        """
        import jax, jax.numpy as jnp

        @jax.jit
        def leapfrog(state):
            position, velocity, force = state
            velocity = velocity + 0.1 * force  # the kick
            return position + velocity, velocity, jnp.sin(position + velocity)

        def start():
            position = jnp.ones(3)
            return position, position, jnp.sin(position).astype(jnp.bfloat16)  # the force

        state = start()
        for _ in range(3):
            state = leapfrog(state)
        """,
        [
            r"state\[2\]  bfloat16 -> float32  {the kick} .*begins at {the force}",
            r"\nAt {the force} begin state\[2\] as float32\.\n",
        ]
        if IS_RECORDED
        else [r"state\[2\]  bfloat16 -> float32  {the kick}"],
    ),
    "a checkpoint in 16 bits": (
        """
        import jax, jax.numpy as jnp

        @jax.jit
        def step(params):
            return jax.tree.map(lambda p: p * 2, params)

        def load(params):
            return jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)  # the loading

        params = step({"w": jnp.ones(3)})
        step(load(params))
        """,
        [
            r"params\['w'\]  float32 -> bfloat16  made at {the loading}",
            r"\nCast it at {the loading}: x\.astype\(jnp\.float32\)\.\n",
        ]
        if IS_RECORDED
        else [r"params\['w'\]  float32 -> bfloat16 "],
    ),
    "the master params in their place": (
        """
        import jax, jax.numpy as jnp

        @jax.jit
        def step(state, x):
            grads = jax.grad(lambda p: jnp.sum((p * x) ** 2))(state["params"])
            wide = grads.astype(jnp.float32)
            master = state["master"] - 0.1 * wide  # the update
            return {"params": master, "master": master}

        w = jnp.ones(3)
        state = {"params": w.astype(jnp.bfloat16), "master": w}
        for _ in range(3):
            state = step(state, jnp.ones(3, jnp.bfloat16))
        """,
        [
            r"state\['params'\]  bfloat16 -> float32  {the update}(?: +begins|\n)",
            r"\n    \S+script.py:8  master = [^\n]*\nWhere a step gives back",
        ],
    ),
    "a shape": (
        """
        import jax, jax.numpy as jnp

        @jax.jit
        def step(x):
            return x * 2

        for n in (4, 4, 3):
            step(jnp.ones(n))  # the call
        """,
        [r"a shape: x is float32\[4\] then float32\[3\], at {the call}\. No type"],
    ),
    "an eager loop": (
        """
        import jax, jax.numpy as jnp
        from jax import lax

        def halve(x, factor):
            return lax.while_loop(lambda x: x.sum() > 1, lambda x: x * factor, x)  # loop

        for n in range(6):
            halve(jnp.full(3, 4.0), 0.5)

        def step(carry, x):
            return carry + x, None

        for n in range(6):
            lax.scan(step, jnp.zeros(()), jnp.ones(3))
        """,
        [
            r"run: the while_loop at {loop} was compiled 6 times, because its functions "
            r"are new each time\. Call what has it under jax\.jit\.",
        ],
    ),
    "constants": (
        """
        import functools, jax, jax.numpy as jnp

        x = jnp.ones(3)
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
            train(x, fresh, 0)
        for epoch in range(6):
            train(x, config, epoch)
        """,
        [
            r"train \({the function}\) .*: config is another Config each time",
            r", which equals none before, made at {the object}\. Make it once",
            r"train .*: epoch is 0, 1, 2, 3, \.\.\.",
            r"<lambda> \({the lambda}\) was compiled 5 times, because it was a new",
        ],
    ),
}


@pytest.mark.parametrize("case", LISTED, ids=lambda name: name.replace(" ", "_"))
def test_the_list_names_the_lines(case, run, script):
    source, rows = LISTED[case]
    listed(run, script(source), rows)


def listed(run, file, rows):
    """Asserts that a script runs, and that its list has some rows."""
    marks = {
        text.partition("  # ")[2]: f"{short_path(str(file))}:{number}"
        for number, text in enumerate(file.read_text().splitlines(), 1)
    }
    code, out, err = run(file)
    assert (code, out) == (0, "")
    for row in rows:
        row = re.sub(r"{([^}]+)}", lambda match: re.escape(marks[match[1]]), row)
        # Columns are as wide as their widest row, and lines of packages stand beside.
        row = re.sub(
            r"(?<! )  (?! )", r"(?: \\(in [^)]*\\))? +", row.removeprefix(r"\n    ")
        )
        assert re.search(row, err), (row, err)
    assert "the scan" not in err  # whose body is one function


OF_LIBRARIES = {
    "equinox": (
        """
        import equinox as eqx, jax, jax.numpy as jnp

        class Model(eqx.Module):
            weight: jax.Array
            temperature: float = 2.0

        @eqx.filter_jit
        def step(model, x):
            weight = model.weight + x.sum() * jnp.ones(3)  # the sum
            return eqx.tree_at(lambda m: m.weight, model, weight)

        @eqx.filter_jit
        def count(w, n):
            return w, jnp.asarray(n + 1)

        model = Model(jnp.ones(3, jnp.bfloat16))  # the model
        w, n = jnp.ones(3), 0  # the count
        for i in range(4):
            model = step(model, jnp.ones(3, jnp.bfloat16))
            model = eqx.tree_at(lambda m: m.temperature, model, model.temperature - 0.1)
            w, n = count(w, n)
        """,
        [
            r"model\.weight  bfloat16 -> float32  {the sum}",
            r": model\.temperature is 2\.0, 1\.9, 1\.8, 1\.7 \(begins at {the model}\)",
            r"1\.7 .* an array in a module is a parameter: pass it to step as an arg",
            r"count .* 2 times: n is 0, int32\[\] \(begins at {the count}\)\. .* an array",
        ],
    ),
    "equinox.internal": (  # equinox issue 686: a function in a module
        """
        import equinox as eqx, jax, jax.numpy as jnp
        from typing import Callable

        class Model(eqx.Module):
            weight: jax.Array
            forward: Callable

            def __init__(self, function):
                self.weight = jnp.ones(3)
                self.forward = jax.jit(function)  # the jit

        @eqx.filter_jit
        def step(model, x):
            return model.forward(model.weight * x).sum()

        double = lambda x: x * 2
        for _ in range(2):
            step(Model(double), jnp.ones(3))
        """,
        [
            r"2 times: model\.forward is another PjitFunction .*, made at {the jit}\. ",
            r"Make it once, or take jax\.jit out: step is compiled as a whole\.",
        ],
    ),
    "equinox.nn": (
        """
        import equinox as eqx, jax, jax.numpy as jnp

        class Model(eqx.Module):
            w: jax.Array

        @eqx.filter_jit
        def step(model, batch, key):
            half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), model)  # the cast
            return batch.sum(), half, key

        model = Model(jnp.ones(3))
        for _ in range(2):
            loss, model, key = step(model, jnp.ones(2), jax.random.key(0))
        """,
        [r"model\.w  float32 -> bfloat16  {the cast}"],
    ),
    "flax.nnx": (
        """
        import jax, jax.numpy as jnp
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

        model, losses = Model(), nnx.metrics.Average("loss")
        for _ in range(3):
            train(model, losses, jnp.ones(2))
        for _ in range(5):
            nnx.jit(lambda model: model.count.get_value())(model)  # anew
        """,
        [
            r"model\.layers\[0\]\.kernel  bfloat16 -> float32  {the product}",
            r"<lambda> \({anew}\) was compiled 5 times, because it was a new function",
        ],
    ),
}


OTHERS = {
    "keys of another implementation": (
        """
        import jax

        @jax.jit
        def draw(key):
            return jax.random.normal(key, (3,))

        draw(jax.random.key(0))
        draw(jax.random.key(0, impl="rbg"))
        draw(jax.random.PRNGKey(0))
        """,
        [r"key  key<fry> -> key<rbg>  called at .*", r"all keys alike: jax\.random\.key"],
    ),
    "a number made an array in the call": (
        """
        import jax, jax.numpy as jnp

        @jax.jit
        def model(x):
            return jnp.sin(x)

        model(jnp.asarray(0.0))  # the weak one
        for x in jnp.linspace(-5, 5, 3):
            model(x)
        """,
        [r"x  float32 \(weak\) -> float32 .*  begins at {the weak one}\n"],
    ),
    "leaves in another order": (
        """
        import collections, jax

        @jax.jit
        def total(d):
            return sum(d.values())

        total(collections.OrderedDict(a=1.0, b=2.0))
        total(collections.OrderedDict(b=2.0, a=1.0))
        """,
        [r"another order: d\['a'\], d\['b'\] then d\['b'\], d\['a'\]\."],
    ),
    "a node without keys": (
        """
        import jax, jax.numpy as jnp

        class Node:
            def __init__(self, x):
                self.x = x

        jax.tree_util.register_pytree_node(
            Node, lambda node: ((node.x,), None), lambda _, parts: Node(*parts)
        )

        @jax.jit
        def step(key, state):
            return Node(state.x.astype(jnp.bfloat16))  # the cast

        state = Node(jnp.ones(3))
        for _ in range(2):
            state = step(jax.random.key(0), state)
        """,
        [r"state\[<flat index 0>\]  float32 -> bfloat16  {the cast}"],
    ),
    "jitted anew": (
        """
        import functools, jax, jax.numpy as jnp

        def double(scale, x):
            return x * scale

        def make(n):
            def inner(x):
                return x * n
            return jax.jit(inner)  # in a function

        x = jnp.ones(3)
        for _ in range(6):
            step = jax.jit(functools.partial(double, 2))  # of partial
            step(x)
            other = jax.jit(lambda a: double(3, a))  # of a lambda
            other(x)
            make(3)(x)
        """,
        [
            r"double \({of partial}\) was compiled 6 times, because it was a new function",
            r"<lambda> \({of a lambda}\) was compiled 6 times",
            r"inner \({in a function}\) was compiled 6 times",
        ],
    ),
    "a static counter": (
        """
        import functools, jax, jax.numpy as jnp

        @functools.partial(jax.jit, static_argnums=1)
        def scaled(x, n):
            return x * n

        for n in range(6):
            scaled(jnp.ones(3), n)
        """,
        [
            r"n is 0, 1, 2, 3, \.\.\. .*: take n out of static_argnums \(or "
            r"static_argnames\) and give an array, jnp\.asarray\(0\)\."
        ],
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_else_is_compiled_again(case, run, script):
    source, rows = OTHERS[case]
    listed(run, script(source), rows)


@pytest.mark.parametrize("library", OF_LIBRARIES)
def test_the_list_names_the_lines_of_what_a_library_jits(library, run, script):
    need(library)
    source, rows = OF_LIBRARIES[library]
    listed(run, script(source), rows)


def test_no_array_is_kept(run, script):
    """As many arrays live while a program trains as under `python`."""
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
    code, out, err = run(file)
    assert (code, out) == (0, "1 0\n")
    assert "bfloat16 -> float32" in err
