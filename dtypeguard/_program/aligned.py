"""Two traces of one function side by side: of its arguments, and of other dtypes.

The second trace only informs. It tells a constant as it was meant from the constant that an
argument's dtype has rounded, and a dtype that follows the arguments from one that the
source asks for.
"""

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits, dtype_of, kind
from .._leaves.types import Equation, Jaxpr, Leaf
from .graph import PRODUCTS, Variable, expanded, jaxprs_in, open_jaxpr

_BFLOAT16 = np.dtype(jnp.bfloat16)
_FLOAT16 = np.dtype("float16")
_WIDE_DTYPE_OF_TRACE = np.dtype("float32")
# Of arguments, for what their own dtypes have rounded before the program sees it.
WIDER = {_BFLOAT16: _WIDE_DTYPE_OF_TRACE, _FLOAT16: _WIDE_DTYPE_OF_TRACE}

Retype = Mapping[np.dtype, np.dtype]


def sibling_dtypes(arrays: Sequence[Leaf]) -> Retype:
    """Returns other dtypes for floating arguments, so that each of them moves.

    All get one dtype that no argument has. With two of them, a promotion of both could give
    the dtype of the first trace by chance, as float16 and bfloat16 give float32.
    """
    floats = {dtype_of(array) for array in arrays if kind(dtype_of(array)) == "float"}
    floats = {dtype for dtype in floats if bits(dtype) >= 16}
    for sibling in (_BFLOAT16, _FLOAT16):
        if sibling not in floats:
            return dict.fromkeys(floats, sibling)
    others = dict.fromkeys(floats, _BFLOAT16)
    return others | {_BFLOAT16: _FLOAT16}


def beside_trace(
    program: Jaxpr, function: Callable[..., Any], arrays: Sequence[Leaf], dtypes: Retype
) -> "Alignment | None":
    """Returns a traced function beside its trace of arrays in other dtypes.

    None if it does not trace in these.

    Args:
        program: the function, traced as given.
        function: the function.
        arrays: what it is traced with.
        dtypes: the dtypes of these, with those of the second trace.
    """
    if not any(dtype_of(array) in dtypes for array in arrays):
        return Alignment(program, program)  # it would be the same
    again = traced_again(function, arrays, dtypes)
    return None if again is None else Alignment(program, again)


def traced_again(
    function: Callable[..., Any], arrays: Sequence[Leaf], dtypes: Retype
) -> Jaxpr | None:
    """Returns the closed jaxpr of a function of arrays in other dtypes, if it traces."""
    avals = [_retyped(array, dtypes) for array in arrays]
    try:
        # A constant may leave the range of the other dtype, of which NumPy warns.
        with jax.numpy_dtype_promotion("standard"), np.errstate(all="ignore"):
            return jax.make_jaxpr(function)(*avals)
    except Exception:  # it asks for its dtypes, as the carry of a loop may
        return None


def _retyped(array: Leaf, dtypes: Retype) -> Leaf:
    dtype = dtypes.get(dtype_of(array))
    if dtype is None:
        return array
    is_shape = isinstance(array, jax.ShapeDtypeStruct)
    aval = array if is_shape else jax.typeof(array)
    return aval.update(dtype=dtype)


