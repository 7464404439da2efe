"""What an audit of precision runs on: shards, decompositions, optimizers, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from equinox import internal as eqx_internal
from helpers import needs_explicit_x64, some
from jax import lax, tree_util

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS, HAS_X64_SCOPE, set_explicit_x64, set_x64
from dtypeguard.testing import check_precision

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8"),
]
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
X = jnp.linspace(0.1, 1, 4).astype(BF16)


def normal(seed, *shape, dtype=F32):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def test_what_draws_other_numbers_in_every_run_is_refused():
    f = lambda x: x * lax.rng_uniform(0.0, 1.0, (4,))
    with pytest.raises(
        ValueError, match=r"rng_uniform runs as written\. Draw random .*key"
    ):
        audit_precision(f, X.astype(F32))


def test_what_shards_compute_is_not_examined():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("data")
    shards = lambda x: jax.shard_map(jnp.tanh, mesh=mesh, in_specs=spec, out_specs=spec)(x)
    report = audit_precision(lambda x: 1.7 * shards(x), X)
    assert report.not_examined == ("shard_map",)
    assert report.error > 0


SQUARE = normal(0, 5, 5)
POSITIVE = lambda x: x @ x.T + jnp.eye(len(x), dtype=x.dtype)
cg = lambda x: jax.scipy.sparse.linalg.cg(POSITIVE(x), x[0])[0]
pooled = lambda x: lax.reduce_window(1.3 * x, -jnp.inf, lax.max, (2, 2), (2, 2), "SAME")
length = lambda a, b: jnp.sqrt(a * a + b * b)
DECOMPOSED = {  # the first ones run with all tests
    "solve": lambda x: jnp.linalg.solve(POSITIVE(x), x),
    "eigh": lambda x: jnp.linalg.eigh(x @ x.T),
    "svd": lambda x: jnp.linalg.svd(x[:3]),
    "cholesky": lambda x: jnp.linalg.cholesky(POSITIVE(x)),
    "cg": cg,
    "gradient of cg": jax.grad(lambda x: jnp.sum(cg(x))),
    "lu": jax.scipy.linalg.lu,
    "qr": jnp.linalg.qr,
    "fft": lambda x: jnp.fft.rfft(x).real,
    "max pool": jax.grad(lambda x: jnp.sum(pooled(x) ** 2)),
    "reduce": lambda x: lax.reduce(1.3 * x, np.zeros((), x.dtype), length, (1,)),
    "complex": lambda x: jnp.real(lax.complex(x, 1.3 * x) ** 2),
}


@pytest.mark.parametrize("name", some(DECOMPOSED, 2))
def test_what_has_a_wide_form_runs_in_it(name):
    f = DECOMPOSED[name]
    report = audit_precision(f, SQUARE)
    assert report.run.wide == "float64"
    assert not report.not_examined
    with set_x64(True):
        exact = tree_util.tree_leaves(jax.jit(f)(SQUARE.astype(jnp.float64)))
        made = tree_util.tree_leaves(jax.jit(f)(SQUARE))
        # The sign of an eigenvector is a choice, which is that of the program.
        gap = lambda x, e: np.linalg.norm(np.abs(x) - np.abs(e)) / np.linalg.norm(e)
        off = np.sqrt(np.mean([gap(x, e) ** 2 for x, e in zip(made, exact)]))
    assert 0 < report.error < 1e-4
    assert off / 5 < report.error < 5 * off
    narrow = audit_precision(f, SQUARE, narrow=BF16)
    assert not narrow.not_examined
    # Of some of them no line alone does: then it is the inputs, and all that follows.
    assert np.nanmin([loss.left for loss in narrow.losses]) < 0.2


def test_a_program_as_if_it_were_in_8_bits():
    """Which special functions do not take."""
    f = lambda x: jax.scipy.special.i1e(1.3 * x) @ x
    report = audit_precision(f, SQUARE, narrow=jnp.float8_e4m3fn)
    assert 0.01 < report.error < 0.3
    assert audit_precision(f, SQUARE, narrow=F16).error < 0.01


class Opaque:
    pass


def in_place(x):
    return jax.jit(lambda x: 1.3 * x, donate_argnums=0)(x)


def test_a_function_that_does_not_trace_keeps_its_error_and_gets_a_note():
    with pytest.raises(jax.errors.TracerBoolConversionError) as found:
        audit_precision(lambda x: x * 1.3 if x[0] > 0 else x, X)
    assert any("jax.lax.cond" in note for note in found.value.__notes__)
    with pytest.raises(ValueError, match="hashable") as found:
        audit_precision(jitted, X, 1.5)
    assert any("functools.partial" in note for note in found.value.__notes__)
    with pytest.raises(IndexError) as found:
        audit_precision(lambda x: x.shape[3] * x, X)
    assert found.value.__notes__[-1].endswith("as jax.make_jaxpr does.")


jitted = jax.jit(lambda x, mode: 1.3 * x if mode == "a" else x, static_argnames="mode")
GOOD = {
    "a string": (lambda x, s: 1.3 * x, (X, "a")),
    "an object": (lambda x, s: 1.3 * x, (X, Opaque())),
    "a static argument": (jitted, (X, "a")),
    "a donated argument": (in_place, (X,)),
    "empty": (lambda x, y: (1.3 * x, 1.3 * y), (jnp.zeros((0, 3), BF16), X)),
    "no argument": (lambda: 1.3 * X, ()),
    "8 bits": (lambda x: 1.3 * x.astype(BF16), (X.astype(jnp.float8_e4m3fn),)),
    "4-bit integers": (lambda x: 1.3 * x.astype(BF16), (jnp.arange(4).astype(jnp.int4),)),
    "complex": (lambda x: (x * (1.3 + 2j)).astype(jnp.complex64), (X.astype("complex64"),)),
    "a key": (
        lambda k: 1.3 * jnp.abs(jax.random.normal(k, (9,), BF16)),
        (jax.random.key(0),),
    ),
    "an infinite input": (lambda x, best: (1.3 * x, best), (X, jnp.array(jnp.inf))),
}


@pytest.mark.parametrize("name", some(GOOD, 4))
def test_unusual_input_is_measured(name):
    f, args = GOOD[name]
    before = dict(jax.config.values)
    report = audit_precision(f, *args)
    assert 0 < report.error < 0.04
    assert not report.not_examined
    assert len(report.fix) == 1
    assert dict(jax.config.values) == before
    assert not X.is_deleted()


def test_what_a_function_does_besides_is_done_once():
    done = []

    def f(x):
        done.append(1)
        jax.debug.print("{}", x)
        return 1.3 * x

    assert audit_precision(f, X).error > 0
    assert done == [1]


def test_no_trace_is_left_in_the_caches_of_jit():
    traces = []

    @jax.jit
    def f(x):
        traces.append(1)
        return 1.3 * x

    f(X)
    audit_precision(f, X)
    size, many = f._cache_size(), len(traces)
    f(X)
    assert f._cache_size() == size == 1
    assert len(traces) == many
    with jax.checking_leaks():
        audit_precision(
            jax.jit(lambda x: lax.scan(lambda c, _: (c * 0.99, None), x, None, 3)), X
        )


@pytest.mark.parametrize("context", ["promotion", "no jit", "NaNs are errors"])
def test_under_the_flags_of_the_caller(context):
    contexts = {
        "promotion": jax.numpy_dtype_promotion("strict"),
        "no jit": jax.disable_jit(),
        "NaNs are errors": jax.debug_nans(True),
    }
    with contexts[context], set_x64(context == "promotion"):
        step = lambda x, _: (1.3 * jnp.sin(x), None)
        report = audit_precision(lambda x: lax.scan(step, x, None, 3)[0], X)
    assert 0 < report.error < 0.05


@needs_explicit_x64
def test_a_float64_that_is_asked_for_where_x64_is_off():
    with set_explicit_x64("allow"):
        report = audit_precision(lambda x: 1.3 * x.astype(jnp.float64).sum(), X)
    assert report.error < 1e-2
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_very_small_and_very_large_outputs_have_shares(size):
    report = audit_precision(lambda x: x * 1.1, jnp.full(4, size, BF16))
    assert report.losses[0].share == pytest.approx(1)


def vanishing(report):
    return [path for path, output in report.outputs.items() if output.vanishes]


def attention(params, q, dtype=None):
    weights = jax.nn.softmax(q @ (q @ params["k"] + params["b"]).T)
    return jnp.var((weights @ q.astype(dtype)).astype(F32))


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_an_output_that_is_0_but_for_rounding_is_named_and_not_counted(dtype):
    """The gradient of a key's bias: a softmax does not change with it."""
    q = normal(0, 8, 4, dtype=dtype)
    params = {"b": jnp.zeros(4, dtype), "k": normal(1, 4, 4, dtype=dtype)}
    report = audit_precision(jax.grad(attention), params, q)
    assert vanishing(report) == ["['b']"]
    assert report.outputs["['k']"].error == report.error
    assert "and not counted: ['b'] (" in str(report)
    only = lambda params, q: jax.grad(attention)(params, q)["k"]
    alone = audit_precision(only, params, q)
    assert report.error == pytest.approx(alone.error)
    assert len(report.fix) == len(alone.fix)


