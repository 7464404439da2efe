"""What an audit of precision says of a reference, by output."""

import dataclasses
import math
from collections.abc import Sequence

from .._leaves.public import public
from .._leaves.rows import percent
from .._source.origin import Origin

# Of reasons in a report.
_MOST_LINES = 5


@public
@dataclasses.dataclass(frozen=True)
class Difference:
    """How an output of a program differs from that of a reference, and why.

    Attributes:
        output: its path; empty if it is the only one.
        error: the distance of the output as written to the reference, relative to the norm
            of the reference. Of integers and bools, the share of elements that differ.
            Infinity where only one of the two is finite.
        rounding: the greatest such distance that rounding explains: that of the program,
            and of the reference where it is of a low precision.
        verdict: "rounding" if rounding explains it; "differs" if the reference is another
            computation; "undecidable" if rounding in this precision would hide whether it
            is.
        reason: what tells, where `error` and `rounding` alone do not; else empty.
        shows_in: the dtype in which the program would tell, if this is undecidable or seen
            only there; None if it is not.
        hidden: a relative difference that rounding may hide, where nothing wider tells.
        at: the place of the element that differs most; of complex numbers, with 0 or 1 more
            for the real or the imaginary part. None if none differs.
        program: what the program has there, as written.
        reference: what the reference has there.
    """

    output: str
    error: float
    rounding: float
    verdict: str
    reason: str = ""
    shows_in: str | None = None
    hidden: float = 0.0
    at: tuple[int, ...] | None = None
    program: float = math.nan
    reference: float = math.nan

    @property
    def name(self) -> str:
        """The output in a sentence."""
        return self.output or "the output"


@public
@dataclasses.dataclass(frozen=True)
class Divergence:
    """Where two programs begin to differ by more than rounding.

    Attributes:
        program: the first line of the program whose results the reference has not; if no
            line of the reference corresponds, the last whose results it has. None if no
            line outside JAX leads to it.
        reference: the line of the reference that takes the same values instead; None if
            none is known to correspond.
        apart: how far their results are from each other, relative to the program's, in
            wide types; estimated from sketches of both. Not a number without a line.
    """

    program: Origin | None = None
    reference: Origin | None = None
    apart: float = math.nan

    def __str__(self) -> str:
        begin = "The two are equal but for rounding up to"
        if math.isnan(self.apart):
            last = "their inputs" if self.program is None else _line(self.program)
            return f"{begin} the results of {last}; what follows does not correspond."
        return (
            f"{begin} {_line(self.program)}; there the reference has "
            f"{_line(self.reference)}, {percent(self.apart)} apart."
        )


def _line(origin: Origin | None) -> str:
    if origin is None:
        return "a line inside JAX"
    code = origin.users.code
    return f"{origin.place} (`{code}`)" if code else origin.place


def headline_of(differences: Sequence[Difference]) -> str:
    """One sentence that says whether rounding explains the differences."""
    if len(differences) == 1:
        return _alone(differences[0])
    count = len(differences)
    wrong = [each for each in differences if each.verdict == "differs"]
    unknown = [each for each in differences if each.verdict == "undecidable"]
    most = max(wrong or unknown or differences, key=lambda each: each.error)
    if wrong:
        others = f", and in {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return (
            f"the reference is another computation in {len(wrong)} of {count} outputs: it "
            f"differs by {percent(most.error)} in {most.name}, of which rounding "
            f"explains {percent(most.rounding)}{others}."
        )
    if unknown:
        return (
            f"in {len(unknown)} of {count} outputs rounding hides whether the reference is "
            f"another computation: it differs by {percent(most.error)} in {most.name}, "
            f"and rounding explains {percent(most.rounding)}."
        )
    if not most.error:
        return f"the reference has the same numbers in all {count} outputs."
    return (
        f"the reference differs by {percent(most.error)} in {most.name}, and by less "
        f"elsewhere; rounding explains it in all {count} outputs."
    )


def _alone(each: Difference) -> str:
    where = f" in {each.output}" if each.output else ""
    begin = f"the reference differs by {percent(each.error)}{where}"
    if each.verdict == "rounding":
        return (
            f"{begin}; rounding explains it."
            if each.error
            else f"the reference has the same numbers{where}."
        )
    explains = f"{begin}; rounding explains {percent(each.rounding)}"
    if each.verdict == "differs":
        return f"{explains}: another computation."
    return f"{explains}, which hides whether it is another computation."


def details_of(differences: Sequence[Difference]) -> list[str]:
    """What tells for each output that rounding does not explain, and what it may hide."""
    told = [each for each in differences if each.verdict != "rounding" and each.reason]
    lines = []
    for each in sorted(told, key=lambda each: (each.verdict, -each.error)):
        where = f"in {each.output}, " if len(differences) > 1 else ""
        shows = "" if each.verdict == "differs" else f"; in {each.shows_in} it would show"
        line = f"{where}{each.reason}{shows}."
        lines.append(line[:1].upper() + line[1:])
    if len(lines) > _MOST_LINES:
        more = len(lines) - _MOST_LINES
        lines[_MOST_LINES:] = [f"{more} more are in `differences`."]
    # A float32 program is seldom run in float64 to know.
    is_hiding = lambda each: each.verdict == "rounding" and each.shows_in == "float32"
    hiding = [each for each in differences if is_hiding(each) and each.hidden]
    if hiding:
        most = max(hiding, key=lambda each: each.hidden)
        where = f" of {most.output}" if len(differences) > 1 else ""
        lines.append(
            f"Rounding would hide a difference{where} of up to {percent(most.hidden)}; in "
            f"{most.shows_in} it would show."
        )
    return lines
