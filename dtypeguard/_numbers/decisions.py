"""What a program decides by floating values: comparisons, orders, indices, signs.

A run may note its decisions, and another one may be given them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.dtypes import kind
from .._leaves.types import Leaf
from .evaluate import evaluate, own_dtype
from .nodes import Node
from .primitives import OF_OWN_DTYPES, SELECTS

_COMPARES = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])
_STEPS = frozenset(["sign", "floor", "ceil", "round"])

Arrays = Sequence[Leaf]


class DecisionKind(NamedTuple):
    """How equations of one kind decide.

    Attributes:
        note: the decision, of the equation, its operands and its results.
        follow: the results with another decision, of the same and that.
        shown: what of a decision is compared with that of another run.
        take: the operands with another decision, of them and that, before it computes.
    """

    note: Callable[[Node, Arrays, Arrays], Leaf]
    follow: Callable[[Node, Arrays, Arrays, Leaf], list[Leaf]]
    shown: Callable[[Node, Leaf], Leaf] = lambda _, decision: decision
    take: Callable[[list, Leaf], list] = lambda operands, _: operands


def kind_of(node: Node) -> DecisionKind | None:
    """How an equation decides by floating values; None if it does not."""
    variables, results = node.eqn.invars, node.eqn.outvars
    if not any(_kind(var) == "float" for var in variables):
        return None
    if node.name in OF_OWN_DTYPES:  # the pivots of a decomposition stay its own
        return None
    if node.name in _KINDS:
        return _KINDS[node.name]
    return _INDEX if any(_kind(var) in ("int", "uint") for var in results) else None


def shown(node: Node, decision: Leaf) -> Leaf:
    """What of a decision is compared with that of another run."""
    decides = kind_of(node)
    return decision if decides is None else decides.shown(node, decision)


def _kind(var: Leaf) -> str | None:
    return kind(getattr(var.aval, "dtype", np.dtype(bool)))


def _is_index(x: Leaf) -> bool:
    return kind(x.dtype) in ("int", "uint")


def _value_instead(node: Node, operands: Arrays, made: Arrays, other: Leaf) -> list[Leaf]:
    return [other.astype(made[0].dtype)]


def _index(node: Node, operands: Arrays, made: Arrays) -> Leaf:
    return next(filter(_is_index, made))


def _index_instead(node: Node, operands: Arrays, made: Arrays, other: Leaf) -> list[Leaf]:
    return [other if _is_index(x) else x for x in made]


def _top_instead(node: Node, operands: Arrays, made: Arrays, other: Leaf) -> list[Leaf]:
    axis = node.eqn.params.get("axis", -1)
    return [jnp.take_along_axis(operands[0], other, axis), other]


def _order(node: Node, operands: Arrays, made: Arrays) -> Leaf:
    """The places from which a sort takes what it returns."""
    params = {key: node.eqn.params[key] for key in ("dimension", "is_stable", "num_keys")}
    shape = operands[0].shape
    places = lax.broadcasted_iota(np.int32, shape, params["dimension"])
    return lax.sort([*operands, places], **params)[-1]


def _order_instead(node: Node, operands: Arrays, made: Arrays, other: Leaf) -> list[Leaf]:
    axis = node.eqn.params["dimension"]
    return [jnp.take_along_axis(x, other, axis) for x in operands]


def _last_instead(operands: list, other: Leaf) -> list:
    return [*operands[:-1], other]


def _as_computed(node: Node, operands: Arrays, made: Arrays, other: Leaf) -> list[Leaf]:
    return [*made]


def _maxima(node: Node, decision: Leaf) -> Leaf:
    """Where the maxima of windows are."""
    if node.name != "select_and_scatter_add":
        return decision
    if decision.ndim > len(node.eqn.invars[1].aval.shape):  # of each turn of a loop
        return jax.vmap(functools.partial(_maxima, node))(decision)
    ones = jnp.ones(node.eqn.invars[0].aval.shape, decision.dtype)
    return evaluate(node.eqn, [ones, decision], own_dtype)[0] != 0


_INDEX = DecisionKind(_index, _index_instead)
# The last operand tells which of the first to take.
_SELECTS = DecisionKind(
    lambda _, given, __: given[-1], _as_computed, _maxima, _last_instead
)
_KINDS = {
    **dict.fromkeys(
        _COMPARES | _STEPS, DecisionKind(lambda _, __, made: made[0], _value_instead)
    ),
    **dict.fromkeys(SELECTS, _SELECTS),
    "top_k": DecisionKind(_index, _top_instead),
    "sort": DecisionKind(_order, _order_instead),
}
