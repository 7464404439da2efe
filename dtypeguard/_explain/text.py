"""Fourth stage: writes a note: four lines of facts a cause, then what to write."""

import sys
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from .._leaves.dtypes import is_python_number
from .._leaves.leaf_type import type_text
from .._leaves.table import CAUSES, FEW, and_more, columns, grouped
from .._leaves.types import Leaf
from .._lines.path_text import of_holders
from .._source.origin import Origin
from .finding import Finding, RefusedLeaf

# A leaf; where branches return it in different types, what each of them returns.
_Unit = Sequence[RefusedLeaf]
_Fact = tuple[str, str, str]  # what it is, the line, its text


class NotedLeaf(NamedTuple):
    """A leaf that JAX refuses, as `error.dtypeguard_rows` has it.

    Attributes:
        path: of the leaf.
        branch: that returns it, or empty.
        types: a carry's before and after, another leaf's own.
        origin: the line that gave it the type.
        cause: the line that forced that.
        begun: the line that gave the first value of a carry its type.
    """

    path: str
    branch: str
    types: tuple[str, ...]
    origin: Origin | None
    cause: Origin | None
    begun: Origin | None


def noted(finding: Finding) -> tuple[NotedLeaf, ...]:
    """All leaves, in their order."""
    return tuple(
        NotedLeaf(x.path, x.branch, (*map(_type, x.values),), *x.why[:3])
        for x in finding.leaves
    )


def text_of(finding: Finding, is_whole: bool = False, advice: str = "") -> str:
    """The note.

    Args:
        finding: what it says.
        is_whole: whether to list every leaf. Otherwise the note fits on a screen.
        advice: a sentence that says how to have missing lines recorded.
    """
    key = lambda leaf: leaf.path if leaf.branch else leaf.number
    groups = grouped(grouped(finding.leaves, key), _key)
    most = len(groups) if is_whole else CAUSES
    lines = []
    for group in groups[:most]:
        lines += _names(group, is_whole)
        lines += [f"  {line}" for line in columns([*_facts(group[0], len(group) > 1)])]
    is_cut = len(groups) > most or any(len(group) > FEW for group in groups)
    hint = "Every leaf: dtypeguard.explain(all=True), or dtypeguard run --all."
    lines += and_more(max(len(groups) - most, 0))
    if sys.version_info < (3, 12):
        lines.append("(Python 3.12 and later record lines, and name more of them.)")
    elif advice and any(leaf.lacks_line for leaf in finding.leaves):
        lines.append(advice)
    note = [
        f"dtypeguard: {finding.headline}",
        *(f"  {x}" for x in lines),
        *finding.remedies,
    ]
    return "\n".join(note + [hint] * (is_cut and not is_whole))


def _key(unit: _Unit) -> Hashable:
    """What leaves of one cause have in common: all that is said of them."""
    types = tuple((x.branch, x.is_reshaped, *map(str, x.dtypes)) for x in unit)
    return types, *_facts(unit, is_one_of_many=True)


def _names(group: Sequence[_Unit], is_whole: bool) -> Iterator[str]:
    """The leaves of one cause with their types."""
    leaves = [unit[0] for unit in group]
    types = lambda leaf: "" if leaf.branch else " -> ".join(map(_type, leaf.values))
    rows = [(leaf.path, types(leaf)) for leaf in leaves]
    if not is_whole and len(rows) > 1:
        paths, of_leaves = zip(*rows)
        name = ", ".join(paths) if len(paths) <= FEW else of_holders(paths)
        is_one = len({*of_leaves}) == 1
        dtypes = " -> ".join(map(str, leaves[0].dtypes)) * (not leaves[0].branch)
        rows = [(name, of_leaves[0] if is_one else dtypes)]
    yield from columns(rows)


def _facts(unit: _Unit, is_one_of_many: bool = False) -> Iterator[_Fact]:
    """The lines behind the type of a leaf, the one that is to be changed first."""
    for leaf in unit:
        why, old, new = leaf.why, leaf.dtypes[0], leaf.dtypes[-1]
        if is_python_number(leaf.values[-1]):
            new = type(leaf.values[-1]).__name__
        elif leaf.is_reshaped:
            old, new = (type_text(value) for value in leaf.values)
        word = "becomes" if why.is_promoted or why.cause or len(leaf.values) > 1 else "is"
        gives = f"{word} {new}"
        if leaf.branch:
            type_ = str(old) if is_one_of_many else _type(next(iter(leaf.values)))
            gives = f"{leaf.branch} gives {type_}{f' ({leaf.kept})' * bool(leaf.kept)}"
        begins = [_fact(f"begins as {old}", why.begun)]
        becomes = (
            _fact(gives, why.origin)
            or (gives, _EARLIER * why.is_earlier, "") * bool(leaf.branch or why.is_earlier),
            _fact(f"{'  ' * bool(leaf.branch)}because of {new}", why.cause),
        )
        begins = [*(becomes[1:] if leaf.argument else begins)]
        facts = [*begins, *becomes] if leaf.is_of_first else [*becomes, *begins]
        yield from filter(None, dict.fromkeys(facts))


_EARLIER = "made before lines were recorded"


def _fact(text: str, line: Origin | None) -> _Fact | None:
    return (text, line.place, line.users.code) if line else None


def _type(value: Leaf) -> str:
    return type(value).__name__ if is_python_number(value) else type_text(value)
