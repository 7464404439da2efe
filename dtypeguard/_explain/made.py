"""Finds the lines that gave an operand its type: by its equations, or by its variable.

The two ways are in one file, because each asks the other: an equation may use a constant
that a variable holds, and a variable may hold a tracer.
"""

import ast
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._leaves.dtypes import dtype_of, is_array, is_python_number, is_weak
from .._leaves.files import is_installed, is_users
from .._leaves.types import Aval, DType, Leaf, PyTree
from .._program.bindings import bound_in, holding
from .._program.blame import Matches, blame, nearest_input
from .._program.definitions import definition
from .._program.graph import Equation
from .._program.lines import Has, line_of
from .._program.origins import Origin, callers, is_explicit, origin_at, origin_of_frame
from .._program.source import evaluated, parsed, returned, root, statement
from .._program.traced import Traced, traced, unwrapped
from .control_flow import path_of
from .sites import Argument, Site, sites

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
# These take the dtype of what they are called with.
_AS_IT_IS = (jnp.asarray, jnp.array, np.asarray, np.array, jax.device_put)
_LIKE = (jnp.zeros_like, jnp.ones_like, jnp.empty_like)
_ARRAYS = (jax.Array, np.ndarray, np.generic)  # not abstract values


class Made(NamedTuple):
    """The line that gave a value its type, and the line that forced that.

    `is_promoted` tells whether the line has operands of other types.
    """

    origin: Origin | None = None
    cause: Origin | None = None
    is_promoted: bool = False

    @property
    def root(self) -> Origin | None:
        """The line to edit for another type."""
        return self.cause or self.origin


