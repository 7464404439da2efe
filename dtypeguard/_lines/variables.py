"""The lines behind what variables hold, read from the source of the functions that run."""

import ast
import functools
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import jax
import numpy as np
from jax import tree_util

from .._leaves.dtypes import dtype_of, is_python_number, is_weak
from .._leaves.rows import path_of
from .._leaves.types import DType, Leaf, PyTree
from .._source.files import is_installed
from .._source.origin import Origin, Why, origin_at, origin_of_frame
from .._source.syntax import evaluated, item, statement
from .bindings import Holders, assignments, bound_in, field_of_self
from .expressions import asks_for, result_of
from .numbers import number_line
from .region import Matches
from .sites import Site, written
from .traced import recorded, unwrapped
from .why import Has

_LOOKUPS = (ast.Name, ast.Attribute, ast.Subscript)
ARRAYS = (jax.Array, np.ndarray, np.generic)  # not abstract values


class Variables:
    """Finds the lines that gave what variables hold its type.

    Args:
        sites: the lines of the functions that have them, inside out.
        is_again: whether they have run before.
        of_value: finds the lines behind a value, by its equations too.
    """

    def __init__(
        self, sites: Sequence[Site], is_again: bool, of_value: Callable[[Leaf], Why]
    ):
        self._sites, self._is_again, self._of_value = sites, is_again, of_value
        # Leaves of one container were assigned together.
        self._together: dict[tuple[Origin, DType], Why] = {}

    def holding(self, value: object) -> Origin | None:
        """The user's line that assigned what holds a value."""
        return recorded(value).root or self._holders.line_of(value)

    @functools.cached_property
    def _holders(self) -> Holders:
        return Holders((site.frame, site.line) for site in self._sites)

    def assigned(self, holder: PyTree, value: Leaf) -> Why:
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
        return why_of(line, provenance.root, is_promoted)

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
            if not isinstance(value, ARRAYS) or is_weak(value):
                continue
            provenance = self._of_value(value) if matches(value) else Why()
            if provenance.origin is not None and provenance.origin != line:
                read[id(value)] = provenance
            others = others or not matches(value)
        return read, others

    def constructs(self, line: Origin, kind: type, value: Leaf) -> bool:
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
                if is_python_number(value) and (
                    line := _number_in(source, given, site, value)
                ):
                    return Why(line)
                if is_it and not isinstance(source, _LOOKUPS):
                    line = origin_of_frame(site.frame, source.lineno)
                    return self._of_expression(source, site.frame, line, value)
        return Why()


def _number_in(source: ast.expr, given: PyTree, site: Site, value: Leaf) -> Origin | None:
    """The line of the one number of a value in an argument that is written out."""
    leaves = tree_util.tree_flatten_with_path(given)[0]
    found = [path for path, leaf in leaves if leaf is value]
    node: ast.expr | None = source
    for part in found[0] if len(found) == 1 else ():
        node = node and item(node, tree_util.keystr((part,)))
    return number_line(node, site.frame, value) if len(found) == 1 and node else None


def why_of(origin: Origin | None, cause: Origin | None, is_promoted: bool) -> Why:
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


def _operands(node: ast.AST) -> Iterator[ast.expr]:
    """What an expression looks up, but not in a comparison: that is a bool."""
    if isinstance(node, _LOOKUPS) and isinstance(node.ctx, ast.Load):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Compare):
            yield from _operands(child)
