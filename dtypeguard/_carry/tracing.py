"""Traces a function of arrays that returns more than arrays."""

from collections.abc import Callable
from typing import Generic, TypeVar

import jax
from jax import tree_util

from .._leaves.types import Jaxpr, PyTree

_T = TypeVar("_T")
# Returns a tree of arrays, and a value of any kind.
_WithAuxiliary = Callable[..., tuple[PyTree, _T]]


@tree_util.register_pytree_node_class
class _Auxiliary(Generic[_T]):
    """A node without leaves: JAX hands the value out of a trace with the tree."""

    def __init__(self, value: _T):
        self.value = value

    def take(self) -> _T:
        """Returns the value, and forgets it: a cache of JAX may keep the node."""
        value = self.value
        del self.value
        return value

    def tree_flatten(self):
        # The node itself stands for the value, which JAX could not compare or hash.
        return (), self

    @classmethod
    def tree_unflatten(cls, node, leaves):
        del leaves
        return node


def _wrap_auxiliary(function: _WithAuxiliary[_T]) -> Callable[..., PyTree]:
    # JAX returns what is in the structure of the outputs; no list outside is written to.
    def traced(*args):
        arrays, value = function(*args)
        return arrays, _Auxiliary(value)

    return traced


def make_jaxpr_with_aux(function: _WithAuxiliary[_T], *args: PyTree) -> tuple[Jaxpr, _T]:
    """Returns the closed jaxpr of a function, and its auxiliary output.

    Args:
        function: returns a tree of arrays and the auxiliary output, any Python object.
        *args: trees of arrays or of their shapes.
    """
    wrapped = _wrap_auxiliary(function)
    trace = jax.make_jaxpr(wrapped, return_shape=True)
    jaxpr, (_, auxiliary) = trace(*args)
    return jaxpr, auxiliary.take()


def eval_shape_with_aux(function: _WithAuxiliary[_T], *args: PyTree) -> tuple[PyTree, _T]:
    """Returns the shapes of what `function` returns, and its auxiliary output."""
    wrapped = _wrap_auxiliary(function)
    shapes, auxiliary = jax.eval_shape(wrapped, *args)
    return shapes, auxiliary.take()
