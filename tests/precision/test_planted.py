"""Programs planted after real threads: the line that loses is found, and the fix works.

The comment over each names a thread that tells of the mistake, by repository and number.
"""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from dtypeguard import audit_precision
from tests.support.dtypes import BF16, F16, F32
from tests.support.helpers import marked, needs_numbers, some

pytestmark = [
    pytest.mark.third_party,
    needs_numbers,
    # NumPy's warning, as JAX makes a constant infinite while it traces.
    pytest.mark.filterwarnings("ignore:overflow encountered in cast"),
]


def normal(seed, *shape, dtype=BF16, size=1.0):
    return (size * jax.random.normal(jax.random.key(seed), shape)).astype(dtype)


# Each returns a function and its arguments; with `wide` as the fix says. The line that
# loses ends in "# loses".
# google-deepmind/optax 1552: the moments take the dtype of the params.
def average(wide):
    """A moving average with a decay that bfloat16 rounds to 1."""

    def f(mean, xs):
        step = lambda mean, x: (0.999 * mean + 0.001 * x, None)  # loses
        return lax.scan(step, mean.astype(F32) if wide else mean, xs)[0]

    return f, (jnp.ones(3, BF16), jnp.zeros((500, 3), BF16))


# huggingface/transformers 29285, KellerJordan/modded-nanogpt 39
def positions(wide):
    """Positions that bfloat16 rounds before the sine."""

    def f(w):
        p = jnp.arange(600, dtype=F32 if wide else BF16)  # loses
        return jnp.sin(p.astype(F32)[:, None] / 10.0 ** jnp.arange(4)) @ w.astype(F32)

    return f, (normal(0, 4, 3),)


# marin-community/marin 8217, google/flax 677
def logits(wide):
    """A cross-entropy of logits of a product that is delivered in bfloat16."""

    def f(h, w, labels):
        kind = F32 if wide else None
        logits = jnp.dot(h, w, preferred_element_type=kind)  # loses
        logp = jax.nn.log_softmax(logits.astype(F32))
        return jnp.take_along_axis(logp, labels[:, None], 1)

    return f, (8 * normal(0, 16, 32), normal(1, 32, 50), jnp.arange(16))


# jax-ml/jax 29323: the step is lost in the sum.
def clock(wide):
    """Time that is added up in bfloat16 in a `while_loop`, which has no derivative."""

    def f(x):
        def step(carry):
            t, x, n = carry
            return t + dt, x + 0.01 * jnp.cos(t.astype(F32)), n + 1  # loses

        dt = jnp.asarray(0.01, F32 if wide else BF16)
        first = jnp.zeros_like(dt), x, 0
        return lax.while_loop(lambda c: c[2] < 300, step, first)[1]

    return f, (jnp.zeros(3),)


# nod-ai/amd-shark-ai 2062, huggingface/transformers 17437
def overflow(wide):
    """A float16 exponential, which overflows at 11.1."""

    def f(x):
        x = x.astype(F32) if wide else x
        e = jnp.exp(x)  # loses
        return (e / jnp.sum(e)).astype(F32)

    return f, (jnp.arange(14.0, dtype=F16),)


# google-deepmind/optax 1754 and 1789
def epsilon(wide):
    """An eps of 1e-8, which is 0 in float16."""

    def f(g):
        g = g.astype(F32) if wide else g
        unit = g / (jnp.sqrt(g * g) + 1e-8)  # loses
        return unit.astype(F32)

    return f, (jnp.array([0.0, 1.0, 2.0], F16),)


# pytorch/pytorch 43211, jax-ml/jax 3058
def root(wide):
    """The gradient of a norm whose squares are 0 in float16: a root at 0."""

    def size(x):
        squares = x * x  # loses
        return jnp.sqrt(jnp.sum(squares))

    def f(x):
        return jax.grad(size)(x.astype(F32) if wide else x).astype(F32)

    return f, (jnp.full(3, 1e-4, F16),)


# google/flax 982, ahrefs/ocannl 548
def mask(wide):
    """A mask of -1e9, which is minus infinity in float16, and 0 times that is NaN."""

    def f(scores, keep):
        scores, keep = (x.astype(F32) if wide else x for x in (scores, keep))
        biased = scores + (1 - keep) * -1e9  # loses
        return jax.nn.softmax(biased).astype(F32)

    return f, (normal(0, 8, dtype=F16), jnp.arange(8).astype(F16).clip(0, 1))


PLANTED = [  # the first five run with all tests
    *(average, positions, clock, overflow, mask),
    *(logits, epsilon, root),
]


@pytest.mark.parametrize("plant", some(PLANTED, 5), ids=lambda plant: plant.__name__)
def test_the_line_is_found_and_the_fix_leaves_what_it_says(plant):
    f, args = plant(wide=False)
    report = audit_precision(f, *args)
    (loss,) = report.fix
    assert loss.origin.line == marked(plant)
    assert f"test_planted.py:{marked(plant)}" in loss.remedy
    assert "float32" in loss.remedy
    assert report.left < 0.1, report
    mended, args = plant(wide=True)
    left = audit_precision(mended, *args, seconds=0).error
    assert left < min(0.35 * report.error, 0.05), (left, report.error)
    claimed = report.left**0.5 * min(report.error, 1)
    assert left <= max(1.2 * claimed, 0.01), (left, report)


# pytorch/pytorch 40302, patrick-kidger/equinox 314
def variance(x):
    """E[x^2] - E[x]^2."""
    square = jnp.mean(x * x)  # loses
    mean = jnp.mean(x)  # loses
    return square - mean * mean


def test_roundings_that_only_a_set_of_lines_mends():
    """Either line alone in float32 leaves the error of the other."""
    report = audit_precision(variance, 8 + normal(0, 300))
    codes = [loss.origin.code for loss in report.fix]
    assert sum(code.endswith("# loses") for code in codes) == 2, report
    assert report.left < 0.1, report
    assert all(loss.left > 0.1 for loss in report.fix), report


# The first is overflow, the next are what leads to it.
NOT_FINITE = [overflow, root, epsilon, mask]


@pytest.mark.parametrize("plant", some(NOT_FINITE, 2), ids=lambda plant: plant.__name__)
def test_what_is_finite_in_wide_types_alone_comes_first(plant):
    f, args = plant(wide=False)
    report = audit_precision(f, *args)
    assert report.error == float("inf")
    assert report.losses[0].origin.line == marked(plant), report
    assert str(report).count("Compute ") == 1
    assert f"test_planted.py:{marked(plant)} in float32." in str(report)
    assert report.not_finite.line >= marked(plant)
    assert f"{report.not_finite.line} is the first that is not." in report.headline
