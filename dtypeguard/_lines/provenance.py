"""The lines that gave the values of an error their types: by equations or the record."""

import ast
from collections.abc import Sequence
from types import FrameType
from typing import Any

from .._leaves.dtypes import is_python_number
from .._leaves.types import Leaf
from .._source.files import is_recorded
from .._source.origin import Origin, Why, callers, origin_of_frame
from .._source.syntax import evaluated
from .held import is_array
from .record import of_number, of_variable, recorded
from .sites import Argument, Site
from .traced import TracedValue, traced
from .why import Ends, Has, why


class TypeProvenance:
    """Finds the lines behind values.

    Args:
        frames: those that an error passed through, outside in.
        sites: the lines among them outside JAX.
    """

    def __init__(self, frames: Sequence[FrameType], sites: Sequence[Site]):
        outer = callers(frames[0]) if frames else ()
        self._passed = {(site.file, site.line) for site in sites}
        self._passed |= {(each.f_code.co_filename, each.f_lineno) for each in outer}

    def of(self, argument: Argument, site: Site) -> Why:
        """The lines behind an argument of a call."""
        value, source = argument.value, argument.source
        if is_python_number(value):
            return Why(_of_number(source, site.frame, value))
        users: Any = evaluated(source, site.frame) if argument.is_whole else None
        if is_array(users) and users.dtype == value.dtype:
            value = users  # JAX may have converted it
        return self.of_value(value)

    def of_leaf(self, leaf: Leaf, name: str = "") -> Origin | None:
        """The line that gave a leaf its type, or forced that; of a number by its name."""
        return of_number(name, leaf) if is_python_number(leaf) else self.of_value(leaf).root

    def is_passed(self, line: Origin) -> bool:
        """Whether the error passed through a line."""
        return (line.file, line.line) in self._passed

    def of_value(self, value: Leaf) -> Why:
        """The lines that gave an array or a tracer its type."""
        equations, lines = traced(value), Why()
        if equations is not None:
            graph, every = equations.graph, (1 << len(equations.graph.inputs)) - 1
            is_so = Has("dtype", value.dtype)
            lines = why(graph, graph.outputs[0], is_so, every, _OfTrace(equations))
            if lines.cause == lines.origin:
                lines = lines._replace(cause=None)
        return lines if lines.origin else recorded(value)


class _OfTrace(Ends):
    """What lies beyond the equations of a trace that an error has stopped."""

    def __init__(self, equations: TracedValue):
        self._equations = equations

    def given(self, number: int) -> Why:
        return of_variable(self._equations.arguments[number])


def _of_number(source: ast.AST | None, frame: FrameType, value: Leaf) -> Origin | None:
    """The line that gave a number to the name by which an expression looks it up.

    That of the expression itself, if it writes the number or computes it.
    """
    name = getattr(source, "attr", getattr(source, "id", ""))
    is_computed = isinstance(source, (ast.BinOp, ast.Call, ast.Constant))
    if is_computed and is_recorded(frame.f_code.co_filename):
        return origin_of_frame(frame, source.lineno)
    return of_number(name, value)
