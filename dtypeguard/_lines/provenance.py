"""Finds the lines that gave a value its type: by its equations, or by its variable.

The two ways are in one file, because each asks the other: an equation may use a constant
that a variable holds, and a variable may hold a tracer.
"""

import ast
import functools
import inspect
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NamedTuple

import jax
import numpy as np

from .._leaves.dtypes import dtype_of, is_array, is_python_number, is_weak
from .._leaves.rows import path_of
from .._leaves.types import DType, Leaf, PyTree
from .._program.graph import Equation, Graph
from .._source.files import is_installed, is_users
from .._source.origin import (
    Origin,
    Why,
    callers,
    origin_at,
    origin_of_frame,
)
from .._source.syntax import evaluated, root, statement, stores_to_self
from .bindings import Holders, assignments, bound_in, field_of_self
from .blame import Blame, Matches
from .expressions import asks_for, model_of, result_of
from .monitored import recorder as recording
from .numbers import number_line
from .sites import Argument, Site, fitting, passed_on, written
from .traced import TracedValue, recorded, traced, unwrapped
from .why import Has, why

_LOOKUPS = (ast.Name, ast.Attribute, ast.Subscript)
# The methods that give an object its fields.
_MAKE = "__init__", "__post_init__", "setup"
_ARRAYS = (jax.Array, np.ndarray, np.generic)  # not abstract values


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
        self._is_again = is_again
        outer = callers(frames[0]) if frames else ()
        self._sites = [*reversed(sites)] + [
            Site(frame, frame.f_lineno, None, [])
            for frame in outer
            if is_users(frame.f_code.co_filename)
        ]
        self._frames = [f for f in reversed(frames) if not is_users(f.f_code.co_filename)]
        # What is known of a value; nothing while it is being looked for.
        self._known: dict[int, tuple[Leaf, Why]] = {}
        # Leaves of one container were assigned together.
        self._together: dict[tuple[Origin, DType], Why] = {}

    def of(self, argument: Argument, site: Site) -> Why:
        """The lines behind an argument of a call."""
        value, source = argument.value, argument.source
        if is_python_number(value):
            line = number_line(source, site.frame, value)
            if line is None and isinstance(source, ast.Attribute):
                line = _field(type(evaluated(source.value, site.frame)), source.attr)
            return Why(line)
        users = evaluated(source, site.frame) if argument.is_whole else None
        if isinstance(users, _ARRAYS) and users.dtype == value.dtype:
            value = users  # JAX may have converted it
        provenance = self.of_value(value)
        if argument.is_whole and isinstance(source, ast.Attribute):
            kind = type(evaluated(source.value, site.frame))
            origin = provenance.origin
            if origin is None or self._constructs(origin.users, kind, value):
                provenance = Why(_field(kind, source.attr) or origin)
        if provenance.origin is not None or source is None:
            return provenance
        holder = evaluated(root(source), site.frame)
        return provenance if holder is None else self._assigned(holder, value)

    def of_leaf(self, leaf: Leaf) -> Origin | None:
        """The line that gave a leaf of an argument its type, or forced that."""
        return None if is_python_number(leaf) else self.of_value(leaf).root

    def is_passed(self, line: Origin) -> bool:
        """Whether the error passed through a line."""
        return any((x.file, x.line) == (line.file, line.line) for x in self._sites)

    def holding(self, value: object) -> Origin | None:
        """The user's line that assigned what holds a value."""
        return recorded(value).root or self._holders.line_of(value)

    @functools.cached_property
    def _holders(self) -> Holders:
        return Holders((site.frame, site.line) for site in self._sites)

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
                provenance = self._assigned(value, value)
            self._known[id(value)] = value, provenance
        return self._known[id(value)][1]

    def _of_tracer(self, value: Leaf, equations: TracedValue, depth: int) -> Why:
        graph, every = equations.graph, (1 << len(equations.graph.inputs)) - 1
        ends = _Ends(self, value, equations, depth)
        found = why(graph, graph.outputs[0], Has("dtype", value.dtype), every, ends)
        return _why(found.origin, found.cause, found.is_promoted)

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

    def _assigned(self, holder: PyTree, value: Leaf) -> Why:
        """The lines behind a value that a variable holds, or something in a variable."""
        users = () if self._is_again else self._sites
        fields = (field_of_self(site.frame, value) for site in users)
        line = self.bound(holder, False) or next(filter(None, fields), None)
        line = line or self.holding(value)
        line = line or self.holding(unwrapped(value)) or self.bound(holder, True)
        if line is None:
            return self._written(value)
        node, frame = self.running(line)
        if frame is None or node is None:
            return Why(line)
        together = line, dtype_of(value)
        if together not in self._together:
            self._together[together] = self._of_expression(node, frame, line, value)
        return self._together[together]

    def _of_expression(
        self, node: ast.AST, frame: FrameType, line: Origin, value: Leaf
    ) -> Why:
        """The lines behind what an expression computes from variables."""
        dtype = dtype_of(value)
        read, is_promoted = self.read(node, frame, line, Has("dtype", dtype))
        if named := asks_for(node, frame, dtype):
            if len(named) == 1 and not is_installed(line.file):  # an argument's own line
                line = origin_at(line.file, named[0], line.function)
            return Why(line, is_promoted=is_promoted)
        before = _before(node, frame, line) if not read else None
        earlier = statement(before.file, before.line) if before is not None else None
        # Not one in a branch that may not have been taken.
        if before and earlier and earlier.col_offset <= getattr(node, "col_offset", 0):
            return self._of_expression(earlier, frame, before, value)
        provenance = next(iter(read.values())) if len(read) == 1 else Why()
        if not read and not is_promoted:
            provenance = Why(result_of(getattr(node, "value", node), frame))
        if provenance.is_promoted and not is_promoted:  # it had the type before
            return provenance
        return _why(line, provenance.root, is_promoted)

    def read(
        self, node: ast.AST, frame: FrameType, line: Origin, matches: Matches
    ) -> tuple[dict[int, Why], bool]:
        """The arrays of a type that an expression reads.

        Returns:
            Their lines, and whether it may read arrays of other types as well.
        """
        read: dict[int, Why] = {}
        others = False
        changed = {
            name.id
            for name in ast.walk(node)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        }
        for name in _operands(node):
            if isinstance(name, ast.Name) and name.id in changed:
                others = True  # its old value is gone
                continue
            value = evaluated(name, frame)
            if not isinstance(value, _ARRAYS) or is_weak(value):
                continue
            provenance = self.of_value(value) if matches(value) else Why()
            if provenance.origin is not None and provenance.origin != line:
                read[id(value)] = provenance
            others = others or not matches(value)
        return read, others

    def _constructs(self, line: Origin, kind: type, value: Leaf) -> bool:
        """Whether a line makes an object of a class, and does not cast it."""
        node, frame = self.running(line)
        if node is None or frame is None or asks_for(node, frame, dtype_of(value)):
            return False
        calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
        return any(evaluated(each, frame) is kind for each in calls)

    def running(self, line: Origin | None) -> tuple[ast.stmt | None, FrameType | None]:
        """The statement on a line, and the running function whose variables it reads."""
        if line is None:
            return None, None
        for site in self._sites:
            code = site.frame.f_code
            is_inside = any(line.line == number for *_, number in code.co_lines())
            # What no function contains, each function of the file sees.
            if site.file == line.file and (is_inside or line.function == "<module>"):
                return statement(line.file, line.line), site.frame
        return None, None

    def bound(self, value: PyTree, in_packages: bool) -> Origin | None:
        for site in self._sites:
            if is_installed(site.file) == in_packages:
                line = bound_in(site.frame, value, site.line)
                line = line or bound_in(site.frame, unwrapped(value), site.line)
                if line is not None and in_packages:
                    return origin_of_frame(site.frame, line.line)
                if line is not None:
                    return line
        return None

    def _written(self, value: Leaf) -> Why:
        """The lines behind a value that is written out as an argument of a call."""
        for site in self._sites:
            node = site.node
            if not isinstance(node, ast.Call) or not site.inside:
                continue
            for source, given in written(node, site.inside[0]):
                values = value, unwrapped(value)
                is_it = any(path_of(x, given) is not None for x in values)
                if is_it and not isinstance(source, _LOOKUPS):
                    line = origin_of_frame(site.frame, source.lineno)
                    return self._of_expression(source, site.frame, line, value)
        return Why()


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
        own = self.provenance.bound(self.value, False)  # nearer than a package's line
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
        node, frame = self.provenance.running(line)
        if node is None or frame is None:
            return None
        read = list(self.provenance.read(node, frame, line, matches)[0].values())
        return read[0].root if len(read) == 1 else None

    def model(self, user: Equation, line: Origin, matches: Matches) -> Origin | None:
        node, frame = self.provenance.running(line)
        if node is None or frame is None:
            return None
        models = [evaluated(model_of(call, frame), frame) for call in ast.walk(node)]
        models = [model for model in models if is_array(model)]
        return self.provenance.of_value(models[0]).root if len(models) == 1 else None

    def undisplaced(self, graph: Graph) -> Graph:
        return graph


