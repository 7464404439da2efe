"""schedule_free in MultiSteps, bfloat16 under x64 (it raised in Optax 0.2.3)."""

import jax.numpy as jnp
import optax
import optax.contrib

import dtypeguard

CALL = "dtypeguard.guard(opt)"
X64 = True


def run(has_call):
    opt = optax.MultiSteps(optax.contrib.schedule_free_adamw(1e-3), 4)
    if has_call:
        opt = dtypeguard.guard(opt)
    report = dtypeguard.audit(opt, {"w": jnp.ones(3, jnp.bfloat16)})
    assert report.ok or not has_call, report
    return f"{len(report.wide_operations)} operations in 64 bits.\n{report}"
