"""What an audit of precision runs on: decompositions, flags, odd and bad input."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, tree_util

from dtypeguard import audit_precision
from tests.support.dtypes import BF16, F16, F32, F64
from tests.support.helpers import (
    HAS_X64_SCOPE,
    needs_explicit_x64,
    needs_numbers,
    normal,
    set_explicit_x64,
    set_x64,
    some,
)

pytestmark = [pytest.mark.third_party, needs_numbers]
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
        gap = lambda x, e: np.linalg.norm(np.abs(x) - np.abs(e)) / np.linalg.norm(e)
        off = np.sqrt(np.mean([gap(x, e) ** 2 for x, e in zip(made, exact)]))
    assert 0 < report.error < 1e-4
    assert off / 5 < report.error < 5 * off
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


def test_numpys_warnings_are_no_errors_of_the_audit():
    """-1e9 is infinite in float16, which NumPy warns of."""
    x = jnp.array([1.0, -2.0, 3.0], F16)
    report = audit_precision(lambda x: jax.nn.softmax(jnp.where(x > 0, x, -1e9)), x)
    assert 0 < report.error < 0.01
    assert report.losses[0].constant is None  # it makes no difference
