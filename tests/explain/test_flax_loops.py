"""Loops of Flax and Haiku: the attributes of objects, and guards that work."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dtypeguard import guard_step
from tests.support.advice import line as line_of, note_on
from tests.support.dtypes import BF16, F32
from tests.support.helpers import need

pytestmark = pytest.mark.third_party
X = jnp.ones((2, 4), BF16)
DOUBLE = np.float32(2)
KEY = jax.random.PRNGKey(0)

line = functools.partial(line_of, __file__)


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
            return nn.scan(
                Block, length=2, variable_axes={"params": 0}, split_rngs={"params": True}
            )()(x, None)[0]

    return Model().init_with_output(KEY, X)[0]


def linen_while_loop(guard):
    nn = need("flax.linen")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            turn = guard(lambda _, carry: (carry[0] + 1, carry[1] * DOUBLE))
            return nn.while_loop(lambda _, carry: carry[0] < 2, turn, self, (0, x))[1]

    return Model().init_with_output(KEY, X)[0]


def nnx_scan(guard):
    nnx = need("flax.nnx")

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    @guard
    def layer(weight, x):
        return x * weight * DOUBLE

    return layer(jnp.ones(2, BF16), X)


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
        (linen_scan, "flax: dtypeguard.guard_step(Block.__call__)", 0),
        (linen_while_loop, "flax: dtypeguard.guard_step(lambda ..., carry=1)", 1),
        (nnx_scan, "flax: dtypeguard.guard_step(layer, carry=1)", 1),
        (haiku_stack, "haiku: dtypeguard.guard_step(lambda ...)", 0),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_guard_of_a_layer(program, guard, position):
    note = note_on(lambda: program(lambda layer: layer))
    assert f"uard what you give to {guard}." in note
    assert program(guard_step(carry=position)).dtype == BF16


def model_of(nnx):
    class Model(nnx.Module):
        def __init__(self):
            self.head = nnx.Linear(4, 1, param_dtype=BF16, dtype=BF16, rngs=nnx.Rngs(0))
            self.seen = nnx.BatchStat(jnp.zeros(4, BF16))

        def __call__(self, x):
            self.seen.set_value(self.seen[...] + x.mean(0) * jnp.ones(4))  # widens: seen
            return self.head(x)

    model = Model()
    return model, nnx.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=nnx.Param)


def learn(nnx, model, optimizer, x):
    grads = nnx.grad(lambda model: jnp.mean(model(x)))(model)
    grads = jax.tree.map(lambda g: g.astype(F32), grads)  # widens: grads
    optimizer.update(model, grads)  # updates


def scan(nnx, guarded, model, optimizer):
    def body(carry, x):
        learn(nnx, *carry, x)
        return carry, None

    nnx.scan(guarded(body), in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))(
        (model, optimizer), X[None]
    )


def cond(nnx, guarded, *models):
    true_fun = guarded(lambda *models: learn(nnx, *models, X))
    nnx.cond(jnp.asarray(True), true_fun, lambda *models: None, *models)


@pytest.mark.parametrize("loop", [scan, cond])
def test_paths_have_the_attributes_of_the_users_objects(loop):
    nnx = need("flax.nnx")
    note = note_on(lambda: loop(nnx, lambda body: body, *model_of(nnx)))
    seen, kernel = (
        re.split(r"\n  \w", note[note.index(path) :])[0]
        for path in ("[0]['seen']", "['opt_state'][0]['trace']['head']['kernel']")
    )
    assert line("widens: seen") in seen
    assert line("updates") in kernel
    assert line("widens: grads") in kernel

    model, optimizer = model_of(nnx)
    loop(nnx, guard_step, model, optimizer)
    leaves = jax.tree.leaves(nnx.state((model, optimizer)))
    assert {leaf.dtype for leaf in leaves if leaf.ndim} == {jnp.dtype(BF16)}
    assert int(optimizer.step[...]) == 1
