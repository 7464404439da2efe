"""audit_precision on a small transformer: its lines, by their text."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_BARRIER

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_BARRIER, reason="needs JAX >= 0.5"),
]
BF16, F32 = jnp.bfloat16, jnp.float32
WIDTH, LENGTH, WORDS, SCALE = 16, 256, 32, 3


def params(dtype):
    keys = iter(jax.random.split(jax.random.key(0), 7))
    new = lambda *s: (jax.random.normal(next(keys), s) / np.sqrt(s[0])).astype(dtype)
    embed = SCALE * new(WORDS, WIDTH)
    block = {
        **{name: new(WIDTH, WIDTH) for name in "qkvo"},
        "up": new(WIDTH, 2 * WIDTH),
        "down": new(2 * WIDTH, WIDTH),
    }
    return {"embed": embed, "blocks": [block]}


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


def forward(p, x):
    for block in p["blocks"]:
        x = x + attend(block, x)
        h = jax.nn.gelu(normalized(x) @ block["up"])
        x = x + h @ block["down"]
    return normalized(x)


def encode(x, dtype):
    positions = 512 + jnp.arange(len(x), dtype=dtype)
    rates = 100.0 ** (-jnp.arange(WIDTH // 2) / (WIDTH // 2))
    angles = 8 * positions.astype(F32)[:, None] * rates
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], 1)
    return x + waves.astype(x.dtype)


def loss(p, tokens, positions=None):
    x = p["embed"][tokens]
    x = x if positions is None else encode(x, positions)
    logits = forward(p, x) @ p["embed"].T
    logits = logits.astype(F32)[:-1]
    right = jnp.take_along_axis(logits, tokens[1:, None], 1)[:, 0]
    total = jax.nn.logsumexp(logits, axis=1)
    losses = total - right
    return jnp.sum(losses) / len(losses)


def codes(losses):
    return [found.origin.users.code for found in losses]


def test_as_if_in_bfloat16_two_lines_have_to_stay_wide():
    report = audit_precision(loss, params(F32), TOKENS, narrow=BF16, tolerance=3e-4)
    assert sorted(codes(report.fix)) == [
        "return jnp.sum(losses) / len(losses)",
        "total = jax.nn.logsumexp(logits, axis=1)",
    ], report
    assert report.lines >= 15
    assert report.left * report.error**2 <= 3e-4**2
    # They are first, although the shares of a scalar have either sign.
    assert {*codes(report.losses[:2])} == {*codes(report.fix)}


@pytest.mark.parametrize("of", ["loss", "gradient"])
def test_positions_rounded_before_the_sine(of):
    f = {"loss": loss, "gradient": jax.grad(loss)}[of]
    report = audit_precision(lambda p, x: f(p, x, BF16), params(BF16), TOKENS)
    first = report.losses[0]
    assert first.origin.code == "positions = 512 + jnp.arange(len(x), dtype=dtype)", report
    mended = audit_precision(lambda p, x: f(p, x, F32), params(BF16), TOKENS)
    assert mended.error < report.error / 3
    assert first.share > 0.9
    assert first.left < 0.1


def test_sixteen_steps_of_adamw_lose_where_the_params_are_rounded():
    opt = optax.adamw(1e-3)

    def train(p, tokens):
        def step(carry, _):
            p, state = carry
            updates, state = opt.update(jax.grad(loss)(p, tokens), state, p)
            return (optax.apply_updates(p, updates), state), None

        return lax.scan(step, (p, opt.init(p)), None, 16)[0][0]

    report = audit_precision(train, params(BF16), TOKENS)
    first = report.losses[0]
    assert first.share > 0.5, report
    assert first.origin.file.endswith("update.py")
    assert "dtypeguard.apply_updates(params, updates, key=key)" in first.remedy
    assert first in report.fix
