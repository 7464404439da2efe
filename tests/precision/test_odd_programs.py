"""What an audit of precision runs on: odd programs and input, in every mode and flag."""

import contextlib
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random, tree_util

from dtypeguard import audit_precision
from tests.support.dtypes import BF16, F16, F32, F64, I32
from tests.support.helpers import (
    HAS_X64_SCOPE,
    need,
    needs_explicit_x64,
    normal,
    off,
    set_explicit_x64,
    set_x64,
    some,
    users_programs,
)

pytestmark = users_programs
NARROW = normal(1, 4, 4, dtype=BF16)  # its error is not of the last rounding alone


def total(x):
    return jnp.sum(x.astype(F32))


def nested(x):
    """A scan in a scan, under vmap, in a gradient."""

    def inner(h, _):
        return jnp.tanh(h * x[0]) * 1.01, h[0]

    def loss(w, x):
        h, ys = lax.scan(lambda h, _: lax.scan(inner, h * w, None, 3), x, None, 4)
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
        report = audit_precision(ODD[name], NARROW)
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
    report = audit_precision(in_place, model, NARROW)
    assert model.kernel[...] is before
    assert "" in report.outputs
    assert any("kernel" in path for path in report.outputs), report.outputs
    assert 0 < report.error < 0.1

    linear = eqx.nn.Linear(4, 3, dtype=BF16, key=jax.random.key(0))
    jitted = eqx.filter_jit(lambda m, x: total(jax.vmap(m)(x) ** 2) * m.in_features)
    assert 0 < audit_precision(jitted, linear, NARROW, seconds=0).error < 0.1
    grad = eqx.filter_grad(jitted)
    assert [*audit_precision(grad, linear, NARROW, seconds=0).outputs] == [
        ".weight",
        ".bias",
    ]


def test_a_flax_module_that_changes_in_place_is_an_argument_of_its_method():
    nnx = need("flax.nnx")
    rngs = nnx.Rngs(0)
    norm = nnx.BatchNorm(4, rngs=rngs)
    model = nnx.Sequential(nnx.Linear(4, 4, param_dtype=BF16, rngs=rngs), norm)
    before = norm.mean[...]
    for function in (model, model.__call__):
        assert "[1][0].layers[1].mean" in audit_precision(function, NARROW).outputs
    assert norm.mean[...] is before
    model.eval()
    report = audit_precision(model, NARROW, reference=lambda x: model(x))
    assert report.differences[0].verdict == "rounding"
    # Its signature is that of its class.
    with pytest.raises(ValueError, match="First the input inputs is not"):
        audit_precision(nnx.Linear(4, 4, rngs=rngs), X * jnp.nan)


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


X = jax.device_put(np.linspace(0.1, 1, 4).astype(BF16))
SQUARE = normal(0, 5, 5)


def test_what_draws_other_numbers_in_every_run_is_not_examined():
    report = audit_precision(lambda x: x * lax.rng_uniform(0.0, 1.0, (4,)), X.astype(F32))
    assert report.not_examined == ("rng_uniform",)
    assert "but for what was not examined: rng_uniform" in str(report)


def test_what_shards_compute_is_not_examined():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("data")
    shards = jax.shard_map(jnp.tanh, mesh=mesh, in_specs=spec, out_specs=spec)
    report = audit_precision(lambda x: 1.7 * shards(x), X)
    assert report.not_examined == ("shard_map",)
    assert report.error > 0


positive = lambda x: x @ x.T + jnp.eye(len(x), dtype=x.dtype)
cg = lambda x: jax.scipy.sparse.linalg.cg(positive(x), x[0])[0]
DECOMPOSED = {
    "solve": lambda x: jnp.linalg.solve(positive(x), x),
    "eigh": lambda x: jnp.linalg.eigh(x @ x.T),
    "gradient of cg": jax.grad(lambda x: jnp.sum(cg(x))),
}


@pytest.mark.parametrize("name", DECOMPOSED)
def test_what_has_a_wide_form_runs_in_it(name):
    f = DECOMPOSED[name]
    report = audit_precision(f, SQUARE)
    assert report.run.wide == "float64"
    assert not report.not_examined
    with set_x64(True):
        exact = tree_util.tree_leaves(jax.jit(f)(SQUARE.astype(F64)))
        made = tree_util.tree_leaves(jax.jit(f)(SQUARE))
        # The sign of an eigenvector is a choice, which is that of the program.
        gaps = [off(np.abs(x), np.abs(e)) for x, e in zip(made, exact)]
        by_hand = np.sqrt(np.mean(np.square(gaps)))
    assert 0 < report.error < 1e-4
    assert by_hand / 5 < report.error < 5 * by_hand
    assert not audit_precision(f, SQUARE, narrow=BF16).not_examined


