"""Reads source: a line, the expression that runs, the value of one, an option.

A file that cannot be parsed, such as a notebook with magic commands, has none of them.
"""

import ast
import contextlib
import functools
import itertools
import linecache
from types import CodeType, FrameType

from .._leaves.quiet import warnings_ignored
from .._leaves.types import PyTree
from .inert import fields_of, items_of, variables_of

Expression = ast.expr | ast.AugAssign | ast.Assign
_CodePosition = tuple[int | None, ...]  # as `co_positions` has it


def line_at(file: str, line: int) -> str:
    """Returns a line of a file without indentation; empty if it cannot be read."""
    linecache.checkcache(file)  # it may have been edited, and the module reloaded
    code = linecache.getline(file, line)
    return code.strip()


def source_text(file: str) -> str:
    """Returns the text of a file; empty if it cannot be read."""
    linecache.checkcache(file)
    return "".join(linecache.getlines(file))


def parse_quietly(text: str) -> ast.Module:
    """Parses source without a warning of Python's: the import has given it."""
    with warnings_ignored():
        return ast.parse(text)


@functools.lru_cache(8)
def _expressions(text: str) -> dict[_CodePosition, Expression]:
    """Returns the expressions of a source by their place, the outermost of several."""
    expressions: dict[_CodePosition, Expression] = {}
    try:
        module = parse_quietly(text)
    except SyntaxError:  # a notebook's magic command
        return expressions
    # Outer nodes come first.
    for node in ast.walk(module):
        if not isinstance(node, Expression):
            continue
        # An assignment to an item runs at the place of the item.
        for place in getattr(node, "targets", [node]):
            lines = (place.lineno, place.end_lineno)
            columns = (place.col_offset, place.end_col_offset)
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


def line_of_option(file: str, line: int, name: str) -> int | None:
    """Returns the line that declares an option of argparse, if another line parses it."""
    # argparse makes a name of a flag, with an underscore for each hyphen.
    hyphenated = name.replace("_", "-")
    flags = (f"--{name}", f"--{hyphenated}")
    declared = None
    is_parsed = False
    expressions = _expressions(source_text(file))
    for call in expressions.values():
        method = getattr(getattr(call, "func", None), "attr", "")
        # What any other line gives, after the parser, is to be changed on that line.
        is_parsed |= call.lineno == line and method.startswith("parse_")
        if method != "add_argument":
            continue
        for flag in getattr(call, "args", ()):
            if getattr(flag, "value", "") in flags:
                declared = call.lineno
    return declared if is_parsed else None


def renamings_before(code: CodeType, name: str, line: int) -> list[int]:
    """Returns the lines of a function, before another, that may lack a cast.

    That is `name = x`, or `name = x.astype(...)` in a branch that did not run.
    """
    lines = []
    expressions = _expressions(source_text(code.co_filename))
    for node in expressions.values():
        if not isinstance(node, ast.Assign):
            continue
        is_before = code.co_firstlineno <= node.lineno < line
        target = ast.unparse(node.targets[0])
        if is_before and name == target and _may_lack_cast(node.value):
            lines.append(node.lineno)
    return lines


def _may_lack_cast(value: ast.expr) -> bool:
    # A name leaves no trace in the program, nor does a branch that did not run.
    function = getattr(value, "func", None)
    is_cast = getattr(function, "attr", "") == "astype"
    return is_cast or isinstance(value, (ast.Name, ast.Subscript))


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
        # The fields of a NamedTuple are its items.
        items = items_of(owner)
        fields = dict(items) | fields_of(owner)
        return fields.get(node.attr)
    if not isinstance(node.slice, ast.Constant):
        return None
    if type(owner) in (list, tuple, dict):
        with contextlib.suppress(LookupError, TypeError):
            return owner[node.slice.value]
    return None
