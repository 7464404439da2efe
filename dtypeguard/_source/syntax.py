"""Reads source: the expression that runs, a statement, what was assigned to a variable.

A file that cannot be parsed, such as a notebook with magic commands, has none of them.
"""

import ast
import contextlib
import copy
import functools
import itertools
import linecache
import re
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import TypeVar

from .._leaves.quiet import warnings_ignored
from .._leaves.types import PyTree
from .inert import fields_of, is_a, items_of, variables_of

Expression = ast.expr | ast.AugAssign
_T = TypeVar("_T", bound=ast.AST)
_CodePosition = tuple[int | None, ...]  # as `co_positions` has it

# A word with which a line asks for a dtype.
NAME_OF_DTYPE = re.compile(r"\b(astype|dtype|(b?float|u?int|complex)\d+(_\w+)?)\b")
# How methods and functions that cast are called.
_CASTING = "astype", "asarray", "convert_element_type"
_BODIES = frozenset(("body", "orelse", "handlers", "finalbody", "cases"))
_FUNCTION_NODES = ast.FunctionDef, ast.AsyncFunctionDef


def line_at(file: str, line: int) -> str:
    """Returns a line of a file without indentation; empty if it cannot be read."""
    linecache.checkcache(file)  # it may have been edited, and the module reloaded
    code = linecache.getline(file, line)
    return code.strip()


def source_text(file: str) -> str:
    """Returns the text of a file; empty if it cannot be read."""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    old_lines, text = _text_by_file.get(file, ([], ""))
    # `linecache` keeps the list until the file changes.
    if lines is not old_lines:
        text = "".join(lines)
        _text_by_file[file] = (lines, text)
    return text


# The lines of a file and its text: a string keeps its hash.
_text_by_file: dict[str, tuple[list[str], str]] = {}


def parse_quietly(text: str) -> ast.Module:
    """Parses source without a warning of Python's: the import has given it."""
    with warnings_ignored():
        return ast.parse(text)


@functools.lru_cache(8)
def _nodes(text: str) -> Sequence[ast.AST]:
    """Returns all nodes of a source, outer ones first; none if it cannot be parsed."""
    try:
        module = parse_quietly(text)
    except SyntaxError:  # a notebook's magic command
        return []
    return list(ast.walk(module))


def _nodes_of_type(text: str, types: type[_T] | tuple[type[_T], ...]) -> list[_T]:
    nodes = _nodes(text)
    return [node for node in nodes if isinstance(node, types)]


@functools.lru_cache(8)
def _expressions(text: str) -> dict[_CodePosition, Expression]:
    """Returns the expressions of a source by their place, the outermost of several."""
    expressions: dict[_CodePosition, Expression] = {}
    for node in _nodes_of_type(text, (ast.expr, ast.AugAssign)):
        lines = (node.lineno, node.end_lineno)
        columns = (node.col_offset, node.end_col_offset)
        position = lines + columns
        expressions.setdefault(position, node)
    return expressions


def expression(code: CodeType, instruction: int) -> Expression | None:
    """Returns the expression that an instruction evaluates; the outermost of several."""
    # An instruction takes two bytes, and a position stands for each.
    index = instruction // 2
    positions = itertools.islice(code.co_positions(), index, None)
    position = next(positions, ())
    text = source_text(code.co_filename)
    expressions = _expressions(text)
    return expressions.get(position)


def statement(file: str, line: int) -> ast.stmt | None:
    """Returns the innermost statement on a line, without the statements inside of it."""
    innermost = None
    text = source_text(file)
    for node in _nodes_of_type(text, ast.stmt):
        # The nodes come outer ones first.
        if contains(node, line):
            innermost = node
    if innermost is None:
        return None
    # The tree is shared by all who read the file.
    innermost = copy.copy(innermost)
    bodies = _BODIES.intersection(innermost._fields)
    for field in bodies:
        setattr(innermost, field, ())
    return innermost


