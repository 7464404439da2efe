"""What each call in the user's functions computes in.

The unit is a call as Python makes it: `x @ w`, `jnp.mean(h)`, `opt.update(...)`. It takes
values that other calls made, and gives values that others use. What a library does in
between differs between releases and does not count, but for products and sums. So neither
does it matter how a user's line is split.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterable
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

    @property
    def is_move(self) -> bool:
        """Whether it only moves values, as `reshape` does."""
        return not (self._products or self._sums or self._casts or self._computes)

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
        text = f"{left} @ {right} -> {out}"
        if precision := _precision(eqn.params.get("precision")):
            text += f", precision {precision}"
        self._products[text] = {left, right}, {out}

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
        cast, other = (MIRRORED, MIRRORED) if self.is_backward else (CAST, OTHER)
        if self._sums:
            inside = ", ".join(sorted(self._sums))
            text = flow if {inside} == takes == gives else f"{flow} in {inside}"
            found.append(LockEntry(prefix + SUM, text))
        elif self._products:
            known = [set().union(*each) for each in zip(*self._products.values())]
            if not (takes <= known[0] and gives <= known[1]):
                found.append(LockEntry(other, flow))
        elif self._casts and not self._computes and len(takes) < 2:
            if takes and takes != gives:
                found.append(LockEntry(cast, flow))
        else:
            found.append(LockEntry(other, flow))
        return found


def computations(
    graph: Graph, step: Step, name_of: Callable[[str], str]
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
                function = name_of(code.co_filename), function_name(code)
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

    def use(value: int, user: Computation | None) -> None:
        aval = graph.avals[value]
        for source in _sources(graph, value):
            equation = graph.made_by.get(source)
            maker = of.get(id(equation)) if equation else None
            if user is not None and maker is not None and user.chain == maker.chain:
                continue  # its own, or what it keeps for its derivative
            is_number = source in graph.constants and not aval.shape
            if user is not None and not is_number:
                user.takes[source] = aval
            if maker is not None:
                maker.gives[source] = graph.avals[source]

    for equation in order:
        for value in equation.inputs:
            use(value, of.get(id(equation)))
    for value in graph.outputs:
        use(value, None)


def _sources(graph: Graph, value: int) -> Iterable[int]:
    """Where a value comes from, past the boundaries of calls, loops and branches."""
    seen, ends = {value: None}, []
    for one in (left := [value]):
        if one not in graph.same:
            ends.append(one)
        left += [x for x in graph.same.get(one, ()) if x not in seen]
        seen |= dict.fromkeys(left)
    return ends


def function_name(code: CodeType) -> str:
    """The name of a function; what is written in it without a name is a part of it."""
    parts = [part for part in code.co_qualname.split(".") if part not in _UNNAMED]
    return ".".join(parts) or "<module>"


def _is_own_of(step: Step) -> Callable[[str], bool]:
    """Tells whether a file is the user's own, or of the package that the step is in."""
    code = code_of(step)
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


def _name(aval: Aval) -> str:
    """The type of a value. What the x64 flag alone changes looks the same."""
    if is_key(aval):
        return "key"
    if not _counts(aval):
        return kind(getattr(aval, "dtype", None)) or ""
    name, is_weak = str(aval.dtype), getattr(aval, "weak_type", False)
    if is_weak:
        name = {"float64": "float32", "complex128": "complex64"}.get(name, name)
    return f"weak {name}" if is_weak else name


def _names(avals: Iterable[Aval]) -> set[str]:
    """The types of values: those that count, if any does."""
    avals = list(avals)
    counted = list(filter(_counts, avals))
    return set(filter(None, map(_name, counted or avals)))


def _precision(asked: object) -> str:
    """What a product asks for: "highest", "high/default", or the name of an algorithm."""
    each = asked if isinstance(asked, tuple) else (asked,)
    names = [str(getattr(x, "name", x)).lower() for x in each if x is not None]
    return "" if set(names) <= {"default"} else "/".join(dict.fromkeys(names))
