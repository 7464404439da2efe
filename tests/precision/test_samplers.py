"""What an audit of precision says of programs that draw random numbers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8"),
]
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
KEY = jax.random.key(0)
X, W = jax.random.normal(KEY, (64, 8)), jax.random.normal(jax.random.key(1), (8,))
SHAPE = (64,)

SAMPLERS = {
    "exponential": lambda key: jax.random.exponential(key, SHAPE),
    "gamma": lambda key: jax.random.gamma(key, 2.0, SHAPE),
    "gumbel": lambda key: jax.random.gumbel(key, SHAPE),
    "normal": lambda key: jax.random.normal(key, SHAPE),
    "permutation": lambda key: jax.random.permutation(key, jnp.arange(64.0)),
    "uniform": lambda key: jax.random.uniform(key, SHAPE),
}


def noisy(sampler):
    return lambda key, x, w: jnp.tanh(x @ w) + sampler(key).astype(F32)  # computes


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_loses_nothing_and_is_finite_in_narrow_types(name):
    """Any number nearby is as good a sample."""
    if not hasattr(jax.random, name):
        pytest.skip(f"no jax.random.{name} in this release")
    f = noisy(SAMPLERS[name])
    report = audit_precision(f, KEY, X, W)
    assert report.error < 1e-6
    for loss in report.losses:
        assert loss.share < 0.01 or "# computes" in loss.origin.code, report
    drawn = audit_precision(lambda key: SAMPLERS[name](key).astype(F32), KEY)
    assert not drawn.error, drawn
    for narrow in (BF16, F16):
        report = audit_precision(f, KEY, X, W, narrow=narrow)
        assert report.error < 0.1, report
        assert report.not_finite is None, report


def of_mean(x):
    mean = x * x * x  # loses
    return mean + jax.random.normal(KEY, mean.shape, mean.dtype)


def of_bounds(x):
    low = jnp.tanh(x)  # loses
    return jax.random.uniform(KEY, low.shape, low.dtype, minval=low, maxval=2.0)


def of_permuted(x):
    cubes = x * x * x  # loses
    return jax.random.permutation(KEY, cubes)


def of_dropout(x):
    h = jnp.tanh(x)  # loses
    return eqx.nn.Dropout(0.5)(h, key=KEY)


@pytest.mark.parametrize(
    ("f", "derived"),
    [*((f, False) for f in (of_mean, of_bounds, of_permuted)), (of_dropout, True)],
)
def test_what_a_sampler_is_given_keeps_its_error(f, derived):
    x = X[:9, 0].astype(BF16)
    g = (lambda x: jax.grad(lambda x: f(x).astype(F32).sum())(x)) if derived else f
    report = audit_precision(g, x)
    assert 0 < report.error < 0.1, report
    if not derived:
        assert any("# loses" in loss.origin.code for loss in report.losses), report


def test_what_a_user_makes_of_random_bits_is_the_users():
    def f(key):
        bits = jax.random.bits(key, (64,))
        return jnp.log((bits >> 9).astype(F32) * 2.0**-23 + 1e-3)  # loses

    report = audit_precision(f, KEY)
    assert report.error > 0
    assert "# loses" in report.losses[0].origin.code
