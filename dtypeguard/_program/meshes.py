"""The meshes of devices under which a program computes, which `auto_axes` changes."""

import contextlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, sharding

from .._leaves.types import DType, Equation, Leaf


def under_mesh(eqn: Equation) -> contextlib.AbstractContextManager[object]:
    """A context with the mesh under which an equation was traced."""
    return _under(eqn.ctx.cur_abstract_mesh)


def of_mesh(array: Leaf) -> contextlib.AbstractContextManager[object]:
    """A context with the mesh of an array."""
    mesh = jax.typeof(array).sharding.mesh
    return contextlib.nullcontext() if mesh.empty else _under(mesh)


def _under(mesh: sharding.AbstractMesh) -> contextlib.AbstractContextManager[object]:
    is_it = mesh == sharding.get_abstract_mesh()
    return contextlib.nullcontext() if is_it else sharding.use_abstract_mesh(mesh)


def as_dtype(array: Leaf, dtype: DType) -> Leaf:
    """An array in a dtype, converted under its own mesh."""
    if array.dtype == dtype:
        return array
    with of_mesh(array):
        return lax.convert_element_type(array, dtype)


def varying_as(array: Leaf, others: Sequence[Leaf]) -> Leaf:
    """An array of shards; that of the first where its type shall not say they differ."""
    axes = (*_varying(array).difference(*map(_varying, others)),)
    if not axes:
        return array
    numbers = array.astype(np.int32) if array.dtype == bool else array
    is_first = lax.axis_index(axes) == 0
    first = jnp.where(is_first, numbers, 0)
    return lax.psum(first, axes).astype(array.dtype)


def _varying(array: Leaf) -> frozenset[object]:
    """The axes of shards over which an array differs."""
    aval = jax.typeof(array)
    if hasattr(aval, "manual_axis_type"):  # from JAX 0.10 on
        return aval.manual_axis_type.varying
    return getattr(aval, "vma", frozenset())


def current_mesh() -> object:
    """The mesh of the context, under which a new array is."""
    return sharding.get_abstract_mesh()
