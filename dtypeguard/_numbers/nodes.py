"""How the equations of a program are run, and what runs them."""

import contextlib
from typing import Any

import numpy as np

from .._leaves.types import Equation, Leaf
from .._program.jaxprs import expanded, jaxprs_in
from .._program.program import CALL, CLOSED, Node
from .._program.walk import Walk
from .._rounding.rounding import round_with
from .._tracebacks.written import Written
from . import primitives
from .formats import Formats
from .primitives import is_inexact

# How an equation is run: by its form, or as one of these.
COMPUTED = "computed"
OWN = "own"
SAMPLE = "sample"
STOCHASTIC = "stochastic"
REDUCE_PRECISION = "reduce_precision"
# Whatever jaxprs these have, none runs in their place.
WITHOUT_BLOCKS = frozenset([COMPUTED, OWN, SAMPLE, STOCHASTIC, REDUCE_PRECISION])

# What a run notes, by the number of the equation and what it is (the place of a result, a
# name); of a loop, with an axis for its turns.
Noted = dict[tuple[int, Any], Leaf]


def rule_of(node: Node, is_fixed: bool, formats: Formats) -> str:
    """Returns how an equation is run.

    Args:
        node: the equation.
        is_fixed: whether no line rounds its operands.
        formats: the dtypes of the run.
    """
    eqn = node.eqn
    if has_reference(eqn):
        return OWN
    if is_fixed and formats.products is None and Written(node.stack).is_of_sampler:
        return SAMPLE
    if node.name == REDUCE_PRECISION:
        return REDUCE_PRECISION
    if eqn.params.get("name") == round_with.__name__:  # pyright: ignore[reportAttributeAccessIssue]: as of any function
        return STOCHASTIC
    if node.rule == CALL and _is_transparent(eqn):
        return CALL
    if node.rule not in (CALL, CLOSED):
        return node.rule
    if node.name in primitives.OF_BITS or node.name in primitives.DEBUG:
        return OWN
    return OWN if _takes_keys(eqn) or _is_opaque(eqn) else COMPUTED


def _is_transparent(eqn: Equation) -> bool:
    """Returns whether a call does nothing beside its jaxpr."""
    name = eqn.primitive.name
    if name in primitives.CALLS or name == primitives.AUTOCAST_PRODUCT:
        return True
    return expanded(eqn) is not None


def has_reference(eqn: Equation) -> bool:
    """Returns whether an equation takes or gives a mutable reference."""
    return any(hasattr(var.aval, "inner_aval") for var in (*eqn.invars, *eqn.outvars))


def _takes_keys(eqn: Equation) -> bool:
    return any(primitives.is_key(var.aval) for var in eqn.invars)


def _is_opaque(eqn: Equation) -> bool:
    name = eqn.primitive.name
    if name in primitives.AS_WRITTEN:
        return True
    return name not in primitives.COMBINES and bool(jaxprs_in(eqn.params))


def has_no_wide_form(eqn: Equation) -> bool:
    """Returns whether an equation that runs as it stands computes with floats."""
    if _is_opaque(eqn):
        return True
    takes_floats = any(is_inexact(var.aval) for var in eqn.invars)
    if takes_floats and eqn.primitive.name in primitives.OF_BITS:
        return True
    gives_floats = any(is_inexact(var.aval) for var in eqn.outvars)
    return gives_floats and _takes_keys(eqn)


class Interpreter(Walk[Any]):
    """Runs the blocks of a program.

    What runs them here measures: eager, with probes. What runs them traced, equation by
    equation as it stands, is `autocast`.
    """

    def constant(self, var, array):
        return array if hasattr(array, "dtype") else np.asarray(array, var.aval.dtype)

    def context(self, eqn: Equation) -> contextlib.AbstractContextManager[object]:
        """Returns what an equation is computed under."""
        raise NotImplementedError

    def add_results(self, node, values):
        with self.context(node.eqn):
            super().add_results(node, values)
        # A value is gone as soon as nothing needs it: programs fill memory.
        for var in node.last:
            values.pop(var, None)
