"""What a program computes: operations of matrix products, by dtype."""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits, kind
from .._leaves.types import DType, Equation as JaxEquation
from .._program.graph import PRODUCTS, Equation, Graph, Stack, manual_axes


class Work(NamedTuple):
    """What a program computes, by dtype.

    Attributes:
        flops: the floating point operations of matrix products and convolutions, by the
            dtype of the wider operand. The body of a scan counts as often as it runs, that
            of a `while_loop` once, a kernel not; branches of a `cond` count as their mean.
        narrow: the dtype that the program is expected to compute in; None if it has no
            floating numbers.
        wide: the share of the operations that run in wider dtypes.
    """

    flops: dict[str, float]
    narrow: str | None = None
    wide: float = 0.0


def work_of(graph: Graph, narrow: DType = None) -> Work:
    """Counts what a program computes."""
    flops = defaultdict[str, float](float)
    for equation, _ in equations(graph):
        if count := operations(equation.stack[0]):
            dtypes = (graph.avals[value].dtype for value in equation.inputs)
            flops[str(max(dtypes, key=bits))] += repetitions(equation.stack) * count
    narrow = _expected(graph, flops) if narrow is None else jnp.dtype(narrow)
    wide = sum(n for dtype, n in flops.items() if bits(jnp.dtype(dtype)) > bits(narrow))
    return Work(
        flops=dict(flops),
        narrow=None if narrow is None else str(narrow),
        wide=wide / sum(flops.values()) if wide else 0.0,
    )


# A program is expected to compute in 16 bits if at least this part of its inputs has them:
# of bfloat16 params with the float32 moments of Adam beside them, a third.
_PART = 0.25


def _expected(graph: Graph, flops: dict[str, float]) -> DType:
    """The dtype that a program is expected to compute in: the commonest of its inputs.

    Mixed precision keeps float32 params and computes in 16 bits: its products tell.
    """
    given: dict[np.dtype, float] = defaultdict(float)
    for value in graph.inputs:
        aval = graph.avals[value]
        if bits(getattr(aval, "dtype", None)) >= 16:
            given[aval.dtype] += math.prod(aval.shape)
    half = {dtype: size for dtype, size in given.items() if bits(dtype) == 16}
    if half and sum(half.values()) >= _PART * sum(given.values()):
        return max(half, key=half.__getitem__)
    computed = {jnp.dtype(dtype): count for dtype, count in flops.items()}
    computed = {dtype: count for dtype, count in computed.items() if bits(dtype) == 16}
    return max(computed or given, key=(computed or given).__getitem__, default=None)


def equations(graph: Graph) -> Iterator[tuple[Equation, list[int]]]:
    """Each equation that computes something itself, with its results."""
    results: dict[int, tuple[Equation, list[int]]] = {}
    for value, equation in graph.made_by.items():
        results.setdefault(id(equation), (equation, []))[1].append(value)
    yield from results.values()


def repetitions(stack: Stack) -> float:
    """How often an equation runs: a `while_loop` counts once, a branch by their number."""
    times = 1.0
    for outer in stack[1:]:
        name, params = outer.primitive.name, outer.params
        if name == "scan":
            times *= params["length"]
        elif name == "cond":
            times /= len(params["branches"])
        elif name == "shard_map":  # its body has the shapes of one shard
            shape = params["mesh"].shape
            times *= math.prod(shape[axis] for axis in manual_axes(outer))
    return times


def operations(eqn: JaxEquation) -> float:
    """The floating point operations of a matrix product or convolution; 0 for the rest."""
    name = eqn.primitive.name
    if name not in PRODUCTS:
        return 0.0
    left, right, out = (v.aval for v in (*eqn.invars[:2], eqn.outvars[0]))
    if kind(out.dtype) not in ("float", "complex"):
        return 0.0
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        terms = math.prod(left.shape[axis] for axis in contracted)
        count = math.prod(out.shape) * terms
    elif name == "conv_general_dilated":
        features = right.shape[eqn.params["dimension_numbers"].rhs_spec[0]]
        terms = math.prod(right.shape) / max(features, 1)
        # Zeros between the elements of a dilated operand are no work.
        count = math.prod(out.shape) * terms / math.prod(eqn.params["lhs_dilation"])
    else:  # each row of the left operand goes to one group
        count = math.prod(left.shape) * right.shape[-1]
    return (8.0 if kind(out.dtype) == "complex" else 2.0) * count
