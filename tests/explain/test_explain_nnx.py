"""Notes on loops of Flax NNX: the attributes of objects, and advice that works."""

import functools
import re

import jax.numpy as jnp
import optax
import pytest
from advice import line as line_of, note_on
from helpers import need
from jax import tree_util

from dtypeguard import guard_step

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
X = jnp.ones((4, 3), BF16)


line = functools.partial(line_of, __file__)


def make(nnx):
    class Model(nnx.Module):
        def __init__(self):
            self.head = nnx.Linear(3, 1, param_dtype=BF16, dtype=BF16, rngs=nnx.Rngs(0))
            self.seen = nnx.BatchStat(jnp.zeros(3, BF16))

        def __call__(self, x):
            self.seen[...] = self.seen[...] + x.mean(0)
            self.seen.set_value(self.seen[...] * jnp.ones(3, F32))  # widens: seen
            return self.head(x)

    model = Model()
    return model, nnx.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=nnx.Param)


def train(nnx, model, optimizer, x):
    grads = nnx.grad(lambda model: jnp.mean(model(x)))(model)
    grads = tree_util.tree_map(lambda g: g.astype(F32), grads)  # widens: grads
    optimizer.update(model, grads)  # updates


def scan(nnx, guarded, model, optimizer):
    def body(carry, x):
        train(nnx, *carry, x)
        return carry, None

    body = guarded(body)
    axes = {"in_axes": (nnx.Carry, 0), "out_axes": (nnx.Carry, 0)}
    nnx.scan(body, **axes)((model, optimizer), jnp.stack([X, X]))


def cond(nnx, guarded, *models):
    true_fun = guarded(lambda *models: train(nnx, *models, X))
    nnx.cond(jnp.asarray(True), true_fun, lambda *models: None, *models)


@pytest.mark.parametrize("loop", [scan, cond])
def test_paths_have_the_attributes_of_the_users_objects_and_the_advice_works(loop):
    nnx = need("flax.nnx")
    unguarded = lambda body, **_: body
    note = note_on(lambda: loop(nnx, unguarded, *make(nnx)))
    seen, kernel = (
        re.split(r"\n  \w", note[note.index(path) :])[0]
        for path in ("[0]['seen']", "['opt_state'][0]['trace']['head']['kernel']")
    )
    assert line("widens: seen") in seen
    assert line("updates") in kernel
    assert line("widens: grads") in kernel
    advice = r"uard what you give to flax: .*guard_step\(body\)"
    assert bool(re.search(advice, note)) == (loop is scan)

    model, optimizer = make(nnx)
    loop(nnx, guard_step, model, optimizer)
    assert model.seen[...].dtype == BF16
    leaves = tree_util.tree_leaves(nnx.state(optimizer))
    floating = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert all(leaf.dtype == BF16 for leaf in floating)
    assert int(optimizer.step[...]) == (1 if loop is cond else 2)
