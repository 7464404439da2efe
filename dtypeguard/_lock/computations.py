"""What each call in the user's functions computes in.

The unit is a call as Python makes it: `x @ w`, `jnp.mean(h)`, `opt.update(...)`. It takes
values that other calls made, and gives values that others use. What a library does in
between differs between releases and does not count, but for products and sums. So neither
does it matter how a user's line is split.
"""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable
from types import CodeType
from typing import NamedTuple

import jax.numpy as jnp

from .._autocast.decide import SUMS, precision_of_product
from .._costs.costs import equations
from .._leaves.dtypes import kind
from .._leaves.internals import ForeignNames
from .._leaves.types import Aval, Equation as JaxEquation, Step
from .._numbers.primitives import is_key, moves
from .._program.graph import Equation, Graph
from .._program.jaxprs import PRODUCTS, Stack
from .._source.files import is_installed, package
from .._source.origin import Origin, function_name, origin_at
from .._tracebacks.frames import Chain, calls_by_jaxpr
from .._tracebacks.written import Written

PRODUCT = "products"
SUM = "sums"
CAST = "casts"
OTHER = "arithmetic"
BACKWARD = "backward_"
# What else a backward pass computes mirrors the forward one: one kind is enough.
MIRRORED = "backward"
ENTRY_KINDS = (PRODUCT, SUM, CAST, OTHER, BACKWARD + PRODUCT, BACKWARD + SUM, MIRRORED)

# The derivative of a value that is used twice: no line of the user's adds it up.
_ADDED_BY_JAX = ForeignNames("add_any")
# Products and sums inside of these belong to them.
_OPTIMIZERS = {"optax", "dtypeguard"}

LockedFunction = tuple[str, str]  # its file and its name
FunctionOfCode = Callable[[CodeType], LockedFunction]


class LockEntry(NamedTuple):
    """A line of a lock.

    Attributes:
        kind: one of `ENTRY_KINDS`.
        text: the types.
    """

    kind: str
    text: str

    @property
    def operands(self) -> frozenset[str]:
        """The types of its operands: a lock in a file has the text alone."""
        operands = re.split(r" -> | in |, precision ", self.text)[0]
        return frozenset(map(str.strip, re.split(r" @ |, ", operands)))


