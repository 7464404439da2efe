"""Promotion of the dtypes that JAX promotes with nothing, and what a cast loses."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dtypeguard import fromage
from dtypeguard._leaves.dtypes import dtype_of, kind, native, promoted
from dtypeguard._leaves.rows import lost, rounding

# Those of JAX; a release may lack some.
_NARROW = [n for n in dir(ml_dtypes) if n.startswith(("bfloat", "float", "int", "uint"))]
NARROW = [name for name in _NARROW if hasattr(jnp, name)]


@pytest.mark.parametrize("name", NARROW)
def test_the_dtypes_of_jax_keep_their_kind(name):
    """Some have letters of others: float8_e4m3fnuz and the complex long double are "G"."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    array = np.ones(2, dtype)
    assert dtype_of(array) == native(array).dtype == dtype
    assert kind(dtype) == ("float" if "float" in name else "int")


def test_long_doubles_become_doubles():
    assert native(np.longdouble(1)).dtype == np.float64
    assert native(np.clongdouble(1)).dtype == np.complex128


def test_an_optimizer_takes_every_8_bit_float():
    params = [
        np.ones(2, getattr(ml_dtypes, name))
        for name in NARROW
        if name.startswith("float8_e4m3")
    ]
    assert len(params) > 1
    assert fromage(0.1).init(params).count == 0


@pytest.mark.parametrize(
    ("a", "b", "both"),
    [
        ("int4", "uint4", "int8"),
        ("int4", "int32", "int32"),
        ("uint4", "uint8", "uint8"),
        ("uint4", "uint32", "uint32"),
        ("uint4", "int8", "int8"),
        ("float8_e4m3fn", "bfloat16", "float32"),
    ],
)
def test_small_dtypes_promote_by_way_of_a_byte(a, b, both):
    dtypes = jnp.dtype(a), jnp.dtype(b)
    assert promoted(*dtypes) == promoted(*reversed(dtypes)) == both


@pytest.mark.parametrize(
    ("source", "target", "loss"),
    [
        ("int32", "int16", "numbers out of range wrap"),
        ("int32", "uint32", "numbers out of range wrap"),
        ("uint8", "int8", "numbers out of range wrap"),
        ("uint8", "int16", ""),
        ("int32", "float32", "integers beyond 2**24 are rounded"),
        ("int8", "float32", ""),
        ("float32", "int32", "the fraction is lost"),
        ("complex64", "float32", "the imaginary part is lost"),
        ("complex64", "int32", "the imaginary part and the fraction are lost"),
        ("float32", "bool", "all but 0 becomes True"),
        ("bool", "int32", ""),
        ("float32", "bfloat16", ""),
    ],
)
def test_what_a_cast_loses(source, target, loss):
    assert lost(jnp.dtype(source), jnp.dtype(target)).strip(" ()") == loss


@pytest.mark.parametrize(
    ("dtype", "rounds"),
    [("bfloat16", True), ("float16", True), ("float8_e4m3fn", True), ("float64", False)],
)
def test_casts_to_16_bits_and_fewer_round(dtype, rounds):
    told = rounding([f"{dtype}[3]"], f"x.astype(jnp.{dtype})")
    assert told.startswith(f"A cast to {dtype} rounds") is rounds
