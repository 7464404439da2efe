"""Constants that a narrow dtype makes infinite or 0, on their way to what uses them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtypeguard import Plan, autocast
from tests.support.helpers import normal

_Q, _K, _V = (normal(n, 6, 8) for n in range(3))
# The last row is masked whole.
_MASK = jax.device_put(np.tri(6, dtype=bool) & (np.arange(6)[:, None] < 5))
_LEAST = jnp.finfo(jnp.float32).min


def _softmax(scores, v):
    return jax.nn.softmax(scores) @ v


def _bias(mask):
    return jnp.where(mask, 0.0, _LEAST)


def multiplied(q, k, v, mask):
    bias = (1.0 - mask.astype(jnp.float32)) * _LEAST
    return _softmax(q @ k.T + bias, v)


def of_a_function(q, k, v, mask):
    return _softmax(q @ k.T + jax.jit(_bias)(mask), v)


def selected(q, k, v, mask):
    scores = jnp.where(mask, q @ k.T, _LEAST) / 8**0.5
    return _softmax(jnp.maximum(scores, _LEAST), v)


def by_blocks(q, k, v, mask):
    """As in flash attention: what is carried is the maximum so far."""

    def turn(carry, block):
        most, total, result = carry
        keys, values, is_seen = block
        scores = q @ keys.T + _bias(is_seen.T)
        new = jnp.maximum(most, jnp.max(scores, -1))
        weights = jnp.exp(scores - new[:, None])
        scale = jnp.exp(most - new)
        total = total * scale + jnp.sum(weights, -1)
        return (new, total, result * scale[:, None] + weights @ values), None

    blocks = [x.reshape(3, 2, -1) for x in (k, v, mask.T)]
    zeros = jnp.zeros_like(q)
    (_, total, result), _ = lax.scan(turn, (zeros[:, 0] - 1.0, zeros[:, 0], zeros), blocks)
    return result / jnp.maximum(total, 0.1)[:, None]


def _of_branches(q, k, v, mask):
    bias = lax.cond(q[0, 0] > 99, lambda m: jnp.zeros(m.shape), _bias, mask)
    return _softmax(q @ k.T + bias, v)


@jax.custom_vjp
def _weights(scores):
    return jax.nn.softmax(scores)


def _kept(scores):
    return jax.nn.softmax(scores), (scores, jax.nn.logsumexp(scores, -1, keepdims=True))


def _moved(kept, cotangent):
    scores, total = kept
    weights = jnp.exp(scores - total)
    inner = jnp.sum(weights * cotangent, -1, keepdims=True)
    return (weights * (cotangent - inner),)


_weights.defvjp(_kept, _moved)


def of_an_own_derivative(q, k, v, mask):
    return _weights(q @ k.T + _bias(mask)) @ v


_FORMS = [
    multiplied,
    of_a_function,
    selected,
    by_blocks,
    of_an_own_derivative,
    _of_branches,
]


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
@pytest.mark.parametrize("f", _FORMS, ids=lambda f: f.__name__.strip("_"))
def test_masks_of_the_least_float32(f, narrow):
    plan = Plan(narrow, "all")
    cast = autocast(f, plan)
    args = _Q, _K, _V, _MASK
    own, bare = cast(*args), jax.jit(f)(*args)
    assert jnp.isfinite(own).all()
    assert jnp.allclose(own, bare, atol=0.03)
    loss = lambda f: lambda *args: jnp.sum(f(*args, _MASK) ** 2)
    gradients = (
        jax.grad(loss(cast))(*args[:3]),
        autocast(jax.grad(loss(f)), plan)(*args[:3]),
    )
    expected = jax.jit(jax.grad(loss(f)))(*args[:3])
    for gradient in gradients:
        assert jnp.allclose(gradient, expected, atol=0.1 * jnp.max(abs(expected)))


def test_products_after_a_mask_are_narrow():
    cast = autocast(of_a_function, Plan("float16", "all"))
    text = str(jax.make_jaxpr(cast)(_Q, _K, _V, _MASK))
    assert text.count("preferred_element_type=float16") == 2


def spread(w, x):
    x = x / (jnp.sqrt(jnp.sum(x * x, -1, keepdims=True)) + 1e-12)
    deviation = jax.nn.softplus(x) + 1e-12
    return (x * deviation + 1e-12) @ w


def test_an_epsilon_stays_until_it_is_divided_by():
    x = _Q.at[0].set(0.0)
    cast = autocast(spread, Plan("float16", "all"))
    own, bare = cast(_K.T, x), spread(_K.T, x)
    assert jnp.isfinite(own).all()
    assert jnp.allclose(own, bare, atol=0.05)
    assert "1e-12: kept by a constant that float16 does not hold" in "\n".join(cast.kept)


@pytest.mark.parametrize("value", [1e-20, 1e20])
def test_captured_matrix_out_of_range(value):
    held = np.full((8, 8), value, np.float32)
    f = lambda x: (x @ held) / np.float32(value)
    assert jnp.allclose(autocast(f, jnp.float16)(_Q), f(_Q), rtol=1e-3)


def test_captured_weights_with_small_numbers_are_narrow():
    held = np.asarray(_Q).T * 1.0
    held[0, 0], held[1, 1] = 1e-20, np.inf
    cast = autocast(lambda x: x @ held, jnp.float16)
    assert "preferred_element_type=float16" in str(jax.make_jaxpr(cast)(_Q))
    assert not cast.kept


@jax.jit
def scaled_inside(x, scale):
    f = lambda x: jnp.dot(x, x.T, preferred_element_type=jnp.float32) * scale
    return autocast(f, jnp.bfloat16)(x)


def test_a_function_may_close_over_a_traced_number():
    assert jnp.allclose(scaled_inside(_Q, 2.0), 2 * _Q @ _Q.T, atol=0.1)
