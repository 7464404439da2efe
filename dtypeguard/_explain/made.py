"""Finds the lines that gave an operand its type: by its equations, or by its variable."""

import ast
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NamedTuple

import numpy as np
from jax import tree_util

from .._leaves.dtypes import dtype_of, is_array, is_python_number, is_weak
from .._leaves.files import is_users
from .._leaves.types import Aval, Leaf, PyTree
from .._program.bindings import bound
from .._program.blame import Matches, blame
from .._program.graph import Equation, Graph
from .._program.lines import has, line_of
from .._program.origins import Origin, is_explicit, origin_of_frame
from .._program.traced import Traced, traced
from .sites import Argument, Site, evaluated, parsed, root

_LOOKUPS = (ast.Name, ast.Attribute, ast.Subscript)
# How JAX's functions call what a traced function is called with.
_GIVEN = (
    ("args", "kwargs"),
    ("init", "xs"),
    ("init_flat", "xs_flat"),
    ("init_val",),
    ("operands",),
    ("ops",),
)


class Made(NamedTuple):
    """The line that gave a value its type, and the line that forced that."""

    origin: Origin | None = None
    cause: Origin | None = None


class Makers:
    """Finds who made the values in the frames of an error.

    Args:
        sites: the lines that the error passed through outside JAX, outside in.
        frames: all frames that it passed through.
    """

    def __init__(self, sites: Sequence[Site], frames: Sequence[FrameType]):
        self._sites = list(reversed(sites))
        self._frames = [f for f in reversed(frames) if not is_users(f.f_code.co_filename)]

    def of(self, argument: Argument, site: Site) -> Made:
        """The lines behind an argument of a call."""
        if is_python_number(argument.value):
            return Made()
        made = self._of_value(argument.value)
        if made.origin is not None:
            return made
        source = argument.source if argument.is_whole else None
        if source is not None and not isinstance(source, _LOOKUPS):
            return Made(origin_of_frame(site.frame, site.line))
        holder = evaluated(root(argument.source), site.frame)
        return self._assigned(holder, argument.value) if holder is not None else made

    def _of_value(self, value: Leaf) -> Made:
        found = traced(value)
        made = self._of_tracer(value, found) if found else Made()
        return made if made.origin is not None else self._assigned(value, value)

    def of_output(self, graph: Graph, number: int) -> Made:
        """The lines behind an output of a function that was traced again."""
        output = graph.outputs[number]
        matches = has("dtype", graph.avals[output].dtype)
        found = blame(graph, output, matches, (1 << len(graph.inputs)) - 1)
        origin, cause = line_of(found.promotion), line_of(found.cause)
        return Made(origin, None if cause == origin else cause)

    def _of_tracer(self, value: Leaf, found: Traced) -> Made:
        graph, output = found.graph, found.graph.outputs[0]
        matches = has("dtype", value.dtype)
        if output in graph.inputs:
            outer = self._outside(found, graph.inputs.index(output))
            return Made() if outer is None else self._of_value(outer)
        if output in graph.constants:
            constant = found.value_of(found.output)
            return Made() if constant is None else self._of_value(constant)
        blamed = blame(graph, output, matches, (1 << len(graph.inputs)) - 1)
        cause = line_of(blamed.cause)
        if blamed.constant and blamed.cause is not None:
            cause = self._constant(blamed.cause, found, matches) or cause
        elif blamed.promotion is not None and not is_explicit(blamed.promotion.stack):
            cause = cause or self._input(found, matches)
        origin = line_of(blamed.promotion)
        return Made(origin, None if cause == origin else cause)

    def _constant(self, user: Equation, found: Traced, matches: Matches) -> Origin | None:
        """The line that created the constant which an equation uses."""
        for variable in user.stack[0].invars:
            value = found.value_of(variable)
            if is_array(value) and matches(value) and not is_weak(value):
                made = self._of_value(value).origin
                if made is not None:
                    return made
        line = line_of(user)
        return None if line is None else self._forcing(line, matches)

    def _input(self, found: Traced, matches: Matches) -> Origin | None:
        """The line that made the nearest argument that has the type."""
        graph = found.graph
        queue = list(graph.outputs)
        for value in queue:
            if value in graph.inputs:
                outer = self._outside(found, graph.inputs.index(value))
                return None if outer is None else self._of_value(outer).origin
            made = graph.made_by.get(value)
            behind = made.inputs if made else graph.same.get(value, ())
            queue += [
                each for each in behind if matches(graph.avals[each]) and each not in queue
            ]
        return None

    def _outside(self, found: Traced, number: int) -> Leaf | None:
        """What a traced function was called with for one of its arguments."""
        avals = [variable.aval for variable in found.arguments]
        for frame in self._frames:
            for given in _given(frame):
                leaves = given[-len(avals) :]  # without a predicate or a length
                before = len(avals) - len(leaves)  # JAX's own, such as a counter
                if before <= number and all(map(_is_alike, leaves, avals[before:])):
                    leaf = leaves[number - before]
                    if not found.is_own(leaf):
                        return leaf
        return None

    def _assigned(self, holder: PyTree, value: Leaf) -> Made:
        """The line that assigned a value, or what holds it, to a variable."""
        origin = self._bound(holder)
        if origin is None:
            held = (self._bound(each) for each in self._holders(value))
            origin = next(filter(None, held), None)
        if origin is None:
            return Made()
        dtype = dtype_of(value)
        return Made(origin, self._forcing(origin, has("dtype", dtype)))

    def _bound(self, value: PyTree) -> Origin | None:
        return next(filter(None, (bound(site.frame, value) for site in self._sites)), None)

    def _holders(self, value: Leaf) -> Iterator[PyTree]:
        for site in self._sites:
            for each in list(site.frame.f_locals.values()):
                if isinstance(each, (dict, list, tuple)) or hasattr(each, "__dataclass_fields__"):
                    try:
                        leaves = tree_util.tree_leaves(each)
                    except Exception:  # keys that cannot be ordered
                        continue
                    if any(leaf is value for leaf in leaves):
                        yield each

    def _forcing(self, line: Origin, matches: Matches) -> Origin | None:
        """The line that assigned the only variable of a type which a line reads."""
        frames = [
            site.frame
            for site in self._sites
            if site.file == line.file and site.frame.f_code.co_name == line.function.rpartition(".")[2]
        ]
        node = _statement(line)
        if node is None or not frames:
            return None
        found: dict[int, Origin] = {}
        for name in ast.walk(node):
            if not isinstance(name, _LOOKUPS) or not isinstance(name.ctx, ast.Load):
                continue
            value = evaluated(name, frames[0])
            if is_array(value) and not is_weak(value) and matches(value):
                origin = self._of_value(value).origin
                if origin is not None and origin.line != line.line:
                    found[id(value)] = origin
        return found.popitem()[1] if len(found) == 1 else None


def _statement(line: Origin) -> ast.stmt | None:
    """The innermost statement on a line."""
    module = parsed(line.file)
    found = [
        node
        for node in (ast.walk(module) if module else ())
        if isinstance(node, ast.stmt) and node.lineno <= line.line <= (node.end_lineno or 0)
    ]
    return max(found, key=lambda node: node.lineno) if found else None


def _given(frame: FrameType) -> Iterator[list[Leaf]]:
    """What a function of JAX was given to call another one with."""
    values = frame.f_locals
    for names in _GIVEN:
        if all(name in values for name in names):
            leaves = tree_util.tree_leaves([values[name] for name in names])
            yield [leaf for leaf in leaves if is_array(leaf) or is_python_number(leaf)]
            yield [leaf for leaf in leaves if is_array(leaf)]


def _is_alike(leaf: Leaf, aval: Aval) -> bool:
    """Whether a leaf goes in as an argument, or its slices do."""
    shapes = np.shape(leaf), np.shape(leaf)[1:]
    return dtype_of(leaf) == dtype_of(aval) and aval.shape in shapes
