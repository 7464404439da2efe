"""A program that is measured: checked, and run as written and in wide types.

What long work is at is shown on a terminal, in a line that is gone when it is done.
"""

import contextlib
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TextIO, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.arguments import shown
from .._leaves.compat import set_x64
from .._leaves.dtypes import has_64_bits
from .._numbers.finite import Birth, not_finite
from .._numbers.formats import Formats
from .._numbers.measure import Measures
from .._numbers.program import NumericProgram
from .._numbers.subject import Subject, Traced
from .._program.graph import Graph
from .._source.origin import Origin
from .._tracebacks.written import Written
from .integers import misfits
from .rounded import argument_path, rounded_arguments
from .rows import KEEP_WIDE, RoundedArgument, place_or_inside_jax, told_of_argument
from .runs import Runs

_T = TypeVar("_T")
_CLEAR = "\r\033[K"


class Show:
    """Shows on standard error what is being done.

    On a terminal that is one line, below the headline once that is known. Else each text is
    a line of its own.

    Args:
        stream: where to; None for nowhere.
        is_terminal: whether the line is written again and again.
    """

    def __init__(self, stream: TextIO | None = None, is_terminal: bool = False):
        self._stream = stream
        self._is_terminal = is_terminal
        self._clear = _CLEAR

    def __call__(self, text: str) -> None:
        """Shows what is being done."""
        if self._is_terminal:
            text = _CLEAR + text
        self._print(text, end="" if self._is_terminal else "\n")

    def headline(self, text: str) -> None:
        """Shows what is known already, above what is being done."""
        # A line that a terminal breaks would not be gone when it is cleared.
        width = shutil.get_terminal_size().columns - 1
        self(text[:width])
        if self._is_terminal:
            # On a row of its own, which the next status does not write over.
            self._print("")
            self._clear = f"{_CLEAR}\033[A{_CLEAR}"

    def clear(self) -> None:
        """Leaves nothing on a terminal: the report has it all."""
        if self._is_terminal:
            self._print(self._clear, end="")

    def _print(self, text: str, end: str = "\n") -> None:
        if self._stream is not None:
            print(text, end=end, file=self._stream, flush=True)


NO_STATUS = Show()


class Prepared(NamedTuple):
    """A program that is measured.

    Attributes:
        subject: the function with its arguments.
        traced: the program.
        measures: of it.
        runs: of it.
        rounded: the arguments that were rounded to 0 or 1, by which it divides.
    """

    subject: Subject
    traced: Traced
    measures: Measures
    runs: Runs
    rounded: tuple[RoundedArgument, ...]

    @property
    def formats(self) -> Formats:
        """Its dtypes."""
        return self.measures.program.formats


@contextlib.contextmanager
def running(traced: Traced, formats: Formats) -> Iterator[None]:
    """The flags under which a program runs."""
    is_wide = formats.wide == np.float64
    for aval in traced.avals:
        is_wide = is_wide or has_64_bits(aval)
    on = set_x64(True) if is_wide else contextlib.nullcontext()
    # Under a user's `jax_disable_jit`, compiled runs would be runs one by one.
    with on, jax.disable_jit(False):
        yield


def prepare(
    subject: Subject,
    traced: Traced,
    graph: Graph,
    formats: Formats,
    show_status: Show,
) -> Prepared:
    """Runs a program as written and in wide types."""
    show_status("running it as written")
    arrays = []
    for array, aval in zip(subject.given.arrays, traced.program.in_avals):
        # Python numbers among the arguments have the dtype that the trace gave them.
        arrays.append(jnp.asarray(array, aval.dtype))
    program = NumericProgram(traced.program, formats, traced.traces)
    measures = Measures(program, arrays)
    rounded = rounded_arguments(measures, subject.given.paths)
    show_status("running it in wide types")
    runs = Runs(measures, graph)
    return Prepared(subject, traced, measures, runs, rounded)


def first_bad_line(prepared: Prepared) -> Origin | None:
    """Returns the line that makes the first value that is not finite as written, if any.

    Raises:
        ValueError: if wide types make one as well.
    """
    measures = prepared.measures
    runs = prepared.runs
    if all(np.isfinite(array).all() for array in (*runs.written, *runs.own.exact)):
        return None
    # Decisions as written may make finite what is not with others.
    wrong = []
    for path, array in zip(prepared.traced.paths, measures.own.exact):
        if not jnp.isfinite(array).all():
            wrong.append(path or "the output")
    if measures.raises or (math.isfinite(measures.total) and not wrong):
        return None
    # Looked for only now: to note where values stop being finite takes more runs.
    written, in_wide = not_finite(measures)
    if in_wide is None:
        return Written(written.stack).origin if written else None
    f = shown(prepared.subject.f)
    wide = measures.program.formats.wide
    paths = ", ".join(wrong)
    outputs = f"{paths} of {f}"
    lost = f"{outputs} is not finite in {wide} either"
    if prepared.rounded:
        cause = told_of_argument(prepared.rounded[0])
        raise ValueError(f"audit_precision: {cause} So {lost}. {KEEP_WIDE}")
    cause = _cause_of_non_finite(in_wide, prepared.subject.given.paths)
    overflow = ""
    for row in misfits(measures)[:1]:
        place = place_or_inside_jax(row.origin)
        overflow = f": those of {place} do not fit {row.dtype}"
    raise ValueError(
        f"audit_precision: {lost}. First {cause} is not. Give it arguments for which all "
        f"are finite, and floats in place of ints that overflow{overflow}."
    )


def _cause_of_non_finite(birth: Birth, paths: Sequence[str]) -> str:
    """Returns the input or the line of source whose value is not finite."""
    if not birth.stack:
        return f"the input {argument_path(paths[birth.number])}"
    primitive = birth.stack[0].primitive.name
    origin = Written(birth.stack).origin
    if origin is None:
        return f"what {primitive} makes, inside JAX,"
    place = f"what {origin.place} makes ({primitive})"
    return f"{place}, `{origin.users.code}`,"


@contextlib.contextmanager
def status(progress: bool | None = None) -> Iterator[Show]:
    """A function that shows on standard error what is being done.

    A pipe gets it with `progress=True` alone.
    """
    is_terminal = progress is not False and sys.stderr.isatty()
    stream = sys.stderr if is_terminal or progress else None
    show = Show(stream, is_terminal)
    try:
        yield show
    finally:
        show.clear()


def counted(items: Sequence[_T], show: Show, what: str) -> Iterator[_T]:
    """Yields items, and shows how many of them are done."""
    count = len(items)
    for number, item in enumerate(items, start=1):
        done = f"{number:,}/{count:,}"
        show(f"{what} {done}")
        yield item


def check_progress(owner: str, progress: object) -> None:
    """Checks that it is a bool or None."""
    if not isinstance(progress, (bool, type(None))):
        raise TypeError(
            f"{owner} got progress={progress!r}. Write True, False, or None for where "
            "somebody looks: on a terminal."
        )
