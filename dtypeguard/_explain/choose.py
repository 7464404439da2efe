"""Third stage: chooses what to write, for each line that is to blame.

What loses nothing comes first. Each way of writing it is tried; one that does not mend the
error is not said.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .._source.origin import Origin
from .branches import branch_remedies
from .calls import call_remedies
from .finding import Finding, RefusedCall, RefusedLeaf
from .loops import loop_remedies
from .remedies import Remedy
from .trials import Trials


class Cause(NamedTuple):
    """A line that gave leaves a type that JAX refuses, or forced that.

    Attributes:
        line: None for leaves of which no line is known.
        leaves: those that got their types there.
        types: the dtypes to which the remedy may cast.
        remedy: what to write, a sentence a line.
    """

    line: Origin | None
    leaves: Sequence[RefusedLeaf]
    types: Sequence[str]
    remedy: Sequence[str]


class Choice(NamedTuple):
    """What a note says: the causes, those that are to be mended first before others."""

    headline: str
    causes: Sequence[Cause]
    is_tried: bool = False


def choose(finding: Finding) -> Choice:
    """The lines to blame, and what to write for each."""
    remedies = _tried(_remedies(finding, Trials()))
    order = [text for text, _, _ in remedies]
    causes: dict[Origin | None, list[RefusedLeaf]] = {}
    for leaf in finding.leaves:
        causes.setdefault(leaf.to_blame, []).append(leaf)
    chosen = []
    for line, of_line in causes.items():
        numbers = {leaf.number for leaf in of_line}
        remedy = [text for text, mended, _ in remedies if mended & numbers]
        dtypes = [x.dtypes[0] for x in of_line if len({*x.dtypes}) == len(x.dtypes)]
        types = list(dict.fromkeys(map(str, dtypes)))
        chosen.append(Cause(line, of_line, types, remedy))
    chosen.sort(key=lambda cause: min(map(order.index, cause.remedy), default=len(order)))
    return Choice(finding.headline, chosen, any(is_tried for *_, is_tried in remedies))


def _remedies(finding: Finding, trials: Trials) -> Iterable[Remedy]:
    if isinstance(finding.of, RefusedCall):
        return call_remedies(finding.of, finding, trials)
    of = loop_remedies if finding.of.is_loop else branch_remedies
    return of(finding.of, finding, trials)


def _tried(remedies: Iterable[Remedy]) -> list[tuple[str, set[int], bool]]:
    """Sentences, the numbers of the leaves that they mend, and whether they were tried."""
    found: list[tuple[str, set[int], bool]] = []
    for remedy in remedies:
        text, is_tried = remedy.tried()
        mended = {leaf.number for leaf in remedy.leaves}
        is_other = any(mended & before for _, before, _ in found)
        if any(text and said.lower() == f"{text}.".lower() for said, *_ in found):
            continue
        text = f"or {text}" if text and is_other else text
        for line in text.splitlines():
            found.append(
                (f"{line[0].upper()}{line[1:].removesuffix('.')}.", mended, is_tried)
            )
    return found
