"""What each call in the user's functions computes in.

The unit is a call as Python makes it: `x @ w`, `jnp.mean(h)`, `opt.update(...)`. It takes
values that other calls made, and gives values that others use. What a library does in
between differs between releases and does not count, but for products and sums. So neither
does it matter how a user's line is split.
"""

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Collection, Iterable
from types import CodeType
from typing import NamedTuple

import jax.numpy as jnp

from .._costs.costs import equations
from .._leaves.dtypes import kind
from .._leaves.internals import ForeignNames
from .._leaves.types import Aval, Equation as JaxEquation, Step
from .._lines.equations import Written
from .._lines.tracebacks import Chain, calls_by_jaxpr
from .._numbers.primitives import is_key, moves
from .._program.graph import PRODUCTS, Equation, Graph, Stack
from .._source.files import is_installed, package
from .._source.origin import Origin, origin_at

PRODUCT, SUM, CAST, OTHER = "products", "sums", "casts", "arithmetic"
BACKWARD = "backward_"
# What else a backward pass computes mirrors the forward one: one kind is enough.
MIRRORED = "backward"
KINDS = (PRODUCT, SUM, CAST, OTHER, BACKWARD + PRODUCT, BACKWARD + SUM, MIRRORED)

_SUMS = ForeignNames(
    "reduce_sum reduce_prod cumsum cumprod cumlogsumexp reduce_window_sum reduce_window "
    "scatter-add psum psum_invariant@jax>=0.7 reduce_scatter"
)
# The derivative of a value that is used twice: no line of the user's adds it up.
_ADDED_BY_JAX = ForeignNames("add_any")
# Products and sums inside of these belong to them.
_OPTIMIZERS = {"optax", "dtypeguard"}
_UNNAMED = {"<locals>", "<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"}

Function = tuple[str, str]  # its file and its name


class LockEntry(NamedTuple):
    """A line of a lock: one of `KINDS`, and the types."""

    kind: str
    text: str

    @property
    def operands(self) -> frozenset[str]:
        """The types that it takes."""
        takes = re.split(r" -> | in |, precision ", self.text)[0]
        return frozenset(x.strip() for x in re.split(r" @ |, ", takes))


