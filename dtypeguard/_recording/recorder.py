"""Remembers at which line of the user's each value was made, while a script runs.

`monitored.py` calls it around each of the first executions of a line. Arrays, and the
tracers that stand for them, are known by identity and kept weakly. Nothing here imports
JAX, which a script may choose first.
"""

import contextlib
import itertools
import weakref
from collections import deque
from collections.abc import Sequence
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from .._leaves.types import Leaf, PyTree
from .._source.files import is_recorded
from .._source.inert import items_of, variables_of
from .._source.origin import Frame, callers, frame_of
from .value_record import ValueRecord
from .values import (
    ValueType,
    is_concrete,
    is_number,
    is_tracer,
    leaves_given_to_jax,
    named_leaves,
    value_type,
)
from .words import Words, words_of

_MOST_CALLERS = 12  # of a line
_MOST_RETURNED = 20  # values of a call
_MOST_STRONG = 10_000  # values that have no weak references


class _RunningFunction:
    """A running function of the user's, at a statement."""

    def __init__(self, code: CodeType):
        self.code = code
        self.line = 0  # that runs; 0 where its end will not be seen
        self.statement = range(0)  # its lines
        # What the statement reads: variables, and what its calls return.
        self.read: list[tuple[str, ValueRecord]] = []  # by the names of leaves
        # What a function returned that JAX called there.
        self.results: Sequence[ValueRecord] = ()

    def record_of_new(
        self, name: str, array: Leaf, frames: Sequence[Frame], words: Words
    ) -> ValueRecord:
        """Returns the record of an array that the statement makes."""
        array_type = value_type(array)
        records = [record for read_name, record in self.read if read_name in ("", name)]
        if len(records) == 0:
            records = [record for _, record in self.read]
        sources = [record for record in records if record.may_give(array_type)]
        if words.asks_for(array.dtype):
            sources = []
        strong_types = {record.type for record in records if not record.type.is_weak}
        is_promoted = bool(strong_types - {array_type})
        return ValueRecord(frames, array_type, sources, is_promoted)


