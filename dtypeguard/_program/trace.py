"""Traces a step, or an optimizer's `init` and `update`, for shapes and dtypes alone."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import tree_util

from .._carry.call import Call
from .._carry.split import SplitTree
from .._carry.tracing import make_jaxpr_with_aux
from .._leaves.dtypes import dtype_of
from .._leaves.types import Aval, DType, Leaf, PyTree
from .graph import Graph


class TraceFailed(Exception):
    """A function does not trace: "init", "update" or "step", its one argument."""


class Program(NamedTuple):
    """A traced step: what the analyses read.

    The inputs of `step` are the array leaves of `carried`, then those of `rest`; its
    outputs those of `returned`, then those of `others`.
    """

    step: Graph
    first: Graph | None = None  # makes the arrays of `carried`, unless the caller gave them
    names: Sequence[str] = ()  # of each carry
    carried: Sequence[SplitTree] = ()
    returned: Sequence[SplitTree] = ()  # what comes back for each carry
    rest: SplitTree = SplitTree(())  # the other arguments
    others: SplitTree = SplitTree(())  # the other results
    is_optimizer: bool = False  # whether the step is an `update`, and `first` its `init`
    updates_dtype: DType | str | None = None  # of the optimizer's policy
    asks_float64: bool = False  # whether that policy asks for 64 bits

    @property
    def carried_inputs(self) -> int:
        """How many of the inputs of `step` are carried; the first ones."""
        count = 0
        for parts in self.carried:
            count += len(parts.arrays)
        return count

    @property
    def caller_inputs(self) -> list[Aval]:
        """The user's arguments. A state that an optimizer's own `init` makes is not one."""
        inputs = self.step.inputs
        if self.is_optimizer:
            inputs = inputs[self.carried_inputs :]
        avals = []
        for value in inputs:
            avals.append(self.step.avals[value])
        return avals


def trace(
    make: Callable[..., Call],
    inputs: Sequence[PyTree] = (),
    *,
    is_optimizer: bool = False,
    is_strong: bool = False,
) -> Program:
    """Traces a step; its first carry in strong types if `is_strong`."""
    function_name = "step"
    if is_optimizer:
        function_name = "update"
    failure = TraceFailed(function_name)

    def trace_step(*inputs):
        call = make(*inputs)
        arrays = call.arrays
        if is_strong:
            arrays = tree_util.tree_map(strong_type, arrays)
        jaxpr, returned = call.trace(arrays, failure)
        program = Program(
            step=Graph(jaxpr),
            names=call.names,
            carried=call.carried,
            returned=returned.carried,
            rest=call.rest,
            others=returned.others,
            is_optimizer=is_optimizer,
        )
        return arrays, program

    if not is_optimizer:
        _, program = trace_step(*inputs)
        return program
    first, program = make_jaxpr_with_aux(trace_step, *inputs)
    return program._replace(first=Graph(first))


def strong_type(leaf: Leaf) -> jax.ShapeDtypeStruct:
    """A leaf's shape and dtype, strongly typed."""
    dtype = dtype_of(leaf)
    if dtype is None:  # of keys
        dtype = leaf.dtype
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype)
