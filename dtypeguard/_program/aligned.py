"""Two traces of one function side by side: of its arguments, and of other dtypes.

The second trace only informs. It tells a constant as it was meant from the constant that an
argument's dtype has rounded, and a dtype that follows the arguments from one that the
source asks for.
"""

import collections
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits, dtype_of, kind
from .._leaves.types import Equation, Jaxpr, Leaf
from .jaxprs import (
    PRODUCTS,
    Variable,
    expanded,
    is_literal,
    jaxprs_in,
    open_jaxpr,
    value_kind,
)

_BFLOAT16 = np.dtype(jnp.bfloat16)
_FLOAT16 = np.dtype("float16")
# Of arguments, for what their own dtypes have rounded before the program sees it.
WIDER = {_BFLOAT16: np.dtype("float32"), _FLOAT16: np.dtype("float32")}

Retype = Mapping[np.dtype, np.dtype]
# An operand of an equation by its identity and place, or an output of the jaxpr.
_Use = tuple[int, int]


def sibling_dtypes(arrays: Sequence[Leaf]) -> Retype:
    """Returns dtypes for a second trace in which the floating arguments move.

    All get one dtype. With two of them, a promotion of both could give the dtype of the
    first trace by chance, as float16 and bfloat16 give float32.
    """
    dtypes = {dtype_of(array) for array in arrays}
    sibling = _FLOAT16 if _BFLOAT16 in dtypes else _BFLOAT16
    floats = [dtype for dtype in dtypes if kind(dtype) == "float" and bits(dtype) >= 16]
    return {dtype: sibling for dtype in floats if dtype != sibling}


def beside_trace(
    program: Jaxpr, function: Callable[..., Any], arrays: Sequence[Leaf], dtypes: Retype
) -> "Alignment":
    """Returns a traced function beside its trace of arrays in other dtypes.

    If it does not trace in these, it is aligned with nothing.

    Args:
        program: the function, traced as given.
        function: the function.
        arrays: what it is traced with.
        dtypes: the dtypes of these, with those of the second trace.
    """
    if not any(dtype_of(array) in dtypes for array in arrays):
        return Alignment(program, program)  # the second trace would be equal
    avals = [_argument_in(dtypes, array) for array in arrays]
    try:
        # A constant may leave the range of the other dtype, of which NumPy warns.
        with jax.numpy_dtype_promotion("standard"), np.errstate(all="ignore"):
            second = jax.make_jaxpr(function)(*avals)
    except Exception:  # it asks for its dtypes, as the carry of a loop may
        return NO_ALIGNMENT
    return Alignment(program, second)


def _argument_in(dtypes: Retype, array: Leaf) -> Leaf:
    dtype = dtypes.get(dtype_of(array))
    if dtype is None:
        return array
    if isinstance(array, jax.ShapeDtypeStruct):
        return array.update(dtype=dtype)
    return jax.typeof(array).update(dtype=dtype)


