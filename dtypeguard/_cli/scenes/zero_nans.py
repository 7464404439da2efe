"""zero_nans in MultiSteps, gradients averaged in float32 (it raised in Optax 0.1.9)."""

import jax
import jax.numpy as jnp
import optax

import dtypeguard

CALL = "dtypeguard.guard(opt)"


def run(has_call):
    opt = optax.MultiSteps(optax.chain(optax.zero_nans(), optax.sgd(0.1)), 2)
    if has_call:
        opt = dtypeguard.guard(opt)
    params = {"w": jnp.ones(3, jnp.bfloat16)}

    def step(carry, _):
        params, state = carry
        grads = jax.tree.map(lambda p: p.astype(jnp.float32), params)
        updates, state = opt.update(grads, state, params)
        return (jax.tree.map(jnp.add, params, updates), state), None

    jax.lax.scan(step, (params, opt.init(params)), None, length=10)
