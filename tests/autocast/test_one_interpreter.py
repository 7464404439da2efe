"""A plan gives the same numbers eager, where it is measured, and emitted by `autocast`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import dtypeguard
from dtypeguard import Plan
from dtypeguard._autocast.decide import by_plan
from dtypeguard._autocast.plan import PlanEntry
from dtypeguard._numbers import plans
from dtypeguard._numbers.formats import Formats
from dtypeguard._numbers.program import NumericProgram
from dtypeguard._numbers.run import run
from dtypeguard._program.aligned import SecondTraces
from tests.support.helpers import needs_numbers, normal

pytestmark = needs_numbers
_W, _X = normal(0, 8, 8) / 3, normal(1, 4, 8)
_FLOAT32, _LEAST = jnp.dtype("float32"), jnp.finfo(jnp.float32).min


def scanned(w, x):
    layer = jax.checkpoint(lambda x, _: (x + jax.nn.gelu(x @ w) @ w.T, jnp.sum(x)))
    y, sums = lax.scan(layer, x, None, 5)
    return jnp.mean(y**2) + 1e-3 * jnp.sum(sums)


def attention(w, x):
    scores = jnp.where(jnp.tril(jnp.ones((4, 4), bool)), x @ w @ x.T, _LEAST)
    return jnp.sum((jax.nn.softmax(scores) @ x) ** 2)


def looped(w, x):
    return lax.while_loop(
        lambda c: c[1] < 4, lambda c: (jnp.tanh(c[0] @ w), c[1] + 1), (x, 0)
    )


@jax.custom_vjp
def _straight(w, x):
    return jnp.round(x @ w)


_straight.defvjp(
    lambda w, x: (jnp.round(x @ w), (w, x)), lambda kept, g: (kept[1].T @ g, g @ kept[0].T)
)


def straight_through(w, x):
    return jnp.sum(_straight(w, x) ** 2)


_PROGRAMS = {
    "a loop and what it computes again": jax.grad(scanned),
    "a mask": jax.value_and_grad(attention, (0, 1)),
    "a loop of unknown length": looped,
    "a rule of its own": jax.grad(straight_through, (0, 1)),
}


def _op_by_op(jaxpr):
    """The results of a jaxpr as written, with no two equations compiled as one."""
    program = NumericProgram(jaxpr, Formats(_FLOAT32), SecondTraces())
    return run(program, plans.written(program), [_W, _X])


_ENTRY = PlanEntry("test_one_interpreter.py:attention", "jax.nn.softmax(scores)")
_CASES = [(name, Plan("bfloat16", x)) for name in _PROGRAMS for x in ("products", "all")]


@pytest.mark.parametrize(
    ("name", "plan"), [*_CASES, ("a mask", Plan("bfloat16", "all", (_ENTRY,)))]
)
def test_eager_and_emitted_agree(name, plan):
    f = lambda w, x: jax.tree.leaves(_PROGRAMS[name](w, x))
    program = NumericProgram(
        jax.make_jaxpr(f)(_W, _X), Formats(_FLOAT32, plan.narrow), SecondTraces()
    )
    made = run(program, by_plan(program, plan), [_W, _X], formats=Formats(_FLOAT32))
    emitted = _op_by_op(jax.make_jaxpr(dtypeguard.autocast(f, plan))(_W, _X))
    assert any(np.any(x != y) for x, y in zip(emitted, f(_W, _X)))
    for one, other in zip(made, emitted):
        np.testing.assert_array_equal(one.astype(other.dtype), other)
