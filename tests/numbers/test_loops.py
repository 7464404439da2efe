"""Loops and branches compute what JAX computes of them, until they are not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from dtypeguard import audit_precision
from dtypeguard._numbers import plans
from dtypeguard._numbers.probes import Probes, note_decisions
from dtypeguard._numbers.run import run
from tests.support.dtypes import BF16, F32
from tests.support.helpers import marked, needs_numbers, normal, off
from tests.support.plans_run import Planned, assert_same

pytestmark = needs_numbers
X, W = (normal(n, 5 - n, 4) / (n + 1) for n in range(2))


def recurrent(x, w):
    def step(h, row):
        h = jnp.tanh(h @ w + row)
        return h, jnp.sum(h * jax.nn.softmax(h))

    return lax.scan(step, jnp.zeros_like(x[0]), x, reverse=True, unroll=2)


def nested(x, w):
    def step(h, row):
        h, rows = lax.scan(lambda h, _: (jnp.sin(h * 1.1), h), h, None, 3)
        return h + row, rows.sum(0)

    return lax.scan(step, x[0], x)


def branches(x, w):
    def step(h, row):
        h = lax.cond(h[0] > row[0], lambda h: h * 1.3, jnp.sin, h)
        return h, (h[jnp.argmax(h)], jnp.sort(h))

    return lax.scan(step, x[0], x)


def grows(x, w):
    return lax.while_loop(lambda h: jnp.sum(h) < 50, lambda h: h * 1.3, jnp.abs(x))


def loops_of_loops(x, w):
    """The inner loop takes other turns each time, and decides in each."""

    def step(h, row):
        grow = lambda h: jnp.where(h > jnp.mean(h), h * 1.5, h + 1)
        h = lax.while_loop(lambda h: jnp.max(h) < 9, grow, h)
        return h * 0.5 + row, h

    return lax.scan(step, x[0], x)


PROGRAMS = [  # with the dtype of their inputs, and one as if all were narrow
    *((f, BF16, None) for f in (recurrent, nested, grows, loops_of_loops)),
    (branches, BF16, None),
    (branches, F32, BF16),
]


@pytest.mark.parametrize("f", [recurrent, nested, grows, loops_of_loops, branches])
def test_as_written_and_wide_they_compute_what_jax_computes_turn_by_turn(f):
    arrays = X.astype(BF16), W.astype(BF16)
    planned = Planned(f, *arrays)
    with jax.disable_jit():
        written = jax.tree.leaves(f(*arrays))
        exact = jax.tree.leaves(f(*(array.astype(F32) for array in arrays)))
    assert_close(planned.written(), written)
    assert_close(planned.wide(), exact)
    assert_same(planned.written(), planned.rounding())


@pytest.mark.parametrize(("f", "dtype", "narrow"), PROGRAMS)
def test_a_whole_that_is_compiled_computes_and_decides_as_its_equations(f, dtype, narrow):
    planned = Planned(f, X.astype(dtype), W.astype(dtype), narrow=narrow)
    program = planned.program
    for plan in (plans.written(program), plans.wide(program)):
        probes, expected = Probes(note_decisions), Probes(note_decisions)
        results = run(program, plan, planned.arrays, probes, is_compiled=True)
        assert_close(results, run(program, plan, planned.arrays, expected))
        assert probes.noted.keys() == expected.noted.keys()
        for key, decision in expected.noted.items():
            np.testing.assert_array_equal(probes.noted[key], decision)


def assert_close(first, second):
    """In 16 bits the same; in wider types XLA may add in another order."""
    for one, other in zip(first, second):
        assert one.dtype == other.dtype
        rtol = 2e-6 if one.dtype.itemsize > 2 else 0
        one, other = (np.asarray(x).astype(np.float64) for x in (one, other))
        np.testing.assert_allclose(one, other, rtol, rtol)


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


def crosses(x, y):
    """In bfloat16 0.9982 is 1; in wide types the logarithm of what is less is NaN."""
    more = (x + y).astype(F32) - 0.9985
    return jnp.where(more > 0, jnp.log(more), -7.0)


SLOPES = jnp.array([[-0.154, 0.0845, -0.136], [-0.155, 1.27, 0.148], [2.14, 1.0, -0.291]])
DECIDES = {
    "a solver that needs half of the turns": (solved, SLOPES, jnp.ones(3)),
    "a branch": (crosses, jnp.ones(3), jnp.array([-0.0018, 0.5, 1])),
}


@pytest.mark.parametrize("name", DECIDES)
def test_in_wide_types_a_program_makes_its_own_decisions(name):
    f, *wide = DECIDES[name]
    narrow = [x.astype(BF16) for x in wide]
    report = audit_precision(f, *narrow)
    exact = f(*(x.astype(F32) for x in narrow))
    assert report.error == pytest.approx(off(f(*narrow), exact), rel=1e-3)
    assert report.decisions.lines


def test_a_loop_that_hands_on_an_array_of_numpy():
    """Which a program of JAX 0.12 holds in a class of its own."""
    held = np.arange(3)
    f = lambda x: lax.scan(lambda x, _: (x * 1.1, held), x, length=4)
    assert 0 < audit_precision(f, jnp.ones(3, BF16)).error < 0.1


def scanned(x, w):
    activation = lambda h: jnp.tanh(h) * 1.7
    x = lax.dynamic_update_slice(jnp.exp(x), -x[:, :1], (0, 0))

    def step(x, _):
        h = jnp.dot(x, w, out_sharding=P("data"))
        made = jax.sharding.auto_axes(activation, out_sharding=P("data"))(h)
        return made, jax.sharding.reshard(x, P())

    last, steps = lax.scan(step, x, None, 3)
    return jnp.mean(jnp.asarray(last, F32) ** 2) + jnp.mean(jnp.asarray(steps, F32))


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="needs JAX >= 0.10")
def test_the_error_of_a_gradient_is_near_that_of_the_compiled_program(devices):
    mesh = jax.make_mesh(
        (devices,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,)
    )
    draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape, BF16)
    g = jax.grad(scanned, 1)
    with jax.set_mesh(mesh):
        x, w = jax.device_put(draw(0, 8, 4), P("data")), draw(1, 4, 4)
        error = audit_precision(g, x, w).error
        made, exact = (jax.jit(g)(x.astype(d), w.astype(d)) for d in (BF16, F32))
    assert error / 4 < off(made, exact) < 4 * error


UP_TO_1 = jax.device_put(np.linspace(0.5, 1, 4))


def scanned_to_infinity(x, turns=5):
    """Its second step makes the infinity, and the later ones compute with it."""

    def step(carry, _):
        other = carry + 1
        carry = jnp.exp(40 * carry)  # infinite
        return carry, other

    carry, others = lax.scan(step, x, None, turns)
    return carry, others.sum(0)


def looped(x):
    def body(carry):
        n, x = carry
        halves = lax.cond(n > 1, lambda x: jnp.log(x - 9), lambda x: x / 2, x)  # infinite
        return n + 1, halves

    return lax.while_loop(lambda carry: carry[0] < 4, body, (0, x))[1] * 2


def batched(x):
    grow = lambda x: jnp.exp(30 * x)  # infinite
    return jax.vmap(lambda x: lax.while_loop(lambda x: x < 1e30, grow, x) * 2)(x)


def jitted(x):
    safe = jnp.where(x > 9, jnp.exp(1000 * x), x)  # what is selected away is no cause
    _, ordered = lax.sort((jnp.log(0 * x), -safe), num_keys=1)  # nor what is left out
    return jax.jit(jnp.log)(ordered)  # infinite


def masked(x):
    scores = jnp.where(x > 0.7, x, -jnp.inf)  # a constant
    return jax.nn.softmax(scores) / (x - x)  # infinite


def gradient(x):
    roots = lambda x: jnp.sqrt(x * 0)  # infinite
    return jax.grad(lambda x: roots(x).sum())(x)


def carried(x):
    """The infinity comes into the loop, which makes none."""
    large = jnp.exp(2000 * x)  # infinite
    return lax.scan(lambda carry, _: (carry * 0.5 + 1, None), large, None, 3)[0]


# Loops of many turns are compiled.
COMPILED = pytest.param(scanned_to_infinity, (1500,), id="compiled")
PROGRAMS = scanned_to_infinity, looped, batched, jitted, masked, gradient, carried


@pytest.mark.parametrize(
    ("f", "turns"), [*(pytest.param(f, (), id=f.__name__) for f in PROGRAMS), COMPILED]
)
def test_the_first_equation_whose_result_is_not_finite_is_named(f, turns):
    place = rf"what \S*test_loops\.py:{marked(f, '# infinite')} makes"
    with pytest.raises(ValueError, match=rf"not finite in float64 either.*{place}"):
        audit_precision(f, UP_TO_1, *turns)


def test_an_input_that_is_no_number_is_named():
    total = lambda start, x: lax.scan(lambda c, x: (c + x, c), start, x)[0]
    with pytest.raises(ValueError, match=r"First the input x is not"):
        audit_precision(total, 0.0, UP_TO_1 * jnp.nan)


def test_what_leads_to_no_output_does_not_hide_the_line():
    def f(x, y):
        chosen = jnp.where(y**3 > 1.0, 1.0, 2.0)
        return x * 2 * chosen

    x, y = jnp.array([1e5, 2.0]), jnp.array([300.0, 2.0])
    assert audit_precision(f, x, y, narrow=jnp.float16).not_finite is not None
