"""Traces a function again after the tracers that it closes over have died."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import CellType, FunctionType
from typing import NamedTuple

import jax
from jax import tree_util
from jax.core import Tracer

from .._carry.call import SplitTree
from .._leaves.dtypes import is_weak
from .._leaves.functions import copy_of
from .._leaves.types import Jaxpr, Leaf, PyTree, Step
from .._program.trace import strong_type


class Retraced(NamedTuple):
    """A function that was traced again.

    Attributes:
        jaxpr: of the function. What it closes over comes before its arguments.
        returned: what it returned.
        results: the leaves of that, those that it closes over as they are outside.
        outside: what a tracer stood for that the function closed over, by identity.
    """

    jaxpr: Jaxpr
    returned: SplitTree
    results: Sequence[Leaf]
    outside: Mapping[int, tuple[Tracer, Tracer]] = {}


def retrace(
    function: Step, inputs: tuple[PyTree, ...], is_pair: bool = False
) -> Retraced | None:
    """Traces a function again, on the types of its arguments.

    Args:
        function: a body, a branch or a loss.
        inputs: its arguments.
        is_pair: whether to keep only the first item of what it returns.

    Returns:
        None if it no longer traces: an object that it uses may hold a tracer of a
        transformation that has ended.
    """
    try:
        return traced_again(function, inputs, is_pair)
    except Exception:
        return None


def traced_again(
    function: Step, inputs: tuple[PyTree, ...], is_pair: bool = False
) -> Retraced:
    """As `retrace`, but raises what the function raises."""
    returned: list[SplitTree] = []
    results: list[Leaf] = []
    outside: dict[int, tuple[Tracer, Tracer]] = {}

    def run(values, *inputs):  # a new function: JAX may have kept the trace of the old
        outside.update((id(new), (new, old)) for new, old in zip(values, closed_over))
        result = call(values, *inputs)
        returned[:] = [SplitTree(result[0] if is_pair else result)]
        kept = {key: old for key, (_, old) in outside.items()}
        results[:] = [kept.get(id(leaf), leaf) for leaf in returned[0].arrays]
        return returned[0].arrays

    closed_over, call = _opened(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first trace has warned
        types = tree_util.tree_map(_type, (closed_over, *inputs))
        jaxpr = jax.make_jaxpr(run)(*types)
        return Retraced(jaxpr, returned[0], results, outside)


def _type(leaf: Leaf) -> jax.ShapeDtypeStruct:
    """The type of an argument: strong, but for the index of a loop."""
    is_index = isinstance(leaf, jax.ShapeDtypeStruct) and is_weak(leaf)
    return leaf if is_index else strong_type(leaf)


def _opened(function: Step) -> tuple[list[Tracer], Step]:
    """The tracers that a function closes over, and the function of them and its arguments.

    A function that closes over functions closes over what those close over. What an object
    holds that is not a tree stays as it is, as does a tree that JAX cannot flatten.
    """
    closed_over: list[Tracer] = []

    def keep(tracer: Tracer) -> Tracer:
        closed_over.append(tracer)
        return tracer

    _renewed(function, keep)

    def call(values: Sequence[Leaf], *inputs: PyTree) -> PyTree:
        left = iter(values)
        return _renewed(function, lambda _: next(left))(*inputs)

    return closed_over, call


def _renewed(function: Step, renew: Callable[[Tracer], Leaf]) -> Step:
    """A function with every tracer that it closes over replaced, in a fixed order."""
    known: dict[int, Leaf] = {}

    def new(leaf: Leaf) -> Leaf:
        if id(leaf) in known:
            return known[id(leaf)]
        if isinstance(leaf, Tracer):
            known[id(leaf)] = renew(leaf)
        elif isinstance(leaf, FunctionType) and leaf.__closure__:
            cells = [CellType() for _ in leaf.__closure__]
            # It may close over itself.
            known[id(leaf)] = copy_of(leaf, closure=tuple(cells))
            for cell, old in zip(cells, leaf.__closure__):
                try:
                    contents = old.cell_contents
                except ValueError:  # not assigned yet
                    continue
                cell.cell_contents = contents
                with contextlib.suppress(Exception):  # a dict of keys that do not sort
                    cell.cell_contents = tree_util.tree_map(new, contents)
        elif type(leaf) is functools.partial:
            given = tree_util.tree_map(new, (leaf.args, leaf.keywords))
            known[id(leaf)] = functools.partial(new(leaf.func), *given[0], **given[1])
        else:
            return leaf
        return known[id(leaf)]

    return new(function)
