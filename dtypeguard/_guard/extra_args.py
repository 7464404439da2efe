"""The extra arguments of an `update`: copies of them, widened or narrowed."""

import contextlib
import functools
from collections.abc import Callable

import jax

from .._carry.snapshot import Snapshot
from .._leaves.compat import set_x64
from .._leaves.dtypes import dtype_of, is_wide, kind
from .._leaves.types import Convert, ExtraArgs, Function, Leaf, PyTree


def keep_extra_args(extra_args: ExtraArgs) -> Callable[[], ExtraArgs]:
    """Returns a function that copies the extra args as they are now."""
    is_data = {name: not _is_function(name, value) for name, value in extra_args.items()}
    given = Snapshot({name: extra_args[name] for name in extra_args if is_data[name]})
    return lambda: extra_args | given.copy()


def wide_integers(extra_args: ExtraArgs) -> list[Leaf]:
    """The 64-bit integers among the extra args, which might not fit into 32 bits."""
    leaves = jax.tree_util.tree_leaves(extra_args)
    return [leaf for leaf in leaves if is_wide(leaf) and kind(dtype_of(leaf)) == "int"]


def convert_extra_args(
    extra_args: ExtraArgs, convert: Convert, *, x64: bool | None = None
) -> ExtraArgs:
    """Applies `convert` to every leaf of the extra args and to what callables return.

    As in Optax, a callable is an argument named `*_fn`, or a callable leaf. A model that
    happens to be callable is a pytree of data. Callables run under the flag `x64`; None
    leaves it alone.
    """

    def converted(leaf: Leaf) -> Leaf:
        return _Converting(leaf, convert, x64) if callable(leaf) else convert(leaf)

    return {
        name: _Converting(value, convert, x64)
        if _is_function(name, value)
        else jax.tree_util.tree_map(converted, value)
        for name, value in extra_args.items()
    }


def _is_function(name: str, value: object) -> bool:
    return callable(value) and name.endswith("_fn")


class _Converting:
    """A function whose results are converted; equal to another with the same three parts.

    So `jit` does not trace again for one that it gets as a static argument.
    """

    def __init__(self, function: Function, convert: Convert, x64: bool | None):
        functools.update_wrapper(self, function, updated=())
        self._parts = (function, convert, x64)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        function, convert, x64 = self._parts
        with contextlib.nullcontext() if x64 is None else set_x64(x64):
            result = function(*args, **kwargs)
        return jax.tree_util.tree_map(convert, result)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Converting) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)
