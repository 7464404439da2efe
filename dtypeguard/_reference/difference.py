"""What an audit of precision says of a reference, by output."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from .._leaves.rows import percent
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


def headline_of(differences: Sequence[Difference]) -> str:
    """One sentence that says whether rounding explains the differences."""
    most, alike = _worst(differences)
    count, where = len(differences), f" in {most.output}" if most.output else ""
    differs, explains = f"differs by {percent(most.error)}{where}", percent(most.rounding)
    others = f", and in {len(alike) - 1} more" if len(alike) > 1 else ""
    texts = _OF_ONE if count == 1 else _OF_MANY
    text = texts[most.verdict if most.error else "same"]
    return text.format(
        where=where,
        differs=differs,
        explains=f"rounding explains {explains}",
        number=f"{len(alike)} of {count} outputs",
        others=others,
        count=count,
    )


_OF_ONE = {
    "same": "the reference has the same numbers{where}.",
    "rounding": "the reference {differs}; rounding explains it.",
    "undecidable": "the reference {differs}; {explains}, which hides whether it is another "
    "computation.",
    "differs": "the reference {differs}; {explains}: another computation.",
}
_OF_MANY = {
    "same": "the reference has the same numbers in all {count} outputs.",
    "rounding": "the reference {differs}, and by less elsewhere; rounding explains it in "
    "all {count} outputs.",
    "undecidable": "in {number} rounding hides whether the reference is another "
    "computation: it {differs}, and {explains}.",
    "differs": "the reference is another computation in {number}: it {differs}, of which "
    "{explains}{others}.",
}
_ORDER = ("rounding", "undecidable", "differs")


def _worst(differences: Sequence[Difference]) -> tuple[Difference, list[Difference]]:
    """The output that differs most of those with the worst verdict, and all of these."""
    verdict = max((each.verdict for each in differences), key=_ORDER.index)
    alike = [each for each in differences if each.verdict == verdict]
    return max(alike, key=lambda each: each.error), alike


def details_of(
    differences: Sequence[Difference], divergence: Divergence | None = None
) -> list[str]:
    """What tells where rounding does not explain all, and what it may hide."""
    if not differences:
        return []
    is_one, (worst, _) = len(differences) == 1, _worst(differences)
    said = lambda each, text: f"{'' if is_one else f'in {each.output}, '}{text}."
    told = [each for each in differences if each.verdict != "rounding"]
    lines = [said(worst, _place(worst))] * (worst in told and worst.at is not None)
    for each in sorted(told, key=lambda each: (each.verdict, -each.error)):
        shows = "" if each.verdict == "differs" else f"; in {each.shows_in} it would show"
        lines += [said(each, f"{each.reason}{shows}")] * bool(each.reason)
    if len(lines) > _MOST_LINES:
        more = len(lines) - _MOST_LINES
        lines[_MOST_LINES:] = [f"{more} more are in `differences`."]
    # A float32 program is seldom run in float64 to know.
    hiding = [x for x in differences if x.hidden and x.shows_in == "float32"]
    if hiding:
        most = max(hiding, key=lambda each: each.hidden)
        hides = f"rounding would hide a difference of up to {percent(most.hidden)}"
        lines.append(said(most, f"{hides}; in {most.shows_in} it would show"))
    lines = [line[:1].upper() + line[1:] for line in lines]
    if divergence is not None:
        return [*lines, str(divergence)]
    return [*lines, _NEXT] if worst.verdict == "differs" else lines


_NEXT = (
    "To find where, return activations as well and give those of the reference, or give it "
    "as a function: then the report names the first lines that differ."
)


def _place(each: Difference) -> str:
    """The element that differs most, with both numbers."""
    element = f"element [{', '.join(map(str, each.at))}]" if each.at else "it"
    off = f"{abs(each.program - each.reference):.2g}"
    return (
        f"{element} is off by {off}: the program has {each.program:.8g}, the reference "
        f"{each.reference:.8g}"
    )
