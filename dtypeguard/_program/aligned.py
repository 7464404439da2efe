"""Two traces of one function side by side: of its arguments, and of other dtypes.

The second trace only informs. It tells a constant as it was meant from the constant that an
argument's dtype has rounded, and a dtype that follows the arguments from one that the
source asks for.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._carry.tracing import make_jaxpr_with_aux
from .._leaves.dtypes import bits, kind
from .._leaves.types import Equation, Jaxpr, Leaf, PyTree
from .jaxprs import (
    Variable,
    constants_of,
    inner_jaxprs_of,
    is_literal,
    open_jaxpr,
    value_kind,
)

_BFLOAT16 = np.dtype(jnp.bfloat16)
_FLOAT16 = np.dtype("float16")
_FLOAT32 = np.dtype("float32")
# Of arguments, for what their own dtypes have rounded before the program sees it.
WIDER = {_BFLOAT16: _FLOAT32, _FLOAT16: _FLOAT32}

Retype = Mapping[np.dtype, np.dtype]


class ConstantPair(NamedTuple):
    """A constant in both traces."""

    first: np.ndarray
    second: np.ndarray

    @property
    def is_equal(self) -> bool:
        """Whether both are the same numbers."""
        return np.array_equal(self.first, self.second, equal_nan=True)

    @property
    def is_rounded(self) -> bool:
        """Whether the second one rounds to the first: the eps of a dtype does not."""
        with np.errstate(all="ignore"):
            rounded = self.second.astype(self.first.dtype)
        return np.array_equal(rounded, self.first, equal_nan=True)


def sibling_dtypes(program: Jaxpr) -> Retype:
    """Returns dtypes for a second trace in which the floating arguments move.

    All get one dtype. With two of them, a promotion of both could give the dtype of the
    first trace by chance, as float16 and bfloat16 give float32.
    """
    dtypes = {aval.dtype for aval in program.in_avals}
    sibling = _BFLOAT16
    if sibling in dtypes:
        sibling = _FLOAT16
    siblings = {}
    for dtype in dtypes - {sibling}:
        if kind(dtype) != "float":
            continue
        # The formats of 8 bits are storage: no promotion leads to them.
        if bits(dtype) < 16:
            continue
        siblings[dtype] = sibling
    return siblings


def beside_trace(
    program: Jaxpr, function: Callable[..., tuple[PyTree, Any]], dtypes: Retype
) -> "Alignment":
    """Returns a traced function beside its trace of arguments in other dtypes.

    If it does not trace in these, it is aligned with nothing.

    Args:
        program: the function, traced as given.
        function: the function, which returns arrays and an auxiliary output.
        dtypes: dtypes of its arguments, with those of the second trace.
    """
    avals = []
    for aval in program.in_avals:
        if aval.dtype in dtypes:
            aval = aval.update(dtype=dtypes[aval.dtype])
        avals.append(aval)
    second = program
    # A second trace of the same types would be equal.
    if avals != list(program.in_avals):
        try:
            # A constant may leave the range of the other dtype, of which NumPy warns.
            with jax.numpy_dtype_promotion("standard"), np.errstate(all="ignore"):
                second, _ = make_jaxpr_with_aux(function, *avals)
        except Exception:  # it asks for its dtypes, as the carry of a loop may
            return NO_ALIGNMENT
    alignment = Alignment()
    alignment.align(program, second)
    return alignment


class Alignment:
    """The equations of a program, each with the equation in its place in a second trace.

    Equations of a jaxpr that are alike but for dtypes are aligned in order, if both traces
    have equally many of them, and so are the jaxprs inside of them. Conversions between
    floats are left out, since some of them are there in one trace alone: their effect is
    read where their results are used.

    Attributes:
        partners: the equation, or the open jaxpr, that is in the place of one in the second
            trace.
        moves: whether the target of a conversion moves with the arguments' dtypes, as far
            as the two traces say.
        ends: the operands and outputs that are cast to the dtype that they have. Of such a
            cast JAX makes no equation, but it makes one where the operand is wider.
        constants: what operands and outputs are in the two traces, if they are constants.
    """

    def __init__(self):
        self.partners = {}
        self.moves = {}
        self.ends = set()
        # By who uses them, and the place of the operand or of the output.
        self.constants: dict[tuple[Any, int], ConstantPair] = {}
        # The conversions that lead to a value, in order, and the arrays of constants.
        self._casts = {}
        self._arrays = {}

    def asks_for_result(self, eqn: Equation) -> bool:
        """Returns whether a product asks for the dtype of its result."""
        partner = self.partners.get(eqn)
        if partner is None:
            return False
        for operand, second_operand in zip(eqn.invars[:2], partner.invars):
            if operand.aval.dtype == second_operand.aval.dtype:
                return False
        (result,) = eqn.outvars
        (second_result,) = partner.outvars
        return result.aval.dtype == second_result.aval.dtype

    def align(self, first: Jaxpr, second: Jaxpr) -> None:
        """Aligns a jaxpr, and all inside of it, with its second trace."""
        jaxpr = open_jaxpr(first)
        second_jaxpr = open_jaxpr(second)
        if jaxpr in self.partners:  # the calls of one function share it
            return
        self.partners[jaxpr] = second_jaxpr
        steps_by_key = self._steps_by_key(first)
        second_steps_by_key = self._steps_by_key(second)
        for key, steps in steps_by_key.items():
            second_steps = second_steps_by_key[key]
            if len(second_steps) != len(steps):  # nothing tells which is which
                continue
            for eqn, partner in zip(steps, second_steps):
                self.partners[eqn] = partner
                self._compare(eqn, eqn.invars, partner.invars)
                pairs = zip(inner_jaxprs_of(eqn), inner_jaxprs_of(partner))
                for inner, second_inner in pairs:
                    self.align(inner, second_inner)
        # A function may return another tree for other dtypes.
        if len(jaxpr.outvars) == len(second_jaxpr.outvars):
            self._compare(jaxpr, jaxpr.outvars, second_jaxpr.outvars)

    def _steps_by_key(self, jaxpr: Jaxpr) -> Mapping[object, list[Equation]]:
        """Returns the equations by what they are but for dtypes; notes conversions."""
        self._arrays.update(constants_of(jaxpr))
        steps_by_key = collections.defaultdict(list)
        for eqn in open_jaxpr(jaxpr).eqns:
            if _is_float_cast(eqn):
                (operand,) = eqn.invars
                (result,) = eqn.outvars
                casts = self._casts.get(id(operand), ())
                self._casts[id(result)] = [*casts, eqn]
            else:
                key = _alignment_key(eqn)
                steps_by_key[key].append(eqn)
        return steps_by_key

    def _constant(self, var: Variable) -> Leaf | None:
        """Returns the number or array that a value is, if it is a constant."""
        if is_literal(var):
            return np.asarray(var.val, var.aval.dtype)
        array = self._arrays.get(var)
        # A function may close over a value of another trace.
        if isinstance(array, Tracer):
            return None
        return array

    def _compare(
        self,
        user: Equation | Jaxpr,
        variables: Sequence[Variable],
        second_variables: Sequence[Variable],
    ) -> None:
        """Compares what an equation, or the caller of a jaxpr, gets in the two traces."""
        pairs = zip(variables, second_variables)
        for place, (var, second_var) in enumerate(pairs):
            if value_kind(var.aval) != "float":
                continue
            casts = self._casts.get(id(var), ())
            second_casts = self._casts.get(id(second_var), ())
            key = (user, place)
            if casts:
                # The first conversion is what uses the value before all of them.
                key = (casts[0], 0)
                self.moves[casts[-1]] = var.aval.dtype != second_var.aval.dtype
                (var,) = casts[0].invars
            if second_casts:
                (second_var,) = second_casts[0].invars
            # In the first trace this cast would change nothing, so JAX left it out.
            if len(second_casts) == len(casts) + 1:
                (target,) = second_casts[0].outvars
                if target.aval.dtype == var.aval.dtype:
                    self.ends.add(key)
            constant = self._constant(var)
            second_constant = self._constant(second_var)
            if constant is None or second_constant is None:
                continue
            # An array that the function closes over is as it is.
            if constant is second_constant and np.size(constant) > 1:
                continue
            first = np.asarray(constant)
            second = np.asarray(second_constant)
            if first.shape == second.shape:
                self.constants[key] = ConstantPair(first, second)


# Of a function that does not trace in other dtypes: it tells nothing.
NO_ALIGNMENT = Alignment()


@dataclasses.dataclass(frozen=True)
class SecondTraces:
    """A jaxpr beside second traces of the function.

    Attributes:
        wide: beside that of float32 arguments, which tells constants as they were meant.
        align_sibling: makes `sibling`, when a rule asks for it.
    """

    wide: Alignment = NO_ALIGNMENT
    align_sibling: Callable[[], Alignment] = Alignment

    @functools.cached_property
    def sibling(self) -> Alignment:
        """The jaxpr beside its trace of other dtypes, to tell what follows arguments."""
        # Costs as much as the first trace, and most programs ask for nothing.
        return self.align_sibling()


NO_TRACES = SecondTraces()


def _is_float_cast(eqn: Equation) -> bool:
    if eqn.primitive.name != "convert_element_type":
        return False
    operand_kind = value_kind(eqn.invars[0].aval)
    result_kind = value_kind(eqn.outvars[0].aval)
    return operand_kind == result_kind == "float"


def _alignment_key(eqn: Equation) -> tuple[Any, ...]:
    """Returns the part of an equation that does not depend on dtypes."""
    name = eqn.params.get("name")
    shapes = [np.shape(var.aval) for var in eqn.outvars]
    return (eqn.primitive.name, name, *shapes)