def line_of_option(file: str, line: int, name: str) -> int | None:
    """Returns the line that declares an option of argparse, which another line parses."""
    if not _parses_arguments(statement(file, line)):
        return None
    # argparse makes a name of a flag, with an underscore for each hyphen.
    hyphenated = name.replace("_", "-")
    options = {f"--{name}", f"--{hyphenated}"}
    text = source_text(file)
    for node in _nodes_of_type(text, ast.Call):
        method = getattr(node.func, "attr", "")
        if method != "add_argument":
            continue
        flags = [getattr(argument, "value", None) for argument in node.args]
        if not options.isdisjoint(flags):
            return node.lineno
    return None


def _parses_arguments(parsing: ast.stmt | None) -> bool:
    """Returns whether a statement reads a command line, such as by `parse_args`."""
    if parsing is None:
        return False
    for node in ast.walk(parsing):
        attribute = getattr(node, "attr", "")
        if attribute.startswith("parse_"):
            return True
    return False


def contains(node: ast.stmt, line: int) -> bool:
    """Returns whether a line is one of a statement's."""
    # Python's parser gives every node an end, but `ast` does not promise it.
    if node.end_lineno is None:
        return False
    return node.lineno <= line <= node.end_lineno


def return_line(file: str, first: int) -> int:
    """Returns the line of a function's one `return`, or its first line if it has more."""
    lines = []
    text = source_text(file)
    for node in _nodes_of_type(text, ast.FunctionDef):
        # A function with decorators begins at the first of these.
        first_nodes = [*node.decorator_list, node]
        first_node = first_nodes[0]
        if first_node.lineno == first:
            lines = list(_return_lines(node))
    # A lambda in a decorator begins on the line of its function.
    for node in _nodes_of_type(text, ast.Lambda):
        if node.lineno == first:
            body = node.body
            lines = [body.lineno]
    if len(lines) != 1:
        return first
    return lines[0]


def _return_lines(node: ast.AST) -> Iterator[int]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            yield child.lineno
        elif not isinstance(child, _FUNCTION_NODES):
            yield from _return_lines(child)


def renamed_before(file: str, name: str, line: int) -> int | None:
    """Returns the last line before another in its function that may lack a cast.

    That is `name = x`, or `name = x.astype(...)` in a branch that did not run.
    """
    text = source_text(file)
    scope: ast.AST = _nodes(text)[0]
    for node in _nodes_of_type(text, _FUNCTION_NODES):
        # The nodes come outer ones first.
        if contains(node, line):
            scope = node
    lines = []
    for node in ast.walk(scope):
        if not isinstance(node, ast.Assign) or node.lineno >= line:
            continue
        targets = map(ast.unparse, node.targets)
        if _may_lack_cast(node.value) and name in targets:
            lines.append(node.lineno)
    return max(lines, default=None)


def _may_lack_cast(value: ast.expr) -> bool:
    # A name leaves no trace in the program, nor does a branch that did not run.
    if isinstance(value, ast.Call):
        method = getattr(value.func, "attr", "")
        return method in _CASTING
    return isinstance(value, (ast.Name, ast.Subscript))


def evaluated(node: ast.AST | None, frame: FrameType) -> PyTree:
    """Returns the value of an expression that only looks something up; else None.

    Nothing of the user's runs: no call, and no attribute but a field.
    """
    if isinstance(node, ast.Name):
        variables = variables_of(frame)
        global_value = frame.f_globals.get(node.id)
        return variables.get(node.id, global_value)
    if not isinstance(node, (ast.Attribute, ast.Subscript)):
        return None
    owner = evaluated(node.value, frame)
    if isinstance(node, ast.Attribute):
        fields = fields_of(owner)
        # The fields of a NamedTuple are its items.
        if is_a(owner, tuple):
            items = items_of(owner)
            fields = dict(items)
        return fields.get(node.attr)
    if not isinstance(node.slice, ast.Constant):
        return None
    if type(owner) in (list, tuple, dict):
        with contextlib.suppress(LookupError, TypeError):
            return owner[node.slice.value]
    return None
