"""What counts in the error of a program, and for which of its lines."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from equinox import internal as eqx_internal
from jax import lax

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import set_x64
from dtypeguard.testing import check_precision
from tests.support.dtypes import BF16, F32
from tests.support.helpers import normal, users_programs

pytestmark = users_programs


@pytest.mark.parametrize("size", [2.0**-85, 2.0**126])
def test_very_small_and_very_large_outputs(size):
    """Whose squares are no numbers."""
    values = jnp.linspace(0.5, 1, 64)
    scaled = lambda x: (x * BF16(1.01)) * BF16(1.01)
    report, other = (audit_precision(scaled, (s * values).astype(BF16)) for s in (1, size))
    assert report.error == other.error > 1e-3
    assert other.losses[0].share == pytest.approx(1)
    with set_x64(True):
        far = audit_precision(
            lambda x: scaled(x) * jnp.float64(size**8), values.astype(BF16)
        )
    assert (far.error, far.losses[0].share) == pytest.approx((report.error, 1))


def test_of_a_line_in_a_package_the_remedy_is_what_to_give_it():
    def loss(x, y, start=BF16):
        return optax.losses.softmax_cross_entropy(x.astype(start), y)

    x, y = 4 * normal(0, 64, 32, dtype=BF16), jax.nn.one_hot(jnp.arange(64) % 32, 32)
    report = audit_precision(loss, x, y.astype(BF16))
    (advice,) = {line for line in str(report).splitlines() if line.startswith("Compute ")}
    assert re.fullmatch("Compute the call of optax at .* in float32.", advice)
    assert audit_precision(functools.partial(loss, start=F32), x, y.astype(BF16)).error == 0


def test_of_a_package_each_line_that_calls_it_is_one_of_the_report():
    def model(layer, x):
        hidden = layer(jnp.tanh(x))
        return layer(jnp.tanh(hidden))

    layer = eqx.nn.Linear(64, 64, use_bias=False, key=jax.random.key(0))
    layer = jax.tree.map(lambda w: w.astype(BF16), layer)
    report = audit_precision(model, layer, normal(1, 64, dtype=BF16))
    products = [each for each in report.losses if each.origin.called_from]
    assert len({each.origin.line for each in products}) == 1
    callers = {each.origin.users.code.partition(" ")[0] for each in products}
    assert callers == {"hidden", "return"}


def test_an_output_that_hides_the_errors_of_the_others_is_named():
    def metrics(x, offset):
        cancels = (x + offset).mean() - offset
        return {"mean": cancels, "square": x @ x, "greatest": jnp.exp(x)}

    x = jax.random.uniform(jax.random.key(1), (256,), BF16)
    note = "Furthest off of 3 outputs: ['mean'] (100%)"
    assert note in str(audit_precision(metrics, x, BF16(300)))
    assert note not in str(audit_precision(metrics, x, BF16(0)))


def vanishing(report):
    return [path for path, output in report.outputs.items() if output.vanishes]


def attention(params, q, dtype=None):
    weights = jax.nn.softmax(q @ (q @ params["k"] + params["b"]).T)
    return jnp.var((weights @ q.astype(dtype)).astype(F32))


def of_attention(dtype, params=F32):
    """Params and queries: a softmax does not change with the bias of keys."""
    params = {"b": jnp.zeros(4, params), "k": normal(1, 4, 4, dtype=params)}
    return params, normal(0, 8, 4, dtype=dtype)


def test_an_output_that_is_0_but_for_rounding_is_named_and_not_counted():
    args = of_attention(BF16, BF16)
    report = audit_precision(jax.grad(attention), *args)
    assert vanishing(report) == ["['b']"]
    assert report.outputs["['k']"].error == report.error
    assert "only if there are no others: ['b'] (" in str(report)
    alone = audit_precision(lambda *args: jax.grad(attention)(*args)["k"], *args)
    assert report.error == pytest.approx(alone.error)
    assert len(report.fix) == len(alone.fix)


def test_what_an_optimizer_makes_of_a_gradient_of_0_is_not_counted():
    """Adam divides a gradient that is rounding alone by its size; the others count."""
    opt, (params, q) = optax.adam(1e-3), of_attention(BF16)

    def step(params, state, q):
        low = jax.tree_util.tree_map(lambda x: x.astype(BF16), params)
        updates, state = opt.update(jax.grad(attention)(low, q), state, params)
        return optax.apply_updates(params, updates), state

    report = audit_precision(step, params, opt.init(params), q)
    assert "[0]['b']" in vanishing(report)
    assert all("['b']" in path for path in vanishing(report))
    assert report.error < 0.1
    off = report.outputs["[0]['b']"].error
    assert f"[0]['b'] ({100 * off:.0f}%)" in str(report)


def test_a_sum_that_cancels_exactly_is_all_that_there_is():
    f = lambda x: jnp.sum(jax.nn.softmax(x) - jnp.exp(x) / jnp.sum(jnp.exp(x)))
    with pytest.raises(AssertionError, match="0 but for rounding, in float32 as well"):
        check_precision(f, normal(0, 50, dtype=BF16), max_error=1e-3)


def lost_to_0(x):
    return (x + 1e-3) - x


def lost_to_garbage(x):
    return jnp.mean(x * x, -1) - jnp.mean(x, -1) ** 2


LOST = {  # what is lost, its input, and the least error
    "0": (lost_to_0, jnp.full(4, 300, BF16), 0.99),
    "garbage": (lost_to_garbage, jnp.array([300, 300, 302, 302], BF16), 100),
    "far below its rounding": (lost_to_garbage, 1e4 + 1e-3 * normal(0, 64, 100), 100),
}


@pytest.mark.parametrize("name", LOST)
def test_an_output_that_is_lost_counts_in_full(name):
    """Beside one that is 0 but for rounding, and one that is not."""
    f, x, least = LOST[name]
    both = lambda x, *args: (f(x), jax.grad(attention)(*args))
    report = audit_precision(both, x, *of_attention(x.dtype, x.dtype))
    assert vanishing(report) == ["[1]['b']"]
    assert report.outputs["[0]"].error > least
    assert report.error == pytest.approx(report.outputs["[0]"].error / 2**0.5, rel=0.01)
    (loss,) = report.fix
    assert loss.origin.function == f.__name__


def stored(x):
    made = 1.3 * x
    return jnp.zeros((2, *x.shape), x.dtype).at[1].set(made)


def chosen(x):
    made = 1.3 * x
    return eqx_internal.while_loop(
        lambda carry: carry[0] < 3,
        lambda carry: (carry[0] + 1, carry[1].at[carry[0]].set(made)),
        (0, jnp.zeros((3, *x.shape), x.dtype)),
        max_steps=4,
        buffers=lambda carry: carry[1],
        kind="bounded",
    )[1]


def widened(x):
    made = 1.3 * x
    return made.astype(F32)


@pytest.mark.parametrize("f", [stored, chosen, widened])
def test_what_moves_numbers_does_not_round_them(f):
    losses = audit_precision(f, normal(0, 16, dtype=BF16)).losses
    assert [loss.origin.code for loss in losses if loss.alone] == ["made = 1.3 * x"]


def test_what_is_computed_where_it_is_stored_rounds():
    f = lambda x: x.at[:4].apply(lambda y: jnp.exp(3 * y))
    assert audit_precision(f, normal(0, 16, dtype=BF16)).losses[0].alone > 0


def floored(x):
    made = 1000.3 * x
    return jnp.floor(made), jnp.ceil(made)


def ordered(x):
    made = 0.6 * x
    return 1.0 * lax.sort((made, jnp.arange(256)), num_keys=1)[1]


def turned(x):
    made = (1.0039 * abs(x).max() / abs(x).max()).astype(F32)
    grow = lambda c: (c[0] + 1, c[1] + made)
    return lax.while_loop(lambda c: c[1] < 200.5, grow, (0.0, 0.0))[0]


@pytest.mark.parametrize("f", [floored, ordered, turned])
def test_what_a_decision_alone_changes_is_no_error_of_a_line(f):
    report = audit_precision(f, normal(0, 256, dtype=BF16))
    assert report.error > 0
    assert report.decisions.share == pytest.approx(1)
    assert not any(loss.alone for loss in report.losses)
    assert report.decisions.lines[0].origin.code.startswith("return ")
