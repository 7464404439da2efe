"""What is written to a reference, in a kernel or to an array that JAX mutates."""

import jax
import jax.numpy as jnp
import pytest
from advice import applied, line, note_on
from jax.experimental import pallas as pl

BF16 = jnp.bfloat16


def of_a_kernel():
    def kernel(x, out):
        scale = jnp.full(3, 2.0)  # wide
        out[...] = x[...].astype(scale.dtype) * scale  # kernel

    shape = jax.ShapeDtypeStruct((3,), BF16)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(jnp.ones(3, BF16))


def of_a_reference():
    ref = jax.new_ref(jnp.ones(3, BF16))
    wide = jnp.ones(3)  # wide too
    ref[...] = wide  # reference
    return ref[...]


CASES = [
    (of_a_kernel, "kernel", "x[...].astype(scale.dtype) * scale", "out"),
    (of_a_reference, "reference", "wide", "ref"),
]


@pytest.mark.parametrize(("program", "mark", "old", "name"), CASES)
def test_what_is_written_is_cast(program, mark, old, name):
    if program is of_a_reference and not hasattr(jax, "new_ref"):
        pytest.skip("before JAX 0.7")
    note = note_on(program)
    place = line(__file__, mark)
    head = f"dtypeguard: {name}[...] has an argument of a type that it does not accept."
    assert note.startswith(head)
    new = f"({old})" if " * " in old else old
    new = f"{new}.astype(jnp.bfloat16)"
    assert f"At {place} write {new} in place of {old}." in note
    assert applied(program, (f"= {old}  #", f"= {new}  #"))().dtype == BF16
