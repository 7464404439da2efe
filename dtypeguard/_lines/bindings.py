"""Finds the line that assigned a value to the variable by which a function knows it.

`assignments.py` reads the source of the function.
"""

import ast
import contextlib
import functools
import inspect
import itertools
import linecache
import re
from collections.abc import Iterable, Iterator
from types import FrameType, FunctionType, MethodType, ModuleType

from jax import tree_util
from jax.core import Tracer

from .._leaves.dtypes import is_array, is_python_number
from .._leaves.types import PyTree
from .._source.assignments import Assignment, assigned_at
from .._source.files import is_installed, is_users
from .._source.origin import Origin, origin_at
from .._source.syntax import contains, statement, stores_to_self


def bound(frame: FrameType | None, value: PyTree) -> Origin | None:
    """The line that assigned an array or a container to a variable.

    Looks in a running function, then in its callers. Equal Python scalars may be one
    object, so they have no line.
    """
    while frame is not None and is_users(frame.f_code.co_filename):
        if line := bound_in(frame, value, frame.f_lineno):
            return line
        frame = frame.f_back
    return None


class Holders:
    """What the variables of some functions hold, to be asked for the lines of values.

    Args:
        places: functions and their current lines.
    """

    def __init__(self, places: Iterable[tuple[FrameType, int]]):
        self._modules: list[ModuleType] = []
        self._places: dict[int, list[tuple[FrameType, int, str, bool]]] = {}
        for frame, line in places:
            file = frame.f_code.co_filename
            if not is_users(file) or is_installed(file):
                continue
            for name, variable in {**frame.f_globals, **frame.f_locals}.items():
                if isinstance(variable, ModuleType):
                    self._modules.append(variable)
                    continue
                for each in _reached(variable):
                    place = frame, line, name, each is not variable
                    self._places.setdefault(id(each), []).append(place)

    def line_of(self, value: object) -> Origin | None:
        """The first line of the user's that assigned a value, or what holds it.

        An optimizer's functions close over its learning rate.

        Args:
            value: looked for by identity.
        """
        for module in self._modules:
            if module_line := _in_module(module, value):
                return module_line
        of_value: list[tuple[FrameType, list[Assignment]]] = []
        of_holders: list[tuple[FrameType, list[Assignment]]] = []
        for frame, line, name, is_holder in self._places.get(id(value), ()):
            possible = assignments(frame, name, line, of_items=is_holder)
            if possible and not possible[-1].is_parameter:
                (of_holders if is_holder else of_value).append((frame, possible))
        known = of_value or of_holders
        if len({frame.f_code.co_filename for frame, _ in known}) != 1:
            return None
        frame, possible = min(known, key=lambda pair: pair[1][-1].line)
        return _origin(frame, possible[0]) if len(possible) == 1 else None


def field_of_self(frame: FrameType, value: object) -> Origin | None:
    """The line of a method that assigned a value to a field of the method's object.

    None if several methods assign it, or one does in a branch. A statement that runs,
    `self.x = f(self.x)`, does not count: it has not assigned anything yet.
    """
    code = frame.f_code
    owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    fields = [name for name, x in getattr(owner, "__dict__", {}).items() if x is value]
    is_plain = tree_util.all_leaves([owner])  # JAX makes copies of a node of a tree
    if len(fields) != 1 or not is_plain or is_installed(code.co_filename):
        return None
    parts = itertools.chain.from_iterable(vars(x).values() for x in type(owner).__mro__)
    codes = []
    for part in parts:
        with contextlib.suppress(ValueError):  # an object that has any attribute
            method = inspect.unwrap(part)
            codes += [method.__code__] if isinstance(method, FunctionType) else []
    running = statement(code.co_filename, frame.f_lineno)
    is_bare = isinstance(getattr(running, "value", None), ast.Call)
    stores = [
        (each, line)
        for each in codes
        for line in stores_to_self(each, fields[0])
        if not (each is code and running and is_bare and contains(running, line))
    ]
    if len({each for each, _ in stores}) != 1:
        return None
    (method, _), lines = stores[0], [line for _, line in stores]
    places = {getattr(statement(method.co_filename, x), "col_offset", 0) for x in lines}
    is_certain = len(places) == 1 and not is_installed(method.co_filename)
    found = origin_at(method.co_filename, max(lines), method.co_qualname)
    return found if is_certain else None