class Computation:
    """What one call of the user's computes, in the forward or in the backward pass."""

    def __init__(self, function: Function, chain: Chain, is_backward: bool):
        self.function, self.is_backward = function, is_backward
        self.chain = chain  # the call, and the calls that lead to it, inside out
        self.takes: dict[int, Aval] = {}  # from other calls, by value
        self.gives: dict[int, Aval] = {}  # what others use
        self._products: dict[str, tuple[set[str], set[str]]] = {}
        self._sums: set[str] = set()
        self._casts = self._computes = False

    def add(self, eqn: JaxEquation, is_of_optimizer: bool) -> None:
        """Adds an equation."""
        name = eqn.primitive.name
        made = [v.aval for v in eqn.outvars]
        if name in PRODUCTS and not is_of_optimizer:
            self._add_product(eqn)
        elif name in _SUMS and not is_of_optimizer and any(map(_counts, made)):
            self._sums.update(filter(None, map(_name, filter(_counts, made))))
        elif name == "convert_element_type":
            self._casts = True
        elif any(map(_counts, made)):
            operands = [v.aval for v in eqn.invars]
            self._computes = self._computes or not moves(eqn, operands, made)

    def _add_product(self, eqn: JaxEquation) -> None:
        left, right, out = (_name(v.aval) for v in (*eqn.invars[:2], eqn.outvars[0]))
        asked = _precision(eqn.params.get("precision"))
        self._products[f"{left} @ {right} -> {out}{asked}"] = {left, right}, {out}

    @property
    def line(self) -> Origin:
        """Its line of source."""
        code, instruction = self.chain[0]
        places = itertools.islice(code.co_positions(), instruction // 2, None)
        return line_in(code, next(places, (None,))[0] or code.co_firstlineno)

    @functools.cached_property
    def entries(self) -> list[LockEntry]:
        """The lines of a lock; none if it only counts."""
        prefix = BACKWARD * self.is_backward
        found = [LockEntry(prefix + PRODUCT, text) for text in sorted(self._products)]
        takes, gives = (_names(x.values()) for x in (self.takes, self.gives))
        counted = [any(map(_counts, x.values())) for x in (self.takes, self.gives)]
        if not any(counted) or not gives or (self.is_backward and not takes):
            return found
        flow = ", ".join(sorted(gives))
        if takes != gives:
            flow = f"{', '.join(sorted(takes))} -> {flow}".strip()
        kind = MIRRORED if self.is_backward else OTHER
        if self._sums:
            kind, inside = prefix + SUM, ", ".join(sorted(self._sums))
            flow = flow if {inside} == takes == gives else f"{flow} in {inside}"
        elif self._products:
            known = [set().union(*each) for each in zip(*self._products.values())]
            if takes <= known[0] and gives <= known[1]:
                return found
        elif self._casts and not self._computes and len(takes) < 2:
            if not takes or takes == gives:
                return found
            kind = MIRRORED if self.is_backward else CAST
        return [*found, LockEntry(kind, flow)]


def computations(
    graph: Graph, step: CodeType | None, name_of: Callable[[str], str]
) -> list[Computation]:
    """What the calls of the user's compute, in the order of the program."""
    is_own, name_of = functools.cache(_is_own_of(step)), functools.cache(name_of)
    found: dict[tuple[Chain, bool], Computation] = {}
    of: dict[int, Computation] = {}  # by the identity of an equation of the graph
    order = [equation for equation, _ in equations(graph)]
    for equation in order:
        stack = equation.stack
        chain, is_of_optimizer = _own_calls(stack, is_own)
        if chain and equation.primitive not in _ADDED_BY_JAX:
            key = chain, Written(stack).is_backward
            if key not in found:
                code = chain[0][0]
                function = name_of(code.co_filename), _function_name(code)
                found[key] = Computation(function, *key)
            found[key].add(stack[0], is_of_optimizer)
            of[id(equation)] = found[key]
    _connect(graph, order, of)
    return [*found.values()]


def _own_calls(stack: Stack, is_own: Callable[[str], bool]) -> tuple[Chain, bool]:
    """The calls of the user's behind an equation, and whether an optimizer made it."""
    is_of_optimizer = False
    # As far as the innermost jaxpr with one: JAX moves equations out of loops.
    for calls in calls_by_jaxpr(stack):
        for number, (code, _) in enumerate(calls):
            if is_own(code.co_filename):
                own = (call for call in calls[number:] if is_own(call[0].co_filename))
                return tuple(own), is_of_optimizer
            is_of_optimizer |= package(code.co_filename) in _OPTIMIZERS
    return (), is_of_optimizer


def _connect(graph: Graph, order: Iterable[Equation], of: dict[int, Computation]) -> None:
    """Fills in what each computation takes from others and gives to others."""
    uses = [(value, of.get(id(each))) for each in order for value in each.inputs]
    for value, user in [*uses, *((value, None) for value in graph.outputs)]:
        for source in _sources(graph, value):
            maker = of.get(id(graph.made_by.get(source)))
            if user is not None and maker is not None and user.chain == maker.chain:
                continue  # its own, or what it keeps for its derivative
            is_number = source in graph.constants and not graph.avals[value].shape
            if user is not None and not is_number:
                user.takes[source] = graph.avals[value]
            if maker is not None:
                maker.gives[source] = graph.avals[source]


def _sources(graph: Graph, value: int) -> Iterable[int]:
    """Where a value comes from, past the boundaries of calls, loops and branches."""
    found, seen = [value], {value}
    for each in found:
        new = [x for x in graph.same.get(each, ()) if x not in seen]
        found += new
        seen.update(new)
    return [x for x in found if x not in graph.same]


def line_in(code: CodeType, line: int) -> Origin:
    """A line of a function."""
    return origin_at(code.co_filename, line, _function_name(code))


def _function_name(code: CodeType) -> str:
    """The name of a function; what is written in it without a name is a part of it."""
    parts = [part for part in code.co_qualname.split(".") if part not in _UNNAMED]
    return ".".join(parts) or "<module>"


def _is_own_of(code: CodeType | None) -> Callable[[str], bool]:
    """Tells whether a file is the user's own, or of the package that the step is in."""
    home = package(code.co_filename) if code is not None else ""
    return lambda file: not is_installed(file) or (home != "" and package(file) == home)


def code_of(step: Step) -> CodeType | None:
    """The code of a step, inside of partials and wrappers; None if it has none."""
    inner = inspect.unwrap(step)
    while (inside := getattr(inner, "func", None)) is not None:  # of a partial
        inner = inspect.unwrap(inside)
    return getattr(inner, "__code__", None)


def _counts(aval: Aval) -> bool:
    """Whether the type of a value matters: floating, or an integer that stands for one."""
    family = kind(dtype := getattr(aval, "dtype", None))
    is_short = family == "int" and jnp.iinfo(dtype).bits < 32
    return is_short or family in ("float", "complex")


_OF_FLAG = {"float64": "float32", "complex128": "complex64"}


def _name(aval: Aval) -> str:
    """The type of a value. What the x64 flag alone changes looks the same."""
    if is_key(aval):
        return "key"
    if not _counts(aval):
        return kind(getattr(aval, "dtype", None)) or ""
    name = str(aval.dtype)
    if not getattr(aval, "weak_type", False):
        return name
    return f"weak {_OF_FLAG.get(name, name)}"


def _names(avals: Collection[Aval]) -> set[str]:
    """The types of values: those that count, if any does."""
    counted = list(filter(_counts, avals))
    return set(filter(None, map(_name, counted or avals)))


def _precision(asked: object) -> str:
    """What a product asks for, such as "highest", "high/default" or an algorithm."""
    each = asked if isinstance(asked, tuple) else (asked,)
    names = dict.fromkeys(str(getattr(x, "name", x)).lower() for x in each if x is not None)
    return "" if {*names} <= {"default"} else f", precision {'/'.join(names)}"
