"""What is read of JAX's jaxprs and equations, whose parameters differ between releases."""

import weakref
from collections.abc import Collection, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

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

_T = TypeVar("_T")
Variable = Any  # of a jaxpr: a variable or a literal
# The operands or results of an equation or a jaxpr: arrays, traced values and numbers.
Arrays = Sequence[Leaf]
# An equation and those whose jaxprs contain it, inside out.
Stack = tuple[Equation, ...]


def open_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """Returns the open jaxpr of a closed one."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def is_literal(var: Variable) -> bool:
    """Returns whether an operand is a number that stands in its equation."""
    return hasattr(var, "val")


def value_kind(value: Leaf) -> str | None:
    """Returns the kind of a value's dtype, as `kind` names it; None if it is no number."""
    # Keys and tokens have another dtype, or none.
    return kind(getattr(value, "dtype", None))


class LoopOperands(NamedTuple, Generic[_T]):
    """The operands of a loop in their groups.

    Attributes:
        of_condition: what the condition alone is given.
        shared: what the body is given in each turn.
        carry: what the body is given first, and returns for its next turn.
        scanned: what the body is given slices of.
    """

    of_condition: list[_T]
    shared: list[_T]
    carry: list[_T]
    scanned: list[_T]


def split_operands(eqn: Equation, operands: Sequence[_T]) -> LoopOperands[_T]:
    """Returns the operands of a loop in their groups."""
    # Told by shapes: the parameters that say so have other names in other releases.
    params = eqn.params
    closed_body = params.get("jaxpr")
    if closed_body is None:  # of a `while` loop, which has a condition as well
        closed_body = params["body_jaxpr"]
    body = open_jaxpr(closed_body)
    first_shared = len(eqn.invars) - len(body.invars)
    rows = _count_scanned(eqn.outvars, body.outvars)
    scanned = _count_scanned(eqn.invars[first_shared:], body.invars)
    first_scanned = len(operands) - scanned
    first_carried = first_scanned - len(eqn.outvars) + rows
    values = list(operands)
    return LoopOperands(
        of_condition=values[:first_shared],
        shared=values[first_shared:first_carried],
        carry=values[first_carried:first_scanned],
        scanned=values[first_scanned:],
    )


def _count_scanned(outer_vars: Sequence[Variable], inner_vars: Sequence[Variable]) -> int:
    """Returns how many variables have one more axis outside a scan than inside."""
    count = 0
    for outer, inner in zip(outer_vars, inner_vars):
        # Tokens have no shape.
        if getattr(outer.aval, "shape", ()) != getattr(inner.aval, "shape", ()):
            count += 1
    return count


def manual_axes(eqn: Equation) -> Collection[str]:
    """Returns the axes of the mesh over which a `shard_map` splits its operands."""
    params = eqn.params
    if "newly_manual_axes" in params:  # from JAX 0.10 on
        return params["newly_manual_axes"]
    return params["manual_axes"]


def jaxprs_in(params: dict[str, Any]) -> list[Jaxpr]:
    """Returns the jaxprs among the parameters of an equation, also in tuples."""
    jaxprs = []
    for leaf in tree_util.tree_leaves(params):
        jaxpr = open_jaxpr(leaf)
        if hasattr(jaxpr, "eqns"):
            jaxprs.append(leaf)
    return jaxprs


def all_jaxprs(jaxpr: Jaxpr) -> list[Jaxpr]:
    """Returns a jaxpr and all jaxprs inside it, opened.

    A jaxpr that is called often is there once: calls within calls would make a list that
    grows exponentially.
    """
    jaxprs = [open_jaxpr(jaxpr)]
    seen = {id(jaxprs[0])}
    for outer in jaxprs:  # which grows
        for eqn in outer.eqns:
            for closed in jaxprs_in(eqn.params):
                inner = open_jaxpr(closed)
                identity = id(inner)
                if identity in seen:
                    continue
                seen.add(identity)
                jaxprs.append(inner)
    return jaxprs


# By the identity of the object: equal ones may have operands of other types. An equation
# has one jaxpr, whoever asks: others know its equations by it.
_EXPANSIONS: dict[int, Jaxpr] = {}


def expanded(eqn: Equation) -> Jaxpr | None:
    """Returns the jaxpr of an equation that is expanded when JAX compiles it.

    On JAX 0.12 one such as `custom_root` holds no jaxpr, but an object that makes one.
    """
    operation: Any = eqn.params.get("_prim")
    if not hasattr(operation, "expand"):
        return None
    key = id(operation)
    if key not in _EXPANSIONS:

        def run(*operands):
            arguments = tree_util.tree_unflatten(operation.in_tree, operands)
            results = operation.expand(*arguments)
            return tree_util.tree_leaves(results)

        avals = [var.aval for var in eqn.invars]
        try:
            jaxpr = jax.make_jaxpr(run)(*avals)
            weakref.finalize(operation, _EXPANSIONS.pop, key, None)
        except Exception:  # another release has other objects
            return None
        _EXPANSIONS[key] = jaxpr
    return _EXPANSIONS[key]
