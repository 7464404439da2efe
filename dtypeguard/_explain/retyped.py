"""Pushes other dtypes through the equations of a program, as JAX promotes them."""

from collections.abc import Collection, Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp

from .._leaves.dtypes import dtype_of, is_weak, kind, rank
from .._leaves.types import DType
from .._lines.equations import Written
from .._lines.why import line_of
from .._program.graph import SHAPES, Equation, Graph
from .._source.origin import Origin

# What passes on the type of its operand.
_PASSING = {*SHAPES, "convert_element_type"}
# What JAX computes in floats only: it converts ints before that, or has no such function.
_OF_FLOATS = {"acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos"}
_OF_FLOATS |= {"cosh", "digamma", "div", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1"}
_OF_FLOATS |= {"lgamma", "log", "log1p", "logistic", "rsqrt", "sin", "sinh", "sqrt", "tan"}
_OF_FLOATS |= {"cholesky", "eig", "eigh", "lu", "qr", "svd", "tanh", "triangular_solve"}


class _Type(NamedTuple):
    """The dtype of a value, and whether it gives way to others."""

    dtype: DType
    is_weak: bool = False


def retyped(graph: Graph, changed: Mapping[int, DType]) -> list[DType] | None:
    """The dtypes of all values of a program after some have got another.

    An implicit conversion is undone: it is there for an operand that may have changed. A
    cast of the user's and what has a type of its own, such as a comparison, stay.

    Returns:
        None where a loop in the program would come back in another type than it began, or
        where the rules do not say what becomes of a value.
    """
    if graph not in _AS_WRITTEN:
        own = [_Type(dtype_of(aval), is_weak(aval)) for aval in graph.avals]
        pinned: set[int] = set()
        _AS_WRITTEN[graph] = own, pinned, _pushed(graph, own, own, {}, pinned)
    own, pinned, before = _AS_WRITTEN[graph]
    after = before and _pushed(graph, own, before, changed, pinned)
    if before is None or after is None:
        return None
    moved = {value for value, pair in enumerate(zip(before, after)) if pair[0] != pair[1]}
    for value in pinned:
        equation = graph.made_by.get(value)
        if equation is not None and moved.intersection(equation.inputs):
            return None  # it is not known what becomes of it
    return [each.dtype for each in after]


# The types of a program as it is, where the rules do not give them, and what they give.
_Known = tuple[list[_Type], set[int], list[_Type] | None]
_AS_WRITTEN: WeakKeyDictionary[Graph, _Known] = WeakKeyDictionary()


def follows(graph: Graph, dtypes: Collection[DType]) -> bool:
    """Whether a value may be of one of some dtypes because another one is.

    A cast to it, or an array of it made of constants: `x.astype(a.dtype)`, `zeros_like(a)`.
    """
    return any(
        (
            Written(equation.stack).is_explicit
            if equation.primitive == "convert_element_type"
            else graph.constants.keys() >= {*equation.inputs}
        )
        for value, equation in graph.made_by.items()
        if dtype_of(graph.avals[value]) in dtypes and not is_weak(graph.avals[value])
    )


def files_of(graph: Graph) -> set[str]:
    """The files of the lines that compute a program, a package's and the user's."""
    return {file for x in _lines(graph).values() for file in (x.file, x.users.file)}


def _lines(graph: Graph) -> dict[int, Origin]:
    """The line of each equation, by the value that it computes."""
    if graph not in _LINES:
        lines = ((value, line_of(equation)) for value, equation in graph.made_by.items())
        _LINES[graph] = {value: line for value, line in lines if line}
    return _LINES[graph]


_LINES: WeakKeyDictionary[Graph, dict[int, Origin]] = WeakKeyDictionary()


def used_outside(graph: Graph, line: Origin, dtype: DType) -> list[int]:
    """The values of a dtype that a line of the user's computes for other lines."""
    place = line.file, line.line
    lines = _lines(graph).items()
    own = {x for x, made in lines if (made.users.file, made.users.line) == place}
    used = set(graph.outputs)
    used |= {x for v, eqn in graph.made_by.items() if v not in own for x in eqn.inputs}
    used |= {x for values in graph.same.values() for x in values}
    return [v for v in own & used if dtype_of(graph.avals[v]) == dtype]


def _pushed(
    graph: Graph,
    own: list[_Type],
    start: list[_Type],
    changed: Mapping[int, DType],
    pinned: set[int],
) -> list[_Type] | None:
    """The types of all values; None if a loop in the program does not keep its own.

    Args:
        graph: of the program.
        own: the types that it has.
        start: those to start from; what they give is known if some values change.
        changed: the dtypes that some values are given.
        pinned: those that have another type than the rules say; added to if none changes.
    """
    types, moved = list(start), set[int]()
    for number in range(3):  # a loop feeds values back
        now: set[int] = set()
        for value in graph.sources_first():
            equation = graph.made_by.get(value)
            given = equation.inputs if equation else graph.same.get(value, ())
            is_known = changed or number
            touched = not moved.isdisjoint(given) or not now.isdisjoint(given)
            if is_known and value not in changed and not touched:
                continue
            new = _of(graph, value, types, own)
            computes = equation is not None and equation.primitive not in _PASSING
            if not changed and computes and new.dtype != own[value].dtype:
                pinned.add(value)
            new = own[value] if value in pinned else new
            new = _Type(changed[value]) if value in changed else new
            if new != types[value]:
                types[value] = new
                now.add(value)
        if not now:
            return types
        moved = now
    return None


def _of(graph: Graph, value: int, types: list[_Type], own: list[_Type]) -> _Type:
    """The type of a value, from those of what it is made of."""
    equation = graph.made_by.get(value)
    if equation is None:
        same = [types[x] for x in graph.same.get(value, ())]
        return _promoted(same) if same else own[value]
    given = [types[x] for x in equation.inputs]
    if equation.primitive == "convert_element_type":
        # An implicit one is there for an operand that may have changed.
        return own[value] if Written(equation.stack).is_explicit else given[0]
    was = [own[x] for x in equation.inputs]
    makers = (graph.made_by.get(x) for x in equation.inputs)
    if not any(x and x.primitive == "convert_element_type" for x in makers):
        # A number that converted nothing takes the type of what it meets.
        given = [
            x._replace(is_weak=x.is_weak or _is_number(graph, operand))
            for x, operand in zip(given, equation.inputs)
        ]
    # A comparison, an index or a random number has a type of its own.
    follows = bool(was) and _promoted(was).dtype == own[value].dtype
    new = _promoted(given) if follows else own[value]
    is_exact = kind(new.dtype) in ("bool", "int")
    is_of_floats = equation.primitive in _OF_FLOATS and kind(own[value].dtype) != "int"
    return own[value] if is_exact and is_of_floats else new


def _is_number(graph: Graph, value: int) -> bool:
    return value in graph.values and not getattr(graph.avals[value], "shape", ())


def _promoted(types: list[_Type]) -> _Type:
    """The type of what is computed from some types."""
    strong = [x for x in types if not x.is_weak] or types
    highest = max(types, key=lambda x: rank(x.dtype))
    if len({x.dtype for x in strong}) > 1:
        with jax.numpy_dtype_promotion("standard"):
            try:
                found = _Type(jnp.result_type(*(x.dtype for x in strong)))
            except (TypeError, ValueError):  # keys, 8-bit floats
                return strong[0]
    else:
        found = strong[0]
    return highest if rank(highest.dtype) > rank(found.dtype) else found


def numbers_of(graph: Graph, line: Origin, number: float) -> list[int]:
    """The places of a number in a program that a line of the user's writes out.

    Not in `jnp.float32(1.0)`, which is a float32 with any number.
    """
    found = []
    for value, known in graph.values.items():
        where = line_of(Equation("constant", (), graph.constants[value]))
        is_there = where and (where.users.file, where.users.line) == (line.file, line.line)
        is_number = _is_number(graph, value) and is_weak(graph.avals[value])
        if is_there and is_number and float(known) == number:
            found.append(value)
    return found