def test_what_an_optimizer_makes_of_a_gradient_of_0_is_not_counted():
    """Adam divides a gradient that is rounding alone by its size; the others count."""
    q = normal(0, 8, 4, dtype=BF16)
    params = {"b": jnp.zeros(4), "k": normal(1, 4, 4)}
    opt = optax.adam(1e-3)

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
    report = audit_precision(f, normal(0, 50, dtype=BF16))
    assert "0 but for rounding, in float32 as well" in str(report)
    with pytest.raises(AssertionError, match="0 but for rounding"):
        check_precision(f, normal(0, 50, dtype=BF16), max_error=1e-3)


def lost_to_0(x):
    return (x + 1e-3) - x


def lost_to_garbage(x):
    return jnp.mean(x * x) - jnp.mean(x) ** 2


def lost_in_rows(x):
    return jnp.mean(x * x, 1) - jnp.mean(x, 1) ** 2


LOST = {  # what is lost, its input, and the least error
    "0": (lost_to_0, jnp.full(4, 300, BF16), 0.99),
    "garbage": (lost_to_garbage, jnp.array([300, 300, 302, 302], BF16), 100),
    "far below its rounding": (lost_in_rows, 1e4 + 1e-3 * normal(0, 64, 100), 100),
}


@pytest.mark.parametrize("name", LOST)
def test_an_output_that_is_lost_counts_in_full(name):
    """Beside one that is 0 but for rounding, and one that is not."""
    f, x, least = LOST[name]
    q = normal(0, 8, 4, dtype=x.dtype)
    params = {"b": jnp.zeros(4, x.dtype), "k": normal(1, 4, 4, dtype=x.dtype)}
    both = lambda x, params, q: (f(x), jax.grad(attention)(params, q))
    report = audit_precision(both, x, params, q)
    assert vanishing(report) == ["[1]['b']"]
    assert report.outputs["[0]"].error > least
    assert report.error == pytest.approx(report.outputs["[0]"].error / 2**0.5, rel=0.01)
    (loss,) = report.fix
    assert loss.origin.function == f.__name__


