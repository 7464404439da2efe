"""Last stage: writes a note, a few lines of facts for each cause, then what to write."""

import sys
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from jax.dtypes import float0

from .._leaves.cast_text import rounding_sentence
from .._leaves.dtypes import is_python_number
from .._leaves.leaf_type import type_text
from .._leaves.table import CAUSES, FEW, and_more, columns, grouped
from .._leaves.types import Leaf
from .._source.origin import Origin
from .._tracebacks.path_text import of_holders
from .choose import Advice
from .finding import Finding, RefusedLeaf
from .remedies import Remedy

# A leaf; where branches return it in different types, what each of them returns.
_Unit = Sequence[RefusedLeaf]
_Fact = tuple[str, str, str]  # what it is, the line, its text
_CHECKED = "Checked: with this change the types agree."
_HINT = "Every leaf: dtypeguard.explain(all=True), or dtypeguard run --all."
_NO_RECORD = "(Python 3.12 and later record lines, and name more of them.)"


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
        NotedLeaf(
            path=leaf.path,
            branch=leaf.branch,
            types=tuple(_type_of_value(value) for value in leaf.values),
            origin=leaf.why.origin,
            cause=leaf.why.cause,
            begun=leaf.why.begun,
        )
        for leaf in finding.leaves
    )


def text_of(
    finding: Finding, advice: Advice, is_whole: bool = False, hint: str = ""
) -> str:
    """The note.

    Args:
        finding: what it says.
        advice: what to write.
        is_whole: whether to list every leaf. Otherwise the note fits on a screen.
        hint: a sentence that says how to have missing lines recorded.
    """
    lines = [f"dtypeguard: {finding.headline}"]
    groups = _groups(finding.leaves, advice)
    listed = groups if is_whole else groups[:CAUSES]
    for group in listed:
        facts = [f"  {line}" for line in columns(_facts(group[0], len(group) > 1))]
        lines += [f"  {line}" for line in _names(group, is_whole) + facts]
    lines += [f"  {line}" for line in and_more(len(groups) - len(listed), "cause")]
    if sys.version_info < (3, 12):
        lines.append(f"  {_NO_RECORD}")
    elif hint and any(leaf.lacks_line for leaf in finding.leaves):
        lines.append(f"  {hint}")
    lines += _advice_lines(advice)
    is_cut = len(groups) > len(listed) or any(len(group) > FEW for group in groups)
    if is_cut and not is_whole:
        lines.append(_HINT)
    return "\n".join(lines)


# Leaves and their lines


def _groups(leaves: Sequence[RefusedLeaf], advice: Advice) -> list[list[_Unit]]:
    """The leaves of one cause together; those that are to be changed stand first."""
    changed = {leaf.number for remedy in advice.first for leaf in remedy.leaves}
    ordered = sorted(leaves, key=lambda leaf: leaf.number not in changed)

    def unit(leaf: RefusedLeaf) -> Hashable:
        return leaf.path if leaf.branch else leaf.number

    def all_that_is_said(unit: _Unit) -> Hashable:
        types = tuple((x.branch, x.is_reshaped, *map(str, x.dtypes)) for x in unit)
        return types, tuple(_facts(unit, is_one_of_many=True))

    return grouped(grouped(ordered, unit), all_that_is_said)


def _names(group: Sequence[_Unit], is_whole: bool) -> list[str]:
    """The leaves of one cause with their types."""
    leaves = [unit[0] for unit in group]
    if is_whole or len(leaves) == 1:
        return columns([(leaf.path, _change_text(leaf)) for leaf in leaves])
    paths = [leaf.path for leaf in leaves]
    name = ", ".join(paths) if len(paths) <= FEW else of_holders(paths)
    changes = {_change_text(leaf) for leaf in leaves}
    if len(changes) == 1:
        return columns([(name, changes.pop())])
    # Their shapes differ, their dtypes do not.
    return columns([(name, " -> ".join(map(str, leaves[0].dtypes)))])


