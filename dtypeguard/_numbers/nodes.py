"""The rule by which each equation is run, and the base of what runs them (`run.py`)."""

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
from .primitives import is_inexact, is_key

# How an equation is run: by its form, or as one of these.
COMPUTED = "computed"
OWN = "own"
SAMPLE = "sample"
STOCHASTIC = "stochastic"
REDUCE_PRECISION = "reduce_precision"
ROUNDINGS = frozenset([STOCHASTIC, REDUCE_PRECISION])
# Whatever jaxprs these have, none runs in their place.
WITHOUT_BLOCKS = ROUNDINGS | {COMPUTED, OWN, SAMPLE}

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
    if node.rule not in (CALL, CLOSED):
        return node.rule
    # Of a call that does more than its jaxpr, the inside is left as it is.
    if node.rule == CALL and (node.name in primitives.CALLS or expanded(eqn) is not None):
        return CALL
    if node.name in primitives.AS_WRITTEN or any(is_key(var.aval) for var in eqn.invars):
        return OWN
    if node.name in primitives.COMBINES or not jaxprs_in(eqn.params):
        return COMPUTED
    return OWN


def has_reference(eqn: Equation) -> bool:
    """Returns whether an equation takes or gives a mutable reference."""
    variables = [*eqn.invars, *eqn.outvars]
    return any(hasattr(var.aval, "inner_aval") for var in variables)


def has_no_wide_form(eqn: Equation) -> bool:
    """Returns whether an equation that runs as it stands computes with floats."""
    if any(is_inexact(var.aval) for var in eqn.invars):
        return True
    # Of bits, it makes no more numbers than there are.
    if eqn.primitive.name in primitives.OF_BITS:
        return False
    return any(is_inexact(var.aval) for var in eqn.outvars)


class Interpreter(Walk[Any]):
    """Runs the blocks of a program.

    What runs them here measures: eager, with probes. What runs them traced, equation by
    equation as it stands, is `autocast`.
    """

    def constant(self, var, array):
        if hasattr(array, "dtype"):
            return array
        return np.asarray(array, var.aval.dtype)

    def context(self, eqn: Equation) -> contextlib.AbstractContextManager[object]:
        """Returns what an equation is computed under."""
        raise NotImplementedError

    def add_results(self, node, values):
        with self.context(node.eqn):
            super().add_results(node, values)
        # A value is gone as soon as nothing needs it: programs fill memory.
        for var in node.last:
            values.pop(var, None)
