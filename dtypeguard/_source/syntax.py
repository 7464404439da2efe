"""Reads source: the expression that runs, a statement, what was assigned to a variable.

A file that cannot be parsed, such as a notebook with magic commands, has none of them.
"""

import ast
import copy
import functools
import itertools
import linecache
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType

from .._leaves.types import PyTree
from .inert import fields_of, is_a, items_of, variables_of


def line_at(file: str, line: int) -> str:
    """A line of a file, without indentation; empty if the file cannot be read."""
    linecache.checkcache(file)  # it may have been edited, and the module reloaded
    return linecache.getline(file, line).strip()


def expression(code: CodeType, instruction: int) -> ast.expr | ast.AugAssign | None:
    """The expression that an instruction evaluates; the outermost of several."""
    positions = next(itertools.islice(code.co_positions(), instruction // 2, None), None)
    return _expressions(source_text(code.co_filename)).get(positions or ())


def statement(file: str, line: int) -> ast.stmt | None:
    """The innermost statement on a line, without the statements inside of it."""
    every = [x for x in _nodes(source_text(file)) if isinstance(x, ast.stmt)]
    found = [node for node in every if contains(node, line)]
    if not found:
        return None
    node = copy.copy(max(found, key=lambda node: (node.lineno, node.col_offset)))
    vars(node).update(dict.fromkeys(_INSIDE & vars(node).keys(), ()))
    return node


_INSIDE = {"body", "orelse", "handlers", "finalbody", "cases"}


def return_line(file: str, first: int) -> int:
    """The one line on which a function returns that begins on a line, else that line."""
    lines = [first]
    for node in _nodes(source_text(file)):
        if isinstance(node, ast.Lambda) and node.lineno == first:
            lines = [node.body.lineno]
        elif isinstance(node, ast.FunctionDef):
            decorators = [decorator.lineno for decorator in node.decorator_list]
            if first == min([node.lineno, *decorators]):
                lines = [x.lineno for x in ast.walk(node) if isinstance(x, ast.Return)]
    return lines[0] if len(lines) == 1 else first


def contains(node: ast.stmt, line: int) -> bool:
    """Whether a line is one of a statement's."""
    return node.lineno <= line <= (node.end_lineno or 0)


def renamed_before(file: str, name: str, line: int) -> int | None:
    """The last line before another in its function from which a cast may be missing.

    That is `h = x`, or a line that casts, in a branch that did not run.
    """
    bound = [pair for x in _scopes(file, line)[:1] for pair in _bound(x, name)]
    is_name = lambda value: isinstance(value, (ast.Name, ast.Subscript))
    renamed = [n for n, x in bound if n < line and (is_name(x) or _casts(x))]
    return max(renamed, default=None)


def _casts(node: ast.AST | None) -> bool:
    is_call = isinstance(node, ast.Call)
    return is_call and ast.unparse(node.func).rpartition(".")[2] in CASTING


# How functions that cast are written.
CASTING = "astype", "asarray", "convert_element_type"


def _scopes(file: str, line: int) -> Sequence[ast.AST]:
    """The functions around a line, inside out, and their module."""
    nodes = _nodes(source_text(file))
    functions = ast.FunctionDef, ast.AsyncFunctionDef
    around = [x for x in nodes if isinstance(x, functions) and contains(x, line)]
    return [*reversed(around), *nodes[:1]]


def _bound(scope: ast.AST, name: str) -> Iterator[tuple[int, ast.expr | None]]:
    """The lines that bind a name, each with what is assigned; None where another way."""
    values: dict[ast.expr, ast.expr | None] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            values.update(dict.fromkeys(node.targets, node.value))
        elif isinstance(node, ast.AnnAssign):
            values[node.target] = node.value
        elif isinstance(node, ast.Name) and node.id == name:
            if isinstance(node.ctx, ast.Store):
                yield node.lineno, values.get(node)
        elif isinstance(node, ast.arg) and node.arg == name:
            yield node.lineno, None


def evaluated(node: ast.AST | None, frame: FrameType) -> PyTree:
    """The value of an expression that only looks something up; else None.

    Nothing of the user's runs: no call, and no attribute but a field.
    """
    if isinstance(node, ast.Name):
        return variables_of(frame).get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = evaluated(node.value, frame)
        known = fields_of(owner) if not is_a(owner, tuple) else dict(items_of(owner))
        return known.get(node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = evaluated(node.value, frame)
        if type(owner) in (list, tuple, dict):
            try:
                return owner[node.slice.value]
            except (LookupError, TypeError):
                return None
    return None


def source_text(file: str) -> str:
    """The text of a file; empty if it cannot be read."""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    if file not in _texts or _texts[file][0] is not lines:
        _texts[file] = lines, "".join(lines)
    return _texts[file][1]


# The lines of a file, which `linecache` keeps until they change, and its text: a string
# keeps its hash.
_texts: dict[str, tuple[list[str], str]] = {}


@functools.lru_cache(8)
def _nodes(text: str) -> Sequence[ast.AST]:
    """All nodes of a source, outer ones first; none of what cannot be parsed."""
    try:
        return [*ast.walk(ast.parse(text))]
    except SyntaxError:  # a notebook's magic command
        return []


@functools.lru_cache(8)
def _expressions(text: str) -> dict[tuple[int | None, ...], ast.expr | ast.AugAssign]:
    """The expressions of a file by their place, as `co_positions` gives it."""
    found: dict[tuple[int | None, ...], ast.expr | ast.AugAssign] = {}
    for node in _nodes(text):
        if isinstance(node, (ast.expr, ast.AugAssign)):
            place = node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
            found.setdefault(place, node)
    return found
