"""What an audit of precision found: its figures and its rows, as text and JSON."""

import dataclasses
import json
from typing import Any

from .._leaves.types import public
from .figures import Figures
from .rows import plain
from .text import headline_text, report_lines


@public
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class PrecisionReport(Figures):
    """What `dtypeguard.audit_precision` found; `print` it.

    Attributes:
        error: how far the outputs of a plain run as written are from those of one in wide
            types, relative to the norms of these; the root mean square over them. Each run
            makes its own decisions, and each equation rounds, as where they run one by one.
            Infinity if an output is not finite as written; not a number if nothing was run.
            Of a program without a floating output, the share of the elements that differ.
        outputs: that of each output, by path, and what rounding does to its update.
        losses: the lines with a share above 1%, the most important first. If an output is
            not finite, `share` compares the squares of the errors that lines cause alone.
        fixed: what computing the lines of `fix` wider does.
        decisions: what is decided otherwise in wide types, and what of the error that is.
        not_finite: the line that makes the first value that is not finite as written, and
            leads to such an output; the line to fix may stand before it. None if all
            outputs are finite.
        scaling: what scaling the loss does, if the range of a dtype is too small for a
            backward pass, and it helps.
        work: what the program computes, by dtype, and what makes it compute wider than it
            is expected to.
        differences: from the reference, an entry for each output that it has.
        divergence: where a reference that is a function begins to differ; None if rounding
            explains all, or there is no such function.
        search: with `narrow` and `tolerance`, how the plan was found; `print` it.
        rounded: the arguments that were rounded to 0 or 1, by which the program divides.
        unknown: the constants that may have been rounded before the program was traced.
        is_traced_wide: whether the function traces with float32 arguments, which tells
            constants as they were meant.
        integers: the lines whose integers do not fit their dtypes, in order.
        narrowed: the lines that narrow floats on the way to bits, a key or an integer.
        unexamined: what was run as written on both sides, by line.
        run: the dtypes and the tolerance of all this, and the error as compiled.
        unreached: what was not measured in `seconds`; None if all was.
    """

    @property
    def headline(self) -> str:
        """What is off, in a few sentences; first what makes all else beside the point."""
        return headline_text(self)

    def __str__(self) -> str:
        return "\n".join(report_lines(self))

    def __eq__(self, other: object) -> bool:
        """Whether all fields are the same; what is not a number is equal to itself."""
        if not isinstance(other, PrecisionReport):
            return NotImplemented
        return repr(vars(self)) == repr(vars(other))

    def to_json(self) -> str:
        """All of it as JSON."""
        return json.dumps(plain(self), indent=1)

    def __repr__(self) -> str:
        return f"<PrecisionReport: {self.headline}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))
