"""Remembers at which line of the user's each array was made, while a script runs.

`monitored.py` calls it after each first execution of a line. Arrays, and the tracers that
stand for them, are known by identity and kept weakly. Nothing here imports JAX, which a
script may choose first.
"""

import inspect
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

from .._leaves.types import Leaf, PyTree
from .._source.files import is_recorded
from .._source.inert import is_a, items_of, package_of, variables_of
from .._source.origin import Frame, callers, frame_of, release
from .values import (
    Made,
    Path,
    Words,
    as_array,
    held,
    is_array,
    is_number,
    is_of_numpy,
    is_tracer,
    passed_as,
    type_of,
    words_of,
)

# Callers of a line, frames between two, values that calls return, and those that are not
# kept weakly.
_MOST_CALLERS, _MOST_FRAMES, _MOST_CAME, _MOST_KEPT = 12, 500, 20, 10_000
_MOST_READ = 50  # arrays, by one run of a line
_UNFLATTEN = "unflatten"  # ends what of JAX calls functions of the user's nodes


class _Running:
    """A running function: its last line, and what a traced function gave to JAX there."""

    __slots__ = ("before", "came", "code", "line", "returned", "start")

    def __init__(self, code: CodeType):
        self.code, self.line, self.start = code, 0, 0
        # What the variables held that the line assigns and reads.
        self.before: dict[str, list[tuple[Path, Made]]] = {}
        self.came: list[tuple[Path, Made]] = []
        self.returned: tuple[int, Sequence[Made | None]] = 0, ()


