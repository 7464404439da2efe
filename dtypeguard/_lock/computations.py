"""What each call in the user's functions computes in.

The unit is a call as Python makes it: `x @ w`, `jnp.mean(h)`, `opt.update(...)`. It takes
values that other calls made, and gives values that others use. What a library does in
between differs between releases and does not count, but for products and sums. So neither
does it matter how a user's line is split.
"""

import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import CodeType
from typing import NamedTuple

import jax.numpy as jnp

from .._costs.work import equations
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

# Of these a lock keeps the order, which tells two products of a function apart.
IN_ORDER = (PRODUCT, SUM)


class LockEntry(NamedTuple):
    """A line of a lock.

    Attributes:
        kind: one of `KINDS`.
        text: the types.
    """

    kind: str
    text: str


class Computation:
    """What one call of the user's computes, in the forward or in the backward pass.

    Attributes:
        number: its place in the program.
        chain: the call, and the calls that lead to it, inside out.
        is_backward: whether it belongs to a backward pass.
        stack: of its first equation.
        takes: the abstract values that come from other calls, by value.
        gives: those that others use.
    """

    def __init__(self, number: int, chain: Chain, is_backward: bool, stack: Stack):
        self.number, self.chain, self.stack = number, chain, stack
        self.is_backward = is_backward
        self.takes: dict[int, Aval] = {}
        self.gives: dict[int, Aval] = {}
        self._products: dict[str, tuple[set[str], set[str]]] = {}
        self._sums: set[str] = set()
        self._casts = self._computes = False

    @property
    def code(self) -> CodeType:
        """The function that makes the call."""
        return self.chain[0][0]

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
        flow = _flow(takes, gives)
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


def computations(graph: Graph, step: Step) -> list[Computation]:
    """What the calls of the user's compute, in the order of the program."""
    is_own = functools.cache(_is_own_of(step))
    found: dict[tuple[object, bool], Computation] = {}
    of: dict[int, Computation | None] = {}  # by the identity of an equation of the graph
    order: list[tuple[Equation, Computation | None]] = []
    chains: dict[tuple[int, ...], tuple[Chain, bool]] = {}

    def chain_of(stack: Stack) -> tuple[Chain, bool]:
        is_of_optimizer = False
        # As far as the innermost jaxpr with one: JAX moves equations out of loops.
        for calls in calls_by_jaxpr(stack):
            for number, (code, _) in enumerate(calls):
                if is_own(code.co_filename):
                    rest = calls[number:]
                    return tuple(
                        c for c in rest if is_own(c[0].co_filename)
                    ), is_of_optimizer
                is_of_optimizer |= package(code.co_filename) in _OPTIMIZERS
        return (), is_of_optimizer

    for equation, _ in equations(graph):
        stack = equation.stack
        computation = None
        if stack and equation.primitive not in _ADDED_BY_JAX:
            ids = tuple(map(id, stack))
            if ids not in chains:
                chains[ids] = chain_of(stack)
            own, is_of_optimizer = chains[ids]
            if own:
                key = tuple((id(c), i) for c, i in own), Written(stack).is_backward
                computation = found.get(key)
                if computation is None:
                    computation = Computation(len(found), own, key[1], stack)
                    found[key] = computation
                computation.add(stack[0], is_of_optimizer)
        of[id(equation)] = computation
        order.append((equation, computation))
    _connect(graph, order, of)
    return _in_order_of_source(list(found.values()))


def _in_order_of_source(found: list[Computation]) -> list[Computation]:
    """Puts the calls of a function in its own order: JAX moves some out of a loop."""
    functions: dict[object, list[int]] = defaultdict(list)
    places: dict[int, list[int]] = {}
    for number, each in enumerate(found):
        if not each.is_backward:
            named = (n for n, (code, _) in enumerate(each.chain) if "<" not in code.co_name)
            outer = next(named, 0)  # what has no name runs as a part of this function
            functions[each.chain[outer][0], each.chain[outer + 1 :]].append(number)
            places[number] = [place for _, place in reversed(each.chain[: outer + 1])]
    ordered = list(found)
    for numbers in functions.values():
        for number, other in zip(numbers, sorted(numbers, key=places.__getitem__)):
            ordered[number] = found[other]
    for number, each in enumerate(ordered):
        each.number = number
    return ordered


def _connect(
    graph: Graph,
    order: list[tuple[Equation, Computation | None]],
    of: dict[int, Computation | None],
) -> None:
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

    for equation, computation in order:
        for value in equation.inputs:
            use(value, computation)
    for value in graph.outputs:
        use(value, None)


def _sources(graph: Graph, value: int) -> Iterable[int]:
    """Where a value comes from, past the boundaries of calls, loops and branches."""
    if value not in graph.same:
        return (value,)
    seen, left, ends = {value}, [value], []
    while left:
        one = left.pop()
        if one not in graph.same:
            ends.append(one)
        for other in graph.same.get(one, ()):
            if other not in seen:
                seen.add(other)
                left.append(other)
    return ends


def function_name(code: CodeType) -> str:
    """The name of a function; what is written in it without a name is a part of it."""
    parts = [part for part in code.co_qualname.split(".") if part not in _UNNAMED]
    return ".".join(parts) or "<module>"


def _is_own_of(step: Step) -> Callable[[str], bool]:
    """Tells whether a file is the user's own, or of the package that the step is in."""
    inner = inspect.unwrap(step)
    inner = getattr(inner, "func", inner)  # of a partial
    code = getattr(getattr(inner, "__wrapped__", inner), "__code__", None)
    home = package(code.co_filename) if code is not None else ""
    return lambda file: not is_installed(file) or (home != "" and package(file) == home)


def _counts(aval: Aval) -> bool:
    """Whether the type of a value matters: floating, or an integer that stands for one."""
    dtype = getattr(aval, "dtype", None)
    family = kind(dtype)
    return family in ("float", "complex") or (
        family == "int" and jnp.iinfo(dtype).bits < 32
    )


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


def _flow(takes: set[str], gives: set[str]) -> str:
    given = ", ".join(sorted(gives))
    return given if takes == gives else f"{', '.join(sorted(takes))} -> {given}".strip()


def _precision(asked: object) -> str:
    """What a product asks for: "highest", "high/default", or the name of an algorithm."""
    each = asked if isinstance(asked, tuple) else (asked,)
    names = [str(getattr(x, "name", x)).lower() for x in each if x is not None]
    return "" if set(names) <= {"default"} else "/".join(dict.fromkeys(names))
