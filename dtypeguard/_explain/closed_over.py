"""Calls a function again after the tracers that it closes over have died."""

from collections.abc import Callable, Sequence
from types import CellType, FunctionType

from jax import tree_util
from jax.core import Tracer

from .._leaves.functions import copy_of
from .._leaves.types import Leaf, PyTree, Step


def opened(function: Step) -> tuple[list[Tracer], Step]:
    """The tracers that a function closes over, and the function of them and its arguments.

    A function that closes over functions closes over what those close over. What an object
    holds that is no tree stays as it is.
    """
    found: list[Tracer] = []

    def keep(tracer: Tracer) -> Tracer:
        found.append(tracer)
        return tracer

    _renewed(function, keep)

    def call(values: Sequence[Leaf], *inputs: PyTree) -> PyTree:
        left = iter(values)
        return _renewed(function, lambda _: next(left))(*inputs)

    return found, call


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
                cell.cell_contents = tree_util.tree_map(new, contents)
        else:
            return leaf
        return known[id(leaf)]

    return new(function)
