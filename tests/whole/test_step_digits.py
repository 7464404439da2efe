"""A whole training loop as one scan: bfloat16, an average, a dynamic loss scale."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from digits import loss, make_params, parts
from helpers import set_x64, types
from jax import lax, tree_util

from dtypeguard import guard_step, strong

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
BATCH, DOUBLES_AFTER = 100, 40


def first_carry():
    params = make_params(0, BF16)
    return {
        "params": params,
        "opt_state": optax.adam(3e-3).init(params),
        "average": params,
        "scale": jnp.asarray(2.0**15, BF16),
        "good_steps": 0,
        "key": jax.random.key(0),
    }


def train_step(carry, number):
    """As people write it: float32 where it matters, and nobody looks at what returns."""
    opt, images, labels = optax.adam(3e-3), *map(jnp.asarray, parts()[0])
    key, drawn = jax.random.split(carry["key"])
    batch = jax.random.randint(drawn, (BATCH,), 0, len(labels))
    scale = carry["scale"].astype(F32)
    wide = tree_util.tree_map(lambda p: p.astype(F32), carry["params"])
    scaled = lambda p: scale * loss(p, images[batch], labels[batch])
    value, grads = jax.value_and_grad(scaled)(wide)
    grads = tree_util.tree_map(lambda g: g / scale, grads)
    # A batch that overflows, now and then.
    grads["b1"] = jnp.where(number % 97 == 96, jnp.inf, grads["b1"])
    finite = jnp.all(
        jnp.asarray([jnp.isfinite(g).all() for g in tree_util.tree_leaves(grads)])
    )

    updates, opt_state = opt.update(grads, carry["opt_state"], carry["params"])
    params = tree_util.tree_map(lambda p, u: p + u, carry["params"], updates)
    keep = lambda new, old: jnp.where(finite, new, old)
    params = tree_util.tree_map(keep, params, carry["params"])
    opt_state = tree_util.tree_map(keep, opt_state, carry["opt_state"])
    average = tree_util.tree_map(
        lambda a, p: 0.9 * a.astype(F32) + 0.1 * p.astype(F32), carry["average"], params
    )
    good_steps = jnp.where(finite, carry["good_steps"] + 1, 0)
    doubles = good_steps == DOUBLES_AFTER
    scale = jnp.where(finite, jnp.where(doubles, 2 * scale, scale), scale / 2)
    return {
        "params": params,
        "opt_state": opt_state,
        "average": average,
        "scale": scale,
        "good_steps": jnp.where(doubles, 0, good_steps),
        "key": key,
    }, {"loss": value / scale, "finite": finite}


def accuracy(params):
    images, labels = parts()[1]
    params = tree_util.tree_map(lambda p: p.astype(F32), params)
    hidden = jax.nn.relu(images @ params["w1"] + params["b1"])
    return np.mean(np.argmax(hidden @ params["w2"] + params["b2"], axis=1) == labels)


def test_bare_it_is_no_scan():
    with pytest.raises(
        TypeError, match="carry input and carry output must have equal types"
    ):
        lax.scan(train_step, first_carry(), jnp.arange(800))


@pytest.mark.parametrize("x64", [False, True])
def test_guarded_it_trains_in_bfloat16(x64):
    with set_x64(x64):
        start = strong(first_carry())
        run = jax.jit(
            lambda carry, numbers: lax.scan(guard_step(train_step), carry, numbers),
            donate_argnums=0,
        )
        expected = types(start)
        carry, told = run(start, jnp.arange(800))
    assert types(carry) == expected
    floats = {"params", "average", "scale"}
    leaves = tree_util.tree_leaves({name: carry[name] for name in floats})
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(BF16)}
    assert accuracy(carry["params"]) > 0.95
    assert accuracy(carry["average"]) > 0.95
    assert int(np.sum(~told["finite"])) == 800 // 97
    # Of the 97 steps from one to the next 96 are good, which doubles it twice.
    assert carry["scale"] == first_carry()["scale"] * 2 ** (2 * 8 - 8)
    assert told["loss"][-50:].mean() < 0.2