class Alignment:
    """The equations of a jaxpr, each with the equation in its place in a second trace.

    Equations that are alike but for dtypes are aligned in order, if both traces have
    equally many of them. Conversions between floats are left out, since some of them are
    there in one trace alone: their effect is read where their results are used.

    Attributes:
        second: the second trace; None if there is none, which tells nothing.
    """

    def __init__(self, first: Jaxpr | None = None, second: Jaxpr | None = None):
        self.second = second
        self._partners: dict[int, Equation] = {}
        self._inner: dict[tuple[int, int], Alignment] = {}
        self._changed: dict[_Use, tuple[np.ndarray, np.ndarray]] = {}
        self._unchanged: dict[_Use, np.ndarray] = {}
        self._moves: dict[int, bool] = {}
        self._ends = collections.defaultdict[int, set[int]](set)
        if first is None or second is None:
            return
        # Kept, since their equations are told by their identity.
        self._first = _TraceValues(first)
        self._second = _TraceValues(second)
        for key, steps in self._first.steps.items():
            second_steps = self._second.steps.get(key, [])
            if len(second_steps) != len(steps):  # nothing tells which is which
                continue
            for eqn, partner in zip(steps, second_steps):
                self._partners[id(eqn)] = partner
                self._compare(eqn, eqn.invars, partner.invars)
        outputs = self._first.jaxpr.outvars
        second_outputs = self._second.jaxpr.outvars
        # A function may return another tree for other dtypes.
        if len(outputs) == len(second_outputs):
            self._compare(None, outputs, second_outputs)

    # What it tells

    def partner(self, eqn: Equation) -> Equation | None:
        """Returns the equation of the second trace in the place of one of the first."""
        return self._partners.get(id(eqn))

    def inner_alignment(self, eqn: Equation, jaxpr: Jaxpr) -> "Alignment":
        """Returns the alignment of a jaxpr that an equation contains."""
        partner = self.partner(eqn)
        if partner is None:
            return NO_ALIGNMENT
        for first, second in zip(_inner_jaxprs(eqn), _inner_jaxprs(partner)):
            if open_jaxpr(first) is open_jaxpr(jaxpr):
                # Calls of one function share their jaxpr, and so the answers about it.
                key = (id(open_jaxpr(first)), id(open_jaxpr(second)))
                if key not in self._inner:
                    self._inner[key] = Alignment(first, second)
                return self._inner[key]
        return NO_ALIGNMENT

    def intended_constant(
        self, eqn: Equation | None, place: int, rounds: bool = False
    ) -> np.ndarray | None:
        """Returns the constant of the second trace, where it is a different number.

        Args:
            eqn: the equation whose operand it is; None for an output.
            place: of the operand, or of the output.
            rounds: whether it has to round to the constant of the first trace: the eps of a
                dtype does not round to that of another one.
        """
        constants = self._changed.get((id(eqn), place))
        if constants is None:
            return None
        first, second = constants
        return None if rounds and not _rounds_to(second, first) else second

    def doubtful_constant(self, eqn: Equation, place: int) -> np.ndarray | None:
        """Returns a constant of the first trace of which the second tells nothing more."""
        return self._unchanged.get((id(eqn), place))

    def follows(self, eqn: Equation) -> bool | None:
        """Returns whether the target of a conversion moves with the arguments' dtypes.

        None if the two traces do not say.
        """
        return self._moves.get(id(eqn))

    def ends_of_width(self, eqn: Equation | None) -> Collection[int]:
        """Returns the operands, or outputs, that are cast to the dtype that they have.

        Of such a cast JAX makes no equation, but it makes one where the operand is wider.
        """
        return self._ends.get(id(eqn), ())

    def asks_for_result(self, eqn: Equation) -> bool:
        """Returns whether a product asks for the dtype of its result."""
        partner = self.partner(eqn)
        if partner is None or eqn.primitive.name not in PRODUCTS:
            return False
        for operand, second_operand in zip(eqn.invars[:2], partner.invars):
            if operand.aval.dtype == second_operand.aval.dtype:
                return False
        return partner.outvars[0].aval.dtype == eqn.outvars[0].aval.dtype

    # How it is made

    def _compare(
        self,
        user: Equation | None,
        variables: Sequence[Variable],
        second_variables: Sequence[Variable],
    ) -> None:
        """Compares what an equation, or the caller of the jaxpr, gets in the two traces."""
        for place, (var, second_var) in enumerate(zip(variables, second_variables)):
            if not (_has_float(var) and _has_float(second_var)):
                continue
            user_id = id(user)
            casts = self._first.casts_of(var)
            if casts:
                # The conversion is what uses the root.
                user_id = id(casts[0])
                place = 0
                is_moved = var.aval.dtype != second_var.aval.dtype
                self._moves[id(casts[-1])] = is_moved
            root = casts[0].invars[0] if casts else var
            second_casts = self._second.casts_of(second_var)
            second_root = second_casts[0].invars[0] if second_casts else second_var
            # In the first trace this cast would change nothing, so JAX left it out.
            has_one_more = len(second_casts) == len(casts) + 1
            if has_one_more and second_casts[0].outvars[0].aval.dtype == root.aval.dtype:
                self._ends[user_id].add(place)
            self._compare_constants((user_id, place), root, second_root)

    def _compare_constants(self, use: _Use, root: Variable, second_root: Variable) -> None:
        value = self._first.constant(root)
        second_value = self._second.constant(second_root)
        # An array that the function closes over is as it is.
        is_closed_over = value is second_value and np.size(value) > 1
        if value is None or second_value is None or is_closed_over:
            return
        first = np.asarray(value)
        second = np.asarray(second_value)
        if first.shape != second.shape:
            return
        if np.array_equal(first.astype(float), second.astype(float), equal_nan=True):
            self._unchanged[use] = first
        else:
            self._changed[use] = (first, second)