def _change_text(leaf: RefusedLeaf) -> str:
    if leaf.branch:
        return ""  # each branch has a line of its own
    return " -> ".join(_type_of_value(value) for value in leaf.values)


def _facts(unit: _Unit, is_one_of_many: bool = False) -> list[_Fact]:
    """The lines behind the type of a leaf, the one that is to be changed first."""
    facts: list[_Fact] = []
    for leaf in unit:
        for fact in _facts_of_leaf(leaf, is_one_of_many):
            if fact not in facts:
                facts.append(fact)
    return facts


def _facts_of_leaf(leaf: RefusedLeaf, is_one_of_many: bool) -> list[_Fact]:
    why = leaf.why
    before, after = _named_types(leaf)
    if leaf.branch:
        forced = _fact(f"  because of {after}", why.cause)
        return [_of_branch(leaf, is_one_of_many), *forced]
    forced = _fact(f"because of {after}", why.cause)
    is_change = why.is_promoted or why.cause or len(leaf.values) > 1
    becomes = _fact(f"becomes {after}" if is_change else f"is {after}", why.origin)
    if why.is_earlier and not becomes:
        becomes = [(f"is {after}", _EARLIER, "")]
    begins = _fact(f"begins as {before}", why.begun)
    if leaf.begins_as_rarer:
        return begins + forced + becomes
    if leaf.is_of_optimizer:  # which is to be guarded: no line of the user's is wrong
        return becomes + forced + begins
    return forced + becomes + begins


def _of_branch(leaf: RefusedLeaf, is_one_of_many: bool) -> _Fact:
    """What a branch returns, also where its line is not known."""
    type_ = str(leaf.dtype) if is_one_of_many else _type_of_value(leaf.values[-1])
    text = f"{leaf.branch} gives {type_}"
    if leaf.passed_on:
        text += f" ({leaf.passed_on})"
    lines = _fact(text, leaf.why.origin)
    return lines[0] if lines else (text, _EARLIER if leaf.why.is_earlier else "", "")


_EARLIER = "made before lines were recorded"


def _fact(text: str, line: Origin | None) -> list[_Fact]:
    return [(text, line.place, line.users.code)] if line else []


def _named_types(leaf: RefusedLeaf) -> tuple[str, str]:
    """What a leaf was and is, as far as it matters: its dtypes, or its shapes as well."""
    first, last = leaf.values[0], leaf.values[-1]
    if is_python_number(last):
        return str(leaf.dtypes[0]), type(last).__name__
    if leaf.dtype == float0:
        return "float0", "float0"
    if leaf.is_reshaped:
        return type_text(first), type_text(last)
    return str(leaf.dtypes[0]), str(leaf.dtype)


def _type_of_value(value: Leaf) -> str:
    if is_python_number(value):
        return type(value).__name__
    # NumPy prints it as a list of fields.
    return "float0" if getattr(value, "dtype", None) == float0 else type_text(value)


# What to write


def _advice_lines(advice: Advice) -> list[str]:
    lines = [*_sentences("", advice.first), *_sentences("or ", advice.second)]
    if advice.is_checked:
        lines.append(_CHECKED)
    remedies = advice.first + advice.second
    casts = {dtype for remedy in remedies for dtype in remedy.casts_to}
    rounds = rounding_sentence(sorted(casts, key=str))
    return [*lines, rounds] if rounds else lines


def _sentences(word: str, remedies: Sequence[Remedy]) -> Iterator[str]:
    """A sentence for all remedies that say the same of leaves at one line."""
    for group in grouped(remedies, lambda remedy: (remedy.line, remedy.sentence(""))):
        paths = [leaf.path for remedy in group for leaf in remedy.leaves]
        name = " and ".join(paths) if len(paths) <= FEW else of_holders(paths)
        line = f"at {group[0].line} " if group[0].line else ""
        sentence = f"{word}{line}{group[0].sentence(name)}."
        yield sentence[0].upper() + sentence[1:]
        word = "and "
