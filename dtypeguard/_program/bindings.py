"""Finds the line that assigned a value to the variable by which a function knows it.

`definitions.py` reads the source of the function.
"""

import contextlib
import functools
import itertools
import linecache
import re
from collections.abc import Iterable, Iterator
from types import FrameType, FunctionType, MethodType, ModuleType

from jax.core import Tracer

from .._leaves.dtypes import is_array, is_python_number
from .._leaves.files import is_installed, is_users
from .._leaves.types import PyTree
from .definitions import Definition, definition
from .origins import Origin, origin_at


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
    """The first line of the user's that assigned a value, or else something which holds it.

    An optimizer's functions close over its learning rate.

    Args:
        places: functions and their current lines.
        value: looked for by identity.
    """
    found: list[tuple[bool, str, Definition]] = []
    for frame, line in places:
        file = frame.f_code.co_filename
        if not is_users(file) or is_installed(file):
            continue
        for name, each in {**frame.f_globals, **frame.f_locals}.items():
            if _holds(each, value):
                is_inside = each is not value
                made = definition(file, name, line, frame.f_locals, of_items=is_inside)
                if made and not made.is_parameter:
                    found.append((is_inside, file, made))
    is_inside = all(each for each, *_ in found)
    found = [each for each in found if each[0] == is_inside]
    if len({file for _, file, _ in found}) != 1:
        return None
    _, file, first = min(found, key=lambda each: each[2].line)
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
    # From Python 3.13 on, every look at `f_locals` looks into the frame.
    inside = dict(frame.f_locals)
    # No global holds a value of the trace.
    for names in (inside,) if isinstance(value, Tracer) else (inside, frame.f_globals):
        for name in [name for name, each in names.items() if each is value]:
            found = definition(file, name, line, names, of_items=not is_array(value))
            # In a package every branch leads to the same line of the user's.
            if found is not None and (found.is_certain or is_installed(file)):
                return _origin(file, found)
    return None


def _origin(file: str, found: Definition) -> Origin:
    return origin_at(file, found.line, found.function)


def _is_argument_of_lambda(frame: FrameType, value: PyTree) -> bool:
    code = frame.f_code
    if code.co_name != "<lambda>":
        return False
    arguments = map(frame.f_locals.get, code.co_varnames[: code.co_argcount])
    return any(each is value for each in arguments)
