"""A refactor that loses a cast: no test fails, and sums are in bfloat16."""

import functools
import os
import tempfile
from unittest import mock

import jax
import jax.numpy as jnp

from dtypeguard.testing import check_lock

CALL = "the cast back"


def norm(h, has_cast):
    if has_cast:
        h = h.astype(jnp.float32)
    return h * jax.lax.rsqrt(jnp.mean(h * h))


def step(params, x, has_cast):
    return norm(x @ params, has_cast).astype(x.dtype)


def run(has_call):
    x = jax.ShapeDtypeStruct((16, 16), jnp.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "step.lock")
        with mock.patch.dict(os.environ, DTYPEGUARD_UPDATE="1"):  # writes the lock
            check_lock(functools.partial(step, has_cast=True), x, x, path=path)
        check_lock(functools.partial(step, has_cast=has_call), x, x, path=path)
    return "as locked: `dtypeguard lock --check` in CI finds the next one"
