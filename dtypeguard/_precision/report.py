"""What an audit of precision found, as text and JSON."""

import dataclasses
import json
import math
from collections.abc import Sequence

from .._leaves.public import public
from .._leaves.rows import columns, shown_fields
from .._program.origins import Origin


@public
@dataclasses.dataclass(frozen=True)
class LineLoss:
    """A line of source that loses precision.

    Attributes:
        origin: the line; None for the inputs of the program, which `narrow` rounds. Without
            a file if no line outside JAX leads to it.
        share: its share of the squared error of the outputs: what it adds to the lines
            before it. Shares of one program add up to 1, and may be negative.
        alone: the error of the outputs if only this line rounds.
        left: the share of the squared error that is left if only this line is wide.
        dtypes: the dtypes that it rounds to.
        constant: the number on it that the dtype changes most, "0.999 -> 1"; None if there
            is none.
        remedy: what to write, as a sentence.
    """

    origin: Origin | None
    share: float
    alone: float
    left: float
    dtypes: tuple[str, ...]
    constant: str | None
    remedy: str

    @property
    def place(self) -> str:
        """Where it is."""
        if self.origin is None:
            return "the inputs"
        return self.origin.place if self.origin.file else "inside JAX"


@public
@dataclasses.dataclass(frozen=True)
class PrecisionReport:
    """What `dtypeguard.audit_precision` found; `print` it.

    Attributes:
        error: how far the outputs are from those in wide types, relative to their norms;
            the root mean square over them. Infinity if one is not finite as written.
        outputs: the error of each floating output, by path.
        losses: the lines with a share above 1%, the most important first.
        fix: those of the smallest set of lines that is worth computing wider.
        left: the share of the squared error that is left with these lines wide.
        explained: what the shares of all lines add up to: 1, or 0 without an error. None if
            an output is not finite as written; then `share` compares the squares of the
            errors that lines cause alone.
        lines: how many lines round.
        wide: the wide dtype.
        narrow: the dtype that the whole program was run in; None if as written.
        tolerance: the error that `fix` had to reach; None for a tenth of the squared error.
        not_examined: the primitives that were run as written on both sides.
        not_finite: the line that makes the first value that is not finite as written, and
            leads to such an output; the line to mend may stand before it. None if all
            outputs are finite.
    """

    error: float
    outputs: dict[str, float]
    losses: tuple[LineLoss, ...]
    fix: tuple[LineLoss, ...]
    left: float
    explained: float | None
    lines: int
    wide: str
    narrow: str | None = None
    tolerance: float | None = None
    not_examined: tuple[str, ...] = ()
    not_finite: Origin | None = None

    @property
    def is_spread(self) -> bool:
        """Whether the error is spread over many lines, and none stands out."""
        most = max((loss.share for loss in self.losses), default=0.0)
        return len(self.fix) > 3 and most < 0.5

    @property
    def headline(self) -> str:
        """One sentence that says how it went."""
        if not self.error and self.not_examined:
            return f"the outputs are those of {self.wide}, as far as they were examined."
        if not self.error:
            return f"the outputs are those of {self.wide}."
        if math.isinf(self.error):
            first = self.not_finite
            text = f"the outputs are not finite as written, and are in {self.wide}"
            return (
                f"{text}: {first.place} is the first that is not." if first else f"{text}."
            )
        off = f"the outputs are {_percent(self.error)} off"
        if self.tolerance is not None and not self.fix:
            return f"{off}, within {_percent(self.tolerance)}."
        if self.is_spread:
            dtypes = sorted({d for loss in self.losses for d in loss.dtypes})
            return (
                f"{off}. That is the cost of {' and '.join(dtypes)}: the error is spread "
                f"over {len(self.fix)} lines, and none stands out."
            )
        if len(self.fix) == 1:
            return f"{off}, and one line of {self.lines} causes it."
        return f"{off}, and {len(self.fix)} lines of {self.lines} cause it."

    def rows(self) -> list[str]:
        """The table of losses."""
        if not self.losses:
            return []
        head = ("share", "alone", "left", "line", "rounds to", "")
        rows: list[Sequence[str]] = [head]
        for loss in self.losses:
            code = loss.origin.code if loss.origin else ""
            dtypes = ", ".join(loss.dtypes) + (f"; {loss.constant}" * bool(loss.constant))
            share, alone = f"{100 * loss.share:.0f}%", _percent(loss.alone)
            rows.append((share, alone, f"{loss.left:.2f}", loss.place, dtypes, code))
        return columns(rows)

    def __str__(self) -> str:
        lines = [f"precision: {self.headline}", *(f"  {row}" for row in self.rows())]
        if self.fix and not self.is_spread:
            lines += [loss.remedy for loss in self.fix]
            lines.append(
                f"With {'it' if len(self.fix) == 1 else 'these lines'} in {self.wide}, "
                f"{_percent(self.left)} of the squared error is left."
            )
        lines += self._notes()
        return "\n".join(lines)

    def _notes(self) -> list[str]:
        notes = []
        cancels = [x for x in self.losses if x.alone > 2 * self.error and self.error]
        if cancels:
            notes.append(
                "Some lines cause more error alone than all lines together: their "
                "roundings cancel. A gradient, or several steps, tells more."
            )
        if self.not_examined:
            notes.append(
                f"Run as written, without a look inside: {', '.join(self.not_examined)}."
            )
        return notes

    def to_json(self) -> str:
        """All of it as JSON."""
        return json.dumps(_plain(self), indent=1)


def _plain(value: object) -> object:
    """A value as JSON can hold it, which has no infinity."""
    if dataclasses.is_dataclass(value):
        value = shown_fields(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _percent(value: float) -> str:
    if math.isinf(value):
        return "inf"
    return f"{100 * value:.0f}%" if value >= 0.1 else f"{100 * value:.2g}%"
