"""What an audit of precision says of a reference, by output."""

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from .._leaves.table import percent
from .._source.origin import Origin


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
        element = "it"
        if self.at:
            element = f"element {list(self.at)}"
        distance = abs(self.program - self.reference)
        return (
            f"{element} is off by {distance:.2g}: the program has {self.program:.8g}, "
            f"the reference {self.reference:.8g}"
        )


class Divergence(NamedTuple):
    """Where two programs begin to differ by more than rounding.

    Attributes:
        program: the first line of the program, on the way to the first output that differs,
            whose results the reference has not. None if no line outside JAX leads there.
        reference: the first line of the reference whose results the program has not.
        apart: how far these outputs are from each other in float64, relative to the
            program's.
    """

    program: Origin | None
    reference: Origin | None
    apart: float

    def __str__(self) -> str:
        return (
            f"The two are equal but for rounding up to {_line(self.program)}; there the "
            f"reference has {_line(self.reference)}."
        )


def _line(origin: Origin | None) -> str:
    if origin is None:
        return "an input or a line inside JAX"
    code = origin.users.code
    if code:
        return f"{origin.place} (`{code}`)"
    return origin.place


# What rounding does to a difference, by the verdict; the more serious, the later.
_SAYS = {
    "rounding": "rounding explains it",
    "undecidable": "rounding explains {}, and hides whether it is another computation",
    "differs": "rounding explains {}: another computation",
}


def headline_of(differences: Sequence[Difference]) -> str:
    """Returns one sentence that says whether rounding explains the differences.

    Args:
        differences: in the order of the program.
    """
    worst = max(differences, key=_weight)
    if not worst.error:
        return "the reference has the same numbers."
    explained = percent(worst.rounding)
    says = _SAYS[worst.verdict].format(explained)
    error = percent(worst.error)
    head = f"the reference differs by {error}"
    total = len(differences)
    if total == 1:
        return f"{head}; {says}."
    verdicts = [difference.verdict for difference in differences]
    count = verdicts.count(worst.verdict)
    outputs = f"{count} of {total} outputs"
    return f"{head} in {worst.name}; {says} in {outputs}."


def _weight(difference: Difference) -> tuple[int, float]:
    """Returns what orders outputs by how much they tell."""
    verdicts = list(_SAYS)
    weight = verdicts.index(difference.verdict)
    # Where another computation begins, later outputs differ as well: the first one tells.
    if difference.verdict == "differs":
        return weight, 0.0
    return weight, difference.error


def details_of(
    differences: Sequence[Difference], divergence: Divergence | None = None
) -> list[str]:
    """Returns sentences that tell where rounding does not explain all, and may hide more.

    Args:
        differences: in the order of the program.
        divergence: where two functions part.
    """
    if not differences:
        return []
    worst = max(differences, key=_weight)
    lines = []
    if worst.verdict != "rounding" and worst.at is not None:
        sentence = _sentence(worst, worst.place)
        lines.append(sentence)
    if worst.reason:
        sentence = _sentence(worst, worst.reason)
        lines.append(sentence)
    hiding = []
    for difference in differences:
        # A float32 program is seldom run in float64 to know.
        if difference.verdict == "rounding" and difference.shows_in == "float32":
            hiding.append(difference)
    if hiding:
        most = max(hiding, key=attrgetter("rounding"))
        hidden = percent(most.rounding)
        text = (
            f"rounding would hide a difference of up to {hidden}; in float32 it would show"
        )
        sentence = _sentence(most, text)
        lines.append(sentence)
    if divergence is not None:
        lines.append(str(divergence))
    elif worst.verdict == "differs":
        where = (
            f"In the order of the program, {worst.name} is the first output that differs. "
            "To find the line,"
        )
        if len(differences) == 1:
            where = (
                "To find where, return activations as well and give those of the "
                "reference, or"
            )
        sentence = (
            f"{where} give it as a function: then the report names the first lines that "
            "differ."
        )
        lines.append(sentence)
    return lines


def _sentence(difference: Difference, text: str) -> str:
    output = difference.output
    if output:
        text = f"in {output}, {text}"
    first = text[0].upper()
    rest = text[1:]
    return f"{first}{rest}."
