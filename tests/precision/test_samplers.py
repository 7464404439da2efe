"""What an audit of precision says of programs that draw random numbers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from dtypeguard import audit_precision
from tests.support.dtypes import BF16, F16, F32, F64
from tests.support.helpers import normal, users_programs

pytestmark = users_programs
KEY = random.key(0)
X, W = normal(0, 64, 8), normal(1, 8)
NARROW = normal(2, 9, dtype=BF16)

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
    assert audit_precision(f, KEY, X, W, seconds=0).error < 1e-6
    for narrow in (BF16, F16):
        report = audit_precision(f, KEY, X, W, narrow=narrow, seconds=0)
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
    report = audit_precision(f, NARROW)
    assert 0 < report.error < 0.1, report
    assert any("# loses" in loss.origin.code for loss in report.losses), report


def test_a_gradient_through_dropout_has_the_same_mask_on_both_sides():
    f = lambda x: eqx.nn.Dropout(0.5)(jnp.tanh(x), key=KEY).astype(F32).sum()
    assert 0 < audit_precision(jax.grad(f), NARROW, seconds=0).error < 0.1


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
    x = X[:, 0].astype(dtype)
    exact = np.asarray(x, np.float64) + np.asarray(DRAWN[name](x), np.float64)
    off = np.linalg.norm(np.asarray(f(x), np.float64) - exact) / np.linalg.norm(exact)
    assert audit_precision(f, x, wide=F64, seconds=0).error == pytest.approx(off, rel=1e-3)
