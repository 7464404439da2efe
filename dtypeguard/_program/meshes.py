"""The meshes of devices under which a program computes, which `auto_axes` changes."""

import contextlib

import jax
from jax import lax, sharding

from .._leaves.types import DType, Equation, Leaf


def under_mesh(eqn: Equation) -> contextlib.AbstractContextManager[object]:
    """A context with the mesh under which an equation was traced."""
    return _under(eqn.ctx.cur_abstract_mesh)


def of_mesh(array: Leaf) -> contextlib.AbstractContextManager[object]:
    """A context with the mesh of an array."""
    mesh = jax.typeof(array).sharding.mesh
    return contextlib.nullcontext() if mesh.empty else _under(mesh)


def _under(mesh: "sharding.AbstractMesh") -> contextlib.AbstractContextManager[object]:
    is_it = mesh == sharding.get_abstract_mesh()
    return contextlib.nullcontext() if is_it else sharding.use_abstract_mesh(mesh)


def as_dtype(array: Leaf, dtype: DType) -> Leaf:
    """An array in a dtype, converted under its own mesh."""
    if array.dtype == dtype:
        return array
    with of_mesh(array):
        return lax.convert_element_type(array, dtype)


def current_mesh() -> object:
    """The mesh of the context, under which a new array is."""
    return sharding.get_abstract_mesh()
