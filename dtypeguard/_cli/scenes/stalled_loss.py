"""A loss that stalls in bfloat16: Adam at 1e-3, params at 1, their goal at 2."""

import jax
import jax.numpy as jnp
import optax

import dtypeguard

CALL = "guard(opt, policy=...), apply_updates(..., key=key)"
POLICY = dtypeguard.Policy(
    compute_dtype=jnp.float32, state_dtype=jnp.bfloat16, rounding="stochastic"
)


def loss(params):
    return jnp.mean((params.astype(jnp.float32) - 2) ** 2)


def run(has_call):
    opt = optax.adam(1e-3)
    if has_call:
        opt = dtypeguard.guard(opt, policy=POLICY)
    params = jnp.ones(64, jnp.bfloat16)

    def step(carry, key):
        params, state = carry
        updates, state = opt.update(jax.grad(loss)(params), state, params)
        if has_call:
            return (dtypeguard.apply_updates(params, updates, key=key), state), None
        return (optax.apply_updates(params, updates), state), None

    first = params, opt.init(params)
    keys = jax.random.split(jax.random.key(0), 2000)
    (params, _), _ = jax.lax.scan(step, first, keys)
    after = float(loss(params))
    text = f"loss from 1 to {after:.2g} in {len(keys)} steps"
    if has_call:
        assert after < 0.1, text
        return text
    return f"{text}\n{dtypeguard.audit_precision(step, first, keys[0])}"
