"""A run that is guarded now and bare then is one run, and checkpoints that drifted."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import tree_util

from dtypeguard import DtypeDriftError, guard, record, restore
from tests.support.dtypes import BF16, F32
from tests.support.helpers import assert_same, need, types

pytestmark = pytest.mark.third_party
OPTIMIZERS = {
    "chain": optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 3e-3, 5, 40)),
        optax.apply_every(2),
    ),
    "MultiSteps": optax.MultiSteps(optax.adam(3e-3), 3),
}


def make_params(dtype=F32):
    return {"b": jnp.zeros(3, dtype), "w": jnp.linspace(0.5, 1, 3, dtype=dtype)}


def train(opt, carry, steps):
    """Params of any dtype, gradients in float32."""

    @jax.jit
    def step(carry, x):
        params, state = carry
        wide = tree_util.tree_map(lambda leaf: leaf.astype(F32), params)
        grads = jax.grad(lambda p: jnp.sum((p["w"] * x + p["b"] - 1) ** 2))(wide)
        updates, state = opt.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for number in steps:
        carry = step(carry, jnp.sin(number + jnp.arange(3.0)))
    return carry


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_goes_on_with_the_guard_and_without(name, tmp_path):
    """Through a checkpoint each time: the bits are those of a run without a guard."""
    opt, params = OPTIMIZERS[name], make_params()
    fresh = params, opt.init(params)
    expected, carry = train(opt, fresh, range(8)), fresh
    for number, wrap in enumerate((guard, lambda opt: opt, guard, lambda opt: opt)):
        carry = train(wrap(opt), carry, range(2 * number, 2 * number + 2))
        _, carry = through_orbax(tmp_path / str(number), carry, fresh)
    assert_same(carry, expected)


def through_orbax(folder, saved, fresh):
    """A checkpoint in the dtypes it was saved with, and in those of a fresh carry."""
    orbax = need("orbax.checkpoint")
    with orbax.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder, saved)
        as_saved = tree_util.tree_map(
            lambda _: orbax.RestoreArgs(restore_type=np.ndarray), fresh
        )
        loaded = checkpointer.restore(folder, item=fresh, restore_args=as_saved)
    with orbax.StandardCheckpointer() as checkpointer:
        return loaded, checkpointer.restore(folder, fresh)


def test_a_run_that_drifted_is_healed(tmp_path):
    """A bare run with bfloat16 params leaves float32 in its state."""
    opt = OPTIMIZERS["chain"]
    params = make_params(BF16)
    fresh = params, guard(opt).init(params)
    drifted = train(opt, (params, opt.init(params)), range(6))
    loaded, _ = through_orbax(tmp_path / "saved", drifted, fresh)
    assert_same(loaded, tree_util.tree_map(np.asarray, drifted))
    assert types(loaded[1]) != types(fresh[1])
    healed = restore(loaded[1], record(opt, params))
    assert types(healed) == types(fresh[1])
    rounded = tree_util.tree_map(lambda x, y: x.astype(y.dtype), drifted[1], fresh[1])
    assert_same(healed, rounded)
    assert types(train(guard(opt), (loaded[0], healed), range(6, 12))) == types(fresh)
    # Without `restore` the guard keeps the state that it is given, as wide as it is.
    kept = train(guard(opt), (drifted[0], drifted[1]), range(6, 12))
    assert types(kept) == types(drifted)


def test_what_cannot_be_healed_is_refused_with_every_leaf_named():
    opt, params = optax.adam(3e-3), make_params(jnp.float16)
    (adam, rest) = guard(opt).init(params)
    beyond = tree_util.tree_map(lambda leaf: jnp.full(leaf.shape, 1e30, F32), adam.nu)
    saved = adam._replace(count=np.float32(2.5), nu=beyond), rest
    with pytest.raises(DtypeDriftError, match="3 leaves cannot be restored") as error:
        restore(saved, record(opt, params))
    lines = str(error.value).splitlines()[1:-1]
    assert [row.path for row in error.value.rows] == [
        "state[0].count",
        "state[0].nu['b']",
        "state[0].nu['w']",
    ]
    assert "int32 cannot hold 2.5" in lines[0]
    assert "float16 cannot hold 1e+30" in lines[1]
