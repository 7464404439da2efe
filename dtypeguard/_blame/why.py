"""The lines behind the type of a value of a program: the one walk, and where it ends.

`why` walks back by `blame.py`, which names equations. What lies beyond the program it asks
the record (`_recording`, from Python 3.12 on): a constant, which has no line in a jaxpr,
and what the program was given.
"""

import dataclasses
from collections.abc import Callable

import jax
from jax.core import Tracer

from .._leaves.dtypes import is_array, is_python_number, is_weak, kind
from .._leaves.types import Aval, Leaf
from .._program.graph import Graph
from .._program.program import Block, User
from .._program.trace import Program
from .._recording.monitored import RECORD
from .._recording.value_record import ValueRecord
from .._source.origin import Origin, Why, origin_of_frames
from .._tracebacks.frames import line_of_traced, line_of_tracer
from .._tracebacks.written import Written
from .blame import Matches, Region, blame

LinesOfValue = Callable[[int], Why]  # of an input or a constant, by its number in a graph


@dataclasses.dataclass(frozen=True)
class Has:
    """Whether an abstract value has this dtype, shape or weakness."""

    attribute: str
    value: object

    def __call__(self, aval: Aval) -> bool:
        return getattr(aval, self.attribute, None) == self.value


def why(
    graph: Graph,
    output: int,
    matches: Matches,
    leaves: int = -1,
    beyond: LinesOfValue | None = None,
) -> Why:
    """Returns the lines that gave an output of a program a property.

    Args:
        graph: of the program.
        output: the value.
        matches: whether an abstract value has the property, the new dtype for example.
        leaves: the inputs that the output continues, as bits; all of them by default.
        beyond: the lines behind an input or a constant; by default the record is asked.
    """
    if beyond is None:
        beyond = lines_beyond(graph)
    # No equation of the program makes them.
    is_leaf = output in graph.inputs and leaves >> output & 1
    if output in graph.constants or is_leaf:
        return beyond(output)
    blamed = blame(graph, output, matches, leaves)
    origin = line_of(blamed.promotion)
    cause = line_of(blamed.cause)
    if blamed.operand is not None:
        maker = beyond(blamed.operand).root
        user = cause or origin
        if maker is None and user is not None and blamed.operand in graph.constants:
            maker = _line_of_read_array(user.users, matches)
        cause = maker or cause
    if blamed.promotion is None:
        return Why(origin, cause)
    # What reads other types as well may be cast there.
    is_promoted = False
    for operand in blamed.promotion.eqn.invars:
        if not matches(operand.aval):
            is_promoted = True
    return Why(origin, cause, is_promoted=is_promoted)


def lines_beyond(graph: Graph) -> LinesOfValue:
    """Returns the lines behind the inputs and the constants of a graph, by the record."""

    def beyond(value: int) -> Why:
        lines = recorded(graph.variables[value])
        user = graph.constants.get(value)
        if user is None:
            return lines
        if lines.origin is None:
            lines = recorded(graph.array(value))
        # Else the function inside that returns it: no equation has its line.
        if lines.origin is None and isinstance(user, Block) and user.stack:
            lines = Why(line_of_traced(user.source))
        return lines

    return beyond


def line_of(user: User | None) -> Origin | None:
    """Returns the line of an equation, or of the call of a block, if there is one."""
    if user is None:
        return None
    return Written(user.stack).origin


def of_weak_leaf(program: Program, number: int, leaf: Leaf, name: str) -> Why:
    """Returns the line that made a leaf of the first carry of a program weak."""
    first = program.first
    if first is not None:
        weak = Region(first, is_weak)
        output = first.outputs[number]
        root = weak.root([output])
        line = line_of(root.cause)
        if line is not None:
            return Why(line)
    if is_python_number(leaf):
        return Why(of_number(name, leaf))
    line = recorded(leaf).root
    return Why(line or line_of_tracer(leaf))


def unwrapped(value: Leaf) -> Leaf:
    """Returns the array, or the tracer of a jaxpr, behind tracers of transformations."""
    while isinstance(value, Tracer):
        inner = getattr(value, "primal", None)  # of `grad` and `jvp`
        if inner is None:
            inner = getattr(value, "val", None)  # of `vmap`
        if not is_array(inner):
            break
        value = inner
    return value


def record_of(value: Leaf) -> ValueRecord | None:
    """Returns how a value was made; the record does not keep the value."""
    recorder = RECORD.recorder
    inner = unwrapped(value)
    # A tracer of `vmap` begins in the call of the function, and its array before that.
    return recorder.record_of(inner) or recorder.record_of(value)


def recorded(value: Leaf) -> Why:
    """Returns the lines behind a value, or what a variable of a jaxpr stands for."""
    record = record_of(value)
    if record is None:
        return Why()
    return record.why()


def of_number(name: str, value: object) -> Origin | None:
    """Returns the line that gave a Python number, by its name."""
    record = RECORD.recorder.record_of_number(name, value)
    if record is None:
        return None
    return origin_of_frames(record.frames)


def _line_of_read_array(line: Origin, matches: Matches) -> Origin | None:
    """Returns the line that made an array, if a line has read only one of the property."""
    makers = {}
    for record in RECORD.recorder.read_by(line.file, line.line):
        dtype, is_number = record.type
        if kind(dtype) is not None:
            dtype = jax.dtypes.canonicalize_dtype(dtype)  # as JAX takes NumPy's
        scalar = jax.ShapeDtypeStruct((), dtype)
        if is_number or not matches(scalar):
            continue
        lines = record.why()
        if lines.is_earlier:
            return None  # it may be this one
        root = lines.root
        if root is not None and root.users.line != line.line:
            makers[root.users] = root
    if len(makers) != 1:
        return None
    (maker,) = makers.values()
    return maker
