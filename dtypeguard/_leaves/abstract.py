"""`jax.eval_shape` for trees with leaves that are no arrays."""

from collections.abc import Callable

import jax
from jax import tree_util

from .types import PyTree


def eval_shape(function: Callable[[PyTree], PyTree], tree: PyTree) -> PyTree:
    """The shapes and dtypes that a function gives; nothing is run or allocated.

    Args:
        function: of one tree. It is given its JAX arrays and `jax.ShapeDtypeStruct`s
            traced and the rest, functions and Python numbers say, as it is.
        tree: that tree.

    Returns:
        What `function` returns, with a `jax.ShapeDtypeStruct` for each JAX array.
    """
    leaves, treedef = tree_util.tree_flatten(tree)
    is_traced = [isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) for leaf in leaves]
    returned = []

    def of_arrays(arrays):
        arrays = iter(arrays)
        merged = [next(arrays) if is_t else leaf for leaf, is_t in zip(leaves, is_traced)]
        out, out_treedef = tree_util.tree_flatten(
            function(tree_util.tree_unflatten(treedef, merged))
        )
        is_array = [isinstance(leaf, jax.Array) for leaf in out]
        rest = [None if is_a else leaf for leaf, is_a in zip(out, is_array)]
        returned[:] = [rest, is_array, out_treedef]
        return [leaf for leaf, is_a in zip(out, is_array) if is_a]

    arrays = [leaf for leaf, is_t in zip(leaves, is_traced) if is_t]
    shapes = iter(jax.eval_shape(of_arrays, arrays))
    rest, is_array, out_treedef = returned
    merged = [next(shapes) if is_a else leaf for leaf, is_a in zip(rest, is_array)]
    return tree_util.tree_unflatten(out_treedef, merged)