def assignments(
    frame: FrameType, name: str, line: int, *, of_items: bool = False
) -> list[Assignment]:
    """The assignments that may have given a variable of a function what a line uses.

    None for what a lambda or a comprehension declares: its source is in another function.
    """
    code = frame.f_code
    if code.co_name in _IN_LINE and name in code.co_varnames + code.co_cellvars:
        return []
    known = set(frame.f_locals)
    return assigned_at(code.co_filename, name, line, known, of_items=of_items)


_IN_LINE = "<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"
_MOST = 1000  # parts of an object are searched


def _in_cells(frame: FrameType, name: str) -> Origin | None:
    """The line of another cell of a notebook that assigned a variable, the latest first."""
    if name not in frame.f_globals or not _CELL.search(frame.f_code.co_filename):
        return None
    for file in reversed(list(filter(_CELL.search, linecache.cache))):
        possible = assigned_at(file, name, _END)
        if file != frame.f_code.co_filename and possible:
            last = possible[-1]
            is_one = len(possible) == 1
            return origin_at(file, last.line, last.function) if is_one else None
    return None


# How IPython names the cells.
_CELL = re.compile(r"^<ipython-input-|[\\/]ipykernel_")


def _in_module(module: ModuleType, value: object) -> Origin | None:
    """The line of a module of the user's that assigned a value to one of its variables."""
    file = getattr(module, "__file__", None) or ""
    if not is_users(file) or is_installed(file):
        return None
    for name, variable in vars(module).items():
        if variable is value:
            possible = assigned_at(file, name, _END)
            if len(possible) == 1:
                return origin_at(file, possible[0].line, possible[0].function)
    return None


_END = 1 << 30  # behind the last line of a file


def _reached(thing: object) -> list[object]:
    """What a variable holds, itself first, as far as that is looked at."""
    queue, seen, left = [thing], {id(thing)}, _MOST
    for each in queue:
        parts = list(itertools.islice(_parts(each), left))
        left -= len(parts)
        queue += [part for part in parts if id(part) not in seen]
        seen.update(map(id, parts))
    return queue


def _parts(thing: object) -> Iterator[object]:
    """What a function closes over, and what a container or an object contains."""
    if isinstance(thing, (tuple, list)):
        yield from thing
    elif isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, FunctionType):
        yield from thing.__defaults__ or ()
        yield from (thing.__kwdefaults__ or {}).values()
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
    if is_python_number(value):
        return None
    is_package = is_installed(frame.f_code.co_filename)
    # From Python 3.13 on, every look at `f_locals` looks into the frame.
    inside = dict(frame.f_locals)
    names = [name for name, variable in inside.items() if variable is value]
    if not isinstance(value, Tracer):  # no global holds a value of the trace
        variables = frame.f_globals.items()
        names += [name for name, x in variables if x is value and name not in inside]
    for name in names:
        possible = assignments(frame, name, line, of_items=not is_array(value))
        if not possible and (of_cell := _in_cells(frame, name)):
            return of_cell
        # In a package every branch leads to the same line of the user's.
        if len(possible) == 1 or (possible and is_package):
            return _origin(frame, possible[-1])
    return None


def _origin(frame: FrameType, assignment: Assignment) -> Origin:
    return origin_at(frame.f_code.co_filename, assignment.line, assignment.function)


def field_line(kind: type, name: str) -> Origin | None:
    """The line at which an object, while it is made, assigns a field; None of several."""
    namespaces = [vars(each) for each in kind.__mro__]
    methods = [inspect.unwrap(x[each]) for x in namespaces for each in _MAKE if each in x]
    codes = [code for each in methods if (code := getattr(each, "__code__", None))]
    lines = [
        origin_at(code.co_filename, line, code.co_qualname)
        for code in codes
        if not is_installed(code.co_filename)
        for line in stores_to_self(code, name)
    ]
    return lines[0] if len(lines) == 1 else None


# The methods that give an object its fields.
_MAKE = "__init__", "__post_init__", "setup"
