"""Remembers at which line of the user's each value was made, while a script runs.

`monitored.py` calls it around each of the first executions of a line. Arrays, and the
tracers that stand for them, are known by identity and kept weakly. Nothing here imports
JAX, which a script may choose first.
"""

import contextlib
import dataclasses
import itertools
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import FrameType
from typing import Any

from .._leaves.types import Leaf, PyTree
from .._source.files import is_recorded
from .._source.inert import items_of, variables_of
from .._source.origin import Frame, callers, frame_of
from .value_record import ValueRecord
from .values import (
    NamedLeaf,
    ValueType,
    is_concrete,
    is_leaf,
    is_number,
    is_tracer,
    leaves_given_to_jax,
    named_leaves,
    value_type,
)
from .words import Words, words_at

_MOST_RETURNED = 20  # values of a call
_MOST_STRONG = 10_000  # values that have no weak references

NamedRecord = tuple[str, ValueRecord]
Frames = Sequence[Frame]  # a line of the user's and those that led there


@dataclasses.dataclass
class _RunningLine:
    """A line that runs.

    Attributes:
        number: of the line; 0 where its end will not be seen.
        words: that it names.
        frames: the line and its callers.
        read: what it reads, by the names of leaves: variables, and what its calls return.
        results: what a function returned that JAX called there.
    """

    number: int = 0
    words: Words = dataclasses.field(default_factory=Words)
    frames: Frames = ()
    read: list[NamedRecord] = dataclasses.field(default_factory=list)
    results: list[ValueRecord] = dataclasses.field(default_factory=list)

    def record_of_new(self, name: str, array: Leaf) -> ValueRecord:
        """Returns the record of an array that the line makes."""
        array_type = value_type(array)
        sources = []
        strong_types = {array_type}
        for read_name, record in self.read:
            # A map over trees makes each leaf from those under the same key.
            if read_name not in ("", name):
                continue
            if not record.type.is_weak:
                strong_types.add(record.type)
            if record.may_give(array_type):
                sources.append(record)
        # The line gives the dtype, whatever its operands have.
        if self.words.asks_for(array.dtype):
            sources = []
        is_promoted = len(strong_types) > 1
        return ValueRecord(
            frames=self.frames,
            type=array_type,
            sources=sources,
            is_promoted=is_promoted,
        )