class Alignment:
    """The equations of a jaxpr, each with the equation in its place in another trace.

    They are aligned in order. Conversions between floats are left out of the order, since
    some of them are there in one trace alone; what they do is read where their results are
    used.

    Attributes:
        unmatched: how many equations have no other one in their place.
    """

    def __init__(self, first: Jaxpr, second: Jaxpr):
        self._first = _Side(first)
        self._second = _Side(second)
        self._pairs: dict[int, tuple[Equation, Equation]] = {}
        self._inner: dict[tuple[int, int], Alignment] = {}
        self._meant: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._unknown: dict[tuple[int, int], np.ndarray] = {}
        self._moves: dict[int, set[bool]] = {}
        self._ends: set[tuple[int, int]] = set()
        self.unmatched = 0
        self._pair_equations()
        for eqn, other in self._pairs.values():
            self._compare(id(eqn), eqn.invars, other.invars)
        outputs = self._first.jaxpr.outvars
        if len(outputs) == len(self._second.jaxpr.outvars):
            self._compare(_OUTPUTS_ID, outputs, self._second.jaxpr.outvars)

    def inside(self, eqn: Equation, jaxpr: Jaxpr) -> "Alignment | None":
        """Returns the alignment of a jaxpr inside of an equation."""
        if id(eqn) not in self._pairs:
            return None
        _, other = self._pairs[id(eqn)]
        for inner, other_inner in zip(_jaxprs_of(eqn), _jaxprs_of(other)):
            if open_jaxpr(inner) is open_jaxpr(jaxpr):
                return self._aligned(inner, other_inner)
        return None

    def _aligned(self, first: Jaxpr, second: Jaxpr) -> "Alignment":
        # Calls of one jitted function share their jaxpr, and so the answers about it.
        key = id(open_jaxpr(first)), id(open_jaxpr(second))
        if key not in self._inner:
            self._inner[key] = Alignment(first, second)
        return self._inner[key]

    def in_place_of(self, eqn: Equation) -> Equation | None:
        """Returns the equation of the second trace in the place of one of the first."""
        pair = self._pairs.get(id(eqn))
        return None if pair is None else pair[1]

    def meant(
        self, eqn: Equation | None, place: int, rounds: bool = False
    ) -> np.ndarray | None:
        """Returns a constant as the second trace has it, where that is another one.

        Args:
            eqn: the equation whose operand it is; None for an output.
            place: of the operand, or of the output.
            rounds: whether it has to round to the constant of the first trace: the eps of a
                dtype does not round to that of another one.
        """
        pair = self._meant.get((_key_of(eqn), place))
        if pair is None or (rounds and not _is_rounded(*pair)):
            return None
        return pair[1]

    def unknown(self, eqn: Equation | None, place: int) -> np.ndarray | None:
        """Returns a 16-bit constant that the second trace has no better.

        An array that the function closes over is none: it is as it is.
        """
        return self._unknown.get((_key_of(eqn), place))

    def follows(self, eqn: Equation) -> bool | None:
        """Returns whether the target of a conversion moves with the arguments' dtypes.

        None if the two traces do not say.
        """
        moves = self._moves.get(id(eqn), set())
        return moves.copy().pop() if len(moves) == 1 else None

    def ends_width(self, eqn: Equation | None, place: int) -> bool:
        """Returns whether an operand, or an output, is cast to the dtype that it has.

        Of such a cast JAX makes no equation, but it makes one where the operand is wider.
        """
        return (_key_of(eqn), place) in self._ends

    def asks_for_result(self, eqn: Equation) -> bool:
        """Returns whether a product asks for the dtype of its result."""
        other = self.in_place_of(eqn)
        if other is None or eqn.primitive.name not in PRODUCTS:
            return False
        result = eqn.outvars[0].aval.dtype
        moved = [
            var.aval.dtype != other_var.aval.dtype
            for var, other_var in zip(eqn.invars[:2], other.invars)
        ]
        return all(moved) and other.outvars[0].aval.dtype == result

    def _pair_equations(self) -> None:
        steps = self._first.steps
        other_steps = self._second.steps
        keys = [_kind_of_equation(eqn) for eqn in steps]
        other_keys = [_kind_of_equation(eqn) for eqn in other_steps]
        if keys == other_keys:
            blocks = [(0, 0, len(keys))]
        else:
            matcher = difflib.SequenceMatcher(None, keys, other_keys, autojunk=False)
            blocks = matcher.get_matching_blocks()
        for start, other_start, size in blocks:
            for number in range(size):
                eqn = steps[start + number]
                self._pairs[id(eqn)] = (eqn, other_steps[other_start + number])
        self.unmatched = len(steps) - len(self._pairs)

    def _compare(
        self, key: int, variables: Sequence[Variable], others: Sequence[Variable]
    ) -> None:
        """Compares what an equation is given in the two traces."""
        for place, (var, other) in enumerate(zip(variables, others)):
            if not (_is_floating(var) and _is_floating(other)):
                continue
            casts = self._first.casts_of(var)
            other_casts = self._second.casts_of(other)
            # A conversion of a value is an equation of its own.
            use = (id(casts[0]), 0) if casts else (key, place)
            if len(other_casts) == len(casts) + 1:
                root = self._first.root_of(var)
                if other_casts[0].outvars[0].aval.dtype == root.aval.dtype:
                    self._ends.add(use)
                    other_casts = other_casts[1:]
            if casts:
                is_moved = var.aval.dtype != other.aval.dtype
                self._compare_casts(casts, other_casts, is_moved)
            self._compare_constants(use, var, other)

    def _compare_casts(
        self, casts: Sequence[Equation], other_casts: Sequence[Equation], is_moved: bool
    ) -> None:
        self._moves.setdefault(id(casts[-1]), set()).add(is_moved)
        if len(casts) != len(other_casts):
            return  # which of the earlier ones are the same is not known
        for cast, other in zip(casts[:-1], other_casts):
            is_other = cast.outvars[0].aval.dtype != other.outvars[0].aval.dtype
            self._moves.setdefault(id(cast), set()).add(is_other)

    def _compare_constants(
        self, use: tuple[int, int], var: Variable, other: Variable
    ) -> None:
        value = self._first.constant(self._first.root_of(var))
        other_value = self._second.constant(self._second.root_of(other))
        if value is None or other_value is None:
            return
        if value is other_value and np.size(value) > 1:
            return  # closed over
        value = np.asarray(value)
        wide = np.asarray(other_value)
        if value.shape != wide.shape or kind(wide.dtype) != "float":
            return
        is_same = np.array_equal(value.astype(float), wide.astype(float), equal_nan=True)
        if not is_same:
            self._meant[use] = (value, wide)
        # JAX may have made a strong 16-bit number float32, where it meets the arguments.
        elif bits(wide.dtype) < 32 or not np.array_equal(wide, np.round(wide)):
            self._unknown[use] = value


