"""Two traces of one function side by side: of its arguments, and of other dtypes.

The second trace only informs. It tells a constant as it was meant from the constant that an
argument's dtype has rounded, and a dtype that follows the arguments from one that the
source asks for.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._carry.tracing import make_jaxpr_with_aux
from .._leaves.dtypes import bits, dtype_of, kind
from .._leaves.types import Equation, Jaxpr, Leaf
from .jaxprs import (
    PRODUCTS,
    Arrays,
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
# What uses a value: an equation, or the open jaxpr that returns it.
_User = Equation | Jaxpr
# An operand of an equation by its identity and place, or an output of a jaxpr.
_UseKey = tuple[int, int]
_ConstantsByUse = dict[_UseKey, np.ndarray]


class _Source(NamedTuple):
    """Where a value of a jaxpr comes from.

    Attributes:
        casts: the conversions that lead to it, in order.
        value: the number or array that they convert, if it is a constant.
    """

    casts: tuple[Equation, ...] = ()
    value: Leaf | None = None


# Of an argument, and of the result of an equation that is no conversion.
_NOT_CONVERTED = _Source()


def sibling_dtypes(arrays: Arrays) -> Retype:
    """Returns dtypes for a second trace in which the floating arguments move.

    All get one dtype. With two of them, a promotion of both could give the dtype of the
    first trace by chance, as float16 and bfloat16 give float32.
    """
    dtypes = set(map(dtype_of, arrays))
    sibling = _BFLOAT16
    if sibling in dtypes:
        sibling = _FLOAT16
    siblings = {}
    for dtype in dtypes - {sibling}:
        if kind(dtype) != "float":
            continue
        # The formats of 8 bits are storage: no promotion leads to them.
        if bits(dtype) >= 16:
            siblings[dtype] = sibling
    return siblings


def beside_trace(
    program: Jaxpr, function: Callable[..., Any], arrays: Arrays, dtypes: Retype
) -> "Alignment":
    """Returns a traced function beside its trace of arrays in other dtypes.

    If it does not trace in these, it is aligned with nothing.

    Args:
        program: the function, traced as given.
        function: the function, which returns an auxiliary output as well.
        arrays: what it is traced with.
        dtypes: the dtypes of these, with those of the second trace.
    """
    if dtypes.keys().isdisjoint(map(dtype_of, arrays)):
        return Alignment(program, program)  # the second trace would be equal
    avals = []
    for array in arrays:
        aval = _argument_in(dtypes, array)
        avals.append(aval)
    try:
        # A constant may leave the range of the other dtype, of which NumPy warns.
        with jax.numpy_dtype_promotion("standard"), np.errstate(all="ignore"):
            second, _ = make_jaxpr_with_aux(function, *avals)
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
        self._jaxprs = set()
        self._partners: dict[int, Equation] = {}
        self._constants: _ConstantsByUse = {}
        self._intended: _ConstantsByUse = {}
        self._moves: dict[int, bool] = {}
        self._sources: dict[Variable, _Source] = {}
        self._ends = collections.defaultdict(set)
        if first is not None:
            self._align(first, second)

    # What it tells

    def partner(self, eqn: Equation) -> Equation | None:
        """Returns the equation of the second trace in the place of one of the first."""
        return self._partners.get(id(eqn))

    def intended_constant(
        self, user: _User, place: int, rounds: bool = False
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
        if intended is None:
            return None
        if not rounds:
            return intended
        constant = self._constants[key]
        if _rounds_to(intended, constant):
            return intended
        return None

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

    def ends_of_width(self, user: _User) -> Collection[int]:
        """Returns the operands, or outputs, that are cast to the dtype that they have.

        Of such a cast JAX makes no equation, but it makes one where the operand is wider.
        """
        return self._ends.get(id(user), ())

    def asks_for_result(self, eqn: Equation) -> bool:
        """Returns whether a product asks for the dtype of its result."""
        partner = self.partner(eqn)
        if partner is None:
            return False
        if eqn.primitive.name not in PRODUCTS:
            return False
        for operand, second_operand in zip(eqn.invars[:2], partner.invars):
            if operand.aval.dtype == second_operand.aval.dtype:
                return False
        result = eqn.outvars[0].aval
        second_result = partner.outvars[0].aval
        return result.dtype == second_result.dtype

    # How it is made

    def _align(self, first: Jaxpr, second: Jaxpr) -> None:
        jaxpr = open_jaxpr(first)
        identity = id(jaxpr)
        if identity in self._jaxprs:  # the calls of one function share it
            return
        self._jaxprs.add(identity)
        steps_by_key = self._steps_by_key(first)
        second_steps_by_key = self._steps_by_key(second)
        for key, steps in steps_by_key.items():
            second_steps = second_steps_by_key.get(key, [])
            if len(second_steps) != len(steps):  # nothing tells which is which
                continue
            for eqn, partner in zip(steps, second_steps):
                self._partners[id(eqn)] = partner
                self._compare(eqn, eqn.invars, partner.invars)
                inner_jaxprs = _inner_jaxprs(eqn)
                # Most equations have none, and each has many parameters to look through.
                if not inner_jaxprs:
                    continue
                second_inner_jaxprs = _inner_jaxprs(partner)
                for inner, second_inner in zip(inner_jaxprs, second_inner_jaxprs):
                    self._align(inner, second_inner)
        second_outputs = open_jaxpr(second).outvars
        # A function may return another tree for other dtypes.
        if len(jaxpr.outvars) == len(second_outputs):
            self._compare(jaxpr, jaxpr.outvars, second_outputs)

    def _steps_by_key(self, jaxpr: Jaxpr) -> Mapping[object, list[Equation]]:
        """Returns the equations by what they are but for dtypes, and notes sources."""
        opened = open_jaxpr(jaxpr)
        arrays = getattr(jaxpr, "consts", ())
        for var, array in zip(opened.constvars, arrays):
            self._sources[var] = _Source(value=array)
        steps_by_key = collections.defaultdict(list)
        for eqn in opened.eqns:
            if _is_float_cast(eqn):
                (operand,) = eqn.invars
                (result,) = eqn.outvars
                source = self._source(operand)
                casts = (*source.casts, eqn)
                self._sources[result] = source._replace(casts=casts)
            else:
                key = _alignment_key(eqn)
                steps_by_key[key].append(eqn)
        return steps_by_key

    def _source(self, var: Variable) -> _Source:
        """Returns the conversions and the constant behind a value."""
        if is_literal(var):
            value = np.asarray(var.val, var.aval.dtype)
            return _Source(value=value)
        return self._sources.get(var, _NOT_CONVERTED)

    def _compare(
        self,
        user: _User,
        variables: Sequence[Variable],
        second_variables: Sequence[Variable],
    ) -> None:
        """Compares what an equation, or the caller of a jaxpr, gets in the two traces."""
        pairs = zip(variables, second_variables)
        for place, (var, second_var) in enumerate(pairs):
            source = self._source(var)
            second = self._source(second_var)
            # The results of two equations tell nothing.
            if source is second is _NOT_CONVERTED:
                continue
            aval = var.aval
            second_aval = second_var.aval
            if value_kind(aval) != "float":
                continue
            if value_kind(second_aval) != "float":
                continue
            root = var
            root_user = user
            casts = source.casts
            if casts:
                # The conversion is what uses the root.
                root_user = casts[0]
                root = root_user.invars[0]
                place = 0
                last_cast = id(casts[-1])
                self._moves[last_cast] = aval.dtype != second_aval.dtype
            user_identity = id(root_user)
            # In the first trace this cast would change nothing, so JAX left it out.
            if len(second.casts) == len(casts) + 1:
                target = second.casts[0].outvars[0].aval
                if target.dtype == root.aval.dtype:
                    self._ends[user_identity].add(place)
            if source.value is None:
                continue
            if second.value is None:
                continue
            key = (user_identity, place)
            self._compare_constants(key, source.value, second.value)

    def _compare_constants(self, key: _UseKey, value: Leaf, second_value: Leaf) -> None:
        if value is second_value and np.size(value) > 1:
            return  # an array that the function closes over is as it is
        first = np.asarray(value)
        second = np.asarray(second_value)
        if first.shape != second.shape:
            return
        self._constants[key] = first
        number = first.astype(float)
        second_number = second.astype(float)
        if not np.array_equal(number, second_number, equal_nan=True):
            self._intended[key] = second


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
    shapes = []
    for var in eqn.outvars:
        # Tokens have no shape.
        shape = getattr(var.aval, "shape", ())
        shapes.append(shape)
    return (eqn.primitive.name, name, *shapes)
