"""Prodigy in a scan under x64, params in bfloat16 and float32."""

import jax
import jax.numpy as jnp
import optax
import optax.contrib

import dtypeguard

CALL = "dtypeguard.guard(opt)"
X64 = True


def run(has_call):
    opt = optax.contrib.prodigy()
    if has_call:
        opt = dtypeguard.guard(opt)
    params = {"w": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(3, jnp.float32)}

    def step(carry, _):
        params, state = carry
        grads = params  # of half the squares
        updates, state = opt.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    jax.lax.scan(step, (params, opt.init(params)), None, length=10)