class Recorder:
    """Knows the lines that made the values of a script."""

    def __init__(self):
        # Arrays and variables of jaxprs, by identity.
        self._records: dict[int, tuple[Any, ValueRecord]] = {}
        self._strong: deque[int] = deque()  # those that have no weak references
        # Python numbers, by their names and their text.
        self._numbers: dict[tuple[str, str], ValueRecord] = {}
        # By the identities of a frame and of its code: another function may take the frame.
        self._running: dict[tuple[int, int], _RunningLine] = {}
        # By file and number, as they were looked at last.
        self._lines: dict[tuple[str, int], _RunningLine] = {}

    def record_of(self, value: Any) -> ValueRecord | None:
        """Returns how an array or a variable of a jaxpr came to be."""
        key = id(value)
        if key not in self._records:
            return None
        referent, record = self._records[key]
        if type(referent) is weakref.ref:
            referent = referent()
        # What is gone may have had the same identity.
        if referent is not value:
            return None
        return record

    def record_of_number(self, name: str, value: object) -> ValueRecord | None:
        """Returns how a number came to be, by its name."""
        if not is_number(value):
            return None
        key = name, repr(value)
        return self._numbers.get(key)

    def read_by(self, file: str, line: int) -> Sequence[ValueRecord]:
        """Returns the values that a line names, as it was looked at last."""
        place = file, line
        running = self._lines.get(place, _RunningLine())
        names = {"", *running.words.attributes}
        records = []
        for name, record in running.read:
            if name in names:
                records.append(record)
        return records

    def forget_calls(self) -> None:
        """Forgets running functions, whose ends may not be seen, and numbers."""
        self._running.clear()
        self._numbers.clear()

    # Calls of the user's functions

    def on_call(self, frame: FrameType) -> None:
        """Links the numbers and tracers that a function is given to their lines."""
        self._running.pop(_key(frame), None)
        caller = _users_caller(frame)
        line = self._running_line(caller)
        variables = variables_of(frame)
        new_tracers = []
        for name in frame.f_code.co_varnames:
            if name not in variables:  # no argument: it has no value yet
                continue
            if line.number == caller.f_lineno:
                self._add_number(name, variables[name], line)
            for named_leaf in named_leaves(variables[name], name):
                _, leaf = named_leaf
                if is_tracer(leaf) and self.record_of(leaf) is None:
                    new_tracers.append(named_leaf)
        if new_tracers:
            self._link(new_tracers, frame)

    def _link(self, tracers: Sequence[NamedLeaf], frame: FrameType) -> None:
        """Links the tracers of a function, by name, to what they stand for."""
        values = [tracer for _, tracer in tracers]
        leaves = leaves_given_to_jax(frame, values, is_recorded)
        frames = _frames(frame, frame.f_code.co_firstlineno)
        for (name, tracer), leaf in itertools.zip_longest(tracers, leaves):
            sources = []
            source = self._source(name, leaf)
            if source is not None:
                sources.append(source)
            tracer_type = value_type(tracer)
            record = ValueRecord(
                frames=frames,
                type=tracer_type,
                sources=sources,
                is_passed=True,
            )
            self._add(tracer, record)
            self._add(getattr(tracer, "val", tracer), record)

    def on_trace_end(self, frame: FrameType) -> None:
        """Links what a traced function closes over, and its results, to their lines."""
        variables = frame.f_locals
        constants = dict(variables["self"].constvar_to_val)
        for variable, value in constants.items():
            record = self.record_of(value)
            self._add(variable, record)
        for tracer in variables["out_tracers"]:
            record = self.record_of(tracer)
            self._add(tracer.val, record)

    def on_return(self, frame: FrameType, value: PyTree) -> None:
        """Records what a function of the user's returns or yields, and who gets it."""
        self.on_line(frame)
        self.on_result(frame, value)
        key = _key(frame)
        del self._running[key]
        caller = _users_caller(frame)
        line = self._running_line(caller)
        reads = self._reads_of(value)
        # What JAX calls comes out of it as other values.
        if caller is frame.f_back:
            line.read += reads
        else:
            line.results = []
            for _, record in reads:
                line.results.append(record)

    def on_result(self, frame: FrameType, value: PyTree) -> None:
        """Records what a call on the current line of a user's function returns."""
        line = self._running_line(frame)
        if line.number != frame.f_lineno:
            return
        leaves = []
        for name, leaf in named_leaves(value):
            if type(leaf) is not int:  # a count, of which the line that keeps it is known
                leaves.append((name, leaf))
        self._add_leaves(leaves, line)
        reads = self._reads_of(value)
        line.read += reads[:_MOST_RETURNED]

    def _running_line(self, frame: FrameType) -> _RunningLine:
        """Returns the line at which a function is; an empty one without."""
        return self._running.get(_key(frame), _RunningLine())

    def _reads_of(self, value: PyTree) -> list[NamedRecord]:
        """Returns the records of the arrays in a value and of the known numbers."""
        records = []
        for name, leaf in named_leaves(value):
            record = self._source(name, leaf)
            if record is None and is_concrete(leaf):
                record = ValueRecord((), value_type(leaf))
                # In an object it would be taken for what those that read it add there.
                if leaf is not value:
                    self._add(leaf, record)
            if record is not None:
                records.append((name, record))
        return records

    def _source(self, name: str, leaf: Leaf) -> ValueRecord | None:
        """Returns how an array or a number came to be."""
        return self.record_of_number(name, leaf) or self.record_of(leaf)

    # Lines

    def on_line(self, frame: FrameType, is_last: bool = False) -> None:
        """Records the begin of a line, which is the end of the line before.

        Args:
            frame: of the function.
            is_last: whether nobody will see what runs after the line.
        """
        before = self._running_line(frame)
        if before.number:
            self._after_line(frame, before)
        number = frame.f_lineno
        words = words_at(frame.f_code, number)
        line = _RunningLine(number, words, _frames(frame, number))
        # What lines do that are not seen would be taken for what this one does.
        if is_last:
            line.number = 0
        self._running[_key(frame)] = line
        place = frame.f_code.co_filename, number
        self._lines[place] = line
        variables = variables_of(frame)
        for name in words.read:
            value = variables.get(name, frame.f_globals.get(name))
            line.read += self._reads_of(value)

    def _after_line(self, frame: FrameType, line: _RunningLine) -> None:
        """Records what is new in the variables that a line names."""
        variables = variables_of(frame)
        stored = line.words.stored
        leaves = []
        # A line may change an object, but for a global one, which others share.
        for name in {**stored, **line.words.read}:
            value = variables.get(name)
            if name in stored or not is_leaf(value):
                leaves += named_leaves(value, name)
        self._add_leaves(leaves, line)
        for name in stored:
            value = variables.get(name)
            self._add_objects(value, line.frames)

    def _add_leaves(self, leaves: Iterable[NamedLeaf], line: _RunningLine) -> None:
        """Records the new ones of some leaves as made by a line."""
        new_arrays = []
        for name, leaf in leaves:
            if is_number(leaf):
                self._add_number(name, leaf, line)
            elif self.record_of(leaf) is None:
                new_arrays.append((name, leaf))
        results: list[ValueRecord] = []
        # JAX gives back as many arrays as the function that it called.
        if len(line.results) == len(new_arrays):
            results = line.results
            line.results = []
        for (name, leaf), result in itertools.zip_longest(new_arrays, results):
            record = line.record_of_new(name, leaf)
            # It may give an output in another type, and then has made that itself.
            if result is not None and result.type.dtype == leaf.dtype:
                record = dataclasses.replace(
                    record,
                    sources=[result],
                    is_passed=True,
                )
            self._add(leaf, record)

    # What is known

    def _add(self, value: object, record: ValueRecord | None) -> None:
        """Records how a value came to be, unless that is known."""
        if record is None:
            return
        # The first line that has a value is the one that made it.
        if self.record_of(value) is not None:
            return
        try:
            self._add_weakly(value, record)
        except TypeError:  # a scalar of NumPy, an abstract value, a variable of a jaxpr
            key = id(value)
            self._records[key] = value, record
            self._strong.append(key)
            if len(self._strong) > _MOST_STRONG:
                self._records.pop(self._strong.popleft(), None)

    def _add_weakly(self, value: object, record: ValueRecord) -> None:
        key = id(value)
        reference = weakref.ref(value, lambda _: self._records.pop(key, None))
        self._records[key] = reference, record

    def _add_objects(self, value: Any, frames: Frames) -> None:
        """Records an object, and those in a tuple: the functions of an optimizer."""
        items = islice(items_of(value), _MOST_RETURNED)
        parts = [part for _, part in items]
        for part in (value, *parts):
            if self.record_of(part) is not None:
                continue
            # To ask for a dtype would run a function of the object's.
            object_type = ValueType(type(part), is_weak=False)
            record = ValueRecord(frames, object_type)
            with contextlib.suppress(TypeError):  # a number, or a tree
                self._add_weakly(part, record)

    def _add_number(self, name: str, number: object, line: _RunningLine) -> None:
        """Records a number under the line of a number that is named, else under its own."""
        if not is_number(number):
            return
        text = repr(number)
        record = ValueRecord(line.frames, value_type(number))
        # It may be given on under another name.
        sources = [*line.words.attributes, *line.words.read, name]
        for source in sources:
            key = source, text
            record = self._numbers.get(key, record)
        self._numbers[name, text] = record


def _key(frame: FrameType) -> tuple[int, int]:
    return id(frame), id(frame.f_code)


def _recorded_callers(frame: FrameType) -> Iterator[FrameType]:
    """Yields the callers of a function that are of the user's files, inside out."""
    for caller in callers(frame):
        if is_recorded(caller.f_code.co_filename):
            yield caller


def _users_caller(frame: FrameType) -> FrameType:
    """Returns the innermost caller of the user's files; the function itself without."""
    return next(_recorded_callers(frame), frame)


def _frames(frame: FrameType, line: int) -> Frames:
    """Returns a line of a running function, and the user's lines that led there."""
    outer_frames = map(frame_of, _recorded_callers(frame))
    return [frame_of(frame, line), *outer_frames]
