"""Finds the arguments that a compiled function refuses: of other types, or shared."""

import dataclasses
import itertools
import re
from collections.abc import Sequence

import jax
from jax import tree_util

from .._leaves.dtypes import dtype_of, is_array
from .._leaves.table import grouped
from .._tracebacks.sites import Argument, Site, arguments, looked_up
from .arguments import leaf_of, refused_call
from .finding import Failure, Finding, SharedArrays

_PATH_OF_MISMATCH = re.compile(r"^Argument '(.*?)' compiled with ", re.MULTILINE)
_DONATED_TWICE = "donate the same buffer twice"


def find_in_compiled(failure: Failure) -> Finding | None:
    """Returns the arguments of a compiled function that an error is about."""
    site = failure.sites[-1]
    if _DONATED_TWICE in failure.message:
        return _find_shared_arrays(site)
    # By the names of the parameters, which the compiled function has no more.
    paths = _PATH_OF_MISMATCH.findall(failure.message)
    named = itertools.chain(*arguments(site))
    positional = [argument for argument in named if argument.base == "args"]
    leaves = []
    # All are flat, in JAX's order.
    for argument, info in zip(positional, _leaves_compiled_for(site)):
        if paths and dtype_of(argument.value) != info.dtype:
            leaf = leaf_of(argument, info.dtype, site)
            leaves.append(dataclasses.replace(leaf, path=paths.pop(0)))
    if leaves:
        return refused_call(site, leaves)
    return None


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
    arrays = [x for x in looked_up(site) if is_array(x.value)]
    shared: list[Argument] = []
    for group in grouped(arrays, lambda x: id(x.value)):
        if len(group) > 1:
            shared += group
    if not shared:
        return None
    leaves = [leaf_of(x, None, site) for x in shared]
    # An array that stands in the call by itself is needed once for each argument.
    by_source = grouped(shared, lambda x: x.source)
    holders = [group[0].text for group in by_source]
    holder = ", ".join(holders)
    if len(holders) > 1:
        holder = f"({holder})"
    name = site.name or "a call"
    headline = f"{name} donates an array that it is given more than once."
    return Finding(headline, leaves, SharedArrays(holder))
