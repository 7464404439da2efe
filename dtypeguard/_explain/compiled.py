"""Finds the arguments that a compiled function refuses: of other types, or shared."""

import itertools
import re
from collections.abc import Sequence

import jax
from jax import tree_util

from .._leaves.dtypes import is_array
from .._leaves.leaf_type import traced_type
from .._leaves.table import grouped
from .._leaves.types import DType, Leaf
from .._tracebacks.sites import Argument, Site, arguments, looked_up
from .arguments import refused_call, refused_leaves
from .finding import Failure, Finding, RefusedCall, SharedArrays

_PATH_OF_MISMATCH = re.compile(r"^Argument '(.*?)' compiled with ", re.MULTILINE)
_DONATED_TWICE = "donate the same buffer twice"


def find_in_compiled(failure: Failure) -> Finding | None:
    """Returns the arguments of a compiled function that an error is about."""
    if not failure.sites:
        return None
    site = failure.sites[-1]
    paths = _PATH_OF_MISMATCH.findall(failure.message)
    if paths:
        return _find_other_types(site, paths)
    if re.search(_DONATED_TWICE, failure.message):
        return _find_shared_arrays(site)
    return None


def _find_other_types(site: Site, paths: Sequence[str]) -> Finding | None:
    """Returns the arguments of other types than a function was compiled for.

    The message has their paths, by the names of the parameters, in the same order.
    """
    refused: list[Argument] = []
    wanted: list[DType] = []
    # Both are flat, in JAX's order.
    positional = [x for x in itertools.chain(*arguments(site)) if x.base == "args"]
    for argument, info in zip(positional, _leaves_compiled_for(site)):
        # As JAX takes it: with x64 off, a float64 of NumPy is a float32.
        leaf_type = traced_type(argument.value)
        if leaf_type is None or leaf_type.shape != info.shape:
            return None  # no cast makes it fit
        if leaf_type.dtype != info.dtype:
            refused.append(argument)
            wanted.append(info.dtype)
    if not refused:
        return None
    # JAX names the parameters of the function, which the compiled one has no more.
    labels = paths if len(paths) == len(refused) else [x.name for x in refused]
    leaves = refused_leaves(refused, labels, wanted, site)
    return refused_call(RefusedCall(site), leaves)


def _leaves_compiled_for(site: Site) -> Sequence[jax.stages.ArgInfo]:
    """Returns the types of the positional arguments that a function was compiled for."""
    for frame in site.called_frames:
        compiled = frame.f_locals.get("self")
        if isinstance(compiled, jax.stages.Compiled):
            positional, _ = compiled.args_info
            return tree_util.tree_leaves(positional)
    return []


def _find_shared_arrays(site: Site) -> Finding | None:
    """Returns the arguments of a call in which one donated array stands."""
    # A function that has run before is called without a frame of JAX's.
    for candidates in (*arguments(site), list(looked_up(site))):
        arrays = [x for x in candidates if is_array(x.value)]
        shared: list[Argument] = []
        for group in grouped(arrays, lambda x: _buffer(x.value)):
            if len(group) > 1:
                shared += group
        if shared:
            labels = [argument.name or argument.text for argument in shared]
            leaves = refused_leaves(shared, labels, itertools.repeat(None), site)
            holders = [argument.text or argument.base for argument in shared]
            # An array that stands there by itself is needed once for each argument.
            if not all(argument.text and argument.is_whole for argument in shared):
                holders = sorted(set(holders))
            holder = holders[0] if len(holders) == 1 else f"({', '.join(holders)})"
            name = site.name or "a call"
            headline = f"{name} donates an array that it is given more than once."
            return Finding(headline, leaves, SharedArrays(site, holder))
    return None


def _buffer(array: Leaf) -> int:
    """Returns what is equal for arrays of one buffer."""
    try:
        return array.unsafe_buffer_pointer()
    except Exception:  # of several devices, or no jax.Array
        return id(array)
