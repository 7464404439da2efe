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
    most, alike = _worst(differences)
    begin = f"differs by {percent(most.error)} in {most.name}"
    count, explains = len(differences), f"rounding explains {percent(most.rounding)}"
    if most.verdict == "differs":
        others = f", and in {len(alike) - 1} more" if len(alike) > 1 else ""
        return (
            f"the reference is another computation in {len(alike)} of {count} outputs: it "
            f"{begin}, of which {explains}{others}."
        )
    if most.verdict == "undecidable":
        return (
            f"in {len(alike)} of {count} outputs rounding hides whether the reference is "
            f"another computation: it {begin}, and {explains}."
        )
    if not most.error:
        return f"the reference has the same numbers in all {count} outputs."
    return (
        f"the reference {begin}, and by less elsewhere; rounding explains it in all "
        f"{count} outputs."
    )


def _worst(differences: Sequence[Difference]) -> tuple[Difference, list[Difference]]:
    """The output that differs most of those with the worst verdict, and all of these."""
    order = ("rounding", "undecidable", "differs")
    verdict = max((each.verdict for each in differences), key=order.index)
    alike = [each for each in differences if each.verdict == verdict]
    return max(alike, key=lambda each: each.error), alike


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


def details_of(
    differences: Sequence[Difference], divergence: Divergence | None = None
) -> list[str]:
    """What tells where rounding does not explain all, and what it may hide."""
    if not differences:
        return []
    worst, _ = _worst(differences)
    last = [str(divergence)] if divergence else [_NEXT] * (worst.verdict == "differs")
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
    is_told = worst.verdict != "rounding" and worst.at is not None
    return [*[_place(worst, len(differences) > 1)] * is_told, *lines, *last]


_NEXT = (
    "To find where, return activations as well and give those of the reference too; or give "
    "the reference as a function, and the report names the first lines that differ."
)


def _place(each: Difference, is_one_of_many: bool) -> str:
    """The element that differs most, with both numbers."""
    element = f"element [{', '.join(map(str, each.at))}]" if each.at else "it"
    where = f"{each.name}, " if is_one_of_many else ""
    off = abs(each.program - each.reference)
    line = f"{element} is off by {off:.2g}: the program has {each.program:.8g}, the "
    line = f"{where}{line}reference {each.reference:.8g}."
    return line if where else line[:1].upper() + line[1:]
