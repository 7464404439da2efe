"""Last stage: writes a note, a few lines of facts for each cause, then what to write."""

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jax.dtypes import float0

from .._leaves.cast_text import rounding_sentence
from .._leaves.dtypes import is_python_number
from .._leaves.key_path import joined
from .._leaves.leaf_type import type_text
from .._leaves.table import CAUSES, FEW, and_more, columns, grouped
from .._leaves.types import DType, Leaf
from .._source.origin import Origin
from .._tracebacks.path_text import of_holders
from .choose import Advice
from .finding import Finding, RefusedLeaf
from .remedies import NAMES, Remedy

# A leaf; where branches return it in different types, what each of them returns.
_Unit = Sequence[RefusedLeaf]
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
    """Returns all leaves, in their order."""
    rows = []
    for leaf in finding.leaves:
        types = tuple(map(_type_of, leaf.values))
        why = leaf.why
        row = NotedLeaf(leaf.path, leaf.branch, types, why.origin, why.cause, why.begun)
        rows.append(row)
    return tuple(rows)


def text_of(
    finding: Finding, advice: Advice, is_whole: bool = False, hint: str = ""
) -> str:
    """Returns the note.

    Args:
        finding: what it says.
        advice: what to write.
        is_whole: whether to list every leaf. Otherwise the note fits on a screen.
        hint: a sentence that says how to have lines recorded.
    """
    groups = _groups(finding.leaves, advice)
    listed = groups[:CAUSES]
    if is_whole:
        listed = groups
    facts: list[str] = []
    for group in listed:
        facts += _names(group, is_whole)
        rows = _rows(group[0], has_shapes=len(group) == 1)
        facts += [f"  {line}" for line in columns(rows)]
    facts += and_more(len(groups) - len(listed))
    if sys.version_info < (3, 12):
        hint = _NO_RECORD
    facts += hint.splitlines()
    lines = [f"dtypeguard: {finding.headline}"]
    lines += [f"  {line}" for line in facts]
    lines += _advice_lines(advice)
    longest = max(map(len, groups))
    is_too_long = longest > FEW or len(groups) > CAUSES
    if is_too_long and not is_whole:
        lines.append(_HINT)
    return "\n".join(lines)


# Leaves and their lines


def _groups(leaves: Sequence[RefusedLeaf], advice: Advice) -> list[list[_Unit]]:
    """Returns the leaves of one cause together, the ones to change first."""
    to_change: list[RefusedLeaf] = []
    for remedy in itertools.chain(*advice.candidates[:1]):
        to_change += remedy.leaves
    ordered = sorted(leaves, key=lambda leaf: leaf not in to_change)
    # What the branches return for one result is told together.
    units = grouped(ordered, lambda leaf: leaf.path if leaf.branch else leaf)
    # Where many share a line their shapes may differ.
    return grouped(units, lambda unit: (str(unit[0].dtypes), *_rows(unit)))


def _names(group: Sequence[_Unit], is_whole: bool) -> list[str]:
    """Returns the leaves of one cause with their types, as lines."""
    leaves = [unit[0] for unit in group]
    paths = [leaf.path for leaf in leaves]
    changes = [_change(leaf) for leaf in leaves]
    if not is_whole:
        if len(set(changes)) > 1:  # their shapes differ, their dtypes do not
            changes = [" -> ".join(map(str, leaves[0].dtypes))]
        paths = [_name_of_leaves(paths)]
    return columns(list(zip(paths, changes)))


def _change(leaf: RefusedLeaf) -> str:
    """Returns the types of a leaf; each branch has a line of its own for them."""
    if leaf.branch:
        return ""
    return " -> ".join(map(_type_of, leaf.values))


def _name_of_leaves(paths: Sequence[str]) -> str:
    if len(paths) <= FEW:
        return joined(paths)
    return of_holders(paths)


def _rows(unit: _Unit, has_shapes: bool = False) -> list[tuple[str, str, str]]:
    """Returns what lines of source do, with their places and their code."""
    rows = []
    for leaf in unit:
        for fact, line in _facts(leaf, has_shapes):
            if line is not None:
                rows.append((fact, line.place, line.users.code))
            elif leaf.branch:
                rows.append((fact, "", ""))
    return rows


def _facts(leaf: RefusedLeaf, has_shapes: bool) -> list[tuple[str, Origin | None]]:
    """Returns what each line behind the type of a leaf did, the one to change first."""
    why = leaf.why
    # A line that did both stands once.
    cause = why.cause
    if cause == why.origin:
        cause = None
    if leaf.branch:
        result = f"{leaf.branch} gives {_type_of(leaf.value, has_shapes)}"
        if leaf.passed_on:
            result += f" ({leaf.passed_on})"
        facts = [(result, why.origin)]
        if cause:
            facts.append((f"  because of {leaf.dtype}", cause))
        return facts
    before = _type_of(leaf.values[0], leaf.is_reshaped)
    after = _type_of(leaf.value, leaf.is_reshaped)
    forced = (f"because of {after}", cause)
    begins = (f"begins as {before}", why.begun)
    forced_first = (f"because of {before}", leaf.begun_for)
    becomes = (f"becomes {after}", why.origin)
    if leaf.begins_as_rarer:
        return [begins, forced_first, forced, becomes]
    if leaf.is_of_optimizer:  # a guard around it changes no line of the user's
        return [becomes, forced, begins, forced_first]
    return [forced, becomes, begins, forced_first]


def _type_of(value: Leaf, has_shape: bool = True) -> str:
    if is_python_number(value):
        return type(value).__name__
    if getattr(value, "dtype", None) == float0:  # NumPy prints it as a list of fields
        return "float0"
    if has_shape:
        return type_text(value)
    return type_text(value).partition("[")[0]


# What to write


def _advice_lines(advice: Advice) -> list[str]:
    lines: list[str] = []
    casts: set[DType] = set()
    for word, remedies in zip(("", "or "), advice.candidates):
        lines += _sentences(word, remedies)
        for remedy in remedies:
            casts |= remedy.casts_to
    if advice.is_checked:
        lines.append(_CHECKED)
    return [*lines, *rounding_sentence(casts).splitlines()]


def _sentences(word: str, remedies: Sequence[Remedy]) -> Iterator[str]:
    """Yields a sentence for all remedies of one line that say the same."""
    for group in grouped(remedies, lambda remedy: (remedy.line, remedy.sentence)):
        names = []
        for remedy in group:
            names += [leaf.written for leaf in remedy.leaves]
        first = group[0]
        write = first.sentence.replace(NAMES, _name_of_leaves(names))
        place = ""
        if first.line:
            place = f"at {first.line} "
        sentence = f"{word}{place}{write}."
        yield sentence[0].upper() + sentence[1:]
        word = "and "  # whatever comes next is to be written as well
