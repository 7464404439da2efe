"""Fromage beyond its authors' trajectories: exactness, norms, precision, composition."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import tree_util
from numpy.testing import assert_allclose

from dtypeguard import fromage, guard
from tests.support.dtypes import BF16, F16, F32, F64
from tests.support.helpers import assert_close, assert_same, set_x64
from tests.support.quadratic import make_params, run


def one_update(opt, param, grad):
    return opt.update(grad, opt.init(param), param)[0]


def truth(param, grad, rate):
    """The update in float64, by the authors' formula."""
    p, g = np.asarray(param, np.float64), np.asarray(grad, np.float64)
    largest_p, largest_g = (np.abs(x).max() or 1.0 for x in (p, g))
    norm_p, norm_g = np.linalg.norm(p / largest_p), np.linalg.norm(g / largest_g)
    if norm_p == 0 or norm_g == 0:
        largest_p, largest_g, norm_p, norm_g = 1.0, 1.0, 1.0, 1.0
    root = math.sqrt(1 + rate**2)
    turn = rate / root * largest_p * (norm_p / norm_g) * (g / largest_g)
    return -(rate**2) / (root * (1 + root)) * p - turn


@pytest.mark.parametrize(
    ("rate", "scheduled"), [*zip([3e38, -2e19, 1e-2, 3e-4, 1e-7, 1e-18], [False, True] * 3)]
)
def test_the_shrink_is_exact_at_any_rate(rate, scheduled):
    """To a few ulp of float32. The gradient is zero, so that it hides nothing."""
    param, grad = jnp.ones((5, 5)), jnp.zeros((5, 5))
    opt = fromage((lambda count: jnp.asarray(rate, F32)) if scheduled else rate)
    assert_allclose(
        one_update(opt, param, grad), truth(param, grad, float(np.float32(rate))), rtol=4e-7
    )


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("rate", [1e-2, 1e-7])
def test_updates_of_narrow_params_are_rounded_once(dtype, rate):
    keys = jax.random.split(jax.random.PRNGKey(0))
    param, grad = (jax.random.normal(key, (8, 8)).astype(dtype) for key in keys)
    found = np.asarray(one_update(fromage(rate), param, grad), np.float64)
    expected = truth(param, grad, rate)
    spacing = float(jnp.finfo(dtype).eps) * np.abs(expected)
    least = float(jnp.finfo(dtype).smallest_subnormal)
    assert (np.abs(found - expected) <= 0.502 * np.maximum(spacing, least)).all()


@pytest.mark.parametrize("dtype", [F16, F32, F64])
@pytest.mark.parametrize(
    ("param_at", "grad_at"),
    [(0.3, 0.0), (0.5, 0.998), (0.998, 0.3), (1.0, 0.7), (0.7, 1.0)],
)
def test_norms_neither_overflow_nor_underflow(param_at, grad_at, dtype):
    """With entries from the smallest normal number (0) to the largest of all (1).

    The squares of float32 overflow from 2e19 on and underflow below 1e-23. From 8.5e37 on
    (0.992), the reciprocal is subnormal, which CPUs flush to zero.
    """
    with set_x64(dtype == F64):
        info = jnp.finfo(dtype)
        tiny, most = float(info.tiny), float(info.max)
        param, grad = (
            jnp.asarray(np.where(np.arange(64) % every, 1, -1) * size, dtype)
            for every, at in ((3, param_at), (5, grad_at))
            for size in [tiny ** (1 - at) * most**at]
        )
        expected = truth(param, grad, 0.01)
        rtol, atol = max(4e-15, 4 * float(info.eps)), float(info.smallest_subnormal)
        for update in (one_update, jax.jit(one_update, static_argnums=0)):
            found = np.asarray(update(fromage(0.01), param, grad), np.float64)
            assert_allclose(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_zero_norms_take_the_plain_step(shape):
    zeros, ones = jnp.zeros(shape), jnp.ones(shape)
    root = math.sqrt(1 + 0.1**2)
    of = lambda param, grad: one_update(fromage(0.1), param, grad)
    assert_allclose(of(zeros, ones), -0.1 / root * ones, rtol=1e-6)
    assert_allclose(of(ones, zeros), (1 / root - 1) * ones, rtol=1e-5)
    assert not np.asarray(of(zeros, zeros)).any()


@pytest.mark.parametrize(("min_norm", "ratio"), [(1.0, 1.0 / 2), (4.0, 4.0 / 4.0)])
def test_min_norm_bounds_norms_from_below(min_norm, ratio):
    param, grad = jnp.full(4, 1e-3), jnp.ones(4)  # of norms 2e-3 and 2
    root = math.sqrt(1 + 0.1**2)
    expected = (1 / root - 1) * param - 0.1 * ratio / root * grad
    assert_allclose(
        one_update(fromage(0.1, min_norm=min_norm), param, grad), expected, rtol=1e-5
    )


@pytest.mark.parametrize("dtype", [BF16, F32, F64])
def test_the_bound_on_the_norm_holds_and_is_that_of_the_first_params(dtype):
    with set_x64(dtype == F64):
        params, opt = make_params(dtype), fromage(0.1, p_bound=1.5)
        away = lambda params: tree_util.tree_map(lambda p: -p, params)
        first = jax.jit(opt.init)(params)
        assert_close(first, opt.init(params), rtol=1e-6)
        found, state = run(opt, params, 100, away, first)
        assert_same(state.max_norm, first.max_norm)
        free, _ = run(fromage(0.1), params, 100, away)
    norm = lambda leaf: np.linalg.norm(np.asarray(leaf, np.float64))
    for name, leaf in found.items():
        bound = 1.5 * norm(params[name])
        assert state.max_norm[name].dtype == (F64 if dtype == F64 else F32)
        assert_allclose(state.max_norm[name], bound, rtol=1e-6)
        assert_allclose(norm(leaf), bound, rtol=max(1e-6, 2 * float(jnp.finfo(dtype).eps)))
    assert norm(free["w"]) > 2 * norm(found["w"])


def test_the_bound_holds_where_norms_overflow():
    param = jnp.full(400, 3e38)
    assert_allclose(
        one_update(fromage(0.1, p_bound=0.01), param, param), -0.99 * 3e38, rtol=1e-6
    )


def test_an_infinite_bound_is_none():
    for bound in (None, math.inf, np.float32(np.inf)):
        assert fromage(0.1, p_bound=bound).init(jnp.ones(3)).max_norm == ()
    with pytest.raises(ValueError, match=r"p_bound=1e\+39: .* or math\.inf for no bound"):
        fromage(0.1, p_bound=1e39)


@pytest.mark.third_party
@pytest.mark.optimized
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_injected_hyperparameters(dtype):
    params = make_params(dtype)
    found, state = run(guard(optax.inject_hyperparams(fromage)(0.01)), params, 5)
    expected, _ = run(fromage(state.hyperparams["learning_rate"]), params, 5)
    assert_same(found, expected)


def test_the_arguments_of_optax_come_first():
    ours = list(inspect.signature(fromage).parameters)
    assert ours[:2] == list(inspect.signature(optax.fromage).parameters)
