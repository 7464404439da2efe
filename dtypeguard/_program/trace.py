"""A step, or an optimizer's `init` and `update`, traced for shapes and dtypes alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._carry.call import Call, SplitTree
from .._leaves.dtypes import dtype_of
from .._leaves.types import Aval, DType, Leaf, PyTree
from .graph import Graph


class TraceFailed(Exception):
    """What its one argument names does not trace: "init", "update", "step" or "inputs".

    `__cause__` says why.
    """


class Program(NamedTuple):
    """A step as it was traced: what the analyses read.

    Attributes:
        first: the graph of what made the first carry, with the array leaves of `carried`
            for outputs; None where the carry was given.
        step: the graph of the step. Its inputs are the array leaves of `carried`, then
            those of `rest`; its outputs those of `returned`, then those of `others`.
        names: what each carry is called.
        carried: what goes in.
        returned: what comes back for each.
        rest: the other arguments.
        others: the other results.
        is_optimizer: whether the step is an `update`, and `first` its `init`.
        start: how many inputs of `step` stand before the carry: a loop has its index there.
        skipped: how many outputs stand before it.
    """

    first: Graph | None
    step: Graph
    names: Sequence[str]
    carried: Sequence[SplitTree]
    returned: Sequence[SplitTree]
    rest: SplitTree
    others: SplitTree
    is_optimizer: bool = False
    start: int = 0
    skipped: int = 0

    @property
    def carried_inputs(self) -> int:
        """How many of the inputs of `step` are carried; the first ones."""
        return sum(len(parts.arrays) for parts in self.carried)

    @property
    def given(self) -> list[Aval]:
        """What the user gives: not the state that an optimizer's own `init` makes."""
        start = self.carried_inputs if self.is_optimizer else 0
        return [self.step.avals[value] for value in self.step.inputs[start:]]


def trace(
    make: Callable[..., Call],
    inputs: Sequence[PyTree] = (),
    *,
    is_made: bool = False,
    is_optimizer: bool = False,
    types: Mapping[str, DType] | None = None,
) -> Program:
    """Traces a step.

    Args:
        make: gives the call of the step; of `inputs`.
        inputs: trees of arrays and `jax.ShapeDtypeStruct`s.
        is_made: whether `make` is traced as well, and not run: its arrays are made there,
            and keep their weak types.
        is_optimizer: see `Program`.
        types: if given, the carry goes in strongly typed, its leaves in the dtypes that
            are given by path, the others in their own.

    Raises:
        TraceFailed: if the step raises. `make` raises its own.
    """
    traced = {}

    def first(*inputs):
        call = make(*inputs)

        def run(arrays, other_arrays):
            bound, given = call.bind(arrays, other_arrays)
            try:
                result = bound()
            except Exception as error:
                raise TraceFailed("update" if is_optimizer else "step") from error
            returned, others = call.returned(result, given)
            traced.update(returned=returned, others=others)
            return [parts.arrays for parts in (*returned, others)]

        arrays = [parts.arrays for parts in call.carried]
        if types is not None:
            arrays = [
                [_strong(x, types.get(name + path)) for path, x in zip(p.paths, p.arrays)]
                for name, p in zip(call.names, call.carried)
            ]
        traced["step"] = Graph(jax.make_jaxpr(run)(arrays, call.rest.arrays))
        traced.update(carried=call.carried, names=call.names, rest=call.rest)
        return arrays

    made = Graph(jax.make_jaxpr(first)(*inputs)) if is_made else first(*inputs)
    graph = made if isinstance(made, Graph) else None
    return Program(first=graph, is_optimizer=is_optimizer, **traced)


def _strong(leaf: Leaf, dtype: DType) -> jax.ShapeDtypeStruct:
    known = dtype_of(leaf)
    own = leaf.dtype if known is None else known
    return jax.ShapeDtypeStruct(jnp.shape(leaf), own if dtype is None else jnp.dtype(dtype))
