"""Loops of Flax and Haiku over the user's layers: which guard the note says to write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from advice import note_on
from helpers import need

from dtypeguard import guard_step

pytestmark = pytest.mark.third_party
BF16 = jnp.bfloat16
X = jnp.ones((2, 4), BF16)
DOUBLE = np.float32(2)
KEY = jax.random.PRNGKey(0)


def linen_scan(guard):
    nn = need("flax.linen")

    class Block(nn.Module):
        @guard
        @nn.compact
        def __call__(self, x, _):
            return nn.Dense(4, dtype=BF16)(x) * DOUBLE, None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            split = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
            return nn.scan(Block, length=2, **split)()(x, None)[0]

    return Model().init_with_output(KEY, X)[0]


def linen_while_loop(guard):
    nn = need("flax.linen")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            dense = nn.Dense(4, dtype=BF16)
            dense(x)
            turn = guard(lambda _, carry: (carry[0] + 1, dense(carry[1]) * DOUBLE))
            return nn.while_loop(lambda _, carry: carry[0] < 2, turn, self, (0, x))[1]

    return Model().init_with_output(KEY, X)[0]


def nnx_scan(guard):
    nnx = need("flax.nnx")

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    @guard
    def layer(weight, x):
        return x @ weight * DOUBLE

    return layer(jnp.ones((2, 4, 4), BF16), X)


def haiku_stack(guard):
    hk = need("haiku")

    def model(x):
        layer = guard(lambda x: hk.Linear(4)(x) * DOUBLE)
        return hk.experimental.layer_stack(2)(layer)(x)

    model = hk.transform(model)
    return model.apply(model.init(KEY, X), KEY, X)


@pytest.mark.parametrize(
    ("program", "guard", "position"),
    [
        (linen_scan, "dtypeguard.guard_step(Block.__call__)", 0),
        (linen_while_loop, "dtypeguard.guard_step(lambda ..., carry=1)", 1),
        (nnx_scan, "dtypeguard.guard_step(layer, carry=1)", 1),
        (haiku_stack, "dtypeguard.guard_step(lambda ...)", 0),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_guard_of_a_layer(program, guard, position):
    package = "haiku" if program is haiku_stack else "flax"
    note = note_on(lambda: program(lambda layer: layer))
    assert f"uard what you give to {package}: {guard}." in note
    assert program(guard_step(carry=position)).dtype == BF16
