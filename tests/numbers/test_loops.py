"""Loops run turn by turn, or compiled: both compute the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from plans_run import Planned, assert_same

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS
from dtypeguard._numbers import plans, run as run_module
from dtypeguard._numbers.run import Probes, run

pytestmark = pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")
BF16, F32 = jnp.bfloat16, jnp.float32


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


X, W = normal(0, 5, 4), normal(1, 4, 4) / 2


def recurrent(x, w):
    def step(h, row):
        h = jnp.tanh(h @ w + row)
        return h, jnp.sum(h * jax.nn.softmax(h))

    return lax.scan(step, jnp.zeros_like(x[0]), x, reverse=True, unroll=2)


def nested(x, w):
    def step(h, row):
        inner = lambda h, _: (jnp.sin(h * 1.1), h)
        h, rows = lax.scan(inner, h, None, 3)
        return h + row, rows.sum(0)

    return lax.scan(step, x[0], x)


def branches(x, w):
    def step(h, row):
        h = lax.cond(h[0] > row[0], lambda h: h * 1.3, jnp.sin, h)
        best = jnp.argmax(h)
        return h, (h[best], jnp.sort(h))

    return lax.scan(step, x[0], x)


def counted(x, w):
    grow = lambda n, h: jnp.tanh(h @ w) + h * 0.9
    return lax.fori_loop(0, jnp.argmax(x[0]) + 2, grow, x)


def grows(x, w):
    return lax.while_loop(lambda h: jnp.sum(h) < 50, lambda h: h * 1.3, jnp.abs(x))


def loops_of_loops(x, w):
    """The inner loop takes other turns each time, and decides in each."""

    def step(h, row):
        grow = lambda h: jnp.where(h > jnp.mean(h), h * 1.5, h + 1)
        h = lax.while_loop(lambda h: jnp.max(h) < 9, grow, h)
        return h * 0.5 + row, h

    return lax.scan(step, x[0], x)


def each_grows(x, w):
    return jax.vmap(lambda h: grows(h, w))(x)


def gradient(x, w):
    loss = lambda w: jnp.sum(recurrent(x, w)[1].astype(F32) ** 2)
    return jax.grad(loss)(w)


def nothing_done(x, w):
    """Of no turn."""
    return lax.scan(lambda h, row: (h * 1.3, row * 1.1), x[0], x[:0])


PROGRAMS = [
    *(recurrent, nested, branches, counted, grows, each_grows, gradient),
    *(loops_of_loops, nothing_done),
]
PLANS = {
    "as written": plans.written,
    "wide": plans.wide,
    "all lines round": lambda program: plans.rounding(program, range(len(program.lines))),
}


def all_plans(program):
    for name, plan in PLANS.items():
        yield name, plan(program)
    for keeps in (True, False):
        yield f"a line wide, {keeps}", plans.wide_lines(program, [0], keeps)


FORMATS = {"bfloat16": (BF16, None), "narrow": (F32, BF16)}


@pytest.mark.parametrize(
    ("f", "formats"),
    [
        pytest.param(
            *(f, formats),
            marks=[pytest.mark.exhaustive] * (formats == "narrow" and f is not branches),
            id=f"{f.__name__}-{formats}",
        )
        for f in PROGRAMS
        for formats in FORMATS
    ],
)
def test_compiled_loops_compute_as_loops_do_turn_by_turn(f, formats, monkeypatch):
    dtype, narrow = FORMATS[formats]
    planned = Planned(f, X.astype(dtype), W.astype(dtype), narrow=narrow)
    own = jax.tree_util.tree_leaves(jax.jit(f)(X.astype(dtype), W.astype(dtype)))
    program, made, decided = planned.program, {}, {}
    for most in (0, 10**6):
        monkeypatch.setattr(run_module, "_MOST_EAGER", most)
        planned.decisions = None
        assert_same(planned.written(), planned.rounding(), most)
        decided[most] = planned.decisions
        for name, plan in all_plans(program):
            given = None if name == "as written" else planned.decisions
            made[most, name] = run(program, plan, planned.arrays, Probes(given=given))
    for name, _ in all_plans(program):
        assert_close(made[0, name], made[10**6, name], name)
    for n in decided[0].keys() & decided[10**6].keys():
        assert_same([decided[0][n]], [decided[10**6][n]])
    for one, other in zip(own, made[0, "as written"]):
        assert one.dtype == other.dtype or narrow
        assert one.shape == other.shape


def assert_close(first, second, name):
    """In 16 bits the same; in wider types XLA may add in another order."""
    for one, other in zip(first, second):
        assert one.dtype == other.dtype, name
        is_wide = one.dtype.itemsize > 2
        one, other = (np.asarray(x).astype(np.float64) for x in (one, other))
        rtol = 2e-6 if is_wide else 0
        np.testing.assert_allclose(one, other, rtol, rtol, err_msg=name)


def solved(w, y):
    """Steps up to 1, as a solver chooses them: a step of 0 is not a number."""

    def slope(y):
        once = lambda state: (state[0] + 1, jnp.tanh(w @ y))
        return lax.while_loop(lambda state: state[0] < 1, once, (0, y))[1]

    def step(state):
        t, h, y = state
        h = jnp.minimum(h, 1 - t)
        rate = h * slope(y) / h
        longer = jnp.where(jnp.sum(rate**2) < 2, 1 / 16, 1 / 64)
        return t + h, longer.astype(h.dtype), y + h * rate

    start = jnp.zeros((), y.dtype), jnp.full((), 1 / 16, y.dtype), y
    return lax.while_loop(lambda state: state[0] < 1, step, start)[2]


def test_a_solver_takes_the_steps_that_are_followed():
    """In wide types it needs half of the turns by itself."""
    w, y = normal(1, 3, 3).astype(BF16), jnp.ones(3, BF16)
    report = audit_precision(solved, w, y)
    exact = solved(w.astype(F32), y.astype(F32))
    off = jnp.linalg.norm(solved(w, y).astype(F32) - exact) / jnp.linalg.norm(exact)
    assert report.error == pytest.approx(float(off), rel=1e-3)
    assert report.decisions.lines


def test_wide_types_that_are_finite_with_their_own_decisions_alone():
    """In bfloat16 0.9982 is 1, which is above 0.9985."""

    def f(x, y):
        more = (x + y).astype(F32) - 0.9985
        return jnp.where(more > 0, jnp.log(more), -7.0)

    x, y = jnp.ones(3, BF16), jnp.array([-0.0018, 0.5, 1], BF16)
    report = audit_precision(f, x, y)
    exact = f(x.astype(F32), y.astype(F32))
    off = jnp.linalg.norm(f(x, y) - exact) / jnp.linalg.norm(exact)
    assert report.error == pytest.approx(float(off), rel=1e-3)
    assert [line.flipped for line in report.decisions.lines] == [1]
