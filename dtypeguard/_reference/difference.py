"""What an audit of precision says of a reference, by output."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from .._leaves.table import percent
from .._source.origin import Origin

# Of reasons in a report.
_MOST_LINES = 5


class Difference(NamedTuple):
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
            only there, or rounding may hide as much; None if it is not.
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
    at: tuple[int, ...] | None = None
    program: float = math.nan
    reference: float = math.nan

    @property
    def name(self) -> str:
        """The output in a sentence."""
        return self.output or "the output"

    @property
    def place(self) -> str:
        """The element that differs most, with both numbers."""
        element = f"element [{', '.join(map(str, self.at))}]" if self.at else "it"
        return (
            f"{element} is off by {abs(self.program - self.reference):.2g}: the program "
            f"has {self.program:.8g}, the reference {self.reference:.8g}"
        )


class Divergence(NamedTuple):
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


_SAYS = {
    "rounding": "rounding explains it",
    "undecidable": "rounding explains {most}, and hides whether it is another computation",
    "differs": "rounding explains {most}: another computation",
}
_NEXT = (
    "To find where, return activations as well and give those of the reference, or give it "
    "as a function: then the report names the first lines that differ."
)


def headline_of(differences: Sequence[Difference]) -> str:
    """One sentence that says whether rounding explains the differences."""
    worst, alike = _worst(differences)
    if not worst.error:
        return "the reference has the same numbers."
    several = len(differences) > 1
    where = f" in {worst.name}" * several
    of = f" in {alike} of {len(differences)} outputs" * several
    says = _SAYS[worst.verdict].format(most=percent(worst.rounding))
    return f"the reference differs by {percent(worst.error)}{where}; {says}{of}."


def _worst(differences: Sequence[Difference]) -> tuple[Difference, int]:
    """The output that differs most of those with the worst verdict, and their number."""
    verdict = max((each.verdict for each in differences), key=[*_SAYS].index)
    alike = [each for each in differences if each.verdict == verdict]
    return max(alike, key=lambda each: each.error), len(alike)


def details_of(
    differences: Sequence[Difference], divergence: Divergence | None = None
) -> list[str]:
    """What tells where rounding does not explain all, and what it may hide."""
    if not differences:
        return []
    worst, _ = _worst(differences)
    said = [(worst, worst.place)] * (worst.verdict != "rounding" and worst.at is not None)
    for each in sorted(differences, key=lambda each: (each.verdict, -each.error)):
        shows = f"; in {each.shows_in} it would show" * (each.verdict != "differs")
        said += [(each, f"{each.reason}{shows}")] * bool(each.reason)
    # What a report of a low precision does not see. A float32 program is seldom run in
    # float64 to know.
    hiding = [x for x in differences if x.verdict == "rounding" and x.shows_in == "float32"]
    if hiding:
        most = max(hiding, key=lambda each: each.rounding)
        up_to = percent(most.rounding)
        hides = (
            f"rounding would hide a difference of up to {up_to}; in float32 it would show"
        )
        said = [*said[: _MOST_LINES - 1], (most, hides)]
    begin = lambda each: f"in {each.output}, " if len(differences) > 1 else ""
    lines = [f"{begin(each)}{text}." for each, text in said[:_MOST_LINES]]
    lines = [line[:1].upper() + line[1:] for line in lines]
    if divergence is not None:
        return [*lines, str(divergence)]
    return [*lines, _NEXT] if worst.verdict == "differs" else lines
