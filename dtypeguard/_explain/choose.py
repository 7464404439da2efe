"""Third stage: chooses among the remedies by trying them; one that fails is not said."""

from collections.abc import Sequence
from typing import NamedTuple

from .._leaves.types import DType
from .finding import Finding, RefusedLeaf
from .remedies import Remedy, remedies

_WAYS = 2  # of mending a leaf that are said


class Choice(NamedTuple):
    """What a note says.

    Attributes:
        headline: what is wrong.
        leaves: all that JAX refuses.
        remedies: what to write, a sentence each.
        is_checked: whether something was tried with success.
        to: the dtypes to which what is wider is cast.
        before: what was before the error, a sentence each.
    """

    headline: str
    leaves: Sequence[RefusedLeaf]
    remedies: Sequence[str] = ()
    is_checked: bool = False
    to: Sequence[DType] = ()
    before: Sequence[str] = ()


def choose(finding: Finding) -> Choice:
    """What is found, and what to write: of each leaf what was tried with success first."""
    sentences: list[str] = []
    is_checked, to, leaves = False, dict[DType, None](), [*finding.leaves]
    for ways in remedies(finding):
        unlike = {way.text: way for way in reversed(ways)}
        outcomes = [(way, way.trial()) for way in ways if unlike[way.text] is way]
        kept = [pair for pair in outcomes if pair[1] is not False]
        kept.sort(key=lambda pair: pair[1] is None)
        is_checked |= any(outcome for _, outcome in kept)
        mended: set[int] = set()
        for way, _ in _first(kept):
            numbers = {leaf.number for leaf in way.leaves}
            text = f"or {way.text}" if mended & numbers else way.text
            mended |= numbers
            sentences += [f"{x[0].upper()}{x[1:].rstrip('.')}." for x in text.splitlines()]
            to |= dict.fromkeys(way.to)
        for way, _ in kept[:1]:
            leaves.sort(key=lambda leaf: leaf.number not in way.changes)
    remedy = [*dict.fromkeys(sentences)]
    return Choice(finding.headline, leaves, remedy, is_checked and bool(remedy), [*to])


def _first(kept: Sequence[tuple[Remedy, object]]) -> Sequence[tuple[Remedy, object]]:
    """The first ways of several; none that is not known to do beside one that is."""
    return [pair for pair in kept[:_WAYS] if pair[1] or not kept[0][1]]