NO_ALIGNMENT = Alignment()


@dataclasses.dataclass(frozen=True)
class SecondTraces:
    """A jaxpr beside second traces of the function.

    Attributes:
        wide: beside that of float32 arguments, which tells constants as they were meant.
        sibling: beside that of other dtypes, which tells what follows the arguments.
    """

    wide: Alignment = NO_ALIGNMENT
    sibling: Alignment = NO_ALIGNMENT

    def of_inner(self, eqn: Equation, jaxpr: Jaxpr) -> "SecondTraces":
        """Returns a jaxpr that an equation contains beside its second traces."""
        wide = self.wide.inner_alignment(eqn, jaxpr)
        return SecondTraces(wide, self.sibling.inner_alignment(eqn, jaxpr))


NO_TRACES = SecondTraces()


class _TraceValues:
    """The equations of a trace, by what they are but for dtypes, and its values."""

    def __init__(self, jaxpr: Jaxpr):
        self.jaxpr = open_jaxpr(jaxpr)
        self.steps = collections.defaultdict[object, list[Equation]](list)
        self._casts: dict[Variable, Equation] = {}
        for eqn in self.jaxpr.eqns:
            if _is_float_cast(eqn):
                self._casts[eqn.outvars[0]] = eqn
            else:
                self.steps[_alignment_key(eqn)].append(eqn)
        constants = getattr(jaxpr, "consts", ())
        self._constants = dict(zip(self.jaxpr.constvars, constants))

    def casts_of(self, var: Variable) -> list[Equation]:
        """Returns the conversions that lead to a variable, in order."""
        casts: list[Equation] = []
        while not is_literal(var) and var in self._casts:
            cast = self._casts[var]
            casts.insert(0, cast)
            var = cast.invars[0]
        return casts

    def constant(self, var: Variable) -> Leaf | None:
        """Returns the value of a literal, or of a constant of the trace."""
        if is_literal(var):
            return np.asarray(var.val, var.aval.dtype)
        return self._constants.get(var)


def _is_float_cast(eqn: Equation) -> bool:
    if eqn.primitive.name != "convert_element_type":
        return False
    return _has_float(eqn.invars[0]) and _has_float(eqn.outvars[0])


def _has_float(var: Variable) -> bool:
    return value_kind(var.aval) == "float"


def _rounds_to(wide: np.ndarray, narrow: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        rounded = wide.astype(narrow.dtype)
    return np.array_equal(rounded, narrow, equal_nan=True)


def _inner_jaxprs(eqn: Equation) -> list[Jaxpr]:
    expansion = expanded(eqn)
    return jaxprs_in(eqn.params) if expansion is None else [expansion]


def _alignment_key(eqn: Equation) -> tuple[Any, ...]:
    """Returns the part of an equation that does not depend on dtypes."""
    shapes = [getattr(var.aval, "shape", ()) for var in eqn.outvars]
    return (eqn.primitive.name, eqn.params.get("name"), *shapes)