class Recorder:
    """Knows the lines that made the values of a script."""

    def __init__(self):
        # Arrays and variables of jaxprs, by identity.
        self._records: dict[int, tuple[Any, ValueRecord]] = {}
        self._strong: deque[int] = deque()  # those that have no weak references
        # Python numbers, by their text and their names.
        self._numbers: dict[str, dict[str, ValueRecord]] = {}
        self._running: dict[int, _RunningFunction] = {}  # by the identity of the frame
        # What each line has read, by the lines that made it.
        self._read_by_line: dict[tuple[str, int], dict[object, ValueRecord]] = {}

    def record_of(self, value: Any) -> ValueRecord | None:
        """Returns how an array or a variable of a jaxpr came to be."""
        referent, record = self._records.get(id(value), (None, None))
        if type(referent) is weakref.ref:
            referent = referent()
        # What is gone may have had the same identity.
        return record if referent is value else None

    def record_of_number(self, name: str, value: object) -> ValueRecord | None:
        """Returns how a number came to be, by its name or if one line alone gave it."""
        if not is_number(value):
            return None
        by_name = self._numbers.get(repr(value), {})
        if name in by_name or type(value) is int:  # an int of few digits is common
            return by_name.get(name)
        records = list(by_name.values())
        lines = {record.line for record in records}
        return records[0] if len(lines) == 1 else None

    def read_by(self, file: str, line: int) -> Sequence[ValueRecord]:
        """Returns the arrays that a line has read, one for each of their makers."""
        return list(self._read_by_line.get((file, line), {}).values())

    def forget_calls(self) -> None:
        """Forgets running functions, whose ends may not be seen, and numbers."""
        self._running.clear()
        self._numbers.clear()

    # Calls of the user's functions

    def on_call(self, frame: FrameType) -> None:
        """Links the numbers and tracers that a function is given to their lines."""
        self._running[id(frame)] = _RunningFunction(frame.f_code)
        # As a function begins, no variables but its arguments have values.
        variables = variables_of(frame)
        names = [name for name in frame.f_code.co_varnames if name in variables]
        caller = frame.f_back
        if caller in _recorded_callers(frame)[:1]:
            frames = _frames(caller, caller.f_lineno)
            words = words_of(caller.f_code).get(caller.f_lineno)
            for name in names:
                self._add_number(name, variables[name], words, frames)
        tracers = []
        for name in names:
            for leaf_name, leaf in named_leaves(variables[name], name):
                if is_tracer(leaf) and self.record_of(leaf) is None:
                    tracers.append((leaf_name, leaf))
        if tracers:
            self._link(tracers, frame)

    def _link(self, tracers: Sequence[tuple[str, Leaf]], frame: FrameType) -> None:
        """Links the tracers of a function, by name, to what they stand for."""
        values = [tracer for _, tracer in tracers]
        leaves = leaves_given_to_jax(frame, values, is_recorded)
        frames = _frames(frame, frame.f_code.co_firstlineno)
        for (name, tracer), leaf in itertools.zip_longest(tracers, leaves):
            source = self.record_of(leaf) or self.record_of_number(name, leaf)
            sources = [source] if source else []
            record = ValueRecord(frames, value_type(tracer), sources, is_passed=True)
            self._add(tracer, record)
            self._add_variable(getattr(tracer, "val", None), record)

    def on_trace_end(self, frame: FrameType) -> None:
        """Links what a traced function closes over, and its results, to their lines."""
        variables = frame.f_locals
        for variable, value in list(variables["self"].constvar_to_val.items()):
            if not is_concrete(value):
                value = getattr(value, "original", None)
            self._add_variable(variable, self.record_of(value))
        for tracer in variables["out_tracers"]:
            self._add_variable(tracer.val, self.record_of(tracer))

    def on_return(self, frame: FrameType, value: PyTree) -> None:
        """Records what a function of the user's returns or yields, and who gets it."""
        self.on_line(frame, frame.f_lineno)
        self.on_result(frame, value)
        del self._running[id(frame)]
        for caller in _recorded_callers(frame)[:1]:
            running = self._running.get(id(caller))
            if running is None:
                return
            if caller is frame.f_back:
                running.read += self._reads_of(value)
            else:  # what JAX calls comes out of it as other values
                running.results = [record for _, record in self._reads_of(value)]

    def on_result(self, frame: FrameType, value: PyTree) -> None:
        """Records what a call on the current line of a user's function returns."""
        running = self._running.get(id(frame))
        if running is None:
            return
        line = frame.f_lineno
        frames = _frames(frame, line)
        for name, leaf in named_leaves(value):
            if type(leaf) is float and name.isidentifier():
                self._add_number(name, leaf, None, frames)
        words = words_of(frame.f_code).get(line, Words(line))
        self._add_arrays(running, frames, list(named_leaves(value)), words)
        running.read += self._reads_of(value)[:_MOST_RETURNED]

    def _reads_of(self, value: PyTree) -> list[tuple[str, ValueRecord]]:
        """Returns the records of the arrays in a value and of the known numbers."""
        records: list[tuple[str, ValueRecord]] = []
        if is_number(value):  # without a name
            return records
        for name, leaf in named_leaves(value):
            record = self.record_of(leaf) or self.record_of_number(name, leaf)
            if record is None and is_concrete(leaf):
                record = ValueRecord((), value_type(leaf))
                # In an object it would be taken for what those that read it add there.
                if leaf is not value:
                    self._add(leaf, record)
            if record is not None:
                records.append((name, record))
        return records

    # Lines

    def on_line(self, frame: FrameType, line: int, is_last: bool = False) -> None:
        """Records the begin of a line, which is the end of the line before.

        Args:
            frame: of the function.
            line: that begins.
            is_last: whether nobody will see what runs after it.
        """
        code = frame.f_code
        running = self._running.get(id(frame))
        # It may have begun before recording, or in place of one whose end was not seen.
        if running is None or running.code is not code:
            running = _RunningFunction(code)
            self._running[id(frame)] = running
        words_by_line = words_of(code)
        if running.line in words_by_line:
            self._after_line(frame, running, words_by_line[running.line])
        # What lines do that are not seen would be taken for what this one does.
        running.line = 0 if is_last else line
        words = words_by_line.get(line, Words(line))
        if line not in running.statement:
            running.statement = range(line, words.end + 1)
            running.read = []
            running.results = ()
        variables = variables_of(frame)
        read_by_line = self._read_by_line.setdefault((code.co_filename, line), {})
        for name in words.read:
            value = variables.get(name, frame.f_globals.get(name))
            reads = self._reads_of(value)
            running.read += reads
            for leaf_name, record in reads:
                # One for each maker: a line in a loop reads many arrays of few lines.
                if leaf_name in ("", *words.attributes):
                    read_by_line[record.line or record.type] = record

    def _after_line(
        self, frame: FrameType, running: _RunningFunction, words: Words
    ) -> None:
        """Records what is new in the variables that a line names."""
        variables = variables_of(frame)
        frames = _frames(frame, running.line)
        leaves = []
        for name in words.stored:
            self._add_objects(variables.get(name), frames)
        # A line may change an object, but for a global one, which others share.
        for name in {**words.stored, **words.read}:
            value = variables.get(name)
            if is_concrete(value) and name not in words.stored:
                continue
            for leaf_name, leaf in named_leaves(value, name):
                if name in words.stored or leaf_name in words.attributes:
                    self._add_number(leaf_name, leaf, words, frames)
            leaves += named_leaves(value)
        self._add_arrays(running, frames, leaves, words)

    def _add_arrays(
        self,
        running: _RunningFunction,
        frames: Sequence[Frame],
        leaves: Sequence[tuple[str, Leaf]],
        words: Words,
    ) -> None:
        """Records the new ones of some arrays as made by a line."""
        new_arrays = []
        for name, leaf in leaves:
            if is_concrete(leaf) and self.record_of(leaf) is None:
                new_arrays.append((name, leaf))
        results: Sequence[ValueRecord] = ()
        # JAX gives back as many arrays as the function that it called.
        if len(running.results) == len(new_arrays):
            results = running.results
            running.results = ()
        for (name, leaf), result in itertools.zip_longest(new_arrays, results):
            record = running.record_of_new(name, leaf, frames, words)
            if result is not None and result.type.dtype == leaf.dtype:
                record = ValueRecord(frames, record.type, [result], is_passed=True)
            self._add(leaf, record)

    # What is known

    def _add(self, value: object, record: ValueRecord) -> None:
        try:
            self._add_weakly(value, record)
        except TypeError:  # a scalar of NumPy, an abstract value, a variable of a jaxpr
            self._records[id(value)] = value, record
            self._strong.append(id(value))
            if len(self._strong) > _MOST_STRONG:
                self._records.pop(self._strong.popleft(), None)

    def _add_weakly(self, value: object, record: ValueRecord) -> None:
        key = id(value)
        records = self._records
        reference = weakref.ref(value, lambda _: records.pop(key, None))
        records[key] = reference, record

    def _add_objects(self, value: Any, frames: Sequence[Frame]) -> None:
        """Records an object, and those in a tuple: the functions of an optimizer."""
        items = [item for _, item in islice(items_of(value), _MOST_RETURNED)]
        for part in (value, *items):
            if is_concrete(part) or self.record_of(part) is not None:
                continue
            # To ask for a dtype would run a function of the object's.
            object_type = ValueType(type(part), is_weak=False)
            with contextlib.suppress(TypeError):  # a number, or a tree
                self._add_weakly(part, ValueRecord(frames, object_type))

    def _add_variable(self, variable: object, record: ValueRecord | None) -> None:
        """Records what a variable of a jaxpr stands for."""
        if record and variable is not None and not is_concrete(variable):
            self._add(variable, record)

    def _add_number(
        self, name: str, number: object, words: Words | None, frames: Sequence[Frame]
    ) -> None:
        """Records a number under the line of a number that is named, else under its own."""
        if not is_number(number):
            return
        by_name = self._numbers.setdefault(repr(number), {})
        names = [name]
        if words is not None:
            names += [*words.read, *words.attributes]
        # It may be given on under another name.
        for source in names:
            if source in by_name:
                by_name[name] = by_name[source]
                return
        by_name[name] = ValueRecord(frames, value_type(number))


def _recorded_callers(frame: FrameType) -> list[FrameType]:
    """Returns the callers of a function that are of the user's files, inside out."""
    return [caller for caller in callers(frame) if is_recorded(caller.f_code.co_filename)]


def _frames(frame: FrameType, line: int) -> list[Frame]:
    """Returns a line of a running function, and the user's lines that led there."""
    outer_frames = map(frame_of, _recorded_callers(frame)[:_MOST_CALLERS])
    return [frame_of(frame, line), *outer_frames]
