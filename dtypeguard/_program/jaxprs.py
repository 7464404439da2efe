"""What is read of JAX's jaxprs and equations, whose parameters differ between releases."""

import weakref
from collections.abc import Collection, Sequence
from typing import Any

import jax
from jax import tree_util

from .._leaves.dtypes import kind
from .._leaves.internals import ForeignNames
from .._leaves.types import Equation, Jaxpr, Leaf

# The result of these is their operand, in another shape or place.
SHAPES = ForeignNames(
    "broadcast_in_dim reshape squeeze transpose slice rev copy stop_gradient "
    "optimization_barrier sharding_constraint device_put "
    "reshard@jax>=0.7"
)
# Products and convolutions promote operands of different dtypes by themselves.
PRODUCTS = ForeignNames(
    "dot_general conv_general_dilated ragged_dot@jax>=0.4.31,<0.6 "
    "ragged_dot_general@jax>=0.6.2"
)

Variable = Any  # of a jaxpr: a variable or a literal
# The operands or results of an equation or a jaxpr: arrays, traced values and numbers.
Arrays = Sequence[Leaf]
# An equation and those whose jaxprs contain it, inside out.
Stack = tuple[Equation, ...]


def open_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """Returns the open jaxpr of a closed one."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def constants_of(jaxpr: Jaxpr) -> dict[Variable, Leaf]:
    """Returns the arrays that a closed jaxpr holds, by variable; none of an open one."""
    arrays = getattr(jaxpr, "consts", ())
    return dict(zip(open_jaxpr(jaxpr).constvars, arrays))


def is_literal(var: Variable) -> bool:
    """Returns whether an operand is a number that stands in its equation."""
    return hasattr(var, "val")


def value_kind(value: Leaf) -> str | None:
    """Returns the kind of a value's dtype, as `kind` names it; None if it is no number."""
    # Keys and tokens have another dtype, or none.
    return kind(getattr(value, "dtype", None))


def manual_axes(eqn: Equation) -> Collection[str]:
    """Returns the axes of the mesh over which a `shard_map` splits its operands."""
    params = eqn.params
    # The second is the name before JAX 0.10.
    return params.get("newly_manual_axes", params.get("manual_axes", ()))


def jaxprs_in(params: dict[str, Any]) -> list[Jaxpr]:
    """Returns the jaxprs among the parameters of an equation, also in tuples."""
    jaxprs = []
    for leaf in tree_util.tree_leaves(params):
        jaxpr = open_jaxpr(leaf)
        if hasattr(jaxpr, "eqns"):
            jaxprs.append(leaf)
    return jaxprs


# One jaxpr of each operation, whoever asks, by its identity: it may hold arrays, which have
# no hash, and equal ones may have operands of other types.
_EXPANSIONS: dict[int, list[Jaxpr]] = {}


def inner_jaxprs_of(eqn: Equation) -> list[Jaxpr]:
    """Returns the jaxprs among the parameters of an equation, or the one it expands to.

    On JAX 0.12 one such as `custom_root` holds no jaxpr, but an object that makes one when
    JAX compiles it.
    """
    operation: Any = eqn.params.get("_prim")
    if not hasattr(operation, "expand"):
        return jaxprs_in(eqn.params)
    key = id(operation)
    if key not in _EXPANSIONS:

        def run(*operands):
            arguments = tree_util.tree_unflatten(operation.in_tree, operands)
            return operation.expand(*arguments)

        avals = [var.aval for var in eqn.invars]
        try:
            jaxpr = jax.make_jaxpr(run)(*avals)
        except Exception:  # another release has other objects
            return []
        weakref.finalize(operation, _EXPANSIONS.pop, key)
        _EXPANSIONS[key] = [jaxpr]
    return _EXPANSIONS[key]
