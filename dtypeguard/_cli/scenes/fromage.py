"""Fromage with a schedule: how much it shrinks the params, at a rate of 3e-4."""

import functools

import jax.numpy as jnp
import optax

import dtypeguard

CALL = "dtypeguard.fromage(rate)"


def along_params(opt, params, grads):
    """The part of an update along the params, where the gradient has none."""
    updates, _ = opt.update(grads, opt.init(params), params)
    return jnp.vdot(params, updates)


def run(has_call):
    rate = optax.linear_schedule(3e-4, 0.0, 1000)
    opt = dtypeguard.fromage(rate) if has_call else optax.fromage(rate)
    params = jnp.array([3.0, 4.0])
    grads = jnp.array([-4.0, 3.0])
    update = functools.partial(along_params, opt)
    report = dtypeguard.audit_precision(update, params, grads)
    assert report.error < 1e-3 or not has_call, report
    return f"the shrinkage is {100 * report.error:.3g}% off.\n{report}"
