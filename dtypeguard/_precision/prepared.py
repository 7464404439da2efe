"""A program that is measured: traced, checked, and run as written and in wide types."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.arguments import shown
from .._leaves.compat import set_x64
from .._leaves.dtypes import is_wide
from .._leaves.types import Function
from .._lines.equations import Written
from .._numbers.finite import Birth, not_finite
from .._numbers.formats import Formats
from .._numbers.measure import Measures
from .._numbers.program import NumericProgram
from .._numbers.subject import Subject, Traced
from .._program.graph import Graph
from .._source.origin import Origin
from .products import ProductRuns
from .runs import Runs


class Prepared(NamedTuple):
    """A program that is measured.

    Attributes:
        subject: the function with its arguments.
        traced: the program.
        graph: of it.
        measures: of it.
        runs: of it.
        vanishing: the outputs that rounding alone decides, with their errors.
        left_out: those of them that do not count: none, if there are no others.
        not_finite: the line that makes the first value that is not finite as written.
    """

    subject: Subject
    traced: Traced
    graph: Graph
    measures: Measures
    runs: Runs
    vanishing: dict[int, float]
    left_out: list[int]
    not_finite: Origin | None

    @property
    def formats(self) -> Formats:
        """Its dtypes."""
        return self.measures.program.formats


@contextlib.contextmanager
def running(traced: Traced, formats: Formats) -> Iterator[None]:
    """The flags under which a program runs."""
    needs_x64 = formats.wide == np.float64 or any(map(is_wide, traced.avals))
    on = set_x64(True) if needs_x64 else contextlib.nullcontext()
    with on, jax.disable_jit(False):
        yield


def prepare(
    subject: Subject,
    traced: Traced,
    graph: Graph,
    formats: Formats,
    show_status: Callable[[str], None],
) -> Prepared:
    """Runs a program as written and in wide types."""
    program, paths = traced.program, traced.paths
    show_status("compiling")
    given = zip(subject.given.arrays, program.in_avals)
    arrays = [jnp.asarray(x, v.dtype) for x, v in given]
    measures = Measures(NumericProgram(program, formats, traced.numbers), arrays)
    first_bad = _checked(subject.f, measures, subject.given.paths, paths)
    show_status("running it plainly")
    runs = (Runs if formats.products is None else ProductRuns)(measures)
    vanishing = {n: runs.by_output[n] for n in runs.vanishing()}
    left_out = [*vanishing] if len(vanishing) < len(paths) else []
    if left_out:
        measures.leave_out(left_out)
        runs.leave_out(left_out)
    return Prepared(subject, traced, graph, measures, runs, vanishing, left_out, first_bad)


def _checked(
    f: Function, measures: Measures, given: Sequence[str], outputs: Sequence[str]
) -> Origin | None:
    """The line that makes the first value that is not finite as written, if any."""
    unknown = measures.program.unknown
    if unknown and not measures.is_repeatable():
        raise ValueError(
            f"audit_precision: {shown(f)} returns other numbers each time it runs on "
            f"the same arguments, and {', '.join(sorted(unknown))} runs as written. Draw "
            "random numbers with jax.random and a key, and let a callback return the same "
            "for the same arguments."
        )
    wrong = [p for p, x in zip(outputs, measures.exact) if not jnp.isfinite(x).all()]
    if measures.raises or (math.isfinite(measures.total) and not wrong):
        return None
    written, in_wide = not_finite(measures)
    if in_wide:
        raise ValueError(
            f"audit_precision: {', '.join(filter(None, wrong)) or 'the output'} of "
            f"{shown(f)} is not finite in {measures.program.formats.wide} either. First "
            f"{_cause(in_wide[0], given)} is not. Give it arguments for which all are "
            "finite."
        )
    return Written(written[0].stack).origin if written else None


def _cause(birth: Birth, paths: Sequence[str]) -> str:
    """The input or the line of source whose value is not finite."""
    if birth.number is not None:
        path = paths[birth.number]
        return f"the input {path.replace('[0]', 'args', 1).replace('[1]', 'kwargs', 1)}"
    made = birth.stack[0].primitive.name
    origin = Written(birth.stack).origin
    if origin is None:
        return f"what {made} makes, inside JAX,"
    return f"what {origin.place} makes ({made}), `{origin.users.code}`,"