def _why(origin: Origin | None, cause: Origin | None, is_promoted: bool) -> Why:
    return Why(origin, None if cause == origin else cause, is_promoted=is_promoted)


def _before(node: ast.AST, frame: FrameType, line: Origin) -> Origin | None:
    """The assignment before one that only changes the value of a variable: `x = x + 1`."""
    names = {each.id for each in _operands(node) if isinstance(each, ast.Name)}
    target = next(iter(getattr(node, "targets", ())), None)
    is_simple = isinstance(getattr(node, "value", None), (ast.BinOp, ast.UnaryOp))
    if not is_simple or not isinstance(target, ast.Name) or target.id not in names:
        return None
    earlier = assignments(frame, target.id, line.line)
    if len(earlier) != 1 or earlier[0].line >= line.line or earlier[0].is_parameter:
        return None
    return origin_at(frame.f_code.co_filename, earlier[0].line, earlier[0].function)


def _field(kind: type, name: str) -> Origin | None:
    """The line at which an object, while it is made, assigns a field; None of several."""
    namespaces = [vars(each) for each in kind.__mro__]
    methods = [inspect.unwrap(x[each]) for x in namespaces for each in _MAKE if each in x]
    codes = [code for each in methods if (code := getattr(each, "__code__", None))]
    lines = [
        origin_at(code.co_filename, line, code.co_qualname)
        for code in codes
        if not is_installed(code.co_filename)
        for line in stores_to_self(code, name)
    ]
    return lines[0] if len(lines) == 1 else None


def _operands(node: ast.AST) -> Iterator[ast.expr]:
    """What an expression looks up, but not in a comparison: that is a bool."""
    if isinstance(node, _LOOKUPS) and isinstance(node.ctx, ast.Load):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Compare):
            yield from _operands(child)
