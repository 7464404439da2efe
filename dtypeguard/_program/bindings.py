"""Finds the line that assigned a value to the variable by which a function knows it."""

import ast
import functools
import linecache
import re
from types import FrameType
from typing import NamedTuple

from .._leaves.dtypes import is_python_number
from .._leaves.files import is_users
from .._leaves.types import PyTree
from .origins import Origin


def bound(frame: FrameType | None, value: PyTree) -> Origin | None:
    """The line that assigned an array or a container to a variable.

    Looks in a running function, then in its callers. Equal Python scalars may be one
    object, so they have no line.
    """
    while frame is not None and is_users(frame.f_code.co_filename):
        if found := bound_in(frame, value, frame.f_lineno):
            return found
        frame = frame.f_back
    return None


def words_of(file: str, line: int) -> set[str]:
    """The words on a line, among them the names of the variables that it reads."""
    return set(re.findall(r"[^\W\d]\w*", linecache.getline(file, line)))


def bound_in(frame: FrameType, value: PyTree, line: int) -> Origin | None:
    """The line of one function, before another line of it, that assigned a value."""
    file = frame.f_code.co_filename
    if is_python_number(value) or _is_argument_of_lambda(frame, value):
        return None
    for names in (frame.f_locals, frame.f_globals):
        for name in [name for name, each in names.items() if each is value]:
            found = _assignment(file, name, line)
            if found is not None:
                code = linecache.getline(file, found[0]).strip()
                return Origin(file, *found, code)
    return None


def assigned(file: str, name: str, line: int) -> Origin | None:
    """The last line before another one that assigned a variable."""
    found = _assignment(file, name, line)
    if found is None or found[0] >= line:
        return None
    return Origin(file, *found, linecache.getline(file, found[0]).strip())


def _is_argument_of_lambda(frame: FrameType, value: PyTree) -> bool:
    code = frame.f_code
    arguments = map(frame.f_locals.get, code.co_varnames[: code.co_argcount])
    return code.co_name == "<lambda>" and any(each is value for each in arguments)


def _assignment(file: str, name: str, line: int) -> tuple[int, str] | None:
    """The last assignment of a name as seen from a line: its line and its function."""
    linecache.checkcache(file)  # it may have been edited, and the module reloaded
    scopes = _scopes("".join(linecache.getlines(file)))
    inside = [scope for scope in scopes if scope.first <= line <= scope.last]
    for scope in reversed(inside):
        lines = {
            first: last
            for first, last in scope.assigned.get(name, ())
            if first <= line or scope is inside[0]
        }
        # A statement that is running has not assigned yet, unless in an earlier turn.
        done = [first for first, last in lines.items() if not first <= line <= last]
        if lines:
            return max(done or lines), scope.name
        if name in scope.parameters:
            # The caller tells more, unless the function has returned and left a closure.
            is_running = scope is inside[-1]
            return None if is_running else (scope.parameters[name], scope.name)
    return None


class _Scope(NamedTuple):
    """A function, and the lines that assign its variables and declare its parameters.

    An assignment has the line of the variable and the last one of the statement.
    """

    name: str
    first: int
    last: int
    assigned: dict[str, list[tuple[int, int]]]
    parameters: dict[str, int]


@functools.lru_cache
def _scopes(source: str) -> list[_Scope]:
    """A module and all its functions, outside in."""
    try:
        module = ast.parse(source)
    except SyntaxError:  # a notebook's magic command
        return []
    scopes = [_Scope("<module>", 1, source.count("\n") + 2, {}, {})]

    def visit(node: ast.AST, scope: _Scope, prefix: str, last: int = 0) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            last = node.end_lineno or 0
        for child in ast.iter_child_nodes(node):
            line = getattr(child, "lineno", 0)
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                name = prefix + child.name
                inner = _Scope(name, line, child.end_lineno or line, {}, {})
                scopes.append(inner)
                visit(child, inner, f"{name}.<locals>.")
                continue
            if isinstance(child, ast.ClassDef):  # its methods do not see its names
                hidden = _Scope("", 0, 0, {}, {})
                visit(child, hidden, f"{prefix}{child.name}.")
                continue
            if isinstance(child, ast.Assign) and isinstance(child.value, ast.Name):
                continue  # another name of a value that was made elsewhere
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                scope.assigned.setdefault(child.id, []).append((line, last))
            elif isinstance(child, ast.arg):
                scope.parameters[child.arg] = line
            visit(child, scope, prefix, last)

    visit(module, scopes[0], "")
    return scopes
