"""The lines behind the type of a value of a program: the one walk, and where it ends.

`why` walks back by `blame.py`, which names equations. What lies beyond the program it asks
the record (`monitored.py`, from Python 3.12 on): a constant, which has no line in a jaxpr,
and what the program was given.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax.core import Tracer

from .._leaves.dtypes import is_array, is_python_number, is_weak, kind
from .._leaves.types import Aval, DType, Leaf
from .._program.graph import Equation, Graph
from .._program.trace import Program
from .._recording.monitored import RECORD
from .._recording.value_record import ValueRecord
from .._source.origin import Origin, Why, origin_of_frames
from .._tracebacks.frames import line_of_return, line_of_tracer
from .._tracebacks.written import Written
from .blame import Matches, blame, region_of

_KNOWN = RECORD.recorder
Begun = Callable[[int], Why]  # gives the lines behind an input of a program, by its number


def why(
    graph: Graph,
    output: int,
    matches: Matches,
    leaves: int = -1,
    begun: Begun | None = None,
) -> Why:
    """The lines that gave an output of a program a property.

    Args:
        graph: of the program.
        output: the value.
        matches: whether an abstract value has the property, the new dtype for example.
        leaves: the inputs that the output continues, as bits; all of them by default.
        begun: the lines behind an input, by its number; else the record is asked.
    """
    place = graph.inputs.index
    given = lambda x: begun(place(x)) if begun else recorded(graph.variables.get(x))
    if output in graph.constants:
        return _of_constant(graph, output)
    if output in graph.inputs and leaves >> place(output) & 1:
        return given(output)
    found = blame(graph, output, matches, leaves)
    promotion, root = found.promotion, found.cause or found.promotion
    origin, cause, line = line_of(promotion), line_of(found.cause), line_of(root)
    if found.operand in graph.constants:
        made = _of_constant(graph, found.operand).root
        made = made or (line and read_on(line.users, matches)) or line
        is_elsewhere = made and (line is None or made.users != line.users)
        cause = made if cause or is_elsewhere else None
    elif cause is None and found.operand in graph.inputs:
        cause = given(found.operand).root
    operands = promotion.inputs if promotion else ()
    is_promoted = not all(matches(graph.avals[each]) for each in operands)
    return Why(origin, cause, is_promoted=is_promoted)


def _of_constant(graph: Graph, constant: int) -> Why:
    """The line that made a constant, else that on which a function inside returns it."""
    lines = recorded(graph.variables.get(constant))
    if lines.origin is None:
        lines = recorded(graph.values.get(constant))
    if lines.origin is None and constant in graph.returned_by:
        lines = Why(line_of_return(graph.returned_by[constant]))
    return lines


class Has(NamedTuple):
    """Whether an abstract value has this dtype or shape."""

    name: str
    value: object

    def __call__(self, aval: Aval) -> bool:
        return getattr(aval, self.name, None) == self.value


def line_of(equation: Equation | None) -> Origin | None:
    """The line of an equation, if there is one."""
    return None if equation is None else Written(equation.stack).origin


def of_weak_leaf(program: Program, number: int) -> Why:
    """The line that made a leaf of the first carry of a program weak."""
    first = program.first
    root = first and region_of(first, is_weak).root([first.outputs[number]])
    made = root and line_of(root.cause)
    if made is not None:
        return Why(made)
    leaf = [leaf for tree in program.carried for leaf in tree.arrays][number]
    if is_python_number(leaf):
        return Why(of_number("", leaf))
    return Why(recorded(leaf).root or line_of_tracer(leaf))


def unwrapped(value: Leaf) -> Leaf:
    """The array, or the tracer of a jaxpr, behind tracers of `vmap`, `grad` and `jvp`."""
    while isinstance(value, Tracer):
        inner = getattr(value, "primal", None)
        inner = getattr(value, "val", None) if inner is None else inner
        if not is_array(inner):
            break
        value = inner
    return value


def made_of(value: Leaf) -> ValueRecord | None:
    """How a value was made; the record does not keep the value."""
    return _KNOWN.record_of(value) or _KNOWN.record_of(unwrapped(value))


def recorded(value: Leaf) -> Why:
    """The lines behind a value, or what a variable of a jaxpr stands for."""
    made = made_of(value)
    return made.why() if made else Why()


def of_number(name: str, value: object) -> Origin | None:
    """The line that gave a Python number, by its name or if one line alone did."""
    made = _KNOWN.record_of_number(name, value)
    return origin_of_frames(made.frames) if made else None


def read_on(line: Origin, matches: Matches) -> Origin | None:
    """The line that made the one array with a property that a line has read."""
    made = [x for x in _KNOWN.read_by(line.file, line.line) if not x.type.is_weak]
    found = [each.why() for each in made if matches(_scalar(each.type.dtype))]
    is_known = not any(why.is_earlier for why in found)  # else it may be that one
    roots = [why.root for why in found]
    others = {x.users: x for x in roots if x and x.users.line != line.line}
    return others.popitem()[1] if is_known and len(others) == 1 else None


def _scalar(dtype: DType) -> jax.ShapeDtypeStruct:
    """A scalar of a dtype, as JAX makes it of an array of NumPy."""
    known = jax.dtypes.canonicalize_dtype(dtype) if kind(dtype) else dtype
    return jax.ShapeDtypeStruct((), known)
