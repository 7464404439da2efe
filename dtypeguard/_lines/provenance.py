"""Finds the lines that gave the values in the frames of an error their types."""

from collections.abc import Sequence
from types import FrameType

from .._leaves.dtypes import is_python_number
from .._leaves.types import Leaf
from .._source.files import is_users
from .._source.origin import Origin, Why, callers
from .._source.syntax import evaluated
from .held import is_array
from .numbers import number_line
from .record import of_variable, recorded
from .sites import Argument, Site, fitting, passed_on
from .traced import TracedValue, traced
from .why import Ends, Has, why


class TypeProvenance:
    """Finds the lines that gave values their types: by their equations, or by the record.

    Args:
        frames: those that the error passed through, with JAX's own, outside in.
        sites: the lines among them outside JAX.
    """

    def __init__(self, frames: Sequence[FrameType], sites: Sequence[Site]):
        outer = callers(frames[0]) if frames else ()
        self._passed = {(site.file, site.line) for site in sites}
        self._passed |= {(each.f_code.co_filename, each.f_lineno) for each in outer}
        self._frames = [f for f in reversed(frames) if not is_users(f.f_code.co_filename)]
        # What is known of a value; nothing while it is being looked for.
        self._known: dict[int, tuple[Leaf, Why]] = {}

    def of(self, argument: Argument, site: Site) -> Why:
        """The lines behind an argument of a call."""
        value, source = argument.value, argument.source
        if is_python_number(value):
            return Why(number_line(source, site.frame, value))
        users = evaluated(source, site.frame) if argument.is_whole else None
        if is_array(users) and users.dtype == value.dtype:
            value = users  # JAX may have converted it
        return self.of_value(value)

    def of_leaf(self, leaf: Leaf) -> Origin | None:
        """The line that gave a leaf of an argument its type, or forced that."""
        return None if is_python_number(leaf) else self.of_value(leaf).root

    def is_passed(self, line: Origin) -> bool:
        """Whether the error passed through a line."""
        return (line.file, line.line) in self._passed

    def of_value(self, value: Leaf, depth: int = 0) -> Why:
        """The lines that gave a value its type.

        Args:
            value: an array or a tracer.
            depth: how many of JAX's frames, counted from the innermost, lie inside the
                function that has the value.
        """
        if id(value) not in self._known:
            self._known[id(value)] = value, Why()
            equations, lines = traced(value), Why()
            if equations is not None:
                graph, every = equations.graph, (1 << len(equations.graph.inputs)) - 1
                ends = _OfTrace(self, equations, depth)
                lines = why(graph, graph.outputs[0], Has("dtype", value.dtype), every, ends)
                is_same = lines.cause == lines.origin
                lines = lines._replace(cause=None if is_same else lines.cause, begun=None)
            self._known[id(value)] = value, lines if lines.origin else recorded(value)
        return self._known[id(value)][1]

    def of_outer(self, equations: TracedValue, number: int, depth: int) -> Why:
        """The lines behind what a traced function was called with for an argument."""
        if (lines := of_variable(equations.arguments[number])).origin:
            return lines
        avals = [variable.aval for variable in equations.arguments]
        nearest: tuple[Leaf, int] | None = None
        for level, frame in enumerate(self._frames[depth:], depth + 1):
            for leaves in passed_on(frame):
                if any(map(equations.is_own, leaves)):
                    nearest = None  # the frames so far are inside the traced function
                elif nearest is None and (given := fitting(leaves, avals)):
                    before = len(avals) - len(given)  # JAX's own, such as a counter
                    if before <= number:
                        nearest = given[number - before], level
        return self.of_value(*nearest) if nearest else Why()


class _OfTrace(Ends):
    """What lies beyond the equations of a trace that an error has stopped."""

    def __init__(self, provenance: TypeProvenance, equations: TracedValue, depth: int):
        self._provenance, self._equations, self._depth = provenance, equations, depth

    def given(self, number: int) -> Why:
        return self._provenance.of_outer(self._equations, number, self._depth)
