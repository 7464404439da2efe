"""Ints and bools that floats decide are counted: how many differ from wide ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")
BF16, F32 = jnp.bfloat16, jnp.float32
X = jax.random.normal(jax.random.key(0), (512, 32), BF16)
W = jax.random.normal(jax.random.key(1), (32, 64), BF16) / 5


def scores(w, x):
    h = x + 20
    return jnp.sin(h) @ w


OUTPUTS = {
    "argmax": lambda w, x: jnp.argmax(scores(w, x), -1),
    "bools": lambda w, x: scores(w, x) > 0,
    "ranks": lambda w, x: jnp.argsort(scores(w, x), -1)[:, :4],
    "a dict": lambda w, x: {
        "token": jnp.argmax(scores(w, x), -1),
        "key": jax.random.key(0),
    },
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_share_that_differs(name):
    f = OUTPUTS[name]
    report = audit_precision(f, W, X)
    with jax.disable_jit():
        pairs = f(W, X), f(W.astype(F32), X.astype(F32))
    made, exact = (np.asarray(jax.tree.leaves(x)[-1]) for x in pairs)
    share = np.mean(made != exact)
    assert 0 < share < 0.5
    assert report.error == pytest.approx(share, rel=0.05)
    assert report.is_of_integers
    assert report.headline.endswith("% of the elements of the outputs differ.")
    assert report.losses[0].origin.code == "h = x + 20"
    assert report.fix == report.losses[:1]
    assert report.mended == 0
    assert report.losses[0].share > 0.5
    assert sum(loss.share for loss in report.losses) == pytest.approx(1, abs=0.05)
    (line, *_) = report.decisions
    assert line.flipped == pytest.approx(share * line.count, rel=0.1) or name != "argmax"


def test_within_a_tolerance():
    report = audit_precision(OUTPUTS["argmax"], W, X, tolerance=0.1)
    assert report.headline.endswith("differ.")
    assert "That is within your 10%." in str(report)


def test_none_differ():
    report = audit_precision(lambda x: x > 0, X)
    assert report.headline == "the outputs are those of float32."


def test_integers_of_integers_are_none():
    with pytest.raises(TypeError, match="and nothing that floats decide"):
        audit_precision(lambda x: x + 1, jnp.arange(3))