def test_a_program_as_if_it_were_in_8_bits():
    """Which special functions do not take."""
    f = lambda x: jax.scipy.special.i1e(1.3 * x) @ x
    assert 0.01 < audit_precision(f, SQUARE, narrow=jnp.float8_e4m3fn).error < 0.3


chosen = jax.jit(lambda x, mode: 1.3 * x if mode == "a" else x, static_argnames="mode")
UNTRACED = {
    "a branch": (lambda x: x * 1.3 if x[0] > 0 else x, X, "jax.lax.cond"),
    "a static float": (lambda x: chosen(x, x[0]), X, "functools.partial"),
    "another error": (lambda x: x.shape[3] * x, X, "as jax.make_jaxpr does."),
}


@pytest.mark.parametrize("name", UNTRACED)
def test_a_function_that_does_not_trace_keeps_its_error_and_gets_a_note(name):
    f, x, note = UNTRACED[name]
    with pytest.raises((TypeError, ValueError, IndexError), match=r"\w") as error:
        jax.make_jaxpr(f)(x)
    with pytest.raises(error.type, match=re.escape(str(error.value)[:40])) as found:
        audit_precision(f, x)
    assert note in found.value.__notes__[-1]


GOOD = {  # the first ones run with all tests
    "a static argument": (chosen, (X, "a")),
    "a donated argument": (lambda x: jax.jit(lambda x: 1.3 * x, donate_argnums=0)(x), (X,)),
    "empty": (lambda x, y: (1.3 * x, 1.3 * y), (jnp.zeros((0, 3), BF16), X)),
    "no argument": (lambda: 1.3 * X, ()),
    "an infinite input": (lambda x, best: (1.3 * x, best), (X, jnp.array(jnp.inf))),
    "an object": (lambda x, s: 1.3 * x, (X, object())),
    "8 bits": (lambda x: 1.3 * x.astype(BF16), (X.astype(jnp.float8_e4m3fn),)),
    "complex": (lambda x: (x * (1.3 + 2j)).astype(jnp.complex64), (X.astype("complex64"),)),
}


@pytest.mark.parametrize("name", some(GOOD, 5))
def test_unusual_input_is_measured(name):
    f, args = GOOD[name]
    report = audit_precision(f, *args)
    assert 0 < report.error < 0.04
    assert not report.not_examined
    assert len(report.fix) == 1
    assert not X.is_deleted()


def test_a_function_is_traced_twice_and_leaves_no_trace_in_the_cache_of_jit():
    calls = []

    @jax.jit
    def f(x):
        calls.append(1)
        jax.debug.print("{}", x)
        return lax.scan(lambda c, _: (c * 0.99, None), x, None, 3)[0]

    f(X)
    with jax.checking_leaks():
        assert audit_precision(f, X).error > 0
    f(X)
    assert len(calls) == 3  # as given, and of float32 arguments
    assert f._cache_size() == 1


FLAGS = {
    "promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "no jit": jax.disable_jit,
    "NaNs are errors": lambda: jax.debug_nans(True),
}


@pytest.mark.parametrize("name", FLAGS)
def test_under_the_flags_of_the_caller(name):
    step = lambda x, _: (1.3 * jnp.sin(x), None)
    with FLAGS[name]():
        report = audit_precision(lambda x: lax.scan(step, x, None, 3)[0], X)
    assert 0 < report.error < 0.05


@needs_explicit_x64
def test_a_float64_that_is_asked_for_where_x64_is_off():
    with set_explicit_x64("allow"):
        report = audit_precision(lambda x: 1.3 * x.astype(F64).sum(), X)
    assert report.error < 1e-2
    assert not jax.config.jax_enable_x64


def grown(dtype, bound):
    """A loop whose condition alone computes in a dtype."""
    go = lambda x: (x.astype(dtype) < bound).all()
    return lambda x: lax.while_loop(go, lambda x: x * 1.5, x)


def test_the_condition_of_a_loop_has_dtypes_of_its_own():
    assert audit_precision(grown(BF16, 50), jnp.ones(4)).run.wide == "float32"
    if HAS_X64_SCOPE:
        loop = grown(F64, np.float64(50))
        assert audit_precision(loop, X, x64=True).run.wide == "float32"


