"""What each call in the user's functions computes in.

The unit is a call as Python makes it: `x @ w`, `jnp.mean(h)`, `opt.update(...)`. It takes
values that other calls made, and gives values that others use. What a library does in
between differs between releases and does not count, but for products and sums. So neither
does it matter how a user's line is split.
"""

import contextlib
import functools
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from types import CodeType

from .._autocast.decide import SUMS, precision_of_product
from .._leaves.dtypes import is_weak
from .._leaves.internals import ForeignNames
from .._leaves.types import Aval, Equation as JaxEquation
from .._numbers.primitives import is_key, moves
from .._program.graph import Graph
from .._program.jaxprs import PRODUCTS, Stack
from .._source.files import is_installed, package, short_path
from .._source.origin import Origin, function_name, origin_at
from .._tracebacks.frames import Chain, calls_by_jaxpr

PRODUCT = "products"
SUM = "sums"
CAST = "casts"
OTHER = "arithmetic"
# What else a backward pass computes mirrors the forward one: one kind is enough.
MIRRORED = "backward"
_BACKWARD = {PRODUCT: "backward_products", SUM: "backward_sums"}
BACKWARD_KINDS = (*_BACKWARD.values(), MIRRORED)
ENTRY_KINDS = (PRODUCT, SUM, CAST, OTHER, *BACKWARD_KINDS)

# The derivative of a value that is used twice: no line of the user's adds it up.
_ADDED_BY_JAX = ForeignNames("add_any")
# Products and sums inside of these belong to them.
_OPTIMIZERS = {"optax", "dtypeguard"}

LockedFunction = tuple[str, str]  # its file and its name
# How many calls of a function take and give some types, by kind.
LockEntries = defaultdict[str, Counter[str]]


class Computation:
    """What one call of the user's computes, in the forward or in the backward pass.

    Attributes:
        function: the function that it stands in.
        chain: the call, and the calls that lead to it, inside out.
        is_backward: whether it belongs to a backward pass.
        takes: the values that it takes from other calls.
        makers: those calls.
        gives: the values that others use.
    """

    def __init__(self, function: LockedFunction, chain: Chain, is_backward: bool):
        self.function = function
        self.chain = chain
        self.is_backward = is_backward
        self.takes: dict[int, Aval] = {}
        self.makers: dict[Computation, None] = {}
        self.gives: dict[int, Aval] = {}
        self._products = set()
        self._product_operands = set()
        self._product_results = set()
        self._sums = set()
        self._casts = False
        self._computes = False

    def add(self, eqn: JaxEquation, is_of_optimizer: bool) -> None:
        """Adds an equation."""
        name = eqn.primitive.name
        results = [var.aval for var in eqn.outvars]
        names = _type_names(results)
        matters = not names <= _UNCOUNTED
        if name in PRODUCTS and not is_of_optimizer:
            self._add_product(eqn)
        elif name in SUMS and not is_of_optimizer and matters:
            self._sums |= names
        elif name == "convert_element_type":
            self._casts = True
        elif matters and not moves(eqn):
            self._computes = True

    def _add_product(self, eqn: JaxEquation) -> None:
        # Others say how its rows are grouped.
        factors = eqn.invars[:2]
        operands = [_type_name(var.aval) for var in factors]
        result = _type_name(eqn.outvars[0].aval)
        text_of_operands = " @ ".join(operands)
        text = f"{text_of_operands} -> {result}"
        precision = precision_of_product(eqn)
        if precision:
            text += f", precision {precision}"
        self._products.add(text)
        self._product_operands.update(operands)
        self._product_results.add(result)

    @property
    def line(self) -> Origin:
        """Its line of source."""
        return line_of_call(*self.chain[0])

    @functools.cached_property
    def entries(self) -> list[tuple[str, str]]:
        """The kinds and texts of its lines in a lock; none if it only counts."""
        entries = [(PRODUCT, text) for text in self._products]
        takes = _type_names(self.takes.values())
        gives = _type_names(self.gives.values())
        kind_of_flow = self._kind_of_flow(takes, gives)
        if kind_of_flow is not None:
            text = self._text_of_flow(takes, gives)
            entries.append((kind_of_flow, text))
        if not self.is_backward:
            return entries
        return [(_BACKWARD.get(kind, MIRRORED), text) for kind, text in entries]

    def _kind_of_flow(self, takes: set[str], gives: set[str]) -> str | None:
        """Returns what it does beside products; None if there is nothing to tell."""
        if not gives or takes | gives <= _UNCOUNTED:
            return None
        if self.is_backward and not takes:
            return None
        if self._sums:
            return SUM
        if takes <= self._product_operands and gives <= self._product_results:
            return None
        if self._computes or self._products or not self._casts or len(takes) > 1:
            return OTHER
        # A cast of a constant tells nothing, nor does one to the dtype of its operand.
        if takes in (set(), gives):
            return None
        return CAST

    def _text_of_flow(self, takes: set[str], gives: set[str]) -> str:
        """Returns the types of operands and results, and of its sums where these differ."""
        text = one_text(gives)
        is_of_one_type = takes == gives == self._sums == {text}
        if takes != gives:
            operands = one_text(takes)
            text = f"{operands} -> {text}"
        if self._sums and not is_of_one_type:
            types_of_sums = one_text(self._sums)
            text += f" in {types_of_sums}"
        # Without operands it begins with the arrow.
        return text.strip()


