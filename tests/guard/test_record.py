"""record: the dtypes without running anything. restore: the way back, or why not."""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from helpers import assert_same, needs_optax, set_x64, types
from jax import tree_util

from dtypeguard import DtypeDriftError, guard, record, restore

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32

pytestmark = pytest.mark.third_party


@pytest.fixture
def params():
    return {"w": jnp.ones((4, 3), BF16), "b": jnp.ones(3, F32)}


def struct_types(tree):
    return tree_util.tree_map(lambda leaf: (str(leaf.dtype), False, leaf.shape), tree)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.adam(1e-3),
        pytest.param(
            lambda: optax.MultiSteps(optax.lbfgs(), 2), marks=needs_optax("lbfgs")
        ),
    ],
    ids=["adam", "lbfgs"],
)
def test_record_is_what_guarded_init_gives(make, params):
    opt = make()
    for wrapped in (opt, guard(opt)):
        assert struct_types(record(wrapped, params)) == types(guard(opt).init(params))
    with set_x64(True):
        assert struct_types(record(opt, params)) == types(guard(opt).init(params))


def test_record_allocates_nothing():
    huge = {"w": jax.ShapeDtypeStruct((10**6, 10**6), BF16)}
    recorded = record(optax.adam(1e-3), huge)
    assert recorded[0].mu["w"] == jax.ShapeDtypeStruct((10**6, 10**6), BF16)


@pytest.mark.parametrize("dtype", [BF16, F32, jnp.float16])
def test_restore_heals_another_precision(dtype, params):
    opt = optax.adam(1e-3)
    recorded = record(opt, params)
    state = guard(opt).init(params)
    floating = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
    other = tree_util.tree_map(lambda x: x.astype(dtype) if floating(x) else x, state)
    assert_same(restore(other, recorded), state)
    assert_same(restore(tree_util.tree_map(np.asarray, other), recorded), state)
    assert_same(restore(state, state), state)


@pytest.mark.parametrize(
    ("leaf", "dtype", "value"),
    [
        (np.float32(7.0), I32, 7),
        (np.int64(7), I32, 7),
        (True, F32, 1.0),
        (np.int32(3), BF16, 3.0),
        (np.float64(np.inf), jnp.float16, np.inf),
        (np.float64(1e-9), jnp.float16, 0.0),
        (np.float32(1 / 3), BF16, ml_dtypes.bfloat16(1 / 3)),
        (jnp.asarray(3, jnp.int4), jnp.uint4, 3),
        (np.float32(460), jnp.float8_e4m3fn, 448),
        (jnp.asarray(jnp.inf, BF16), jnp.float8_e5m2, np.inf),
        (np.float32(np.nan), jnp.complex64, np.nan),
    ],
)
def test_restore_where_the_value_survives(leaf, dtype, value):
    (restored,) = restore((leaf,), (jax.ShapeDtypeStruct((), dtype),))
    assert isinstance(restored, jax.Array)
    assert restored.dtype == dtype
    assert not restored.weak_type
    np.testing.assert_equal(np.asarray(restored), np.asarray(value, dtype))


@pytest.mark.parametrize(
    ("leaf", "dtype", "held"),
    [
        (np.float32(2.5), I32, "2.5"),
        (np.float32(np.nan), I32, "nan"),
        (np.int64(2**40), I32, str(2**40)),
        (np.int8(-1), jnp.uint8, "-1"),  # which wraps there and back
        (jnp.asarray(15, jnp.uint4), jnp.int4, "15"),
        (2, jnp.bool_, "2"),
        (np.int32(2**24 + 1), F32, str(2**24 + 1)),
        (np.int32(257), BF16, "257"),
        (2**70, F32, str(2**70)),  # a float could, but Python alone holds such an int
        pytest.param(10**400, F32, "1000000", id="10**400"),
        (np.float32(np.inf), jnp.float8_e4m3fn, "inf"),  # which would become NaN
        (jnp.asarray(jnp.inf, jnp.float8_e5m2), jnp.float8_e5m2fnuz, "inf"),
        (complex(1, np.nan), F32, "(1+nanj)"),
        (jnp.asarray(jnp.nan), jnp.bool_, "nan"),
    ],
)
def test_restore_refuses_what_would_not_survive(leaf, dtype, held):
    wanted = {"x": jax.ShapeDtypeStruct(np.shape(leaf), dtype)}
    with pytest.raises(DtypeDriftError, match=re.escape(held)) as error:
        restore({"x": leaf}, wanted)
    assert f"{jnp.dtype(dtype)} cannot hold" in str(error.value)
    assert "state['x']" in str(error.value)


