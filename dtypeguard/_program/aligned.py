"""Two traces of one function side by side: of its arguments, and of other dtypes.

The second trace only informs. It tells a constant as it was meant from the constant that an
argument's dtype has rounded, and a dtype that follows the arguments from one that the
source asks for.
"""

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits, dtype_of, kind
from .._leaves.types import Aval, Equation, Jaxpr, Leaf
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
_FLOAT32 = np.dtype("float32")
# Of arguments, for what their own dtypes have rounded before the program sees it.
WIDER = {_BFLOAT16: _FLOAT32, _FLOAT16: _FLOAT32}

Retype = Mapping[np.dtype, np.dtype]
# An operand of an equation by its identity and place, or an output of a jaxpr.
_UseKey = tuple[int, int]


def sibling_dtypes(arrays: Sequence[Leaf]) -> Retype:
    """Returns dtypes for a second trace in which the floating arguments move.

    All get one dtype. With two of them, a promotion of both could give the dtype of the
    first trace by chance, as float16 and bfloat16 give float32.
    """
    dtypes = {dtype_of(array) for array in arrays}
    sibling = _FLOAT16 if _BFLOAT16 in dtypes else _BFLOAT16
    siblings: dict[np.dtype, np.dtype] = {}
    for dtype in dtypes - {sibling}:
        if kind(dtype) == "float" and bits(dtype) >= 16:
            siblings[dtype] = sibling
    return siblings


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
    if dtypes.keys().isdisjoint(map(dtype_of, arrays)):
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
    """The equations of a program, each with the equation in its place in a second trace.

    Equations of a jaxpr that are alike but for dtypes are aligned in order, if both traces
    have equally many of them, and so are the jaxprs inside of them. Conversions between
    floats are left out, since some of them are there in one trace alone: their effect is
    read where their results are used.

    Attributes:
        second: the second trace; None if there is none, which tells nothing.
    """

    def __init__(self, first: Jaxpr | None = None, second: Jaxpr | None = None):
        self.second = second
        # Kept, since its equations are told by their identity.
        self._first = first
        self._jaxprs: set[int] = set()
        self._partners: dict[int, Equation] = {}
        self._constants: dict[_UseKey, np.ndarray] = {}
        self._intended: dict[_UseKey, np.ndarray] = {}
        self._moves: dict[int, bool] = {}
        self._ends = collections.defaultdict[int, set[int]](set)
        if first is not None and second is not None:
            self._align(first, second)

    # What it tells

    def partner(self, eqn: Equation) -> Equation | None:
        """Returns the equation of the second trace in the place of one of the first."""
        return self._partners.get(id(eqn))

    def intended_constant(
        self, user: Equation | Jaxpr, place: int, rounds: bool = False
    ) -> np.ndarray | None:
        """Returns the constant of the second trace, where it is a different number.

        Args:
            user: the equation whose operand it is, or the open jaxpr that returns it.
            place: of the operand, or of the output.
            rounds: whether it has to round to the constant of the first trace: the eps of a
                dtype does not round to that of another one.
        """
        key = (id(user), place)
        intended = self._intended.get(key)
        if intended is None or not rounds:
            return intended
        if not _rounds_to(intended, self._constants[key]):
            return None
        return intended

    def doubtful_constant(self, eqn: Equation, place: int) -> np.ndarray | None:
        """Returns a constant of the first trace of which the second tells nothing more."""
        key = (id(eqn), place)
        if key in self._intended:
            return None
        return self._constants.get(key)

    def follows(self, eqn: Equation) -> bool | None:
        """Returns whether the target of a conversion moves with the arguments' dtypes.

        None if the two traces do not say.
        """
        return self._moves.get(id(eqn))

    def ends_of_width(self, user: Equation | Jaxpr) -> Collection[int]:
        """Returns the operands, or outputs, that are cast to the dtype that they have.

        Of such a cast JAX makes no equation, but it makes one where the operand is wider.
        """
        return self._ends.get(id(user), ())

    def asks_for_result(self, eqn: Equation) -> bool:
        """Returns whether a product asks for the dtype of its result."""
        partner = self.partner(eqn)
        if partner is None or eqn.primitive.name not in PRODUCTS:
            return False
        for operand, second_operand in zip(eqn.invars[:2], partner.invars):
            if operand.aval.dtype == second_operand.aval.dtype:
                return False
        result = eqn.outvars[0].aval
        return result.dtype == partner.outvars[0].aval.dtype

    # How it is made

    def _align(self, first: Jaxpr, second: Jaxpr) -> None:
        jaxpr = open_jaxpr(first)
        if id(jaxpr) in self._jaxprs:  # the calls of one function share it
            return
        self._jaxprs.add(id(jaxpr))
        trace = _Trace(first)
        second_trace = _Trace(second)
        for key, steps in trace.steps.items():
            second_steps = second_trace.steps.get(key, [])
            if len(second_steps) != len(steps):  # nothing tells which is which
                continue
            for eqn, partner in zip(steps, second_steps):
                self._partners[id(eqn)] = partner
                operands = map(trace.use, eqn.invars)
                second_operands = map(second_trace.use, partner.invars)
                self._compare(eqn, operands, second_operands)
                inner_jaxprs = _inner_jaxprs(eqn)
                # Most equations have none, and each has many parameters to look through.
                if inner_jaxprs:
                    pairs = zip(inner_jaxprs, _inner_jaxprs(partner))
                    for inner, second_inner in pairs:
                        self._align(inner, second_inner)
        second_variables = open_jaxpr(second).outvars
        # A function may return another tree for other dtypes.
        if len(jaxpr.outvars) == len(second_variables):
            outputs = map(trace.use, jaxpr.outvars)
            self._compare(jaxpr, outputs, map(second_trace.use, second_variables))

    def _compare(
        self,
        user: Equation | Jaxpr,
        uses: "Iterable[_Use]",
        second_uses: "Iterable[_Use]",
    ) -> None:
        """Compares what an equation, or the caller of a jaxpr, gets in the two traces."""
        for place, (use, second) in enumerate(zip(uses, second_uses)):
            kinds = {value_kind(use.aval), value_kind(second.aval)}
            if kinds != {"float"}:
                continue
            root_user = user
            if use.casts:
                # The conversion is what uses the root.
                root_user = use.casts[0]
                place = 0
                last_cast = id(use.casts[-1])
                self._moves[last_cast] = use.aval.dtype != second.aval.dtype
            # In the first trace this cast would change nothing, so JAX left it out.
            if len(second.casts) == len(use.casts) + 1:
                target = second.casts[0].outvars[0].aval
                if target.dtype == use.root.aval.dtype:
                    self._ends[id(root_user)].add(place)
            if use.value is not None and second.value is not None:
                key = (id(root_user), place)
                self._compare_constants(key, use.value, second.value)

    def _compare_constants(self, key: _UseKey, value: Leaf, second_value: Leaf) -> None:
        if value is second_value and np.size(value) > 1:
            return  # an array that the function closes over is as it is
        first = np.asarray(value)
        second = np.asarray(second_value)
        if first.shape != second.shape:
            return
        self._constants[key] = first
        number = first.astype(float)
        if not np.array_equal(number, second.astype(float), equal_nan=True):
            self._intended[key] = second


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


