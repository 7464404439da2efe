"""A small transformer's training step, which the tests of locks change."""

import jax
import jax.numpy as jnp
import optax

BF16, F32 = jnp.bfloat16, jnp.float32
opt = optax.adam(1e-3)


def rms_norm(x, scale):
    h = x.astype(F32)
    variance = jnp.mean(h * h, axis=-1, keepdims=True)
    h = h * jax.lax.rsqrt(variance + 1e-6)
    return (h * scale).astype(x.dtype)


def attention(p, x):
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, p[n]) for n in "qkv")
    scores = jnp.einsum("bthk,bshk->bhts", q, k, preferred_element_type=F32)
    scores = scores / jnp.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30))
    out = jnp.einsum("bhts,bshk->bthk", weights.astype(v.dtype), v)
    return jnp.einsum("bthk,hkd->btd", out, p["o"])


def mlp(p, x):
    return jax.nn.gelu(x @ p["up"]) @ p["down"]


@jax.checkpoint
def block(x, p):
    x = x + attention(p, rms_norm(x, p["norm1"]))
    return x + mlp(p, rms_norm(x, p["norm2"])), None


def forward(params, tokens):
    x = params["embed"][tokens]
    x, _ = jax.lax.scan(block, x, params["blocks"])
    x = rms_norm(x, params["norm"])
    return jnp.einsum("btd,vd->btv", x, params["embed"], preferred_element_type=F32)


def loss_fn(params, batch):
    compute = jax.tree.map(lambda p: p.astype(BF16), params)
    logits = forward(compute, batch["tokens"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    return jnp.mean(losses)


def step(state, batch):
    params, opt_state = state
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = opt.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), {"loss": loss}


def inputs(layers=2, batch=2, length=16, dtype=F32):
    S = lambda *shape: jax.ShapeDtypeStruct(shape, dtype)
    blocks = {name: S(layers, 32, 4, 8) for name in "qkv"}
    blocks |= {
        "o": S(layers, 4, 8, 32),
        "up": S(layers, 32, 128),
        "down": S(layers, 128, 32),
    }
    blocks |= {"norm1": S(layers, 32), "norm2": S(layers, 32)}
    params = {"embed": S(64, 32), "blocks": blocks, "norm": S(32)}
    tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    state = params, jax.eval_shape(opt.init, params)
    return state, {"tokens": tokens, "labels": tokens}