@pytest.mark.skipif(not hasattr(jnp, "float4_e2m1fn"), reason="this JAX has no float4")
@pytest.mark.parametrize(
    ("dtype", "lost", "kept"),
    [
        ("float4_e2m1fn", (100, np.nan, -np.inf), (-6, 0.5, 6.9)),  # it saturates
        # No sign, no zero: it takes the powers of two alone.
        ("float8_e8m0fnu", (-1, 0, np.inf, 1e-45, 3.0), (0.25, 2.0**126, 2.0**-127)),
    ],
)
def test_restore_to_a_dtype_that_lacks_some_numbers(dtype, lost, kept):
    wanted = [jax.ShapeDtypeStruct((), getattr(jnp, dtype))]
    for value in lost:
        with pytest.raises(DtypeDriftError, match=rf"state\[0\] .*{dtype} cannot hold"):
            restore([np.float32(value)], wanted)
        # The remedy: a record in a wider dtype.
        (restored,) = restore([np.float32(value)], [jax.ShapeDtypeStruct((), F32)])
        np.testing.assert_equal(np.asarray(restored), np.float32(value))
    for value in kept:
        (restored,) = restore([np.float32(value)], wanted)
        assert restored == np.float32(value).astype(restored.dtype)


@pytest.mark.parametrize("is_committed", [True, False])
def test_restore_keeps_a_jax_array_on_its_devices(is_committed):
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), "d")
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    held = jax.device_put(jnp.ones(4), sharding) if is_committed else jnp.ones(4)
    for dtype in (I32, BF16):
        (restored,) = restore([held], [jax.ShapeDtypeStruct((4,), dtype)])
        assert restored.dtype == dtype
        # JAX 0.4.25 does not tell.
        committed = getattr(restored, "committed", is_committed)
        assert (restored.sharding, committed) == (held.sharding, is_committed)


def test_restore_names_every_leaf(params):
    opt = optax.adam(1e-3)
    state, rest = opt.init(params)
    bad = state._replace(count=np.float32(2.5), nu={"w": jnp.ones(4), "b": jnp.ones(3)})
    with pytest.raises(DtypeDriftError) as error:
        restore((bad, rest), record(opt, params))
    lines = str(error.value).splitlines()
    assert lines[0] == "2 leaves cannot be restored:"
    named = [line.split()[0] for line in lines[1:-1]]
    assert named == ["state[0].count", "state[0].nu['w']"]
    assert lines[-1] == "More on this: dtypeguard docs checkpoints"
    assert lines[2].endswith("load it in shape (4, 3)")


def test_restore_of_keys():
    key = jax.random.key(3)
    recorded = {"key": jax.eval_shape(lambda: key)}
    assert_same(restore({"key": key}, recorded), {"key": key})
    data = {"key": np.asarray(jax.random.key_data(key))}
    with pytest.raises(DtypeDriftError, match=re.escape("jax.random.wrap_key_data(x)")):
        restore(data, recorded)
    wrapped = {"key": jax.random.wrap_key_data(jnp.asarray(data["key"]))}
    assert_same(restore(wrapped, recorded), {"key": key})


def test_restore_while_traced():
    recorded = (jax.ShapeDtypeStruct((), I32), jax.ShapeDtypeStruct((), BF16))
    narrow = jax.jit(lambda *state: restore(state, recorded))
    assert types(narrow(jnp.asarray(1, jnp.int16), jnp.ones(()))) == struct_types(recorded)
    with pytest.raises(DtypeDriftError, match="not known here: convert it to int32 first"):
        narrow(jnp.ones(()), jnp.ones(()))


def test_restore_of_shapes_alone(params):
    recorded = record(optax.adam(1e-3), params)
    with pytest.raises(DtypeDriftError, match="load its values"):
        restore(recorded, recorded)
