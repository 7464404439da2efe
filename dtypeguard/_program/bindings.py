"""Finds the line that assigned a value to the variable by which a function knows it."""

import ast
import contextlib
import functools
import itertools
import linecache
import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import NamedTuple

from .._leaves.dtypes import is_array, is_python_number
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

    An optimizer's functions close over its learning rate.

    Args:
        places: functions and their current lines.
        value: looked for by identity.
    """
    found: list[tuple[str, _Assignment]] = []
    for frame, line in places:
        file = frame.f_code.co_filename
        if not is_users(file) or is_installed(file):
            continue
        for name, each in {**frame.f_globals, **frame.f_locals}.items():
            if _holds(each, value):
                made = _assigned(frame, name, line, of_items=each is not value)
                found += [(file, made)] if made is not None else []
    if len({file for file, _ in found}) != 1:
        return None
    file, first = min(found, key=lambda each: each[1].line)
    return _origin(file, first) if first.is_certain else None


_MOST = 1000  # parts of an object are searched


def _holds(thing: object, value: object) -> bool:
    queue, seen, left = [thing], {id(thing)}, _MOST
    for each in queue:
        if each is value:
            return True
        parts = list(itertools.islice(_parts(each), left))
        left -= len(parts)
        queue += [part for part in parts if id(part) not in seen]
        seen.update(map(id, parts))
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
            found = _assignment(file, name, line, names, of_items=not is_array(value))
            # In a package every branch leads to the same line of the user's.
            if found is not None and (found.is_certain or is_installed(file)):
                return _origin(file, found)
    return None


def assigned(frame: FrameType, name: str, line: int) -> Origin | None:
    """The last line, before another one of a function, that assigned a variable."""
    found = _assigned(frame, name, line)
    if found is None or not found.is_certain:
        return None
    return _origin(frame.f_code.co_filename, found)


class _Assignment(NamedTuple):
    """A line that assigned a variable, and its function.

    It is not certain if another line may have assigned the value: in another branch, or to
    an item.
    """

    line: int
    function: str
    is_certain: bool = True


def _origin(file: str, found: _Assignment) -> Origin:
    code = linecache.getline(file, found.line).strip()
    return Origin(file, found.line, found.function, code)


def _assigned(
    frame: FrameType, name: str, line: int, of_items: bool = False
) -> _Assignment | None:
    file, names = frame.f_code.co_filename, frame.f_locals
    return _assignment(file, name, line, names, of_parameters=False, of_items=of_items)


def _is_argument_of_lambda(frame: FrameType, value: PyTree) -> bool:
    code = frame.f_code
    arguments = map(frame.f_locals.get, code.co_varnames[: code.co_argcount])
    return code.co_name == "<lambda>" and any(each is value for each in arguments)


def _assignment(
    file: str,
    name: str,
    line: int,
    names: Container[str],
    *,
    of_parameters: bool = True,
    of_items: bool = False,
) -> _Assignment | None:
    """The last assignment of a name as seen from a line: its line and its function.

    Args:
        file: of the function.
        name: of the variable.
        line: the line that runs.
        names: the variables that have been assigned.
        of_parameters: whether a parameter of a function that has returned counts.
        of_items: whether an assignment to an item or an attribute changes the value.
    """
    linecache.checkcache(file)  # it may have been edited, and the module reloaded
    scopes = _scopes("".join(linecache.getlines(file)))
    inside = [scope for scope in scopes if scope.first <= line <= scope.last]
    for scope in reversed(inside):
        # A function may be called after the last line of its module has run.
        end = scope.last if scope is inside[0] is not inside[-1] else line
        places = scope.assigned.get(name, ())
        lines = {first: last for first, last in places if first <= end}
        # A statement that is running has not assigned yet, unless in an earlier turn.
        running = {first for first, last in lines.items() if first <= line <= last}
        later = {first for first, _ in places if line < first <= scope.end_of_loop(line)}
        start = min(running, default=line + 1)
        is_repeated = (running or later) and _is_repeated(scope, start, name, names)
        found = max(running | later if is_repeated else lines.keys() - running, default=0)
        found = found or (max(running, default=0) if names else 0)
        if found:
            before = {each for each in lines if each <= found}
            before |= {scope.parameters[name]} if name in scope.parameters else set()
            source = scope.moved.get((name, found))
            same = {name, source} if of_items else ()
            is_changed = any(_is_changed(scope, each, found, line, end) for each in same)
            is_open = bool(later) and is_repeated is None
            is_optional = not is_repeated and _is_optional(scope, found, line, before)
            made = _Assignment(found, scope.name)
            if source is not None:
                of_source = {"of_parameters": of_parameters, "of_items": of_items}
                made = _assignment(file, source, found, (), **of_source)
            is_certain = not (is_changed or is_open or is_optional)
            return made and made._replace(is_certain=is_certain and made.is_certain)
        if name in scope.parameters:
            # The caller tells more, unless the function has returned and left a closure.
            is_running = scope is inside[-1]
            return (
                None
                if is_running or not of_parameters
                else _Assignment(scope.parameters[name], scope.name)
            )
    return None


def _is_repeated(
    scope: "_Scope", line: int, name: str, names: Container[str]
) -> bool | None:
    """Whether a loop has run before from a line on; None if nothing tells.

    It has if something is known that this line assigns first, or a later one of the loop.
    """
    end = scope.end_of_loop(line)
    known = [
        other in names
        for other, places in scope.assigned.items()
        if other != name and other not in scope.parameters
        if line <= min(first for first, _ in places) <= end
    ]
    return any(known) if known else None


def _is_optional(scope: "_Scope", found: int, line: int, others: Iterable[int]) -> bool:
    """Whether an assignment is in a branch without a line, and another is outside it."""
    return any(
        first <= found <= last
        and not first <= line <= last
        and not all(first <= other <= last for other in others)
        for first, last in scope.branches
    )


def _is_changed(scope: "_Scope", name: str | None, found: int, line: int, end: int) -> bool:
    """Whether an item may have been assigned after an assignment, up to the end."""
    end = max(end, scope.end_of_loop(line))
    return any(
        found < first <= end and (last < line or end > line)
        for first, last in scope.items.get(name or "", ())
    )


@dataclass
class _Scope:
    """A function, and the lines that assign its variables and declare its parameters.

    An assignment has the line of the variable and the last one of the statement. Loops and
    the branches of `if`, `try` and `match` have their first line and their last. `items`
    are lines that may change what a variable holds, `moved` those that give it the value
    of another variable.
    """

    name: str
    first: int
    last: int
    assigned: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    items: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    moved: dict[tuple[str, int], str] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    loops: list[tuple[int, int]] = field(default_factory=list)
    branches: list[tuple[int, int]] = field(default_factory=list)

    def end_of_loop(self, line: int) -> int:
        """The last line of the outermost loop around a line; 0 if there is none."""
        ends = (last for first, last in self.loops if first <= line <= last)
        return max(ends, default=0)


@functools.lru_cache
def _scopes(source: str) -> list[_Scope]:
    """A module and all its functions, outside in."""
    try:
        module = ast.parse(source)
    except SyntaxError:  # a notebook's magic command
        return []
    scopes = [_Scope("<module>", 1, source.count("\n") + 2)]

    def visit(node: ast.AST, scope: _Scope, prefix: str, last: int = 0) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            last = node.end_lineno or 0
        for child in ast.iter_child_nodes(node):
            line = getattr(child, "lineno", 0)
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                name = prefix + child.name
                inner = _Scope(name, line, child.end_lineno or line)
                scopes.append(inner)
                visit(child, inner, f"{name}.<locals>.")
                continue
            if isinstance(child, ast.ClassDef):  # its methods do not see its names
                hidden = _Scope("", 0, 0)
                visit(child, hidden, f"{prefix}{child.name}.")
                continue
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                scope.assigned.setdefault(child.id, []).append((line, last))
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                    scope.moved[child.id, line] = node.value.id
            elif isinstance(child, ast.arg):
                scope.parameters[child.arg] = line
            elif isinstance(child, (ast.Subscript, ast.Attribute)):
                if not isinstance(child.ctx, ast.Load):
                    scope.items.setdefault(_root(child), []).append((line, last or line))
            elif isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
                # A method whose result is of no use, such as `append`.
                scope.items.setdefault(_root(child.value.func), []).append((line, line))
            elif isinstance(child, (ast.For, ast.AsyncFor, ast.While)):
                scope.loops.append((line, child.end_lineno or line))
            scope.branches.extend(_branches(child))
            visit(child, scope, prefix, last)

    visit(module, scopes[0], "")
    return scopes


def _root(node: ast.expr) -> str:
    """The name of the variable that an item or an attribute belongs to."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _branches(node: ast.AST) -> Iterator[tuple[int, int]]:
    """The first and the last lines of statements of which some may not have run."""
    blocks: list[list[ast.stmt]] = []
    if isinstance(node, (ast.If, ast.Try, ast.TryStar)):
        blocks = [node.body, node.orelse]
    elif isinstance(node, (ast.ExceptHandler, ast.match_case)):
        blocks = [node.body]
    for block in filter(None, blocks):
        yield block[0].lineno, block[-1].end_lineno or block[-1].lineno
