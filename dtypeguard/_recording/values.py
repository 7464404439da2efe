"""The arrays in a value, how one came to be, and what the lines of a function name.

They are found without JAX, and nothing of the user's runs.
"""

import dis
import functools
import re
import types
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from .._leaves.types import Leaf, PyTree
from .._source.inert import fields_of, is_a, items_of, package_of
from .._source.origin import Frame, Why, origin_of_frames

Path = tuple[str, ...]

_DEPTH, _MOST = 8, 2000  # of containers in one another, and of what they hold
_WITHOUT_ARRAYS = (
    str,
    bytes,
    bool,
    type(None),
    type,
    property,
    types.CodeType,
    types.ModuleType,
)
_WITHOUT_ARRAYS += (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_NUMERIC_LIBRARIES = {"jax", "jaxlib", "numpy"}
_OPAQUE = {*_NUMERIC_LIBRARIES, "builtins", "typing", "logging", "threading"}


@functools.cache
def _has_parts_of_array(kind: type) -> bool:
    is_array = kind.__module__.startswith("numpy") or hasattr(kind, "aval")
    return is_array and hasattr(kind, "dtype") and hasattr(kind, "shape")


def is_array(value: object) -> bool:
    """Whether a value is an array or a tracer, and no abstract value: JAX shares those."""
    kind = type(value)
    return package_of(kind) in _NUMERIC_LIBRARIES and _has_parts_of_array(kind)


def is_tracer(value: object) -> bool:
    """Whether an array is a tracer."""
    return is_array(value) and hasattr(type(value), "_trace")


def is_of_numpy(value: object) -> bool:
    """Whether a value is an array or a scalar of NumPy."""
    return package_of(type(value)) == "numpy" and is_array(value)


def is_number(value: object) -> bool:
    """Whether a value is a number of Python's, and no bool."""
    return type(value) in (int, float, complex)


def held(value: PyTree) -> Iterator[tuple[Path, Leaf]]:
    """The arrays and the Python numbers in a value with their paths, in the order of JAX.

    As JAX does it finds what is in two places twice.
    """
    stack: list[tuple[Path, Any, frozenset[int]]] = [((), value, frozenset())]
    left = _MOST
    while stack and (left := left - 1):
        path, each, around = stack.pop()
        if is_array(each) or is_number(each):
            yield path, each
        elif (
            not is_a(each, _WITHOUT_ARRAYS)
            and len(path) < _DEPTH
            and id(each) not in around
        ):
            inside = around | {id(each)}
            parts = [
                ((*path, name), part, inside)
                for name, part in _parts_of_value(each)[:_MOST]
            ]
            stack += reversed(parts)


def _parts_of_value(value: Any) -> list[tuple[str, Any]]:
    if is_a(value, (dict, list, tuple)):
        items = [*items_of(value)]
        if type(value) in (dict, defaultdict):  # others come in an order of their own
            for kind in (str, int):
                if all(type(key) is kind for key, _ in items):
                    items.sort(key=itemgetter(0))
        return [(_text(key), part) for key, part in items]
    if package_of(type(value)) in _OPAQUE:
        return []
    return [*fields_of(value).items()]


def _text(key: object) -> str:
    return str(key) if type(key) in (str, int, bool, float) else type(key).__name__


def passed_as(leaves: list[Leaf], tracers: list[Leaf]) -> list[Leaf]:
    """What tracers stand for among some leaves, if the last of these are that; else none.

    Static arguments and numbers may come before them.
    """
    are_arrays = [leaf for leaf in leaves if is_array(leaf)]
    for given in (are_arrays, leaves):
        last = given[len(given) - len(tracers) :] if len(given) >= len(tracers) else []
        if last and all(map(_may_stand_for, tracers, last)):
            return last
    return []


def _may_stand_for(tracer: Leaf, leaf: Leaf) -> bool:
    """Whether a tracer is for a leaf, for one example of it, or for a part of it."""
    if is_number(leaf):
        return tracer.shape == ()
    if leaf is tracer or getattr(leaf, "dtype", None) is None:
        return False
    is_same = leaf.dtype == tracer.dtype or str(leaf.dtype).replace("64", "32") == str(
        tracer.dtype
    )
    return is_same and tracer.shape in (leaf.shape, leaf.shape[1:])


def type_of(value: Leaf) -> tuple[Any, bool]:
    """The dtype of an array and whether it is weak; of a number its type."""
    return getattr(value, "dtype", type(value)), bool(getattr(value, "weak_type", False))


class Made(NamedTuple):
    """How a value came to be.

    Attributes:
        through: the line and its callers, inside out; empty if it was only read.
        type: its dtype, and whether it is weak.
        sources: what may have given it its type: what an argument stands for, what the
            function of a result returned, for others what the line reads.
        is_promoted: whether the line reads other types as well.
        is_passed: whether it is an argument or a result.
    """

    through: Sequence[Frame]
    type: tuple[Any, bool]
    sources: Sequence["Made"] = ()
    is_promoted: bool = False
    is_passed: bool = False

    def steps(self, known: "dict[int, list[Made]] | None" = None) -> "list[Made]":
        """The lines that gave it its type, nearest first.

        They go back as long as what a line reads has the type from one line alone.
        """
        known = {} if known is None else known
        if id(self) not in known:
            known[id(self)] = []
            alike = [x for x in self.sources if self.is_passed or x.type == self.type]
            behind = [each.steps(known) for each in alike]
            roots = {steps[-1].through[0] if steps else None for steps in behind}
            own = [self] if self.through and not self.is_passed else []
            further = max(behind, key=len) if len(roots) == 1 else []
            known[id(self)] = own + further
        return known[id(self)]

    def why(self) -> Why:
        """The line that gave it its type, and the one to edit for another."""
        steps = self.steps()
        if not steps:
            return Why(is_earlier=not (self.through or self.sources))
        promotion = next((each for each in steps if each.is_promoted), steps[0])
        origin, cause = (origin_of_frames(x.through) for x in (promotion, steps[-1]))
        cause = None if cause == origin else cause
        return Why(origin, cause, is_promoted=promotion.is_promoted)


_NUMPY_KINDS = {int: "iu", float: "f", complex: "c"}  # of NumPy


def as_array(made: Made, type_: tuple[Any, bool]) -> Made | None:
    """How the number came to be that an array of a type may be made of."""
    kinds = _NUMPY_KINDS.get(made.type[0])
    if kinds is None:
        return made
    return made._replace(type=type_) if type_[0].kind in kinds else None


_DTYPE = re.compile(r"astype|dtype|(b?float|u?int|complex)\d+(_\w+)?")
_KEYWORDS = "KW_NAMES", "LOAD_CONST"  # before a call
_CHANGING = "STORE_ATTR", "STORE_SUBSCR"
_OF_VARIABLE = re.compile("(?=.*(FAST|NAME|GLOBAL|DEREF))(STORE|LOAD)_")
_LONGEST_STATEMENT = 50  # lines of a statement


class Words(NamedTuple):
    """What a line of a function names."""

    stored: dict[str, None]  # the variables that it assigns
    read: dict[str, None]  # the other variables
    others: set[str]  # attributes and keys
    is_making: bool  # whether it calls something, or assigns a part of an object
    is_changing: bool = False  # whether it assigns a part of an object
    end: int = 0  # the last line of its statement

    @property
    def has_dtype(self) -> bool:
        """Whether it names a dtype, so that what it reads does not decide its own."""
        return any(map(_DTYPE.fullmatch, (*self.others, *self.read)))

    def sets(self) -> set[str]:
        """The variables that it assigns in whole or in part."""
        return {*self.stored, *(self.read if self.is_changing else ())}

    def names(self, path: Sequence[str]) -> bool:
        """Whether the line names a part of a variable: `x`, `x[0]`, `x.scale`."""
        return all(part.isdigit() or part in self.others for part in path)


def words_of(code: types.CodeType) -> dict[int, Words]:
    """What each line names; the first line of a statement what all of it does."""
    found: dict[int, Words] = {}
    for each in dis.get_instructions(code):
        line, end, *_ = each.positions or (None, None)
        if line is None or end is None:
            continue
        words = found.setdefault(line, Words({}, {}, set(), False, end=line))
        name, value = each.opname, each.argval
        if _OF_VARIABLE.match(name):
            # `STORE_FAST_LOAD_FAST` is of two variables.
            values = value if isinstance(value, tuple) else (value,)
            for kind, variable in zip(re.findall("STORE|LOAD", name), values):
                (words.stored if kind == "STORE" else words.read)[variable] = None
        elif isinstance(value, str):
            words.others.add(value)
        elif each.opname in _KEYWORDS and isinstance(value, tuple):
            words.others.update(x for x in value if isinstance(x, str))
        changing = words.is_changing or name.startswith(_CHANGING)
        making = words.is_making or changing or name.startswith("CALL")
        end = max(words.end, min(end, line + _LONGEST_STATEMENT))
        found[line] = words._replace(is_making=making, is_changing=changing, end=end)
    for line, words in found.items():
        for inner in filter(None, map(found.get, range(line + 1, words.end + 1))):
            words.read.update(inner.read)
            words.others.update(inner.others)
    return found
