"""audit_precision on odd programs, in every mode of 64-bit types: shares, errors, flags."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from dtypeguard import audit_precision
from tests.support.dtypes import BF16, F32, I32
from tests.support.helpers import (
    need,
    needs_explicit_x64,
    needs_numbers,
    normal,
    set_explicit_x64,
    set_x64,
    some,
)

pytestmark = [pytest.mark.third_party, needs_numbers]
X = normal(1, 4, 4, dtype=BF16)  # its error is not of the last rounding alone


def total(x):
    return jnp.sum(x.astype(F32))


def nested(x):
    """A scan in a scan, under vmap, in a gradient."""

    def inner(h, _):
        return jnp.tanh(h * x[0]) * 1.01, h[0]

    def loss(w, x):
        outer = lambda h, _: lax.scan(inner, h * w, None, 3)
        h, ys = lax.scan(outer, x, None, 4)
        return total(h) + total(ys * w[0])

    return jax.grad(lambda w: jnp.sum(jax.vmap(loss, (None, 0))(w, x)))(x[1])


def branches(x):
    grow = lambda x: lax.while_loop(lambda c: c[0] < 5, lambda c: c * 1.3 + 1, jnp.abs(x))
    return lax.cond(x[0] > 0, grow, lambda x: x * 0.7, x)


ODD = {
    "nested": nested,
    "branches": jax.vmap(branches),
    "complex": lambda x: jnp.fft.fft(jnp.exp(1j * (1.3 * x).astype(F32)) * x).imag,
    "empty": lambda x: (jnp.concatenate([x, x[:0]]) * 1.3, jnp.sum(x[:0])),
}
MODES = {
    "off": contextlib.nullcontext,
    "on": lambda: set_x64(True),
    "error": lambda: set_explicit_x64("error"),
}


@pytest.mark.parametrize(
    "mode", ["off", "on", pytest.param("error", marks=needs_explicit_x64)]
)
@pytest.mark.parametrize("name", some(ODD, 3))
def test_an_odd_program(name, mode):
    with MODES[mode]():
        before = dict(jax.config.values)
        report = audit_precision(ODD[name], X)
        assert dict(jax.config.values) == before
    assert 0 < report.error < 0.1, report
    assert not report.not_examined
    # A gradient comes back in bfloat16; the turns of a loop are no rounding.
    assert report.left < 0.2 or report.decisions.share > 0.9


def test_a_step_of_flax_in_place_and_one_of_equinox_in_jit():
    """Each returns its loss; what Flax's changes are outputs as well."""
    eqx, nnx = need("equinox"), need("flax.nnx")
    model = nnx.Linear(4, 3, param_dtype=BF16, rngs=nnx.Rngs(0))

    @nnx.jit
    def in_place(model, x):
        loss, grads = nnx.value_and_grad(lambda model: total(model(x) ** 2))(model)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.01 * g, nnx.state(model), grads))
        return loss

    before = model.kernel[...]
    report = audit_precision(in_place, model, X)
    assert model.kernel[...] is before
    assert "" in report.outputs
    assert any("kernel" in path for path in report.outputs), report.outputs
    assert 0 < report.error < 0.1

    linear = eqx.nn.Linear(4, 3, dtype=BF16, key=jax.random.key(0))
    jitted = eqx.filter_jit(lambda m, x: total(jax.vmap(m)(x) ** 2) * m.in_features)
    assert 0 < audit_precision(jitted, linear, X, seconds=0).error < 0.1
    grad = eqx.filter_grad(jitted)
    assert [*audit_precision(grad, linear, X, seconds=0).outputs] == [".weight", ".bias"]


def test_a_flax_module_that_changes_in_place_is_an_argument_of_its_method():
    nnx = need("flax.nnx")
    rngs = nnx.Rngs(0)
    norm = nnx.BatchNorm(4, rngs=rngs)
    model = nnx.Sequential(nnx.Linear(4, 4, param_dtype=BF16, rngs=rngs), norm)
    before = norm.mean[...]
    for function in (model, model.__call__):
        assert "[1][0].layers[1].mean" in audit_precision(function, X).outputs
    assert norm.mean[...] is before
    model.eval()
    report = audit_precision(model, X, reference=lambda x: model(x))
    assert report.differences[0].verdict == "rounding"


@pytest.mark.optimized
def test_an_error_that_xla_alone_makes_is_told():
    """XLA multiplies and subtracts at once, where both products are equal."""
    report = audit_precision(
        lambda x: x[-1] * x[-1] - jnp.max(x) * jnp.max(x), jnp.linspace(0.1, 1.3, 7)
    )
    assert not report.error
    assert "off as XLA compiles it here" in report.headline


def test_lines_have_no_share_of_no_error():
    """Both runs find the number nearest to a whole one that they have."""
    part = lambda time: time.astype(F32) - time.astype(F32).astype(I32)
    report = audit_precision(lambda time: part(time) * 0.1, I32(2**30 + 1), wide="float64")
    assert "those of float64" in report.headline
    assert not report.losses
    assert "decisions" not in str(report)
