"""Finds the line that gives the name by which a function asks for a dtype."""

import ast
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

from .._leaves.types import DType
from .._source.assigned import assigned_value
from .._source.files import is_recorded
from .._source.origin import Origin, origin_at
from .._source.syntax import defaults_of, expression, first_line, parsed, text_of
from .expressions import asks_for, passed

_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


class GivenDtype(NamedTuple):
    """Where a dtype is written out, and how."""

    line: Origin
    text: str


def given_dtype(frame: FrameType, dtype: DType) -> GivenDtype | None:
    """Where the dtype is given that the call in a function asks for by a variable.

    Args:
        frame: of the function.
        dtype: for which it asks.
    """
    node = expression(frame.f_code, frame.f_lasti)
    names = [x for x in (ast.walk(node) if node else ()) if isinstance(x, ast.Name)]
    named = next((x for x in names if asks_for(x, frame, dtype)), None)
    file = frame.f_code.co_filename
    given = next(_written(named.id, frame), None) if named else None
    if given is None or not is_recorded(given[0]):
        return None
    file, each = given
    return GivenDtype(origin_at(file, each.lineno, ""), text_of(each, file))


def _written(name: str, frame: FrameType) -> Iterator[tuple[str, ast.expr]]:
    """The expression that a variable has its value from: a call's, a default, another."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    if name not in code.co_varnames[:count]:
        found = assigned_value(code.co_filename, name, frame.f_lineno)
        yield from ((code.co_filename, x) for x in [found] if x)
        return
    if found := passed(frame, name):
        caller, given = found
        if isinstance(given, ast.Name):
            yield from _written(given.id, caller)
        else:
            yield caller.f_code.co_filename, given
    for node in ast.walk(parsed(code.co_filename) or ast.Module([], [])):
        if isinstance(node, _FUNCTIONS) and first_line(node) == code.co_firstlineno:
            defaults = dict(defaults_of(node.args))
            yield from ((code.co_filename, x) for y, x in defaults.items() if y == name)