class Makers:
    """Finds who made the values in the frames of an error.

    Args:
        error: with JAX's own frames in its traceback.
    """

    def __init__(self, error: BaseException):
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        passed = list(reversed(sites(error.__traceback__)))
        outer = callers(frames[0]) if frames else ()
        self._sites = passed + [
            Site(each, each.f_lineno, None, [])
            for each in outer
            if is_users(each.f_code.co_filename)
        ]
        self._frames = [f for f in reversed(frames) if not is_users(f.f_code.co_filename)]
        # What is known of a value; nothing while it is being looked for.
        self._known: dict[int, tuple[Leaf, Made]] = {}

    def of(self, argument: Argument, site: Site) -> Made:
        """The lines behind an argument of a call."""
        value, source = argument.value, argument.source
        if is_python_number(value):
            return Made()
        users = evaluated(source, site.frame) if argument.is_whole else None
        if isinstance(users, _ARRAYS) and users.dtype == value.dtype:
            value = users  # JAX may have converted it
        field = _field(source, site.frame) if argument.is_whole else None
        made = Made(field) if field is not None else self.of_value(value)
        if made.origin is not None or source is None:
            return made
        if argument.is_whole and not isinstance(source, _LOOKUPS):
            line = origin_of_frame(site.frame, site.line)
            return self._of_expression(source, site.frame, line, value)
        holder = evaluated(root(source), site.frame)
        return made if holder is None else self._assigned(holder, value)

    def of_leaf(self, leaf: Leaf) -> Origin | None:
        """The line that gave a leaf of an argument its type, or forced that."""
        return None if is_python_number(leaf) else self.of_value(leaf).root

    def holding(self, value: object) -> Origin | None:
        """The user's line that assigned what holds a value."""
        return holding(((each.frame, each.line) for each in self._sites), value)

    def of_value(self, value: Leaf, depth: int = 0) -> Made:
        """The lines that gave a value its type.

        Args:
            value: an array or a tracer.
            depth: how many of JAX's frames, counted from the innermost, lie inside the
                function that has the value.
        """
        if id(value) not in self._known:
            self._known[id(value)] = value, Made()
            found = traced(value)
            made = self._of_tracer(value, found, depth) if found else Made()
            made = made if made.origin is not None else self._assigned(value, value)
            self._known[id(value)] = value, made
        return self._known[id(value)][1]

    def _of_tracer(self, value: Leaf, found: Traced, depth: int) -> Made:
        graph, output = found.graph, found.graph.outputs[0]
        matches = Has("dtype", value.dtype)
        if output in graph.inputs:
            outer = self._of_outer(found, graph.inputs.index(output), depth)
            if outer.origin is None or outer.origin.called_from is None:
                return outer
            own = self._bound(value, False)  # nearer than a package's line
            return outer if own is None else Made(own, outer.cause)
        if output in graph.constants:
            constant = found.value_of(found.output)
            return Made() if constant is None else self.of_value(constant, depth)
        blamed = blame(graph, output, matches, (1 << len(graph.inputs)) - 1)
        cause = line_of(blamed.cause)
        user = blamed.cause or blamed.promotion
        is_made = user is not None and graph.constants.keys() >= set(user.inputs)
        if (
            blamed.constant
            and user is not None
            and not (is_made and user is not blamed.cause)
        ):
            cause = self._constant(user, found, matches, depth) or cause
        elif blamed.promotion is not None and not is_explicit(blamed.promotion.stack):
            cause = cause or self._input(found, matches, depth)
            if not any(value in graph.made_by for value in blamed.promotion.inputs):
                cause = cause or self._like(line_of(blamed.promotion))
        operands = blamed.promotion.inputs if blamed.promotion else ()
        is_promoted = not all(matches(graph.avals[each]) for each in operands)
        return _made(line_of(blamed.promotion), cause, is_promoted)

    def _constant(
        self, user: Equation, found: Traced, matches: Matches, depth: int
    ) -> Origin | None:
        """The line that created the constant which an equation uses."""
        for variable in user.stack[0].invars:
            value = found.value_of(variable)
            if is_array(value) and matches(value) and not is_weak(value):
                made = self.of_value(value, depth).root
                if made is not None:
                    return made
        line = line_of(user)
        node = None if line is None else statement(line.file, line.line)
        frame = None if line is None else self._frame_of(line)
        if line is None or node is None or frame is None:
            return None
        made = list(self._read(node, frame, line, matches)[0].values())
        return made[0].root if len(made) == 1 else None

    def _like(self, line: Origin | None) -> Origin | None:
        """The line that made the array whose dtype `zeros_like` takes."""
        node = None if line is None else statement(line.file, line.line)
        frame = None if line is None else self._frame_of(line)
        if node is None or frame is None:
            return None
        made = [
            self.of_value(value)
            for each in ast.walk(node)
            if is_array(value := evaluated(_model(each, frame), frame))
        ]
        return made[0].root if len(made) == 1 else None

    def _input(self, found: Traced, matches: Matches, depth: int) -> Origin | None:
        """The line that made the nearest argument that has the type."""
        number = nearest_input(found.graph, found.graph.outputs[0], matches)
        return None if number is None else self._of_outer(found, number, depth).root

    def _of_outer(self, found: Traced, number: int, depth: int) -> Made:
        """The lines behind what a traced function was called with for an argument."""
        avals = [variable.aval for variable in found.arguments]
        fitting: list[tuple[Leaf, int]] = []
        for level, frame in enumerate(self._frames[depth:], depth + 1):
            for given in _given(frame):
                leaves = given[-len(avals) :]  # without a predicate or a length
                before = len(avals) - len(leaves)  # JAX's own, such as a counter
                if any(map(found.is_own, given)):
                    fitting.clear()  # the frames so far are inside the traced function
                elif before <= number and all(map(_is_alike, leaves, avals[before:])):
                    fitting.append((leaves[number - before], level))
        return self.of_value(*fitting[0]) if fitting else Made()

    def _assigned(self, holder: PyTree, value: Leaf) -> Made:
        """The lines behind a value that a variable holds, or something in a variable."""
        line = self._bound(holder, False) or self.holding(value)
        line = line or self.holding(unwrapped(value)) or self._bound(holder, True)
        if line is None:
            return self._written(value)
        frame, node = self._frame_of(line), statement(line.file, line.line)
        if frame is None or node is None:
            return Made(line)
        return self._of_expression(node, frame, line, value)

    def _of_expression(
        self, node: ast.AST, frame: FrameType, line: Origin, value: Leaf
    ) -> Made:
        """The lines behind what an expression computes from variables."""
        dtype = dtype_of(value)
        read, is_promoted = self._read(node, frame, line, Has("dtype", dtype))
        if _asks_for(node, frame, dtype):
            return Made(line, None, is_promoted)
        before = _before(node, frame, line) if not read else None
        earlier = statement(before.file, before.line) if before is not None else None
        # Not one in a branch that may not have been taken.
        if before and earlier and earlier.col_offset <= getattr(node, "col_offset", 0):
            return self._of_expression(earlier, frame, before, value)
        made = next(iter(read.values())) if len(read) == 1 else Made()
        if not read and not is_promoted:
            made = Made(_returned_by(getattr(node, "value", node), frame))
        if made.is_promoted and not is_promoted:  # it had the type before
            return made
        return _made(line, made.root, is_promoted)

    def _read(
        self, node: ast.AST, frame: FrameType, line: Origin, matches: Matches
    ) -> tuple[dict[int, Made], bool]:
        """The arrays of a type that an expression reads.

        Returns:
            Their lines, and whether it may read arrays of other types as well.
        """
        found: dict[int, Made] = {}
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
            made = self.of_value(value) if matches(value) else Made()
            if made.origin is not None and made.origin != line:
                found[id(value)] = made
            others = others or not matches(value)
        return found, others

    def _frame_of(self, line: Origin) -> FrameType | None:
        """The running function of a line."""
        for site in self._sites:
            name = site.frame.f_code.co_qualname
            if site.file == line.file and line.function in (name, "<module>"):
                return site.frame
        return None

    def _bound(self, value: PyTree, in_packages: bool) -> Origin | None:
        for site in self._sites:
            if is_installed(site.file) == in_packages:
                found = bound_in(site.frame, value, site.line)
                found = found or bound_in(site.frame, unwrapped(value), site.line)
                if found is not None and in_packages:
                    return origin_of_frame(site.frame, found.line)
                if found is not None:
                    return found
        return None

    def _written(self, value: Leaf) -> Made:
        """The lines behind a value that is written out as an argument of a call."""
        for site in self._sites:
            node = site.node
            if not isinstance(node, ast.Call) or not site.inside:
                continue
            given = _positional(site.inside[0])
            for source, each in zip(node.args, given):
                inner = (value, unwrapped(value))
                is_it = any(path_of(x, each) is not None for x in inner)
                if is_it and not isinstance(source, _LOOKUPS):
                    line = origin_of_frame(site.frame, source.lineno)
                    return self._of_expression(source, site.frame, line, value)
        return Made()


