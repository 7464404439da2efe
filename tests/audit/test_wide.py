"""64-bit operations of an optimizer, its `init` and a step, with their lines."""

import jax
import jax.numpy as jnp
import pytest

from dtypeguard import audit
from tests.support.dtypes import F32, F64
from tests.support.one_leaf import one_leaf, struct

pytestmark = pytest.mark.third_party


def test_scalars_and_arrays():
    def change(leaf):
        return (leaf.astype(F64) * 2).astype(F32)  # the planted line

    for shape, is_array in (((), False), ((3,), True)):
        opt = one_leaf(lambda params, shape=shape: jnp.zeros(shape, F32), change)
        report = audit(opt, struct(F32), x64=True)
        assert report.ok
        assert {wide.is_array for wide in report.wide_operations} == {is_array}
        assert all("planted" in wide.origin.code for wide in report.wide_operations)
        assert "2 operations in 64 bits" in str(report)
        # A program with a 64-bit input may compute in 64 bits.
        assert audit(opt, struct(F64), x64=True).wide_operations == ()


def test_init_and_complex_operations():
    first = lambda p: (jnp.zeros((), jnp.complex128) + 1).real.astype(F32)  # planted
    opt = one_leaf(first, lambda m: m)
    (wide, *_) = audit(opt, struct(F32), x64=True).wide_operations
    assert (wide.type, wide.is_array) == ("complex128[]", False)
    assert wide.origin.code.endswith("# planted")
    # A gradient of 64 bits is an input like any other.
    wide = struct(F64)
    assert audit(opt, struct(F32), updates=wide, x64=True).wide_operations == ()


def test_a_step():
    step = lambda x: (x.astype(F64) * 2).astype(F32)
    report = audit(step, jax.ShapeDtypeStruct((3,), F32), x64=True)
    assert report.ok
    assert "operations in 64 bits though no input is (2 on arrays)" in str(report)
    # Nor is a Python number, which is weakly typed.
    both = lambda carry: (step(carry[0]), carry[1])
    assert audit(both, (jax.ShapeDtypeStruct((3,), F32), 0.5), x64=True).wide_operations
    wide = jax.ShapeDtypeStruct((3,), F64)
    assert audit(lambda x: x * 2, wide, x64=True).wide_operations == ()
