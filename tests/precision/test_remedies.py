"""An advice holds when it is typed, where JAX promotes nothing."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_BARRIER

pytestmark = pytest.mark.skipif(not HAS_BARRIER, reason="needs JAX >= 0.5")
BF16, F32 = jnp.bfloat16, jnp.float32
X, Y = (jax.random.normal(jax.random.key(n), (16, 16), BF16) for n in (0, 1))


def off(made, exact):
    return float(jnp.linalg.norm(made.astype(F32) - exact) / jnp.linalg.norm(exact))


OTHERS = {
    "add": lambda h, y: lax.add(h, y),
    "select": lambda h, y: lax.select(y > 0, h, y),
    "concatenate": lambda h, y: lax.concatenate([h, y], 0),
    "dynamic_update_slice": lambda h, y: lax.dynamic_update_slice(y, h[:4], (0, 0)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_takes_one_dtype_needs_another_cast(name):
    def f(x, y):
        h = jnp.sin(x * 40)
        return OTHERS[name](h, y).astype(F32)

    report = audit_precision(f, X, Y)
    with pytest.raises(TypeError, match="same dtypes"):
        OTHERS[name](jnp.sin(X.astype(F32) * 40), Y)
    assert report.keeps
    remedy = report.fix[0].remedy
    assert " as well: it takes one dtype." in remedy
    assert "test_remedies.py" in remedy.partition("Cast the other operands of ")[2]


@pytest.mark.parametrize("combine", [jnp.add, lambda h, y: h + y, jnp.dot, lax.dot])
def test_what_promotes_needs_none(combine):
    f = lambda x, y: combine(jnp.sin(x * 40), y).astype(F32)
    report = audit_precision(f, X, Y)
    assert not any("one dtype" in loss.remedy for loss in report.losses)


def test_what_is_set_in_an_array_has_its_dtype():
    def f(cache, x, start=BF16):
        h = jnp.sin(x.astype(start) * 40)
        return cache.at[0].set(h).astype(F32)

    report = audit_precision(f, jnp.zeros((2, 16, 16), BF16), X)
    exact = jnp.sin(X.astype(F32) * 40)
    assert report.left == pytest.approx(
        (off(exact.astype(BF16), exact) / report.error) ** 2
    )
