"""Reads source: the expression that runs, a statement, what was assigned to a variable.

A file that cannot be parsed, such as a notebook with magic commands, has none of them.
"""

import ast
import copy
import functools
import itertools
import linecache
import re
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType

from .._leaves.types import PyTree
from .inert import fields_of, is_a, items_of, variables_of

Expression = ast.expr | ast.AugAssign
_CodePosition = tuple[
    int | None, int | None, int | None, int | None
]  # as `co_positions` has it

# How methods and functions that cast are called.
_CASTING = "astype", "asarray", "convert_element_type"
_BODIES = "body", "orelse", "handlers", "finalbody", "cases"
_FUNCTION_NODES = ast.FunctionDef, ast.AsyncFunctionDef
# An escape that a string may hold, or else a backslash of which Python warns. The next
# character is a part of either: backslashes come in pairs in code, strings and comments.
_ESCAPE = re.compile(
    r"""\\(?:(?![4-7][0-7]{2})[\\\n'"abfnrtvx0-7]|N(?={)|u(?=[\da-fA-F]{4})|U(?=000|0010))|\\"""
)


def line_at(file: str, line: int) -> str:
    """Returns a line of a file without indentation; empty if it cannot be read."""
    linecache.checkcache(file)  # it may have been edited, and the module reloaded
    return linecache.getline(file, line).strip()


def source_text(file: str) -> str:
    """Returns the text of a file; empty if it cannot be read."""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    if file not in _text_by_file or _text_by_file[file][0] is not lines:
        _text_by_file[file] = lines, "".join(lines)
    return _text_by_file[file][1]


# The lines of a file, which `linecache` keeps until they change, and its text: a string
# keeps its hash.
_text_by_file: dict[str, tuple[list[str], str]] = {}


def parse_quietly(text: str) -> ast.Module:
    """Parses source without a warning of Python's: the import has given it.

    A string with an invalid escape, such as a backslash before an `m`, has `_` in its place
    here. Any other way to be quiet changes filters that all threads share.
    """
    return ast.parse(_ESCAPE.sub(_without_invalid_escape, text))


def _without_invalid_escape(match: re.Match[str]) -> str:
    # One byte for another: the columns of all that follows stay.
    return "_" if match[0] == "\\" else match[0]


@functools.lru_cache(8)
def _nodes(text: str) -> Sequence[ast.AST]:
    """Returns all nodes of a source, outer ones first; none if it cannot be parsed."""
    try:
        return list(ast.walk(parse_quietly(text)))
    except SyntaxError:  # a notebook's magic command
        return []


@functools.lru_cache(8)
def _expressions(text: str) -> dict[_CodePosition, Expression]:
    """Returns the expressions of a source by their place, the outermost of several."""
    expressions: dict[_CodePosition, Expression] = {}
    for node in _nodes(text):
        if isinstance(node, Expression):
            place = node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
            expressions.setdefault(place, node)
    return expressions


def expression(code: CodeType, instruction: int) -> Expression | None:
    """Returns the expression that an instruction evaluates; the outermost of several."""
    number = instruction // 2
    for place in itertools.islice(code.co_positions(), number, number + 1):
        return _expressions(source_text(code.co_filename)).get(place)
    return None


def statement(file: str, line: int) -> ast.stmt | None:
    """Returns the innermost statement on a line, without the statements inside of it."""
    innermost = None
    for node in _nodes(source_text(file)):
        # The nodes come outer ones first.
        if isinstance(node, ast.stmt) and contains(node, line):
            innermost = node
    if innermost is None:
        return None
    # The tree is shared by all who read the file.
    innermost = copy.copy(innermost)
    for field in _BODIES:
        if hasattr(innermost, field):
            setattr(innermost, field, ())
    return innermost


def contains(node: ast.stmt, line: int) -> bool:
    """Returns whether a line is one of a statement's."""
    return node.lineno <= line <= (node.end_lineno or 0)


def return_line(file: str, first: int) -> int:
    """Returns the line of a function's one `return`, or its first line if it has more."""
    lines = [first]
    for node in _nodes(source_text(file)):
        if isinstance(node, ast.Lambda) and node.lineno == first:
            lines = [node.body.lineno]
        elif isinstance(node, ast.FunctionDef):
            decorators = [decorator.lineno for decorator in node.decorator_list]
            if first == min([node.lineno, *decorators]):
                lines = list(_return_lines(node))
    return lines[0] if len(lines) == 1 else first


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
    nodes = _nodes(source_text(file))
    scope = nodes[0]
    for node in nodes:
        # The nodes come outer ones first.
        if isinstance(node, _FUNCTION_NODES) and contains(node, line):
            scope = node
    lines = []
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and node.lineno < line:
            # A name leaves no trace in the program, nor does a branch that did not run.
            is_renaming = isinstance(node.value, (ast.Name, ast.Subscript))
            targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if name in targets and (is_renaming or _is_cast(node.value)):
                lines.append(node.lineno)
    return max(lines, default=None)


def _is_cast(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _CASTING


def evaluated(node: ast.AST | None, frame: FrameType) -> PyTree:
    """Returns the value of an expression that only looks something up; else None.

    Nothing of the user's runs: no call, and no attribute but a field.
    """
    if isinstance(node, ast.Name):
        return variables_of(frame).get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = evaluated(node.value, frame)
        fields = dict(items_of(owner)) if is_a(owner, tuple) else fields_of(owner)
        return fields.get(node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = evaluated(node.value, frame)
        if type(owner) in (list, tuple, dict):
            try:
                return owner[node.slice.value]
            except (LookupError, TypeError):
                return None
    return None
