"""`apply_updates`: Optax's sum, no promotion, and stochastic rounding given a key."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_same, types

from dtypeguard import apply_updates

BF16, F16, F32, I32 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32
PAIRS = [(F32, F32), (BF16, F32), (F32, BF16), (BF16, BF16), (F16, BF16), (I32, F32)]


@pytest.mark.third_party
@pytest.mark.parametrize(
    "dtypes", PAIRS, ids=lambda pair: "+".join(d.__name__ for d in pair)
)
def test_the_sum_is_optaxs(dtypes):
    params = {"w": jnp.linspace(-7, 7, 101).astype(dtypes[0]), "none": None}
    updates = {"w": jnp.linspace(0, 0.3, 101).astype(dtypes[1]), "none": None}
    ours = apply_updates(params, updates)
    assert_same(ours, optax.apply_updates(params, updates))
    with jax.numpy_dtype_promotion("strict"):
        assert_same(ours, apply_updates(params, updates))


def test_none_and_float0_updates_leave_their_param():
    model = eqx.nn.MLP(2, 2, 4, 1, dtype=F32, key=jax.random.key(0))
    updates = jax.tree_util.tree_map(
        lambda leaf: jnp.ones_like(leaf) if eqx.is_inexact_array(leaf) else None, model
    )
    moved = apply_updates(model, updates)
    assert moved.activation is model.activation
    np.testing.assert_array_equal(moved.layers[0].bias, model.layers[0].bias + 1)
    frozen = apply_updates({"w": jnp.ones(2, F32)}, {"w": None})
    np.testing.assert_array_equal(frozen["w"], 1)
    assert apply_updates({"w": None}, {"w": jnp.ones(2, F32)}) == {"w": None}
    count = jnp.ones(2, I32)
    assert apply_updates(count, np.zeros(2, jax.dtypes.float0)) is count


@pytest.mark.parametrize("subtree", [{"b": jnp.ones(2)}, {}, (), (jnp.ones(2),)])
@pytest.mark.parametrize(
    "update",
    [jnp.ones(2), 1.0, np.zeros(2, jax.dtypes.float0)],
    ids=["array", "1", "float0"],
)
def test_an_update_in_place_of_a_subtree_is_another_tree(update, subtree):
    params = {"a": subtree, "c": jnp.ones(2)}
    with pytest.raises(ValueError, match=r"another tree.*\n +updates\['a'\]") as error:
        apply_updates(params, {"a": update, "c": jnp.ones(2)})
    assert "give one for each param, or None" in str(error.value)
    kept = apply_updates(params, {"a": None, "c": jnp.ones(2)})
    assert_same(kept, {"a": subtree, "c": jnp.full(2, 2.0)})


@pytest.mark.parametrize("dtype", [BF16, F16, jnp.float8_e4m3fn])
@pytest.mark.parametrize("update_dtype", [F32, BF16])
def test_small_steps_are_lost_without_a_key_and_not_with_one(dtype, update_dtype):
    params = {"w": jnp.ones((4, 25_000), dtype)}
    small = float(jnp.finfo(dtype).eps) / 16
    updates = {"w": jnp.full((4, 25_000), small, update_dtype)}
    nearest = apply_updates(params, updates)
    np.testing.assert_array_equal(nearest["w"].astype(F32), 1)
    rounded = apply_updates(params, updates, key=jax.random.key(0))
    assert types(rounded) == types(params)
    mean = rounded["w"].astype(F32).mean() - 1
    error = small * np.sqrt(15 / params["w"].size)
    assert abs(mean - small) < 4 * error
