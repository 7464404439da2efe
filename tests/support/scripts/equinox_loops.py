"""Equinox's loops, of the kind that the arguments say."""

import sys
from typing import Any, cast

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np

name, kind = (cast(Any, word) for word in sys.argv[1:])
noise = np.ones(3, np.float32)  # operand: noise


def one(carry):
    moved = 2 * carry["w"]
    return carry | {"w": moved + noise}  # promotion: noise


@jax.jit
def run(scale):
    init = {"n": jnp.zeros((), jnp.int32), "w": scale * jnp.ones(3, jnp.bfloat16)}
    if name == "scan":
        return eqxi.scan(lambda carry, _: (one(carry), None), init, None, 4, kind=kind)
    return eqxi.while_loop(lambda carry: carry["n"] < 3, one, init, max_steps=4, kind=kind)


run(jnp.bfloat16(1))
# told: noise: carry['w']  bfloat16[3] -> float32[3]
