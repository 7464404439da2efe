"""The rule by which each equation is run."""

from typing import Any

from .._leaves.types import Equation, Leaf
from .._program.jaxprs import jaxprs_in
from .._program.program import CALL, CLOSED, Node
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
ROUNDINGS = frozenset([STOCHASTIC, REDUCE_PRECISION])
# Whatever jaxprs these have, none runs in their place.
WITHOUT_BLOCKS = ROUNDINGS | {COMPUTED, OWN, SAMPLE}

# How the equations of a primitive are run; the others by their form.
_PRIMITIVE_RULES = {REDUCE_PRECISION: REDUCE_PRECISION}
for _rule, _names in (
    (CALL, primitives.CALLS),
    (OWN, primitives.AS_WRITTEN),
    (COMPUTED, primitives.COMBINES),
):
    for _name in _names:
        _PRIMITIVE_RULES[_name] = _rule

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
    if eqn.params.get("name") == round_with.__name__:  # pyright: ignore[reportAttributeAccessIssue]: as of any function
        return STOCHASTIC
    has_jaxprs = bool(jaxprs_in(eqn.params))
    rule = node.rule
    # One that JAX expands has none, and its expansion says all that it computes.
    if rule == CALL and not has_jaxprs:
        return CALL
    # Of a call that does more than its jaxpr, the inside is left as it is.
    default = COMPUTED
    if has_jaxprs:
        default = OWN
    if rule not in (CALL, CLOSED):
        default = rule
    return _PRIMITIVE_RULES.get(node.name, default)


def has_reference(eqn: Equation) -> bool:
    """Returns whether an equation takes or gives a mutable reference."""
    variables = [*eqn.invars, *eqn.outvars]
    return any(hasattr(var.aval, "inner_aval") for var in variables)


def has_no_wide_form(eqn: Equation) -> bool:
    """Returns whether an equation that runs as it stands computes with floats."""
    variables = list(eqn.invars)
    # Of bits, it makes no more numbers than there are.
    if eqn.primitive.name not in primitives.OF_BITS:
        variables.extend(eqn.outvars)
    return any(is_inexact(var.aval) for var in variables)