NO_TRACES = SecondTraces()


class _Use(NamedTuple):
    """An operand of an equation, or an output.

    Attributes:
        aval: its abstract value.
        casts: the conversions that lead to it, in order.
        root: the variable that these convert.
        value: that of the root, if it is a constant.
    """

    aval: Aval
    casts: list[Equation]
    root: Variable
    value: Leaf | None


class _Trace:
    """The equations of a jaxpr, by what they are but for dtypes, and its values."""

    def __init__(self, jaxpr: Jaxpr):
        opened = open_jaxpr(jaxpr)
        self.steps = collections.defaultdict[object, list[Equation]](list)
        self._casts: dict[Variable, Equation] = {}
        for eqn in opened.eqns:
            if _is_float_cast(eqn):
                self._casts[eqn.outvars[0]] = eqn
            else:
                self.steps[_alignment_key(eqn)].append(eqn)
        arrays = getattr(jaxpr, "consts", ())
        self._constants = dict(zip(opened.constvars, arrays))

    def use(self, var: Variable) -> _Use:
        """Returns a variable with where its value comes from."""
        root = var
        casts = []
        while not is_literal(root) and root in self._casts:
            cast = self._casts[root]
            casts.insert(0, cast)
            root = cast.invars[0]
        if is_literal(root):
            value = np.asarray(root.val, root.aval.dtype)
        else:
            value = self._constants.get(root)
        return _Use(var.aval, casts, root, value)


def _is_float_cast(eqn: Equation) -> bool:
    if eqn.primitive.name != "convert_element_type":
        return False
    operand_kind = value_kind(eqn.invars[0].aval)
    result_kind = value_kind(eqn.outvars[0].aval)
    return operand_kind == result_kind == "float"


def _rounds_to(wide: np.ndarray, narrow: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        rounded = wide.astype(narrow.dtype)
    return np.array_equal(rounded, narrow, equal_nan=True)


def _inner_jaxprs(eqn: Equation) -> list[Jaxpr]:
    expansion = expanded(eqn)
    if expansion is None:
        return jaxprs_in(eqn.params)
    return [expansion]


def _alignment_key(eqn: Equation) -> tuple[Any, ...]:
    """Returns the part of an equation that does not depend on dtypes."""
    name = eqn.params.get("name")
    avals = [var.aval for var in eqn.outvars]
    shapes = [getattr(aval, "shape", ()) for aval in avals]
    return (eqn.primitive.name, name, *shapes)