def _made(origin: Origin | None, cause: Origin | None, is_promoted: bool) -> Made:
    return Made(origin, None if cause == origin else cause, is_promoted)


def _asks_for(node: ast.AST, frame: FrameType, dtype: DType) -> bool:
    """Whether an expression names a dtype, as a cast does."""
    for each in ast.walk(node):
        named: Any = each.value if isinstance(each, ast.Constant) else None
        if isinstance(each, (ast.Name, ast.Attribute)):
            named = evaluated(each, frame)
        is_scalar_type = isinstance(named, type) and issubclass(named, np.generic)
        if is_scalar_type or isinstance(named, (str, np.dtype, type(jnp.float32))):
            try:
                if np.dtype(named) == dtype:
                    return True
            except (TypeError, ValueError, SyntaxError):  # another string
                continue
    return False


def _model(node: ast.AST, frame: FrameType) -> ast.expr | None:
    """The `x` of a `zeros_like(x)`."""
    if not isinstance(node, ast.Call) or evaluated(node.func, frame) not in _LIKE:
        return None
    return node.args[0] if len(node.args) == 1 and not node.keywords else None


def _returned_by(node: ast.AST, frame: FrameType) -> Origin | None:
    """The line at which a function of the user's returns what an expression passes on."""
    while isinstance(node, ast.Call):
        function = evaluated(node.func, frame)
        code = getattr(function, "__code__", None)
        if code is not None and is_users(code.co_filename):
            result = None if is_installed(code.co_filename) else returned(code)
            if result is None:
                return None
            return origin_at(code.co_filename, result.lineno, code.co_qualname)
        given = node.args
        if function is jax.tree.map and len(given) == 2:
            function, given = evaluated(given[0], frame), given[1:]
        is_passed_on = function in _AS_IT_IS and len(given) == 1 and not node.keywords
        if not is_passed_on:
            return None
        node = given[0]
    return None


def _before(node: ast.AST, frame: FrameType, line: Origin) -> Origin | None:
    """The assignment before one that only changes the value of a variable: `x = x + 1`."""
    names = {each.id for each in _operands(node) if isinstance(each, ast.Name)}
    target = next(iter(getattr(node, "targets", ())), None)
    is_simple = isinstance(getattr(node, "value", None), (ast.BinOp, ast.UnaryOp))
    if not is_simple or not isinstance(target, ast.Name) or target.id not in names:
        return None
    file = frame.f_code.co_filename
    found = definition(file, target.id, line.line, frame.f_locals)
    is_it = found and found.is_certain and found.line < line.line and not found.is_parameter
    return origin_at(file, found.line, found.function) if found and is_it else None


def _field(source: ast.expr | None, frame: FrameType) -> Origin | None:
    """The line that assigns a field of an object, if its class has only one."""
    if not isinstance(source, ast.Attribute):
        return None
    kind = type(evaluated(source.value, frame))
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    module = parsed(file)
    found = [
        (each.lineno, f"{node.name}.{function.name}")
        for node in (ast.walk(module) if module else ())
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
        for function in node.body
        if isinstance(function, ast.FunctionDef)
        for each in ast.walk(function)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and each.attr == source.attr
    ]
    if len(found) != 1 or is_installed(file):
        return None
    return origin_at(file, *found[0])


def _operands(node: ast.AST) -> Iterator[ast.expr]:
    """What an expression looks up, but not in a comparison: that is a bool."""
    if isinstance(node, _LOOKUPS) and isinstance(node.ctx, ast.Load):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Compare):
            yield from _operands(child)


def _positional(frame: FrameType) -> list[PyTree]:
    """What a function was called with by position."""
    code, values = frame.f_code, frame.f_locals
    if "args" in values and not code.co_argcount:
        return list(values["args"])
    names = code.co_varnames[: code.co_argcount]
    return [values.get(name) for name in names if name != "self"]


def _given(frame: FrameType) -> Iterator[list[Leaf]]:
    """What a function of JAX was given to call another one with."""
    values = frame.f_locals
    for names in _GIVEN:
        if all(name in values for name in names):
            leaves = tree_util.tree_leaves([values[name] for name in names])
            arrays = [leaf for leaf in leaves if isinstance(leaf, _ARRAYS)]
            yield [x for x in leaves if isinstance(x, _ARRAYS) or is_python_number(x)]
            yield arrays


def _is_alike(leaf: Leaf, aval: Aval) -> bool:
    """Whether a leaf goes in as an argument, or its slices do."""
    shapes = np.shape(leaf), np.shape(leaf)[1:]
    return dtype_of(leaf) == dtype_of(aval) and aval.shape in shapes