def test_a_check_may_refuse_inputs_that_differ_by_a_few_roundings():
    def f(ts):
        ts = eqx.error_if(ts, jnp.any(jnp.diff(ts) < 0), "not in order")
        return (ts + 100) - 100

    assert audit_precision(f, jnp.full(64, 0.3, BF16)).error > 0.1


def test_numpys_warnings_are_no_errors_of_the_audit():
    """-1e9 is infinite in float16, which NumPy warns of."""
    x = jnp.array([1.0, -2.0, 3.0], F16)
    report = audit_precision(lambda x: jax.nn.softmax(jnp.where(x > 0, x, -1e9)), x)
    assert 0 < report.error < 0.01
    assert report.losses[0].constant is None  # it makes no difference


KEY = random.key(0)
ROWS, W = normal(0, 64, 8), normal(1, 8)
NINE = normal(2, 9, dtype=BF16)

SAMPLERS = {
    "exponential": lambda key: random.exponential(key, (64,)),
    "gamma": lambda key: random.gamma(key, 2.0, (64,)),
    "gumbel": lambda key: random.gumbel(key, (64,)),
    "normal": lambda key: random.normal(key, (64,)),
    "permutation": lambda key: random.permutation(key, jnp.arange(64.0)),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_loses_nothing_and_is_finite_in_narrow_types(name):
    """Any number nearby is as good a sample."""
    sampler = SAMPLERS[name]
    assert not audit_precision(sampler, KEY).error
    f = lambda key, x, w: jnp.tanh(x @ w) + sampler(key)
    assert audit_precision(f, KEY, ROWS, W, seconds=0).error < 1e-6
    for narrow in (BF16, F16):
        report = audit_precision(f, KEY, ROWS, W, narrow=narrow, seconds=0)
        assert report.error < 0.1, report


def test_a_compiled_loop_rounds_a_narrow_sample_as_well():
    keys = random.split(KEY, 9)
    draws = lambda keys: jax.lax.map(lambda key: random.normal(key, (50,), BF16), keys)
    assert not audit_precision(draws, keys).error


def of_mean(x):
    mean = x * x * x  # loses
    return mean + random.normal(KEY, mean.shape, mean.dtype)


def of_bounds(x):
    low = jnp.tanh(x)  # loses
    return random.uniform(KEY, low.shape, low.dtype, minval=low, maxval=2.0)


@pytest.mark.parametrize("f", [of_mean, of_bounds])
def test_what_a_sampler_is_given_keeps_its_error(f):
    report = audit_precision(f, NINE)
    assert 0 < report.error < 0.1, report
    assert any("# loses" in loss.origin.code for loss in report.losses), report


def test_a_gradient_through_dropout_has_the_same_mask_on_both_sides():
    f = lambda x: eqx.nn.Dropout(0.5)(jnp.tanh(x), key=KEY).astype(F32).sum()
    assert 0 < audit_precision(jax.grad(f), NINE, seconds=0).error < 0.1


def test_what_a_user_makes_of_random_bits_is_the_users():
    def f(key):
        bits = random.bits(key, (64,))
        return jnp.log((bits >> 9).astype(F32) * 2.0**-23 + 1e-3)

    report = audit_precision(f, KEY)
    assert report.error > 0
    assert "jnp.log(" in report.losses[0].origin.code


DRAWN = {
    "normal": lambda x: random.normal(KEY, x.shape, x.dtype),
    "uniform": lambda x: random.uniform(KEY, x.shape, x.dtype),
    "truncated": lambda x: random.truncated_normal(KEY, -2, 2, x.shape, x.dtype),
    "kept": lambda x: random.bernoulli(KEY, jnp.asarray(0.3, x.dtype), x.shape),
    "integers": lambda x: random.randint(KEY, x.shape, 0, 9),
}


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("name", DRAWN)
def test_a_sample_in_the_dtype_of_an_argument_is_the_same_on_both_sides(name, dtype):
    f = lambda x: x + DRAWN[name](x).astype(x.dtype)
    x = ROWS[:, 0].astype(dtype)
    exact = np.asarray(x, np.float64) + np.asarray(DRAWN[name](x), np.float64)
    error = audit_precision(f, x, wide=F64, seconds=0).error
    assert error == pytest.approx(off(f(x), exact), rel=1e-3)