class Recorder:
    """Knows the lines that made the arrays of a script."""

    def __init__(self):
        # Arrays, objects and variables of jaxprs, by identity.
        self._known: dict[int, tuple[Any, Made]] = {}
        self._strong: OrderedDict[int, None] = OrderedDict()
        self._numbers: dict[str, dict[str, Made]] = {}  # by their text and their names
        self._running: dict[int, _Running] = {}
        self._words: dict[int, tuple[CodeType, dict[int, Words]]] = {}
        self.unseen: set[tuple[int, int]] = set()  # lines that are not looked at again
        # By their file and their number what lines have read.
        self._read: dict[tuple[str, int], dict[object, Made]] = {}

    def made(self, value: Any) -> Made | None:
        """How an array, an object or a variable of a jaxpr came to be, if it is known."""
        ref, made = self._known.get(id(value), (None, None))
        if (ref() if type(ref) is weakref.ref else ref) is value and made:
            return made
        base = value.base if is_of_numpy(value) else None  # of which it is a view
        if base is None or not is_of_numpy(base) or base.dtype != value.dtype:
            return None
        return self.made(base)

    def number(self, name: str, value: object) -> Made | None:
        """How a Python number came to be, by its name or if one line alone gave it."""
        named = self._numbers.get(repr(value), {}) if is_number(value) else {}
        every = [*named.values()]
        is_alone = len({made.through[0] for made in every}) == 1
        return named.get(name) or (
            every[0] if is_alone and type(value) is not int else None
        )

    def read(self, file: str, line: int) -> Sequence[Made]:
        """The arrays that a line has read, one for each line that made them."""
        return [*self._read.get((file, line), {}).values()]

    def begins(self, frame: FrameType) -> None:
        """A function of the user's begins."""
        self._running[id(frame)] = _Running(frame.f_code)

    def ends(self, frame: FrameType) -> None:
        """A function of the user's ends or yields."""
        self._running.pop(id(frame), None)

    def forget(self) -> None:
        """Numbers are known as long as it records; calls may not have been seen to end."""
        for each in (self._running, self._numbers, self.unseen):
            each.clear()

    def _running_of(self, frame: FrameType) -> _Running:
        running = self._running.get(id(frame))
        if running is None or running.code is not frame.f_code:
            self.begins(frame)
        return self._running[id(frame)]

    def enters(self, frame: FrameType) -> None:
        """Links the tracers and numbers that a function is given to what they stand for."""
        self.begins(frame)
        code, values, caller = frame.f_code, variables_of(frame), frame.f_back
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & inspect.CO_VARARGS)
        count += bool(code.co_flags & inspect.CO_VARKEYWORDS)
        given = list(map(values.get, code.co_varnames[:count]))
        if caller and _is_own(caller):
            line = caller.f_lineno
            for name, value in zip(code.co_varnames, given):
                if is_number(value):
                    words = self._words_of(caller.f_code).get(line)
                    self._see(name, value, words, _through(caller, line))
        known = [(path, leaf, self.made(leaf)) for path, leaf in held(given)]
        new = [(x, leaf) for x, leaf, made in known if not (made and made.through)]
        new = [(path, leaf) for path, leaf in new if is_tracer(leaf)]
        if new and caller and caller.f_code.co_name.endswith(_UNFLATTEN):
            for _, tracer in new:  # linked where the whole is given to a function
                self._add(tracer, Made((), type_of(tracer)))
            return
        if not new:
            return
        passed = self._passed(frame, [leaf for _, leaf in new])
        through = _through(frame, code.co_firstlineno)
        for (path, tracer), leaf in itertools.zip_longest(new, passed):
            source = self.made(leaf) or self.number(path[-1], leaf)
            sources = [source] if source else []
            made = Made(through, type_of(tracer), sources, is_passed=True)
            self._add(tracer, made)
            self._link(getattr(tracer, "val", None), made)

    def _see(
        self, name: str, number: object, words: Words | None, through: Sequence[Frame]
    ) -> None:
        """Records how a number came to be: as one that a line names, or on that line."""
        named = self._numbers.setdefault(repr(number), {})
        names = (name, *words.read, *words.others) if words else (name,)
        known = next(filter(None, map(named.get, names)), None)
        named[name] = known or Made(through, type_of(number))

    def were_before(self, frame: FrameType) -> None:
        """Notes the arrays that a function holds as recording begins: of no known line."""
        for variables in (variables_of(frame), frame.f_globals):
            for _, leaf in held(dict(variables)):
                if is_array(leaf) and self.made(leaf) is None:
                    self._add(leaf, Made((), type_of(leaf)))

    def ends_trace(self, frame: FrameType) -> None:
        """Links what a traced function closes over, and its results, to their lines."""
        variables = frame.f_locals
        for variable, value in list(variables["self"].constvar_to_val.items()):
            value = value if is_array(value) else getattr(value, "original", None)
            self._link(variable, self.made(value))
        for tracer in variables["out_tracers"]:
            self._link(tracer.val, self.made(tracer))

    def _link(self, variable: object, made: Made | None) -> None:
        """Records what a variable of a jaxpr stands for."""
        if made and variable is not None and not is_array(variable):
            self._add(variable, made)

    def _passed(self, frame: FrameType, tracers: list[Leaf]) -> list[Leaf]:
        """What JAX was given, by its frames, for the tracers that it made of that."""
        found: list[Leaf] = []
        for caller in itertools.takewhile(lambda x: not _is_own(x), callers(frame)):
            for value in list(variables_of(caller).values()):
                if package_of(type(value)) == "jax":  # a tree taken apart
                    value = getattr(value, "vals", None)
                if is_a(value, (tuple, list)):
                    leaves = [leaf for _, leaf in held(value)]
                    found = passed_as(leaves, tracers) or found  # the outermost
            release([caller])
        return found

    def runs(self, frame: FrameType, line: int) -> None:
        """A line begins to run, so that the one before it has run."""
        running, words = self._running_of(frame), self._words_of(frame.f_code)
        if running.line in words:
            self._has_run(frame, running.line, words[running.line])
        start, here = words.get(running.start), words.get(line)
        if start is None or not running.start <= line <= start.end:
            running.start, running.came = line, []
        both = here.read.keys() & here.stored.keys() if here else set[str]()
        both = here.read.keys() if here and here.is_changing else both
        running.line = line
        running.before = {name: list(self._held(frame, name, words[line])) for name in both}

    def leaves(self, frame: FrameType, value: PyTree) -> None:
        """A function of the user's returns or yields a value."""
        self.runs(frame, frame.f_lineno)
        self.returns(frame, value)
        outer = next(filter(_is_own, itertools.islice(callers(frame), _MOST_FRAMES)), None)
        running = self._running.get(id(outer))
        if outer is None or running is None:
            return
        found = [(path, leaf, self.made(leaf)) for path, leaf in held(value)]
        if outer is frame.f_back:
            running.came += [(path, made) for path, _, made in found if made]
        else:  # what JAX calls comes out of it as other values
            arrays = [made for _, leaf, made in found if is_array(leaf)]
            running.returned = outer.f_lineno, arrays

    def returns(self, frame: FrameType, value: PyTree) -> None:
        """A call on the current line of a function of the user's returns a value."""
        leaves, line = list(held(value)), frame.f_lineno
        for path, leaf in leaves:  # such as an object that a call makes
            name = _name_in(path)
            if type(leaf) is float and name.isidentifier():
                self._see(name, leaf, None, _through(frame, line))
        arrays = [(path, leaf) for path, leaf in leaves if is_array(leaf)]
        self._make(frame, line, [x for x in arrays if self.made(x[1]) is None])
        if running := self._running.get(id(frame)):
            found = [(path, self.made(leaf)) for path, leaf in arrays]
            running.came += [(path, made) for path, made in found if made][:_MOST_CAME]

    def _has_run(self, frame: FrameType, line: int, words: Words) -> None:
        """Records what the variables hold that a line names."""
        values, new, read = variables_of(frame), [], []
        is_unseen = lambda number: (id(frame.f_code), number) in self.unseen
        every = self._words_of(frame.f_code).items() if is_unseen(line) else ()
        hidden = {y for n, x in every if n != line and is_unseen(n) for y in x.sets()}
        for name in (x for x in (*words.stored, *words.read) if x not in hidden):
            is_stored, is_local = name in words.stored, name in values
            value = values.get(name, None if is_stored else frame.f_globals.get(name))
            # The functions of an optimizer, which is a tuple, are new with it.
            parts = (x for _, x in itertools.islice(items_of(value), _MOST_CAME))
            for part in (value, *parts) if is_stored else ():
                if self.made(part) is None and _is_referred_to_weakly(part):
                    self._add(part, Made(_through(frame, line), (type(part), False)))
            for path, leaf in held(value):
                # What a global variable holds may have been made before.
                is_made = is_stored or (path and words.is_making and is_local)
                made = self.made(leaf)
                if is_number(leaf):
                    if is_stored or (is_made and _name_in(path) in words.others):
                        name_in = _name_in((name, *path))
                        self._see(name_in, leaf, words, _through(frame, line))
                elif is_made and not made:
                    new.append((path, leaf))
                elif not is_stored and words.names(path) and (made or is_of_numpy(leaf)):
                    read.append(made or Made((), type_of(leaf)))
        if running := self._running.get(id(frame)):
            pairs = itertools.chain(running.came, *running.before.values())
            read += [made for path, made in pairs if words.names(path)]
        known = self._read.setdefault((frame.f_code.co_filename, line), {})
        known |= {next(iter(made.through), made.type): made for made in read[:_MOST_READ]}
        self._make(frame, line, new)

    def _make(self, frame: FrameType, line: int, new: list[tuple[Path, Leaf]]) -> None:
        """Records values that a line has made."""
        if not new:
            return
        through, words = _through(frame, line), self._words_of(frame.f_code).get(line)
        running = self._running.get(id(frame)) or _Running(frame.f_code)
        returned: Sequence[Made | None] = ()
        if running.returned[0] == line and len(running.returned[1]) == len(new):
            returned, running.returned = running.returned[1], (0, ())
        before = running.before if running.line == line else {}
        read = list(running.came)
        for name in words.read if words else ():
            read += before.get(name) or self._held(frame, name, words)
        behind: dict[Path, list[tuple[Path, Made]]] = {}
        for path, made in read:
            behind.setdefault(path[-1:], []).append((path, made))
        for (path, leaf), inner in itertools.zip_longest(new, returned):
            type_ = type_of(leaf)
            if inner is not None and inner.type[0] == leaf.dtype:
                made = Made(through, type_, [inner], is_passed=True)
            else:
                sources = (as_array(each, type_) for each in _of_place(behind, path))
                sources = [*filter(None, sources)]
                others = any(x.type != type_ and not x.type[1] for x in sources)
                sources = [] if words and words.has_dtype else sources
                made = Made(through, type_, sources, others)
            self._add(leaf, made)

    def _held(
        self, frame: FrameType, name: str, words: Words | None
    ) -> Iterator[tuple[Path, Made]]:
        """The arrays that a variable holds, and the numbers that are known.

        An array of NumPy in an attribute that the line names has no path.
        """
        values = variables_of(frame)
        value = values[name] if name in values else frame.f_globals.get(name)
        for path, leaf in held(value):
            if is_array(leaf):
                made = self.made(leaf) or Made((), type_of(leaf))
                others = words.others if words else ()
                is_named = is_of_numpy(leaf) and not set(others).isdisjoint(path)
                where = () if is_named else path
                yield where, made
            elif path and (made := self.number(path[-1], leaf)):
                yield path, made

    def _words_of(self, code: CodeType) -> dict[int, Words]:
        if id(code) not in self._words:  # to hash code takes long
            self._words[id(code)] = code, words_of(code)
        return self._words[id(code)][1]

    def _add(self, value: object, made: Made) -> None:
        key, known = id(value), self._known
        try:
            known[key] = weakref.ref(value, lambda _: known.pop(key, None)), made
        except TypeError:  # a scalar of NumPy, an abstract value, a variable of a jaxpr
            known[key], self._strong[key] = (value, made), None
            if len(self._strong) > _MOST_KEPT:
                known.pop(self._strong.popitem(last=False)[0], None)


