"""Finds the line that assigned a value to the variable by which a function knows it."""

import ast
import contextlib
import functools
import linecache
import re
from collections.abc import Container, Iterable, Iterator
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import NamedTuple

from .._leaves.dtypes import is_python_number
from .._leaves.files import is_installed, is_users
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


def holding(places: Iterable[tuple[FrameType, int]], value: object) -> Origin | None:
    """The first line of the user's that assigned something which holds a value.

    An optimizer holds the learning rate that it was made with, in what its functions close
    over.

    Args:
        places: functions and their current lines.
        value: looked for by identity.
    """
    found = []
    for frame, line in places:
        file = frame.f_code.co_filename
        if not is_users(file) or is_installed(file):
            continue
        for name, each in {**frame.f_globals, **frame.f_locals}.items():
            if _holds(each, value) and (made := assigned(frame, name, line)):
                found.append(made)
    files = {each.file for each in found}
    return min(found, key=lambda each: each.line) if len(files) == 1 else None


_MOST = 1000  # of the parts of an object


def _holds(thing: object, value: object) -> bool:
    queue, seen = [thing], {id(thing)}
    for each in queue:
        if each is value:
            return True
        parts = [part for part in _parts(each) if id(part) not in seen]
        seen.update(map(id, parts))
        if len(seen) < _MOST:
            queue += parts
    return False


def _parts(thing: object) -> Iterator[object]:
    """What a function closes over, and what a container or an object contains."""
    if isinstance(thing, (tuple, list)):
        yield from thing
    elif isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, FunctionType):
        for cell in thing.__closure__ or ():
            with contextlib.suppress(ValueError):  # not assigned yet
                yield cell.cell_contents
    elif isinstance(thing, MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif not isinstance(thing, (type, ModuleType)):
        yield from getattr(thing, "__dict__", {}).values()


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
            found = _assignment(file, name, line, names)
            if found is not None:
                code = linecache.getline(file, found[0]).strip()
                return Origin(file, *found, code)
    return None


def assigned(frame: FrameType, name: str, line: int) -> Origin | None:
    """The last line, before another one of a function, that assigned a variable."""
    file = frame.f_code.co_filename
    found = _assignment(file, name, line, frame.f_locals, of_parameters=False)
    if found is None:
        return None
    return Origin(file, *found, linecache.getline(file, found[0]).strip())


def _is_argument_of_lambda(frame: FrameType, value: PyTree) -> bool:
    code = frame.f_code
    arguments = map(frame.f_locals.get, code.co_varnames[: code.co_argcount])
    return code.co_name == "<lambda>" and any(each is value for each in arguments)


def _assignment(
    file: str, name: str, line: int, names: Container[str], of_parameters: bool = True
) -> tuple[int, str] | None:
    """The last assignment of a name as seen from a line: its line and its function.

    Args:
        file: of the function.
        name: of the variable.
        line: the line that runs.
        names: the variables that have been assigned.
        of_parameters: whether a parameter of a function that has returned counts.
    """
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
        running = {first for first, last in lines.items() if first <= line <= last}
        if running and _is_repeated(scope, min(running), name, names):
            return max(running), scope.name
        if lines:
            return max(lines.keys() - running or lines), scope.name
        if name in scope.parameters:
            # The caller tells more, unless the function has returned and left a closure.
            is_running = scope is inside[-1]
            return (
                None
                if is_running or not of_parameters
                else (scope.parameters[name], scope.name)
            )
    return None


def _is_repeated(scope: "_Scope", line: int, name: str, names: Container[str]) -> bool:
    """Whether a line has run before: something is known that it assigns, or a later one."""
    return any(
        other in names and min(first for first, _ in places) >= line
        for other, places in scope.assigned.items()
        if other != name
    )


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
