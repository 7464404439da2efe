"""schedule_free in MultiSteps, bfloat16 under x64 (it raised in Optax 0.2.3)."""

import jax.numpy as jnp
import optax
import optax.contrib

import dtypeguard

CALL = "dtypeguard.guard(opt)"
X64 = True


def optimizer():
    return optax.MultiSteps(optax.contrib.schedule_free_adamw(1e-3), 4)


def audit(opt):
    report = dtypeguard.audit(opt, {"w": jnp.ones(3, jnp.bfloat16)})
    return f"{len(report.wide_operations)} operations in 64 bits", report


def bare():
    return audit(optimizer())


def guarded():
    text, report = audit(dtypeguard.guard(optimizer()))
    assert report.ok, report
    return text, report
