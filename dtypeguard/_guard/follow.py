"""Which leaves of a state follow the dtype of the params."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jax import tree_util

from .._leaves.dtypes import cast, dtype_of
from .._leaves.rows import by_path


def followed(
    init: Callable[..., Any],
    params: Any,
    before: Callable[[Any], Any],
    after: Callable[[Any], Any],
) -> dict[str, Any]:
    """The leaves of a state whose dtype changes with that of the params, by path.

    Nothing is run: `init` is traced twice.

    Args:
        init: an optimizer's init.
        params: what it takes.
        before: maps a leaf of `params` to one of another dtype.
        after: the same, to the dtypes that are asked about.

    Returns:
        For each such leaf its dtype in `init` of the params mapped by `after`.
    """
    was, becomes = (
        dtypes_of_init(lambda p, to=to: init(tree_util.tree_map(to, p)), params)
        for to in (before, after)
    )
    return {p: d for p, d in becomes.items() if d is not None and was.get(p, d) != d}


def dtypes_of_init(init: Callable[..., Any], params: Any) -> dict[str, Any]:
    """The dtype of each leaf of a first state by path; None for what is no array."""
    leaves = by_path(eqx.filter_eval_shape(init, params))
    return {path: dtype_of(leaf) for path, leaf in leaves.items()}


def cast_by_path(tree: Any, dtypes: dict[str, Any]) -> Any:
    """A tree with those of its array leaves cast that are named by path."""

    def convert(path, leaf):
        dtype = dtypes.get(tree_util.keystr(path))
        return leaf if dtype is None or dtype_of(leaf) is None else cast(leaf, dtype)

    return tree_util.tree_map_with_path(convert, tree)
