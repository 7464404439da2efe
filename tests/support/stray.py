"""Random programs in bfloat16 with stray float32 arrays, and what each of these costs."""

import dataclasses
import functools
import linecache
import random
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from dtypeguard import audit_precision
from dtypeguard._costs.work import work_of
from dtypeguard._program.graph import Graph

BF16, F32 = jnp.bfloat16, jnp.float32
# What users write. `D` has the dtypes of what lines make: float32 is stray.
LINES = (
    # Layers
    "h = jnp.tanh(h @ w[{i}])",
    "h = jnp.tanh(h @ w[{i}] @ w[{j}])",
    "h = h @ w[{i}] + b[{j}]",
    "h = h * jax.nn.sigmoid(h @ w[{i}])",
    "h = jnp.where(h > 0, h @ w[{i}], 0.0)",
    "h = jax.nn.relu(h @ w[{i}]) + jax.nn.silu(h @ w[{j}])",
    "h = norm(h) * b[{i}]",
    "h = jnp.einsum('ab,cb->ac', h, w[{i}] * b[{j}])",
    "h = jnp.split(h @ jnp.concatenate([w[{i}], w[{j}]], 1), 2, 1)[0]",
    "h = (h.reshape(8, 16).T.reshape(16, 8) @ jnp.hstack([w[{i}], w[{j}]]))[:, 4:12]",
    "h = h + w[{i}][jnp.arange(16) % 8]",
    "h = dense(w[{i}], b[{j}])(h)",
    "h = linear(w[{i}], b[{j}])(h)",
    "h = (h.at[:, 0].set(0) @ w[{i}])[jnp.arange(16)[::-1]]",
    # Attention
    "h = jax.nn.softmax(h @ (h @ w[{i}]).T) @ h",
    "h = jax.nn.softmax(jnp.where(jnp.tri(16, dtype=bool), h @ (h @ w[{i}]).T, -1e9)) @ h",
    "h = attend(h @ w[{i}], h @ w[{j}], h)",
    # Transformations
    "h = jax.jit(lambda h, a: jnp.tanh(h @ a))(h, w[{i}])",
    "h = jax.vmap(lambda r: r @ w[{i}])(h) * 2",
    "h = jax.checkpoint(lambda h, a, b: jnp.tanh(h @ a) @ b)(h, w[{i}], w[{j}])",
    "h = jax.checkpoint(lambda h: jnp.tanh(jnp.tanh(h @ w[{i}]) @ w[{j}]))(h)",
    "h = prod(h, w[{i}])",
    "h = swish(h @ w[{i}])",
    # Loops and branches
    "h = h + jnp.sum(lax.scan(lambda c, _: (c, jnp.tanh(c @ w[{i}]) @ w[{j}]), "
    "h, None, 3)[1], 0)",
    "h = lax.scan(lambda c, a: (c, jnp.tanh(c @ a)), "
    "h, jnp.stack([w[{i}], w[{j}]]))[1].sum(0)",
    "h = lax.scan(jax.checkpoint(lambda c, x: (c, jnp.tanh((c * x) @ w[{i}]) @ w[{j}])), "
    "h, b[{i}])[1][0]",
    "h = lax.cond(x[0, 0] > 0, lambda h: jnp.tanh(h @ w[{i}]) @ w[{j}], "
    "lambda h: h @ w[{i}] @ w[{j}], h)",
    "h = lax.fori_loop(0, 2, lambda _, c: jnp.tanh(c), h) @ w[{i}]",
    # Stray dtypes
    "h = h + jnp.linspace(0, 1, 8, dtype=D[{d}])",
    "h = h * jax.random.normal(jax.random.key(0), h.shape, dtype=D[{d}])",
    "h = jnp.tanh((h * jnp.ones(8, D[{d}])) @ w[{i}])",
    "h = lax.dot(h.astype(BF16), w[{i}].astype(BF16), preferred_element_type=D[{d}])",
    "h = jnp.tanh(h.astype(BF16)).astype(D[{d}]) @ w[{i}]",
    "h = h + jax.nn.one_hot(jnp.arange(16) % 8, 8, dtype=D[{d}]) @ w[{i}]",
    "h = jax.nn.softmax(h @ (h @ w[{i}]).T + jnp.zeros((16, 16), D[{d}])) @ h",
    "h = jnp.where(h > 0, h, jnp.zeros((16, 8), D[{d}])) @ w[{i}]",
    "h = h * np.ones(8, D[{d}])",
    "h = h.astype(BF16)",
    "h = norm(h.astype(BF16)).astype(D[{d}])",
    "h = lax.scan(lambda c, a: (c + a, jnp.tanh(c @ w[{i}])), "
    "jnp.zeros((16, 8), D[{d}]) + h, h[None])[1][0]",
)
# What a program becomes before it is audited.
TRANSFORMS = {
    "loss": lambda f: f,
    "grad": lambda f: jax.grad(f, (0, 1)),
    "remat": lambda f: jax.grad(jax.checkpoint(f), (0, 1)),
    "jit": lambda f: jax.jit(jax.value_and_grad(jax.jit(f), (0, 1))),
    "vmap": lambda f: jax.grad(
        lambda w, b, x: jnp.mean(jax.vmap(f, (None, None, 0))(w, b, jnp.stack([x, -x]))),
        (0, 1),
    ),
    "train": lambda f: lambda w, b, x: trained(f, w, b, x),
    "accumulated": lambda f: (
        lambda w, b, x: lax.scan(
            lambda s, x: (s + f(w, b, x), jax.grad(f)(w, b, x)), 0.0, jnp.stack([x, -x])
        )
    ),
}


