"""`jax.eval_shape` for trees with other leaves than arrays."""

from collections.abc import Callable

import jax
from jax import tree_util

from .types import PyTree


def eval_shape(function: Callable[[PyTree], PyTree], tree: PyTree) -> PyTree:
    """The shapes and dtypes of what a function returns. Nothing runs or is allocated.

    Unlike `eqx.filter_eval_shape`, it does not import Equinox.

    Args:
        function: a function of one tree. The JAX arrays and `jax.ShapeDtypeStruct`s of the
            tree are traced; other leaves, such as functions and Python numbers, stay.
        tree: the tree.

    Returns:
        The result of `function` with a `jax.ShapeDtypeStruct` for each JAX array.
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
