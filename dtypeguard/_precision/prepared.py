"""A program that is measured: checked, and run as written and in wide types.

What long work is at is shown on a terminal, in a line that is gone when it is done.
"""

import contextlib
import dataclasses
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TextIO, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .._costs.costs import input_names
from .._leaves.arguments import shown
from .._leaves.compat import add_x64
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
from .rounded import rounded_arguments
from .rows import RoundedArgument
from .runs import Runs

_T = TypeVar("_T")
_CLEAR = "\r\033[K"


@dataclasses.dataclass
class Show:
    """Shows on standard error what is being done.

    On a terminal that is one line, below the headline once that is known. Else each text is
    a line of its own.

    Attributes:
        stream: where to; None for nowhere.
        begin: what is written before each text: on a terminal, it clears the line.
        end: what is written after each text.
        to_clear: what leaves nothing on a terminal: the report has it all.
    """

    stream: TextIO | None = None
    begin: str = ""
    end: str = "\n"
    to_clear: str = ""

    def __call__(self, text: str) -> None:
        """Shows what is being done."""
        self.write(f"{self.begin}{text}{self.end}")

    def headline(self, text: str) -> None:
        """Shows what is known already, above what is being done."""
        # A line that a terminal breaks would not be gone when it is cleared.
        width = shutil.get_terminal_size().columns - 1
        # On a row of its own, which the next status does not write over.
        self.write(f"{self.begin}{text[:width]}\n")
        if self.begin:
            self.to_clear = f"{_CLEAR}\033[A{_CLEAR}"

    def write(self, text: str) -> None:
        """Writes a text as it is."""
        if self.stream is not None:
            print(text, end="", file=self.stream, flush=True)


class Prepared(NamedTuple):
    """A program that is measured.

    Attributes:
        subject: the function with its arguments.
        traced: the program.
        measures: of it.
        runs: of it.
        rounded: the arguments that were rounded to 0 or 1, by which it divides.
        show: shows what is being done.
    """

    subject: Subject
    traced: Traced
    measures: Measures
    runs: Runs
    rounded: tuple[RoundedArgument, ...]
    show: Show

    @property
    def formats(self) -> Formats:
        """Its dtypes."""
        return self.measures.program.formats


@contextlib.contextmanager
def prepared_program(
    subject: Subject, traced: Traced, graph: Graph, formats: Formats, show: Show
) -> Iterator[Prepared]:
    """Runs a program as written and in wide types; more runs are made within."""
    is_wide = formats.wide == np.float64 or any(map(has_64_bits, traced.avals))
    # Under a user's `jax_disable_jit`, compiled runs would be runs one by one.
    with add_x64(is_wide), jax.disable_jit(False):
        show("running it as written")
        arrays = [
            # Python numbers among the arguments have the dtype that the trace gave them.
            jnp.asarray(array, aval.dtype)
            for array, aval in zip(subject.given.arrays, traced.program.in_avals)
        ]
        measures = Measures(NumericProgram(traced.program, formats, traced.traces), arrays)
        show("running it in wide types")
        runs = Runs(measures, graph)
        names = input_names(subject.call, subject.given.key_paths)
        rounded = tuple(rounded_arguments(measures, names))
        yield Prepared(subject, traced, measures, runs, rounded, show)


def first_bad_line(prepared: Prepared) -> Origin | None:
    """Returns the line that makes the first value that is not finite as written, if any.

    Raises:
        ValueError: if wide types make one as well.
    """
    measures = prepared.measures
    if all(
        np.isfinite(array).all()
        for array in (*prepared.runs.written, *prepared.runs.own.exact)
    ):
        return None
    # Decisions as written may make finite what is not with others.
    wrong = [
        path or "the output"
        for path, array in zip(prepared.traced.paths, measures.own.exact)
        if not np.isfinite(array).all()
    ]
    if measures.raises or (math.isfinite(measures.total) and not wrong):
        return None
    # Looked for only now: to note where values stop being finite takes more runs.
    written, in_wide = not_finite(measures)
    if in_wide is None:
        return Written(written.stack).origin if written else None
    lost = (
        f"{', '.join(wrong)} of {shown(prepared.subject.f)} is not finite "
        f"in {prepared.formats.wide} either"
    )
    if prepared.rounded:
        raise ValueError(f"audit_precision: {prepared.rounded[0]} Otherwise {lost}.")
    cause = _cause_of_non_finite(in_wide, prepared.subject)
    sentences = [
        f"audit_precision: {lost}. First {cause} is not. Give it arguments for which all "
        "are finite, and floats in place of ints that overflow.",
        *map(str, misfits(measures)[:1]),
    ]
    raise ValueError(" ".join(sentences))


def _cause_of_non_finite(birth: Birth, subject: Subject) -> str:
    """Returns the input or the line of source whose value is not finite."""
    if not birth.stack:
        names = input_names(subject.call, subject.given.key_paths)
        return f"the input {names[birth.number]}"
    primitive = birth.stack[0].primitive.name
    origin = Written(birth.stack).origin
    if origin is None:
        return f"what {primitive} makes, inside JAX,"
    return f"what {origin.place} makes ({primitive}), `{origin.users.code}`,"


@contextlib.contextmanager
def status(progress: bool | None = None) -> Iterator[Show]:
    """A function that shows on standard error what is being done.

    A pipe gets it with `progress=True` alone.
    """
    show = Show()
    if progress is not False and sys.stderr.isatty():
        show = Show(sys.stderr, begin=_CLEAR, end="", to_clear=_CLEAR)
    elif progress:
        show = Show(sys.stderr)
    try:
        yield show
    finally:
        show.write(show.to_clear)


def counted(items: Sequence[_T], show: Show, what: str) -> Iterator[_T]:
    """Yields items, and shows how many of them are done."""
    for number, item in enumerate(items, start=1):
        show(f"{what} {number:,}/{len(items):,}")
        yield item


def check_progress(owner: str, progress: object) -> None:
    """Checks that it is a bool or None."""
    if not isinstance(progress, (bool, type(None))):
        raise TypeError(
            f"{owner} got progress={progress!r}. Write True, False, or None for where "
            "somebody looks: on a terminal."
        )