@jax.custom_vjp
def prod(x, w):
    return x @ w


def _backward(saved, g):
    x, w = saved
    return (g @ w.T).astype(x.dtype), (x.T @ g).astype(w.dtype)


prod.defvjp(lambda x, w: (x @ w, (x, w)), _backward)


@jax.custom_jvp
def swish(x):
    return x * jax.nn.sigmoid(x)


@swish.defjvp
def _swish(primals, tangents):
    (x,), (dx,) = primals, tangents
    s = jax.nn.sigmoid(x)
    return x * s, dx * (s + x * s * (1 - s))


def norm(h):
    wide = h.astype(F32)
    return (wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(h.dtype)


def attend(q, k, v):
    scores = jnp.einsum("td,sd->ts", q, k) / jnp.sqrt(8.0).astype(BF16)
    scores = jnp.where(jnp.tri(16, dtype=bool), scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores.astype(F32)).astype(scores.dtype)
    return jnp.einsum("ts,sd->td", weights, v)


def dense(kernel, bias):
    from flax import linen

    params = {"params": {"kernel": kernel, "bias": bias}}
    return lambda h: linen.Dense(8).apply(params, h)


def linear(weight, bias):
    layer = eqx.nn.Linear(8, 8, key=jax.random.key(0))
    layer = eqx.tree_at(lambda m: (m.weight, m.bias), layer, (weight, bias))
    return jax.vmap(layer)


def trained(f, w, b, x):
    """The gradient after a step of SGD."""
    opt = optax.sgd(0.1, momentum=0.9)
    updates, _ = opt.update(jax.grad(f)(w, b, x), opt.init(w), w)
    return jax.grad(f)(optax.apply_updates(w, updates), b, x)


@dataclasses.dataclass(frozen=True)
class Program:
    """A random program.

    Attributes:
        name: of its file.
        body: its lines.
        transform: what it becomes, a name of `TRANSFORMS`.
        strays: its float32 arrays: leaves such as "w[1]", and "D[2]" for lines.
    """

    name: str
    body: tuple[str, ...]
    transform: str
    strays: frozenset[str]

    @property
    def text(self) -> str:
        lines = ("h = x", *self.body, "return jnp.mean(h.astype(F32))")
        return "def f(w, b, x):\n" + "".join(f"    {line}\n" for line in lines)

    def function(self, strays):
        linecache.cache[self.name] = (0, None, self.text.splitlines(True), self.name)
        dtypes = [F32 if f"D[{n}]" in strays else BF16 for n in range(len(self.body))]
        space = {**globals(), "np": np, "D": dtypes}
        exec(compile(self.text, self.name, "exec"), space)
        return TRANSFORMS[self.transform](space["f"])

    def args(self, strays):
        def leaves(letter, *shape):
            dtypes = [F32 if f"{letter}[{n}]" in strays else BF16 for n in range(5)]
            return [jax.ShapeDtypeStruct(shape, dtype) for dtype in dtypes]

        x = jax.ShapeDtypeStruct((16, 8), BF16)
        return leaves("w", 8, 8), leaves("b", 8), x

    def report(self):
        return audit_precision(
            self.function(self.strays), *self.args(self.strays), narrow=BF16
        )


@functools.cache
def wide_work(program: Program, strays: frozenset[str]) -> float:
    """The operations of a program that run wide with these strays alone."""
    made = jax.make_jaxpr(program.function(strays))(*program.args(strays))
    return work_of(Graph(made), BF16).flops.get("float32", 0.0)


def program(seed: int, lines=LINES) -> Program:
    """A program of some lines."""
    draw = random.Random(seed)
    index = lambda: draw.randrange(4)
    body = tuple(
        draw.choice(lines).format(i=index(), j=index(), d=n)
        for n in range(draw.randint(2, 6))
    )
    transform = draw.choice(list(TRANSFORMS))
    leaves = draw.sample([f"{k}[{n}]" for k in "wb" for n in range(4)], draw.randint(0, 2))
    dtypes = [f"D[{n}]" for n, line in enumerate(body) if "D[" in line]
    dtypes = draw.sample(dtypes, draw.randint(0, min(2, len(dtypes))))
    return Program(f"stray_{seed}.py", body, transform, frozenset(leaves + dtypes))


def wrong_figures(program: Program) -> list[str]:
    """The figures of a report that differ from those measured, one line each."""
    report = program.report()
    assert report.work is not None
    total = sum(report.work.flops.values())
    found, wrong = set(), []
    for cost in report.costs:
        stray = str(cost.cause)
        if not isinstance(cost.cause, str):
            named = re.search(r"D\[\d\]", cost.cause.code)
            stray = named[0] if named else cost.cause.code
        if stray not in program.strays:
            wrong.append(f"{stray} is no source")
            continue
        found.add(stray)
        alone = wide_work(program, frozenset([stray])) / total
        others = program.strays - {stray}
        saves = wide_work(program, program.strays) - wide_work(program, others)
        for name, said, true in (
            ("share", cost.share, alone),
            ("saves", cost.saves, saves / total),
        ):
            if abs(said - true) > 1e-6:
                wrong.append(f"{stray} {name} {said:.3f}, measured {true:.3f}")
    for stray in sorted(program.strays - found):
        alone = wide_work(program, frozenset([stray])) / total if total else 0
        if alone > 0.0101:
            wrong.append(f"{stray} is missing, {alone:.3f}")
    return wrong
