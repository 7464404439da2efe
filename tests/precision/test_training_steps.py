"""Training as people write it in 16 bits: the line that an expert names comes first."""

import jax
import jax.numpy as jnp
import pytest
from helpers import marked
from jax import lax

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_BARRIER

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_BARRIER, reason="needs JAX >= 0.5"),
    # NumPy's warning, as JAX makes a constant infinite while it traces.
    pytest.mark.filterwarnings("ignore:overflow encountered in cast"),
]
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def normal(seed, *shape, dtype=BF16, size=1.0):
    return (size * jax.random.normal(jax.random.key(seed), shape)).astype(dtype)


# Each returns a function and its arguments; with `wide` as the fix says. The line that
# loses ends in "# loses".
def decoding(wide):
    """One token after another, with positions that are added to an offset in bfloat16."""

    def f(params, x):
        rates = 10000.0 ** (-jnp.arange(0, 8, 2) / 8)

        def turned(x, angles):
            a, b = x[:4].astype(F32), x[4:].astype(F32)
            cos, sin = jnp.cos(angles), jnp.sin(angles)
            return jnp.concatenate([a * cos - b * sin, a * sin + b * cos])

        def step(cache, n):
            position = (250 + n).astype(F32 if wide else BF16)  # loses
            angles = position.astype(F32) * rates
            q, k = (turned(x @ params[name], angles) for name in "qk")
            cache = lax.dynamic_update_slice(cache, k[None], (n, 0))
            scores = jnp.where(jnp.arange(40) <= n, cache @ q, -1e30)
            return cache, jax.nn.softmax(scores)

        return lax.scan(step, jnp.zeros((40, 8)), jnp.arange(40))[1]

    return f, ({"q": normal(0, 8, 8), "k": normal(1, 8, 8)}, normal(2, 8))


def rotary(wide):
    """Large positions, which bfloat16 rounds to multiples of 16."""

    def f(q):
        positions = jnp.arange(3000, 3032, dtype=F32 if wide else BF16)  # loses
        angles = jnp.outer(positions, 10000.0 ** (-jnp.arange(0, 8, 2) / 8))
        return q[:, :4] * jnp.cos(angles) - q[:, 4:] * jnp.sin(angles)

    return f, (normal(0, 32, 8),)


def positions(wide):
    """Positions as the cumulative sum of a mask."""

    def f(mask):
        mask = mask.astype(F32) if wide else mask
        positions = jnp.cumsum(mask) - 1  # loses
        return jnp.sin(positions.astype(F32)[:, None] * jnp.array([1.0, 0.1, 0.01]))

    return f, (jnp.ones(400, BF16),)


def second_moment(wide):
    """Adam in float16: the square of a small gradient is 0, and so is eps."""

    def f(param, grad, mean, square):
        grad, square = (x.astype(F32) if wide else x for x in (grad, square))
        mean = 0.9 * mean + 0.1 * grad
        square = 0.999 * square + 0.001 * grad * grad  # loses
        return param - 1e-3 * mean / (jnp.sqrt(square) + 1e-8)

    zeros = jnp.zeros(16, F16)
    grad = normal(1, 16, dtype=F16, size=1e-3)
    return f, (normal(0, 16, dtype=F16), grad, zeros, zeros)


def loss_scale(wide):
    """A scale of 2^16, which is infinite in float16."""

    def f(w, x):
        def loss(w):
            value = jnp.mean((x @ w) ** 2)
            value = value.astype(F32) if wide else value
            return value * 65536.0  # loses

        return jax.grad(loss)(w.astype(F32) if wide else w).astype(F32) / 65536

    return f, (normal(0, 8, 8, dtype=F16), normal(1, 4, 8, dtype=F16))


def slow_average(wide):
    """An average of params with decay 0.9999."""

    def f(average, params):
        def step(average, param):
            return average * 0.9999 + param * (1 - 0.9999), None  # loses

        return lax.scan(step, average.astype(F32) if wide else average, params)[0]

    return f, (jnp.ones(4, BF16), normal(0, 500, 4))


