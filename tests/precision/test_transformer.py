"""audit_precision on a small transformer: its lines, by their text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_BARRIER

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_BARRIER, reason="needs JAX >= 0.5"),
]
BF16, F32 = jnp.bfloat16, jnp.float32
WIDTH, LENGTH, WORDS, SCALE = 16, 64, 32, 3


def params(dtype, blocks=1):
    keys = iter(jax.random.split(jax.random.key(0), 1 + 6 * blocks))
    new = lambda *s: (jax.random.normal(next(keys), s) / np.sqrt(s[0])).astype(dtype)
    embed = SCALE * new(WORDS, WIDTH)
    block = lambda: {
        **{name: new(WIDTH, WIDTH) for name in "qkvo"},
        "up": new(WIDTH, 2 * WIDTH),
        "down": new(2 * WIDTH, WIDTH),
    }
    return {"embed": embed, "blocks": [block() for _ in range(blocks)]}


TOKENS = jax.random.randint(jax.random.key(1), (LENGTH,), 0, WORDS)


def normalized(x):
    wide = x.astype(F32)
    squares = jnp.mean(wide * wide, -1, keepdims=True)
    return (wide * lax.rsqrt(squares + 1e-6)).astype(x.dtype)


def attend(p, x):
    h = normalized(x)
    q = h @ p["q"]
    k = h @ p["k"]
    v = h @ p["v"]
    scores = (q @ k.T).astype(F32) / np.sqrt(WIDTH)
    scores = jnp.where(jnp.tri(len(x), dtype=bool), scores, -1e9)
    weights = jax.nn.softmax(scores).astype(x.dtype)
    return (weights @ v) @ p["o"]


def layer(x, block):
    x = x + attend(block, x)
    h = jax.nn.gelu(normalized(x) @ block["up"])
    return x + h @ block["down"]


def forward(p, x):
    if isinstance(p["blocks"], dict):
        x, _ = lax.scan(lambda x, block: (layer(x, block), None), x, p["blocks"])
        return normalized(x)
    for block in p["blocks"]:
        x = layer(x, block)
    return normalized(x)


def encode(x, dtype, stays_wide):
    positions = 512 + jnp.arange(len(x), dtype=dtype)
    rates = 100.0 ** (-jnp.arange(WIDTH // 2) / (WIDTH // 2))
    angles = 8 * positions.astype(F32)[:, None] * rates
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], 1)
    return x + (waves if stays_wide else waves.astype(x.dtype))


def loss(p, tokens, positions=None, stays_wide=False):
    x = p["embed"][tokens]
    x = x if positions is None else encode(x, positions, stays_wide)
    logits = forward(p, x) @ p["embed"].T
    logits = logits.astype(F32)[:-1]
    right = jnp.take_along_axis(logits, tokens[1:, None], 1)[:, 0]
    total = jax.nn.logsumexp(logits, axis=1)
    losses = total - right
    return jnp.sum(losses) / len(losses)


def codes(losses):
    return [found.origin.users.code for found in losses]


def test_as_if_in_bfloat16_a_few_lines_have_to_stay_wide():
    report = audit_precision(loss, params(F32), TOKENS, narrow=BF16, tolerance=3e-4)
    assert {
        "return jnp.sum(losses) / len(losses)",
        "total = jax.nn.logsumexp(logits, axis=1)",
    } <= {*codes(report.fix)}, report
    assert len(report.fix) <= 4 < 15 <= report.lines
    assert report.mended <= 3e-4
    assert report.left == pytest.approx((report.mended / report.error) ** 2)
    # They are first, although the shares of a scalar have either sign.
    assert {*codes(report.losses[:2])} <= {*codes(report.fix)}


def test_positions_rounded_before_the_sine():
    gradient = lambda dtype: lambda p, x: jax.grad(loss)(p, x, dtype)
    report = audit_precision(gradient(BF16), params(BF16), TOKENS)
    first = report.losses[0]
    assert first.origin.code == "positions = 512 + jnp.arange(len(x), dtype=dtype)", report
    mended = audit_precision(gradient(F32), params(BF16), TOKENS)
    assert mended.error < report.error / 3
    assert first.share > 0.9
    assert first.left < 0.1


@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
def test_positions_that_stay_wide_make_the_program_wide(scanned):
    p = params(BF16, 2)
    if scanned:
        p["blocks"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *p["blocks"])
    step = lambda stays: lambda p, x: jax.grad(loss)(p, x, F32, stays)
    args = jax.eval_shape(lambda: (p, TOKENS))
    report = audit_precision(step(True), *args)
    (cost,) = report.costs
    assert cost.cause.code.startswith("angles = ")
    assert cost.origin.code == "return x + (waves if stays_wide else waves.astype(x.dtype))"
    mended = audit_precision(step(False), *args)
    assert mended.work.wide == 0
    assert mended.costs == ()
    total = sum(mended.work.flops.values())
    saved = mended.work.flops["bfloat16"] - report.work.flops.get("bfloat16", 0)
    assert cost.saves == pytest.approx(saved / total) == report.work.wide > 0.9