def _is_referred_to_weakly(value: object) -> bool:
    """Whether it is an object that can be: no number, and no tree."""
    try:
        return not is_array(value) and weakref.ref(value) is not None
    except TypeError:
        return False


def _of_place(behind: dict[Path, list[tuple[Path, Made]]], path: Path) -> list[Made]:
    """What of all that is read was at a place of a tree, and what was no tree.

    What is read is `behind`, by the ends of paths.
    """

    def alike(other: Path) -> int:
        pairs = zip(reversed(other), reversed(path))
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    whole = [made for _, made in behind.get((), ())]
    parts = [(alike(x), made) for x, made in behind.get(path[-1:], ()) if path]
    most = max((count for count, _ in parts), default=0)
    return whole + [made for count, made in parts if count == most]


def _name_in(path: Path) -> str:
    """The last name in a path, which may end with places in tuples."""
    return next((part for part in reversed(path) if not part.isdigit()), "")


def _is_own(frame: FrameType) -> bool:
    return is_recorded(frame.f_code.co_filename)


def _through(frame: FrameType, line: int) -> Sequence[Frame]:
    """A line of a running function, and the user's lines that led there."""
    outer = itertools.islice(filter(_is_own, callers(frame)), _MOST_CALLERS)
    return [frame_of(frame, line), *map(frame_of, outer)]
