"""Programs with references of which it is known whether they only round.

Each case is made anew for a seed: other params, other inputs.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dtypeguard._leaves.compat import set_x64
from dtypeguard._numbers.subject import Subject, formats_of
from dtypeguard._reference.comparison import comparison
from tests.support.dtypes import BF16, F32, F64

WIDTH, LENGTH, CLASSES = 32, 48, 24


@dataclasses.dataclass(frozen=True)
class Model:
    """A block of a transformer, with what a port may have otherwise.

    Attributes:
        eps: of the norms.
        act: the activation.
        scale: of the scores.
        axis: of the softmax, counted from the last.
        inner: the dtype of norms and softmax; None for that of the inputs.
        lag: how far ahead attention sees.
        parts: into how many parts sums of products are split, added from the last.
        is_fast: whether a variance is the mean of squares less the squared mean.
    """

    eps: float = 1e-5
    act: Callable[[Any], Any] = jax.nn.gelu
    scale: float = WIDTH**-0.5
    axis: int = -1
    inner: Any = None
    lag: int = 0
    parts: int = 1
    is_fast: bool = False

    def product(self, x, w):
        if self.parts == 1:
            return x @ w
        xs, ws = jnp.split(x, self.parts, -1), jnp.split(w, self.parts, 0)
        return functools.reduce(jnp.add, [a @ b for a, b in zip(xs[::-1], ws[::-1])])

    def norm(self, gain, x):
        inner = x.astype(self.inner or x.dtype)
        mean = inner.mean(-1, keepdims=True)
        if self.is_fast:
            var = (inner * inner).mean(-1, keepdims=True) - mean * mean
        else:
            var = ((inner - mean) ** 2).mean(-1, keepdims=True)
        made = (inner - mean) * jax.lax.rsqrt(var + self.eps)
        return made.astype(x.dtype) * gain

    def attend(self, params, x):
        q, k, v = (self.product(x, params[name]) for name in "qkv")
        scores = q @ k.T * self.scale
        mask = jnp.tril(jnp.ones(scores.shape, bool), self.lag)
        scores = jnp.where(mask, scores, jnp.asarray(-1e4, scores.dtype))
        weights = jax.nn.softmax(scores.astype(self.inner or x.dtype), self.axis)
        return weights.astype(x.dtype) @ v

    def __call__(self, params, x):
        x = x + self.attend(params, self.norm(params["g1"], x))
        hidden = self.act(self.product(self.norm(params["g2"], x), params["up"]))
        return x + self.product(hidden, params["down"])

    def outputs(self, params, x, labels):
        """Several outputs: activations, logits, a loss for each position, choices."""
        hidden = self(params, x)
        logits = self.product(hidden, params["head"])
        logs = jax.nn.log_softmax(logits.astype(jnp.promote_types(F32, logits.dtype)))
        losses = -jnp.take_along_axis(logs, labels[:, None], 1)[:, 0]
        chosen = jnp.argmax(logits, -1)
        return {"hidden": hidden, "logits": logits, "losses": losses, "chosen": chosen}

    def loss(self, params, x, labels):
        return self.outputs(params, x, labels)["losses"].mean()


def inputs(seed, dtype=F32):
    """Params, activations and labels."""
    sizes = {"q": WIDTH, "k": WIDTH, "v": WIDTH, "up": 64, "head": CLASSES}
    keys = iter(jax.random.split(jax.random.key(seed), 10))
    params = {
        n: jax.random.normal(next(keys), (WIDTH, m)) / WIDTH**0.5 for n, m in sizes.items()
    }
    params["down"] = jax.random.normal(next(keys), (64, WIDTH)) / 8
    params |= {n: 1 + 0.1 * jax.random.normal(next(keys), (WIDTH,)) for n in ("g1", "g2")}
    x = jax.random.normal(next(keys), (LENGTH, WIDTH))
    labels = jax.random.randint(next(keys), (LENGTH,), 0, CLASSES)
    return cast((params, x, labels), dtype)


def cast(tree, dtype):
    is_float = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    return jax.tree.map(lambda x: x.astype(dtype) if is_float(x) else x, tree)


def run(f, args, dtype=None, is_jitted=False):
    """What a function returns as NumPy arrays, for inputs in a dtype."""
    with set_x64(dtype == F64):
        given = args if dtype is None else cast(jax.tree.map(np.asarray, args), dtype)
        given = jax.tree.map(jnp.asarray, given)
        return jax.tree.map(np.asarray, (jax.jit(f) if is_jitted else f)(*given))


@dataclasses.dataclass(frozen=True)
class Case:
    """A program and a reference.

    Attributes:
        name: of the case.
        make: from a seed to the function, its arguments and the reference.
        wrong: the paths of outputs that another computation gives.
    """

    name: str
    make: Callable[[int], tuple[Any, tuple[Any, ...], Any]]
    wrong: tuple[str, ...] = ()


MINE = Model()


def of_array(name, other, dtype=F32, of=None, mine=MINE, wrong=("",), is_jitted=False):
    """A case of one output: a program in a dtype, a reference in another."""

    def make(seed):
        args = inputs(seed, dtype)[:2]
        return mine, args, run(other, args, of, is_jitted)

    return Case(name, make, wrong)


def of_function(name, other, dtype=F32, mine=MINE, wrong=("",)):
    return Case(name, lambda seed: (mine, inputs(seed, dtype)[:2], other), wrong)


def of_outputs(name, other, wrong, dtype=F32, of=None, change=lambda made, args: made):
    """A case of several outputs."""

    def make(seed):
        args = inputs(seed, dtype)
        made = run(other.outputs, args, of)
        return MINE.outputs, args, change(made, args)

    return Case(name, make, wrong)


def of_gradient(name, other, wrong=(), dtype=F32, of=None, change=lambda made: made):
    """A case of the gradient of a loss."""

    def make(seed):
        args = inputs(seed, dtype)
        return jax.grad(MINE.loss), args, change(run(jax.grad(other.loss), args, of))

    return Case(name, make, wrong)


def exactly(x):
    return jax.nn.gelu(x, approximate=False)


def _shifted(made, args):
    return made | {"losses": np.roll(made["losses"], 1)}


def _tempered(made, args):
    return made | {"logits": made["logits"] / np.float32(1.1)}


def _added(made):
    return made | {"g1": made["g1"] + np.float32(1e-2) * np.abs(made["g1"]).mean()}


WIDER = Model(inner=F32)
ROUNDING = [
    of_array("bfloat16, float32", MINE, BF16, F32, wrong=()),
    of_array("bfloat16, float64", MINE, BF16, F64, wrong=()),
    of_array("bfloat16, other casts", WIDER, BF16, wrong=()),
    of_array("other casts, bfloat16", MINE, BF16, mine=WIDER, wrong=()),
    of_array("float32, another order of sums", Model(parts=4), wrong=()),
    of_array("float32, fused", Model(is_fast=True), wrong=(), is_jitted=True),
    of_function("bfloat16, a function that casts", WIDER, BF16, wrong=()),
    of_gradient("gradients, bfloat16, other casts", WIDER, (), BF16),
]
DIFFER = [
    of_array("eps 1e-6 for 1e-5, float32", Model(eps=1e-6)),
    of_array("erf for tanh, float32", Model(act=exactly)),
    of_function("erf for tanh, functions in bfloat16", Model(act=exactly), BF16),
    of_array("no scale, bfloat16", Model(scale=1.0), BF16),
    of_array("another axis, bfloat16", Model(axis=0), BF16),
    of_array("silu for gelu, bfloat16", Model(act=jax.nn.silu), BF16),
    of_array("a mask off by one, float32 beside bfloat16", Model(lag=1), BF16, F32),
]
OUTPUTS = [
    of_outputs("losses of other positions", MINE, ("['losses']",), BF16, F32, _shifted),
    of_outputs("logits with a temperature", MINE, ("['logits']",), BF16, BF16, _tempered),
    of_outputs(
        "one class of another head",
        MINE,
        ("['chosen']",),
        F32,
        change=lambda made, args: made | {"chosen": (made["chosen"] + 1) % CLASSES},
    ),
    of_gradient("one gradient with a penalty", MINE, ("['g1']",), change=_added),
]


def compared(f, args, reference):
    """The differences and the divergence of an audit, without its lines and costs."""
    subject = Subject(f, args, None, None)
    traced = subject.traced()
    formats = formats_of(traced.avals, None, None)
    compare = comparison(reference, subject, traced, formats)
    is_on: bool = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]: of JAX
    with set_x64(formats.wide == np.float64 or is_on):
        pairs = zip(subject.given.arrays, traced.program.in_avals)
        return compare([jnp.asarray(x, aval.dtype) for x, aval in pairs])
