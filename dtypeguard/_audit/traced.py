"""An optimizer's `init` and `update`, traced for shapes and dtypes alone."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import tree_util

from .._leaves.dtypes import dtype_of
from .graph import Graph


class Refused(Exception):
    """`init` or `update`, which its one argument names, does not trace.

    `__cause__` tells why.
    """


class Parts:
    """A tree, its array leaves, and the way back to it from other such leaves.

    Attributes:
        tree: the whole of it.
        treedef: its structure.
        arrays: its array leaves; Python scalars are among them, functions are not.
        paths: where these stand, as `jax.tree_util.keystr` prints it.

    Args:
        tree: any.
        static: a type whose instances are none of these.
    """

    def __init__(self, tree: Any, static: type | tuple[()] = ()):
        self.tree = tree
        leaves, self.treedef = tree_util.tree_flatten_with_path(tree)
        self._leaves = [leaf for _, leaf in leaves]
        self._is_array = [
            _is_array(leaf) and not isinstance(leaf, static) for leaf in self._leaves
        ]
        arrays = [pair for pair, is_array in zip(leaves, self._is_array) if is_array]
        self.arrays = [leaf for _, leaf in arrays]
        self.paths = [tree_util.keystr(path) for path, _ in arrays]

    def merged(self, arrays: Sequence[Any]) -> Any:
        """The tree with these for its array leaves."""
        remaining = iter(arrays)
        pairs = zip(self._leaves, self._is_array)
        leaves = [next(remaining) if is_array else leaf for leaf, is_array in pairs]
        return tree_util.tree_unflatten(self.treedef, leaves)

    def holders(self, number: int) -> list[Any]:
        """The nodes of the tree that an array leaf is in, the innermost first."""
        left = [n for n, is_array in enumerate(self._is_array) if is_array][number]
        node, holders = self.tree, []
        while not tree_util.all_leaves([node]):
            holders.insert(0, node)
            for child in tree_util.tree_leaves(node, is_leaf=lambda x, n=node: x is not n):
                size = len(tree_util.tree_leaves(child))
                if left < size:
                    node = child
                    break
                left -= size
        return holders


class Traced(NamedTuple):
    """What one audit sees.

    Attributes:
        init: the graph of `init`. Its outputs are the array leaves of `state`.
        update: that of `update`. Its inputs are the leaves of the params, of the updates,
            of the state and of the extra args, its outputs those of the new state and of
            the new updates.
        state: what `init` returned.
        new_state: what `update` returned for it.
        new_updates: likewise.
        extras: the number of array leaves of the extra args.
    """

    init: Graph
    update: Graph
    state: Parts
    new_state: Parts
    new_updates: Parts
    extras: int


def trace(opt: Any, params: Any, updates: Any, extra_args: dict[str, Any]) -> Traced:
    """Traces `init`, and `update` on what it gives.

    Raises:
        Refused: if either raises.
    """
    extra = Parts(extra_args, static=bool)  # one chooses what is traced
    traced: dict[str, Any] = {}

    # Traced inside of init, update is given the types of init's state, weak ones too.
    def init(params, updates, extra_arrays):
        try:
            state = Parts(opt.init(params))
        except Exception as error:
            raise Refused("init") from error

        def update(params, updates, state_arrays, extra_arrays):
            extra_args = extra.merged(extra_arrays)
            try:
                new_updates, new_state = opt.update(
                    updates, state.merged(state_arrays), params, **extra_args
                )
            except Exception as error:
                raise Refused("update") from error
            traced["new_state"], traced["new_updates"] = (
                Parts(new_state),
                Parts(new_updates),
            )
            return traced["new_state"].arrays, traced["new_updates"].arrays

        inputs = params, updates, state.arrays, extra_arrays
        traced["state"], traced["update"] = state, Graph(jax.make_jaxpr(update)(*inputs))
        return state.arrays

    closed_jaxpr = jax.make_jaxpr(init)(params, updates, extra.arrays)
    return Traced(init=Graph(closed_jaxpr), extras=len(extra.arrays), **traced)


def _is_array(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    is_extended = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended)
    return is_extended or dtype_of(leaf) is not None
