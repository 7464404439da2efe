"""Which leaves of a state follow the dtype of the params."""

import jax
from jax import tree_util
from jax.core import Tracer

from .._carry.snapshot import Snapshot
from .._carry.split import eval_shape
from .._leaves.dtypes import cast, dtype_of
from .._leaves.rows import by_path, paths
from .._leaves.types import Convert, DType, Function, Params, PyTree, State


def cast_following(
    state: State,
    init: Function,
    params: Params,
    before: Convert,
    after: Convert,
) -> State:
    """Casts the leaves of a state that follow the dtype of the params; see `followed`.

    If `init` looks at values and does not trace, casts every floating leaf.
    """
    try:
        dtypes = followed(init, params, before, after)
    except Exception:  # `init` may never have been meant for this call
        return tree_util.tree_map(after, state)
    return cast_by_path(state, dtypes)


def followed(
    init: Function,
    params: Params,
    before: Convert,
    after: Convert,
    *,
    may_run: bool = False,
) -> dict[str, DType]:
    """The leaves of a state whose dtype changes with that of the params, by path."""
    was, becomes = (
        dtypes_of_init(
            lambda p, to=to: init(tree_util.tree_map(to, p)), params, may_run=may_run
        )
        for to in (before, after)
    )
    return {p: d for p, d in becomes.items() if d is not None and was.get(p, d) != d}


def dtypes_of_init(
    init: Function, params: Params, *, may_run: bool = False
) -> dict[str, DType]:
    """The dtype of each leaf of a first state by path; None for a leaf that is no array."""
    is_array = lambda leaf: dtype_of(leaf) is not None or isinstance(leaf, jax.Array)
    leaves = tree_util.tree_leaves(params)
    try:
        state = eval_shape(init, params)
    except Exception:
        if not all(map(is_array, leaves)):
            arrays = tree_util.tree_map(lambda x: x if is_array(x) else None, params)
            return dtypes_of_init(init, arrays, may_run=may_run)
        is_known = lambda leaf: not isinstance(leaf, (Tracer, jax.ShapeDtypeStruct))
        if not (may_run and all(map(is_known, leaves))):
            raise
        state = init(params)
    return {path: dtype_of(leaf) for path, leaf in by_path(state).items()}


def cast_by_path(tree: PyTree, dtypes: dict[str, DType]) -> PyTree:
    """Casts the array leaves of a tree whose paths are given."""

    def convert(path, leaf):
        dtype = dtypes.get(path)
        return leaf if dtype is None or dtype_of(leaf) is None else cast(leaf, dtype)

    snapshot = Snapshot(tree)
    return snapshot.with_leaves([*map(convert, paths(tree), snapshot.leaves)])
