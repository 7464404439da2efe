"""Evaluates an equation of a jaxpr in other dtypes than its own."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.types import DType, Equation, Jaxpr, Leaf
from .._program.graph import open_jaxpr

DtypeOf = Callable[[DType], DType]
# The number that a literal of an equation stands for.
NumberOf = Callable[[Leaf, Equation], Leaf]
_DTYPES = ("new_dtype", "preferred_element_type", "dtype")


def own_dtype(dtype: DType) -> DType:
    return dtype


def evaluate(
    eqn: Equation,
    operands: Sequence[Leaf],
    dtype_of: DtypeOf,
    number_of: NumberOf = lambda var, _: var.val,
) -> list[Leaf]:
    """The results of an equation on operands of other dtypes.

    Args:
        eqn: the equation.
        operands: its operands.
        dtype_of: the dtype that stands for one that the equation names.
        number_of: the number that stands for a literal of a jaxpr inside the equation,
            which says how two numbers are combined.
    """
    params = {k: _param(k, x, dtype_of, number_of) for k, x in eqn.params.items()}
    if eqn.primitive.name == "convert_element_type":
        params["weak_type"] = False
    bound = eqn.primitive.get_bind_params(params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    made = eqn.primitive.bind(*functions, *operands, **params)
    return made if eqn.primitive.multiple_results else [made]


def _param(name: str, value: Leaf, dtype_of: DtypeOf, number_of: NumberOf) -> object:
    if isinstance(value, np.dtype) or name in _DTYPES:
        return value if value is None else dtype_of(jnp.dtype(value))
    inside = open_jaxpr(value)
    if not hasattr(inside, "eqns") or dtype_of is own_dtype:
        return value
    avals = [
        jax.ShapeDtypeStruct(v.aval.shape, dtype_of(v.aval.dtype)) for v in inside.invars
    ]
    function = functools.partial(_evaluate_all, inside, dtype_of, number_of)
    made = jax.make_jaxpr(function)(*avals)
    return made.jaxpr if inside is value else made


def _evaluate_all(
    jaxpr: Jaxpr, dtype_of: DtypeOf, number_of: NumberOf, *operands: Leaf
) -> list[Leaf]:
    """The results of a jaxpr without constants."""
    known = dict(zip(jaxpr.invars, operands))

    def read(var: Leaf, *user: Equation) -> Leaf:
        if not hasattr(var, "val"):
            return known[var]
        number = number_of(var, *user) if user else var.val
        return jnp.asarray(number, dtype_of(var.aval.dtype))

    for eqn in jaxpr.eqns:
        made = evaluate(eqn, [read(var, eqn) for var in eqn.invars], dtype_of, number_of)
        known |= zip(eqn.outvars, made)
    return [read(var) for var in jaxpr.outvars]