class Computation:
    """What one call of the user's computes, in the forward or in the backward pass.

    Attributes:
        function: the function that it stands in.
        chain: the call, and the calls that lead to it, inside out.
        is_backward: whether it belongs to a backward pass.
        takes: the values that it takes from other calls.
        gives: the values that others use.
    """

    def __init__(self, function: LockedFunction, chain: Chain, is_backward: bool):
        self.function = function
        self.chain = chain
        self.is_backward = is_backward
        self.takes: dict[int, Aval] = {}
        self.gives: dict[int, Aval] = {}
        self._products: set[str] = set()
        self._product_operands: set[str] = set()
        self._product_results: set[str] = set()
        self._sums: set[str] = set()
        self._casts = False
        self._computes = False

    def add(self, eqn: JaxEquation, is_of_optimizer: bool) -> None:
        """Adds an equation."""
        name = eqn.primitive.name
        results = [var.aval for var in eqn.outvars]
        counted = [aval for aval in results if _type_matters(aval)]
        if name in PRODUCTS and not is_of_optimizer:
            self._add_product(eqn)
        elif name in SUMS and not is_of_optimizer and counted:
            self._sums.update(map(_type_name, counted))
        elif name == "convert_element_type":
            self._casts = True
        elif counted:
            operands = [var.aval for var in eqn.invars]
            self._computes = self._computes or not moves(eqn, operands, results)

    def _add_product(self, eqn: JaxEquation) -> None:
        first = _type_name(eqn.invars[0].aval)
        second = _type_name(eqn.invars[1].aval)
        result = _type_name(eqn.outvars[0].aval)
        text = f"{first} @ {second} -> {result}"
        precision = precision_of_product(eqn)
        if precision:
            text += f", precision {precision}"
        self._products.add(text)
        self._product_operands |= {first, second}
        self._product_results.add(result)

    @property
    def line(self) -> Origin:
        """Its line of source."""
        code, instruction = self.chain[0]
        positions = list(code.co_positions())
        # An instruction has two bytes, and one entry in the positions.
        line, *_ = positions[instruction // 2]
        # Instructions that the compiler adds have no line.
        return line_in(code, line or code.co_firstlineno)

    @functools.cached_property
    def entries(self) -> list[LockEntry]:
        """The lines of a lock; none if it only counts."""
        prefix = BACKWARD if self.is_backward else ""
        entries = [LockEntry(prefix + PRODUCT, text) for text in sorted(self._products)]
        flow = self._flow()
        if flow is not None:
            entries.append(flow)
        return entries

    def _flow(self) -> LockEntry | None:
        """Returns the types of its operands and results, if its products do not tell."""
        takes = _type_names(self.takes.values())
        gives = _type_names(self.gives.values())
        if not gives or not self._has_types_that_matter():
            return None
        if self.is_backward and not takes:
            return None
        text = _flow_text(takes, gives)
        if self._sums:
            # The type in which a sum is added up, where the others do not tell.
            if not self._sums == takes == gives or len(gives) > 1:
                text += f" in {', '.join(sorted(self._sums))}"
            return LockEntry(BACKWARD + SUM if self.is_backward else SUM, text)
        if takes <= self._product_operands and gives <= self._product_results:
            return None
        kind_of_entry = OTHER
        if self._is_cast(takes):
            if not takes or takes == gives:
                return None
            kind_of_entry = CAST
        return LockEntry(MIRRORED if self.is_backward else kind_of_entry, text)

    def _has_types_that_matter(self) -> bool:
        avals = [*self.takes.values(), *self.gives.values()]
        return any(map(_type_matters, avals))

    def _is_cast(self, takes: set[str]) -> bool:
        """Returns whether it does nothing but cast values of one type."""
        if self._computes or self._products:
            return False
        return self._casts and len(takes) < 2


def _flow_text(takes: set[str], gives: set[str]) -> str:
    text = ", ".join(sorted(gives))
    if takes == gives:
        return text
    return f"{', '.join(sorted(takes))} -> {text}".strip()


def computations(
    graph: Graph, step: CodeType | None, function_of: FunctionOfCode
) -> list[Computation]:
    """Returns what the calls of the user's compute, in the order of the program."""
    is_own = functools.cache(_is_own_of(step))
    calls: dict[tuple[Chain, bool], Computation] = {}
    # By the identity of an equation of the graph.
    call_of: dict[int, Computation] = {}
    order = equations(graph)
    for equation in order:
        stack = equation.stack
        chain, is_of_optimizer = _own_calls(stack, is_own)
        if not chain or equation.primitive in _ADDED_BY_JAX:
            continue
        is_backward = Written(stack).is_backward
        call = calls.get((chain, is_backward))
        if call is None:
            function = function_of(chain[0][0])
            call = Computation(function, chain, is_backward)
            calls[chain, is_backward] = call
        call.add(stack[0], is_of_optimizer)
        call_of[id(equation)] = call
    _connect(graph, order, call_of)
    return list(calls.values())


def _own_calls(stack: Stack, is_own: Callable[[str], bool]) -> tuple[Chain, bool]:
    """Returns the user's calls behind an equation, and whether an optimizer made it."""
    is_of_optimizer = False
    # As far as the innermost jaxpr with one: JAX moves equations out of loops.
    for calls in calls_by_jaxpr(stack):
        own_calls = [call for call in calls if is_own(call[0].co_filename)]
        for code, _ in calls:
            if is_own(code.co_filename):
                return tuple(own_calls), is_of_optimizer
            is_of_optimizer = is_of_optimizer or package(code.co_filename) in _OPTIMIZERS
    return (), is_of_optimizer


def _connect(
    graph: Graph, order: Iterable[Equation], call_of: dict[int, Computation]
) -> None:
    """Notes the values that go from one call to another, or out of the program."""
    uses: list[tuple[Computation | None, int]] = []
    for equation in order:
        user = call_of.get(id(equation))
        uses += [(user, value) for value in equation.inputs]
    uses += [(None, value) for value in graph.outputs]
    for user, value in uses:
        for source in graph.origins(value):
            maker = call_of.get(id(graph.made_by.get(source)))
            if user is not None and maker is not None and user.chain == maker.chain:
                continue  # its own, or what it keeps for its derivative
            # A Python number takes the type of what it meets, and tells nothing.
            is_number = source in graph.constants and not graph.avals[value].shape
            if user is not None and not is_number:
                user.takes[source] = graph.avals[value]
            if maker is not None:
                maker.gives[source] = graph.avals[source]


def line_in(code: CodeType, line: int) -> Origin:
    """Returns a line of a function."""
    return origin_at(code.co_filename, line, function_name(code))


def _is_own_of(code: CodeType | None) -> Callable[[str], bool]:
    """Returns what tells whether a file is the user's, or of the package of the step."""
    home = "" if code is None else package(code.co_filename)

    def is_own(file: str) -> bool:
        if not is_installed(file):
            return True
        return home != "" and package(file) == home

    return is_own


def code_of_step(step: Step) -> CodeType | None:
    """Returns the code of a step, inside of partials and wrappers; None if it has none."""
    inner = inspect.unwrap(step)
    # A partial may hold a wrapper, and that another partial.
    while getattr(inner, "func", None) is not None:
        inner = inspect.unwrap(inner.func)
    return getattr(inner, "__code__", None)


def _type_matters(aval: Aval) -> bool:
    """Returns whether the type of a value matters: a float, or an integer for one."""
    dtype = getattr(aval, "dtype", None)
    family = kind(dtype)
    # Longer integers count or index, in whatever dtype; in short ones a model is quantized.
    is_short = family == "int" and jnp.iinfo(dtype).bits < 32
    return is_short or family in ("float", "complex")


# A Python number is a weak float64 with the flag, and a weak float32 without.
_OF_FLAG = {"float64": "float32", "complex128": "complex64"}


def _type_name(aval: Aval) -> str:
    """Returns the type of a value. What the x64 flag alone changes looks the same."""
    # Whichever generator a key is for, it is no matter of precision.
    if is_key(aval):
        return "key"
    if not _type_matters(aval):
        return kind(getattr(aval, "dtype", None)) or ""
    name = str(aval.dtype)
    if not getattr(aval, "weak_type", False):
        return name
    return f"weak {_OF_FLAG.get(name, name)}"


def _type_names(avals: Collection[Aval]) -> set[str]:
    """Returns the types of values: those that count, if any does."""
    counted = [aval for aval in avals if _type_matters(aval)]
    # What has no dtype, such as a token, has no name.
    return {_type_name(aval) for aval in counted or avals} - {""}