def weight_decay(wide):
    """A decay of 1e-4 in every step."""

    def f(params):
        params = params.astype(F32) if wide else params
        step = lambda params, _: (params * (1 - 1e-4), None)  # loses
        return lax.scan(step, params, None, 300)[0]

    return f, (normal(0, 8),)


def running_mean(wide):
    """The running mean of a batch norm."""

    def f(mean, xs):
        step = lambda mean, x: (0.99 * mean + 0.01 * jnp.mean(x, 0), None)  # loses
        return lax.scan(step, mean.astype(F32) if wide else mean, xs)[0]

    return f, (jnp.zeros(4, BF16), 3 + normal(0, 300, 8, 4))


def long_mean(wide):
    """A mean that is summed one by one."""

    def f(xs):
        total = jnp.zeros(4, F32 if wide else BF16)
        total = lax.fori_loop(0, len(xs), lambda n, sum: sum + xs[n], total)  # loses
        return total / len(xs)

    return f, (1 + normal(0, 800, 4, size=0.1),)


def counted_mean(wide):
    """Welford's mean and variance: the count stands still at 256."""

    def f(xs):
        def step(carry, x):
            count, mean, squares = carry
            count = count + 1  # loses
            change = x - mean
            mean = mean + change / count
            return (count, mean, squares + change * (x - mean)), None

        zeros = (jnp.zeros((), F32 if wide else BF16),) + 2 * (jnp.zeros(()),)
        count, _, squares = lax.scan(step, zeros, xs)[0]
        return squares / count

    return f, (3 + normal(0, 600),)


def returns(wide):
    """Discounted returns, whose discount is 1 in bfloat16."""

    def f(rewards):
        step = lambda total, reward: 2 * (reward + 0.999 * total,)  # loses
        start = jnp.zeros((), F32 if wide else BF16)
        return lax.scan(step, start, rewards, reverse=True)[1]

    return f, (jnp.abs(normal(0, 800)),)


def advantages(wide):
    """GroupNorm's and PPO's way to normalize, after a sum that leaves float16."""

    def f(x):
        x = x.astype(F32) if wide else x
        squares = jnp.sum(x * x)  # loses
        return (x * lax.rsqrt(squares / x.size)).astype(F32)

    return f, (normal(0, 4096, dtype=F16, size=6),)


def small_difference(wide):
    """1 - exp(-x) of a small x, in place of expm1."""

    def f(x):
        return -jnp.expm1(-x) if wide else 1 - jnp.exp(-x)  # loses

    return f, (jnp.linspace(1e-3, 1e-2, 16).astype(BF16),)


def distance(wide):
    """A distance as the difference of squares."""

    def f(x, y):
        x, y = (each.astype(F32) if wide else each for each in (x, y))
        square = jnp.sum(x * x) + jnp.sum(y * y) - 2 * jnp.sum(x * y)  # loses
        return (x - y) * lax.rsqrt(square + 1e-6)

    return f, (8 + normal(0, 32), 8 + normal(1, 32))


STEPS = [  # the first four run with all tests
    *(decoding, second_moment, running_mean, loss_scale, rotary, positions, slow_average),
    *(weight_decay, long_mean, counted_mean, returns, advantages, small_difference),
    distance,
]


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(p, marks=[pytest.mark.exhaustive] * (p in STEPS[4:]), id=p.__name__)
        for p in STEPS
    ],
)
def test_the_line_comes_first_and_the_fix_leaves_what_it_says(plant):
    f, args = plant(wide=False)
    report = audit_precision(f, *args)
    assert report.fix[0].origin.line == marked(plant), report
    assert len(report.fix) == 1, report
    advice = report.fix[0].remedy
    assert f"test_training_steps.py:{marked(plant)}" in advice
    assert "float32" in advice
    mended, args = plant(wide=True)
    left = audit_precision(mended, *args).error
    claimed = report.left**0.5 * min(report.error, 1)
    assert left <= max(1.2 * claimed, 0.01), (left, report)
