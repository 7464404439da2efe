"""Runs an update with x64 off if no input is 64-bit, and once more, wider, if it raises."""

import contextlib
import functools
from collections.abc import Callable

import jax
import numpy as np
from jax import tree_util
from jax.core import Tracer

from .._carry.split import Snapshot, eval_shape
from .._leaves.compat import HAS_X64_SCOPE, set_x64, x64_enabled
from .._leaves.dtypes import cast, dtype_of, is_wide, kind, promoted
from .._leaves.errors import DtypeDriftError, first_line, more
from .._leaves.rows import by_path, paths
from .._leaves.types import (
    Convert,
    DType,
    ExtraArgs,
    Function,
    Leaf,
    Params,
    PyTree,
    State,
    Updates,
)
from .._source.warn import Attempts


def without_x64(call: Function, warn: Callable[[str], None], *inputs: PyTree) -> PyTree:
    """Calls `call(*inputs)`, with x64 off if no input is 64-bit.

    Some calls need x64, such as a counter beyond 2**31: if the first attempt raises, a
    second one runs under the caller's flag.
    """
    blind = HAS_X64_SCOPE and x64_enabled()
    if not blind or any(map(is_wide, tree_util.tree_leaves(inputs))):
        return call(*inputs)
    with Attempts() as attempts:
        try:
            with set_x64(False):
                return call(*inputs)
        except DtypeDriftError:
            raise
        except Exception as error:
            reason = first_line(error)
        attempts.again()
        outputs = call(*inputs)
        warn(
            f"the optimizer runs with x64 on, since it failed with x64 off: {reason}"
            + more("guard-an-optimizer")
        )
        return outputs


def keep_extra_args(extra_args: ExtraArgs) -> Callable[[], ExtraArgs]:
    """Returns a function that copies the extra args as they are now."""
    is_data = {name: not _is_function(name, value) for name, value in extra_args.items()}
    given = Snapshot({name: extra_args[name] for name in extra_args if is_data[name]})
    return lambda: extra_args | given.copy()


def wide_integers(extra_args: ExtraArgs) -> list[Leaf]:
    """The 64-bit integers among the extra args, which might not fit into 32 bits."""
    leaves = tree_util.tree_leaves(extra_args)
    return [leaf for leaf in leaves if is_wide(leaf) and kind(dtype_of(leaf)) == "int"]


def convert_extra_args(
    extra_args: ExtraArgs, convert: Convert, *, x64: bool | None = None
) -> ExtraArgs:
    """Applies `convert` to the leaves of the extra args and to what callables return."""

    def converted(leaf: Leaf) -> Leaf:
        return _Converting(leaf, convert, x64) if callable(leaf) else convert(leaf)

    return {
        name: _Converting(value, convert, x64)
        if _is_function(name, value)
        else Snapshot(value).map(converted).copy()
        for name, value in extra_args.items()
    }


def _is_function(name: str, value: object) -> bool:
    return callable(value) and name.endswith("_fn")


class _Converting:
    """A function whose results are converted; equal by its parts, which `jit` compares."""

    def __init__(self, function: Function, convert: Convert, x64: bool | None):
        functools.update_wrapper(self, function, updated=())
        self._parts = (function, convert, x64)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        function, convert, x64 = self._parts
        with contextlib.nullcontext() if x64 is None else set_x64(x64):
            result = function(*args, **kwargs)
        return tree_util.tree_map(convert, result)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Converting) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)


Dtypes = dict[str, DType]  # by the path of a leaf


def cast_following(
    state: State, init: Function, params: Params, before: Convert, after: Convert
) -> State:
    """Casts what follows the params; every float if `init` looks at values."""
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
) -> Dtypes:
    """The dtypes of the leaves of a first state that `after`, not `before`, gives them."""
    of_mapped = lambda to: lambda p: init(tree_util.tree_map(to, p))
    was, becomes = (
        dtypes_of_init(of_mapped(to), params, may_run=may_run) for to in (before, after)
    )
    return {p: d for p, d in becomes.items() if d is not None and was.get(p, d) != d}


def dtypes_of_init(init: Function, params: Params, *, may_run: bool = False) -> Dtypes:
    """The dtype of each leaf of a first state, None if it is no array."""
    try:
        state = eval_shape(init, params)
    except Exception:
        known = lambda leaf: not isinstance(leaf, (Tracer, jax.ShapeDtypeStruct))
        if not (may_run and all(map(known, tree_util.tree_leaves(params)))):
            raise
        state = init(params)
    return {path: dtype_of(leaf) for path, leaf in by_path(state).items()}


def cast_by_path(tree: PyTree, dtypes: Dtypes) -> PyTree:
    """Casts the array leaves of a tree whose paths are given."""

    def convert(path, leaf):
        dtype = dtypes.get(path)
        return leaf if dtype is None or dtype_of(leaf) is None else cast(leaf, dtype)

    snapshot = Snapshot(tree)
    return snapshot.with_leaves([*map(convert, paths(tree), snapshot.leaves)])


def rescue(
    init: Function, update: Function, inputs: tuple[Updates, State, Params, ExtraArgs]
) -> tuple[DType, tuple[Updates, State]] | None:
    """Runs an update in the promoted dtype of its params and updates, at least float32."""
    # If x64 is on and cannot be hidden, the optimizer makes its scalars in float64.
    at_least = np.dtype("float32" if HAS_X64_SCOPE or not x64_enabled() else "float64")
    floats = _floating_dtypes(inputs)
    if len(floats) < 2 and not any(d.itemsize < at_least.itemsize for d in floats):
        return None
    updates, state, params, extra_args = inputs
    dtype = promoted(at_least, *_floating_dtypes((updates, params)))

    def promote(leaf):
        return cast(leaf, dtype) if kind(dtype_of(leaf)) == "float" else leaf

    widened = lambda tree: Snapshot(tree).map(promote).copy()
    like_params = updates if params is None else params
    try:
        state = cast_following(state, init, like_params, lambda leaf: leaf, promote)
        extra_args = convert_extra_args(extra_args, promote)
        return dtype, update(widened(updates), state, widened(params), extra_args)
    except Exception:  # the first error tells the user more than any second one
        return None


def _floating_dtypes(tree: PyTree) -> set[DType]:
    dtypes = {dtype_of(leaf) for leaf in tree_util.tree_leaves(tree)}
    return {dtype for dtype in dtypes if kind(dtype) == "float"}