@dataclasses.dataclass(frozen=True)
class OtherTraces:
    """A jaxpr beside other traces of the same function.

    Attributes:
        wide: beside that of float32 arguments, which tells constants as they were meant.
        sibling: beside that of other dtypes, which tells what follows the arguments.
    """

    wide: Alignment | None = None
    sibling: Alignment | None = None

    def inside(self, eqn: Equation, jaxpr: Jaxpr) -> "OtherTraces":
        """Returns a jaxpr inside of an equation beside its other traces."""
        wide = None if self.wide is None else self.wide.inside(eqn, jaxpr)
        sibling = None if self.sibling is None else self.sibling.inside(eqn, jaxpr)
        return OtherTraces(wide, sibling)


_OUTPUTS_ID = 0  # in place of the identity of an equation


def _key_of(eqn: Equation | None) -> int:
    return _OUTPUTS_ID if eqn is None else id(eqn)


def _is_rounded(value: np.ndarray, wide: np.ndarray) -> bool:
    """Returns whether a constant is what its dtype has for another one."""
    with np.errstate(all="ignore"):
        return np.array_equal(value, wide.astype(value.dtype), equal_nan=True)


class _Side:
    """One of two traces."""

    def __init__(self, jaxpr: Jaxpr):
        self._closed = jaxpr
        self.jaxpr = open_jaxpr(jaxpr)
        self.steps: list[Equation] = []
        self._casts: dict[Variable, Equation] = {}
        for eqn in self.jaxpr.eqns:
            if _is_float_cast(eqn):
                self._casts[eqn.outvars[0]] = eqn
            else:
                self.steps.append(eqn)
        constants = getattr(jaxpr, "consts", ())
        self._constants = dict(zip(self.jaxpr.constvars, constants))

    def casts_of(self, var: Variable) -> list[Equation]:
        """Returns the conversions that lead to a variable, in order."""
        casts: list[Equation] = []
        while not hasattr(var, "val") and var in self._casts:
            casts.insert(0, self._casts[var])
            var = casts[0].invars[0]
        return casts

    def root_of(self, var: Variable) -> Variable:
        """Returns what the conversions before a variable convert."""
        casts = self.casts_of(var)
        return casts[0].invars[0] if casts else var

    def constant(self, var: Variable) -> Leaf | None:
        """Returns the value of a literal, or of a constant of the trace."""
        if not hasattr(var, "val"):
            return self._constants.get(var)
        return np.asarray(var.val, var.aval.dtype)


def _is_float_cast(eqn: Equation) -> bool:
    if eqn.primitive.name != "convert_element_type":
        return False
    return _is_floating(eqn.invars[0]) and _is_floating(eqn.outvars[0])


def _is_floating(var: Variable) -> bool:
    return kind(getattr(var.aval, "dtype", None)) == "float"


def _jaxprs_of(eqn: Equation) -> list[Jaxpr]:
    inside = expanded(eqn)
    return jaxprs_in(eqn.params) if inside is None else [inside]


def _kind_of_equation(eqn: Equation) -> tuple[Any, ...]:
    """Returns what two equations have in common whatever they compute in."""
    shapes = tuple(getattr(var.aval, "shape", ()) for var in eqn.outvars)
    return (
        eqn.primitive.name,
        eqn.params.get("name"),
        shapes,
        len(jaxprs_in(eqn.params)),
    )
