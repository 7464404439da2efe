"""How many floating point operations equations make, and how often."""

import math

from .._leaves.dtypes import kind
from .._leaves.types import Equation
from .._program.jaxprs import PRODUCTS, Stack, manual_axes

# Of a multiplication with an addition.
_OPERATIONS: dict[str | None, float] = {"float": 2.0, "complex": 8.0}


def work_of_stack(stack: Stack) -> float:
    """Returns the operations of an equation in all turns of the loops around it.

    The body of a `while_loop` counts once, and branches as their mean.
    """
    work = _operations(stack[0])
    for outer in stack[1:]:
        name = outer.primitive.name
        if name == "scan":
            work *= outer.params["length"]
        elif name == "cond":
            work /= len(outer.params["branches"])
        elif name == "shard_map":  # its body has the shapes of one shard
            shape = outer.params["mesh"].shape
            shards = [shape[axis] for axis in manual_axes(outer)]
            work *= math.prod(shards)
    return work


def _operations(eqn: Equation) -> float:
    """Returns the operations of a matrix product or convolution; 0 for the rest."""
    if eqn.primitive.name not in PRODUCTS:
        return 0.0
    result = eqn.outvars[0].aval
    # Integers are not rounded, whatever their dtype is.
    operations = _OPERATIONS.get(kind(result.dtype), 0.0)
    return operations * _multiplications(eqn)


def _multiplications(eqn: Equation) -> float:
    left_shape = eqn.invars[0].aval.shape
    right_shape = eqn.invars[1].aval.shape
    results = math.prod(eqn.outvars[0].aval.shape)
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        terms = [left_shape[axis] for axis in contracted]
        return results * math.prod(terms)
    if eqn.primitive.name == "conv_general_dilated":
        dimensions = eqn.params["dimension_numbers"]
        features = right_shape[dimensions.rhs_spec[0]]
        # The kernel without its output features: the terms of which a result is the sum.
        terms = math.prod(right_shape) / max(features, 1)
        # Zeros between the elements of a dilated operand are no work.
        dilation = math.prod(eqn.params["lhs_dilation"])
        return results * terms / dilation
    # Of a ragged product, each row of the left operand goes to one group.
    return math.prod(left_shape) * right_shape[-1]
