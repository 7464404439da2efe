"""Finds the lines that gave a value its type: by its equations, or by its variable.

The two ways are in one file, because each asks the other: an equation may use a constant
that a variable holds, and a variable may hold a tracer.
"""

import ast
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from .._leaves.dtypes import is_array, is_python_number, is_weak
from .._leaves.types import Leaf
from .._program.graph import Equation, Graph
from .._source.files import is_users
from .._source.origin import (
    Origin,
    Why,
    callers,
)
from .._source.syntax import evaluated, root
from .bindings import field_line
from .blame import Blame
from .expressions import model_of
from .monitored import recorder as recording
from .numbers import number_line
from .region import Matches
from .sites import Argument, Site, fitting, passed_on
from .traced import TracedValue, recorded, traced
from .variables import ARRAYS, Variables, why_of
from .why import Has, why


class TypeProvenance:
    """Finds the lines that gave the values in the frames of an error their types.

    Args:
        frames: those that the error passed through, with JAX's own, outside in.
        sites: the lines among them outside JAX.
        is_again: whether they have run before.
    """

    def __init__(
        self, frames: Sequence[FrameType], sites: Sequence[Site], is_again: bool = False
    ):
        outer = callers(frames[0]) if frames else ()
        self._sites = [*reversed(sites)] + [
            Site(frame, frame.f_lineno, None, [])
            for frame in outer
            if is_users(frame.f_code.co_filename)
        ]
        self._frames = [f for f in reversed(frames) if not is_users(f.f_code.co_filename)]
        # What is known of a value; nothing while it is being looked for.
        self._known: dict[int, tuple[Leaf, Why]] = {}
        self.variables = Variables(self._sites, is_again, self.of_value)

    def of(self, argument: Argument, site: Site) -> Why:
        """The lines behind an argument of a call."""
        value, source = argument.value, argument.source
        if is_python_number(value):
            line = number_line(source, site.frame, value)
            if line is None and isinstance(source, ast.Attribute):
                line = field_line(type(evaluated(source.value, site.frame)), source.attr)
            return Why(line)
        users = evaluated(source, site.frame) if argument.is_whole else None
        if isinstance(users, ARRAYS) and users.dtype == value.dtype:
            value = users  # JAX may have converted it
        provenance = self.of_value(value)
        if argument.is_whole and isinstance(source, ast.Attribute):
            kind = type(evaluated(source.value, site.frame))
            origin = provenance.origin
            if origin is None or self.variables.constructs(origin.users, kind, value):
                provenance = Why(field_line(kind, source.attr) or origin)
        if provenance.origin is not None or source is None:
            return provenance
        holder = evaluated(root(source), site.frame)
        return provenance if holder is None else self.variables.assigned(holder, value)

    def of_leaf(self, leaf: Leaf) -> Origin | None:
        """The line that gave a leaf of an argument its type, or forced that."""
        return None if is_python_number(leaf) else self.of_value(leaf).root

    def is_passed(self, line: Origin) -> bool:
        """Whether the error passed through a line."""
        return any((x.file, x.line) == (line.file, line.line) for x in self._sites)

    def of_value(self, value: Leaf, depth: int = 0) -> Why:
        """The lines that gave a value its type.

        Args:
            value: an array or a tracer.
            depth: how many of JAX's frames, counted from the innermost, lie inside the
                function that has the value.
        """
        if id(value) not in self._known:
            self._known[id(value)] = value, Why()
            equations = traced(value)
            provenance = Why()
            if equations is not None:
                provenance = self._of_tracer(value, equations, depth)
            if provenance.origin is None:
                provenance = recorded(value)
            if provenance.origin is None:
                provenance = self.variables.assigned(value, value)
            self._known[id(value)] = value, provenance
        return self._known[id(value)][1]

    def _of_tracer(self, value: Leaf, equations: TracedValue, depth: int) -> Why:
        graph, every = equations.graph, (1 << len(equations.graph.inputs)) - 1
        ends = _Ends(self, value, equations, depth)
        found = why(graph, graph.outputs[0], Has("dtype", value.dtype), every, ends)
        return why_of(found.origin, found.cause, found.is_promoted)

    def of_outer(self, equations: TracedValue, number: int, depth: int) -> Why:
        """The lines behind what a traced function was called with for an argument."""
        recorder = recording()
        made = recorder and recorder.argument(equations.arguments[number])
        if made and (provenance := made.why()).origin:
            return provenance
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


class _Ends(NamedTuple):
    """What lies beyond the equations of a trace that an error has stopped.

    Attributes:
        provenance: of the error.
        value: a tracer.
        equations: that lead to it.
        depth: as in `of_value`.
    """

    provenance: TypeProvenance
    value: Leaf
    equations: TracedValue
    depth: int

    def result(self, output: int) -> Why:
        constant = self.equations.value_of(self.equations.output)
        return Why() if constant is None else self.provenance.of_value(constant, self.depth)

    def given(self, number: int) -> Why:
        outer = self.provenance.of_outer(self.equations, number, self.depth)
        graph = self.equations.graph
        if graph.outputs[0] != graph.inputs[number] or not (
            outer.origin and outer.origin.called_from
        ):
            return outer
        own = self.provenance.variables.bound(
            self.value, False
        )  # nearer than a package's line
        return outer if own is None else Why(own, outer.cause)

    def constant(
        self, graph: Graph, found: Blame, line: Origin, matches: Matches
    ) -> Origin | None:
        user = found.cause or found.promotion
        if user is None or (not found.cause and graph.constants.keys() >= {*user.inputs}):
            return None
        for variable in user.stack[0].invars:
            value = self.equations.value_of(variable)
            if is_array(value) and matches(value) and not is_weak(value):
                made = self.provenance.of_value(value, self.depth).root
                if made is not None:
                    return made
        node, frame = self.provenance.variables.running(line)
        if node is None or frame is None:
            return None
        read = list(self.provenance.variables.read(node, frame, line, matches)[0].values())
        return read[0].root if len(read) == 1 else None

    def model(self, user: Equation, line: Origin, matches: Matches) -> Origin | None:
        node, frame = self.provenance.variables.running(line)
        if node is None or frame is None:
            return None
        models = [evaluated(model_of(call, frame), frame) for call in ast.walk(node)]
        models = [model for model in models if is_array(model)]
        return self.provenance.of_value(models[0]).root if len(models) == 1 else None

    def undisplaced(self, graph: Graph) -> Graph:
        return graph
