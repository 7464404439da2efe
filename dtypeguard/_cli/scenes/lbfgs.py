"""L-BFGS in a scan, float32 under x64 (it raised in Optax 0.2.3 and 0.2.4)."""

import jax.numpy as jnp
import optax

import dtypeguard

CALL = "dtypeguard.guard(opt)"
X64 = True


def loss(params):
    return jnp.sum((params - 1) ** 2)


def run(has_call):
    opt = optax.lbfgs()
    if has_call:
        opt = dtypeguard.guard(opt)
    params = jnp.zeros(3, jnp.float32)
    line_search = {"value": loss(params), "grad": params, "value_fn": loss}
    report = dtypeguard.audit(opt, params, extra_args=line_search)
    assert report.ok or not has_call, report
    return f"{len(report.wide_operations)} operations in 64 bits.\n{report}"