def test_numpys_warnings_are_no_errors_of_the_audit():
    """-1e9 is infinite in float16, which NumPy warns of."""
    x = jnp.array([1.0, -2.0, 3.0], F16)
    report = audit_precision(lambda x: jax.nn.softmax(jnp.where(x > 0, x, -1e9)), x)
    assert 0 < report.error < 0.01
    assert report.losses[0].constant is None  # it makes no difference


def _written(x):
    made = 1.3 * x
    cache = jnp.zeros((2, *x.shape), x.dtype).at[1].set(made)
    return cache.sum(0)


def _chosen(x):
    made = 1.3 * x
    return eqx_internal.while_loop(
        lambda carry: carry[0] < 3,
        lambda carry: (carry[0] + 1, carry[1].at[carry[0]].set(made)),
        (0, jnp.zeros((3, *x.shape), x.dtype)),
        max_steps=4,
        buffers=lambda carry: carry[1],
        kind="bounded",
    )[1]


@pytest.mark.parametrize("f", [_written, _chosen])
def test_what_moves_numbers_does_not_round_them(f):
    """Alone, a line that stores or chooses numbers costs nothing."""
    losses = audit_precision(f, normal(0, 16, dtype=BF16)).losses
    code = [loss.origin.code for loss in losses if loss.alone]
    assert code[0].startswith("made = ")
    assert all(line.startswith(("made = ", "return cache.sum")) for line in code)


def test_whole_numbers_are_decisions():
    def f(x):
        made = 1000.3 * x
        return jnp.floor(made), jnp.ceil(made)

    report = audit_precision(f, normal(0, 16, dtype=BF16))
    assert report.decisions.share == pytest.approx(1)
    assert not any(loss.alone for loss in report.losses)
    assert report.decisions.lines[0].origin.code == "return jnp.floor(made), jnp.ceil(made)"


def test_what_is_computed_where_it_is_stored_rounds():
    x = normal(0, 16, dtype=BF16)
    losses = audit_precision(lambda x: x.at[:4].apply(lambda y: jnp.exp(3 * y)), x).losses
    assert losses[0].alone > 0


def grown(dtype, bound):
    """A loop whose condition alone computes in a dtype."""
    go = lambda x: (x.astype(dtype) < bound).all()
    return lambda x: lax.while_loop(go, lambda x: x * 1.5, x)


def test_the_condition_of_a_loop_has_dtypes_of_its_own():
    assert audit_precision(grown(jnp.bfloat16, 50), jnp.ones(4)).run.wide == "float32"
    if HAS_X64_SCOPE:
        x = jnp.ones(4, jnp.bfloat16)
        report = audit_precision(grown(jnp.float64, np.float64(50)), x, x64=True)
        assert report.run.wide == "float32"