def computations(graph: Graph, homes: set[str], folder: str) -> list[Computation]:
    """Returns what the calls of the user's compute, in the order of the program.

    Args:
        graph: of the program.
        homes: the packages of the user's files.
        folder: that from which the lock names them.
    """
    nowhere = ("", "")
    outside = Computation(nowhere, (), is_backward=False)
    calls = {}
    maker_of = {}
    uses = []
    for value, node in graph.made_by.items():
        call = outside
        chain, is_of_optimizer = _own_calls(node.stack, homes)
        if chain and node.name not in _ADDED_BY_JAX:
            key = (chain, node.is_backward)
            if key not in calls:
                innermost, _ = chain[0]
                function = locked_function(innermost, folder)
                calls[key] = Computation(function, chain, node.is_backward)
            call = calls[key]
            call.add(node.eqn, is_of_optimizer)
        maker_of[value] = call
        uses.append((call, graph.sources(value)))
    uses.append((outside, graph.outputs))
    # The values that go from one call to another, or out of the program.
    for user, values in uses:
        for value in values:
            for source in graph.origins(value):
                maker = maker_of.get(source, outside)
                # Its own, or what it keeps for its derivative.
                if user.chain == maker.chain:
                    continue
                maker.gives[source] = graph.avals[source]
                aval = graph.avals[value]
                # A Python number takes the type of what it meets, and tells nothing.
                if source in graph.constants and not aval.shape:
                    continue
                user.takes[source] = aval
                user.makers[maker] = None
    return list(calls.values())


def _own_calls(stack: Stack, homes: Collection[str]) -> tuple[Chain, bool]:
    """Returns the user's calls behind an equation, and whether an optimizer made it."""
    is_of_optimizer = False
    # As far as the innermost jaxpr with one: JAX moves equations out of loops.
    for calls in calls_by_jaxpr(stack):
        own_calls = []
        for call in calls:
            code, _ = call
            package_name = package(code.co_filename)
            if package_name in homes:
                own_calls.append(call)
            elif not own_calls:
                is_of_optimizer |= package_name in _OPTIMIZERS
        if own_calls:
            return tuple(own_calls), is_of_optimizer
    return (), is_of_optimizer


# Without a cache: code of two files may be equal.
def locked_function(code: CodeType, folder: str) -> LockedFunction:
    """Returns the function of code, as a lock in a folder names it."""
    file = code.co_filename
    path = file
    with contextlib.suppress(ValueError):  # on another drive, or without a name
        path = os.path.relpath(file, folder)
    if is_installed(file):
        path = short_path(file)
    # A lock is checked in, and read on systems with another separator.
    return path.replace(os.sep, "/"), function_name(code)


def line_of_call(code: CodeType, instruction: int) -> Origin:
    """Returns the line of an instruction."""
    positions = list(code.co_positions())
    # An instruction has two bytes, and one entry in the positions.
    line, *_ = positions[instruction // 2]
    # Instructions that the compiler adds have no line.
    return line_in(code, line or code.co_firstlineno)


def line_in(code: CodeType, line: int) -> Origin:
    """Returns a line of a function."""
    return origin_at(code.co_filename, line, function_name(code))


def type_text(aval: Aval) -> str:
    """Returns the type of a leaf: `bfloat16`, or `weak float32`."""
    name = str(aval.dtype)
    if is_weak(aval):
        return f"weak {name}"
    return name


# The names of dtypes that do not matter, or that nothing has, such as a token. Longer
# integers count or index, in whatever dtype; in short ones a model is quantized.
_UNCOUNTED_DTYPES = {
    "bool": "bool",
    "int32": "int",
    "int64": "int",
    "uint32": "int",
    "uint64": "int",
    "float0": "",
    "": "",
}
_UNCOUNTED = {*_UNCOUNTED_DTYPES.values(), "key"}
# A Python number is a weak float64 with the flag, and a weak float32 without.
_WITHOUT_FLAG = {"weak float64": "weak float32", "weak complex128": "weak complex64"}


def _type_name(aval: Aval) -> str:
    """Returns the type of a value. What the x64 flag alone changes looks the same."""
    # Whichever generator a key is for, it is no matter of precision.
    if is_key(aval):
        return "key"
    dtype = str(getattr(aval, "dtype", ""))
    if dtype in _UNCOUNTED_DTYPES:
        return _UNCOUNTED_DTYPES[dtype]
    text = type_text(aval)
    return _WITHOUT_FLAG.get(text, text)


def one_text(names: Iterable[str]) -> str:
    """Returns the names of types as a lock has them."""
    return ", ".join(sorted(names))


def _type_names(avals: Collection[Aval]) -> set[str]:
    """Returns the types of values: those that count, if any does."""
    names = set(map(_type_name, avals))
    return names - _UNCOUNTED or names - {""}
