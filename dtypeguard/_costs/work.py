"""How many floating point operations equations make, and how often."""

import math

from .._leaves.dtypes import kind
from .._leaves.types import Equation
from .._program.jaxprs import PRODUCTS, Stack, manual_axes

# Of a multiplication with an addition. Integers are not rounded, whatever their dtype is.
_OPERATIONS: dict[str | None, float] = {
    "float": 2.0,
    "complex": 8.0,
}


def work_of_stack(stack: Stack) -> float:
    """Returns the operations of a product or convolution in all turns of loops; else 0.

    The body of a `while_loop` counts once, and branches as their mean.
    """
    eqn = stack[0]
    if eqn.primitive.name not in PRODUCTS:
        return 0.0
    result = eqn.outvars[0].aval
    family = kind(result.dtype)
    operations = _OPERATIONS.get(family, 0.0)
    work = operations * _multiplications(eqn)
    for outer in stack[1:]:
        name = outer.primitive.name
        if name == "scan":
            work *= outer.params["length"]
        elif name == "cond":
            work /= len(outer.params["branches"])
        elif name == "shard_map":  # its body has the shapes of one shard
            for axis in manual_axes(outer):
                work *= outer.params["mesh"].shape[axis]
    return work


def _multiplications(eqn: Equation) -> float:
    name = eqn.primitive.name
    lhs = eqn.invars[0].aval
    rhs = eqn.invars[1].aval
    multiplications = eqn.outvars[0].aval.size
    if name == "dot_general":
        contracted, _ = eqn.params["dimension_numbers"]
        axes_of_left, _ = contracted
        for axis in axes_of_left:
            multiplications *= lhs.shape[axis]
        return multiplications
    if name == "conv_general_dilated":
        dimensions = eqn.params["dimension_numbers"]
        axis_of_features = dimensions.rhs_spec[0]
        features = rhs.shape[axis_of_features]
        # The kernel without its output features: the terms of which a result is the sum.
        terms = rhs.size / max(features, 1)
        # Zeros between the elements of a dilated operand are no work.
        dilation = math.prod(eqn.params["lhs_dilation"])
        return multiplications * terms / dilation
    # Of a ragged product, each row of the left operand goes to one group.
    return lhs.size * rhs.shape[-1]
