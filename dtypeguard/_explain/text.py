"""Last stage: writes a note, a few lines of facts for each cause, then what to write."""

import sys
from collections.abc import Hashable, Iterator, Sequence
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
_NoteLine = tuple[str, str, str]  # what a line of source does, its place, its code
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
    """Returns the note.

    Args:
        finding: what it says.
        advice: what to write.
        is_whole: whether to list every leaf. Otherwise the note fits on a screen.
        hint: a sentence that says how to have lines recorded.
    """
    lines = [f"dtypeguard: {finding.headline}"]
    groups = _groups(finding.leaves, advice)
    listed = groups if is_whole else groups[:CAUSES]
    below: list[str] = []
    for group in listed:
        below += _names(group, is_whole)
        for line in columns(_lines_of_unit(group[0], is_one_of_many=len(group) > 1)):
            below.append(f"  {line}")
    below += and_more(len(groups) - len(listed), "cause")
    if sys.version_info < (3, 12):
        below.append(_NO_RECORD)
    elif hint:
        below.append(hint)
    lines += [f"  {line}" for line in below]
    lines += _advice_lines(advice)
    is_shortened = any(len(group) > FEW for group in groups)
    if not is_whole and (is_shortened or len(groups) > len(listed)):
        lines.append(_HINT)
    return "\n".join(lines)


# Leaves and their lines


def _groups(leaves: Sequence[RefusedLeaf], advice: Advice) -> list[list[_Unit]]:
    """Returns the leaves of one cause together, the ones to change first."""
    to_change: list[RefusedLeaf] = []
    for remedy in advice.first:
        to_change += remedy.leaves
    ordered = sorted(leaves, key=lambda leaf: leaf not in to_change)

    def place_in_note(leaf: RefusedLeaf) -> Hashable:
        # What the branches return for one result is told together.
        return leaf.path if leaf.branch else leaf

    def text_without_names(unit: _Unit) -> Hashable:
        types = []
        for leaf in unit:
            types.append((leaf.branch, leaf.is_reshaped, *map(str, leaf.dtypes)))
        return tuple(types), tuple(_lines_of_unit(unit, is_one_of_many=True))

    return grouped(grouped(ordered, place_in_note), text_without_names)


def _names(group: Sequence[_Unit], is_whole: bool) -> list[str]:
    """Returns the leaves of one cause with their types, as lines."""
    leaves = [unit[0] for unit in group]
    changes = [_change_text(leaf) for leaf in leaves]
    paths = [leaf.path for leaf in leaves]
    if is_whole:
        return columns(list(zip(paths, changes)))
    change = changes[0]
    if len(set(changes)) > 1:  # their shapes differ, their dtypes do not
        change = " -> ".join(map(str, leaves[0].dtypes))
    return columns([(_name_of_leaves(paths), change)])


def _name_of_leaves(paths: Sequence[str]) -> str:
    return joined(paths) if len(paths) <= FEW else of_holders(paths)


def _change_text(leaf: RefusedLeaf) -> str:
    if leaf.branch:
        return ""  # each branch has a line of its own
    return " -> ".join(_type_of_value(value) for value in leaf.values)


def _lines_of_unit(unit: _Unit, is_one_of_many: bool) -> list[_NoteLine]:
    """Returns the lines behind the type of a leaf, the one to change first."""
    lines: list[_NoteLine] = []
    for leaf in unit:
        for line in _lines_of_leaf(leaf, is_one_of_many):
            if line not in lines:  # two branches may have a cause in common
                lines.append(line)
    return lines


def _lines_of_leaf(leaf: RefusedLeaf, is_one_of_many: bool) -> list[_NoteLine]:
    why = leaf.why
    before, after = _named_types(leaf)
    if leaf.branch:
        forced = _note_line(f"  because of {after}", why.cause)
        return [_line_of_branch(leaf, is_one_of_many), *forced]
    # A line that did both stands once.
    cause = None if why.cause == why.origin else why.cause
    forced = _note_line(f"because of {after}", cause)
    begins = _note_line(f"begins as {before}", why.begun)
    is_change = why.is_promoted or why.cause or len(leaf.values) > 1
    becomes = _note_line(f"becomes {after}" if is_change else f"is {after}", why.origin)
    if leaf.begins_as_rarer:
        return begins + forced + becomes
    if leaf.is_of_optimizer:  # a guard around it changes no line of the user's
        return becomes + forced + begins
    return forced + becomes + begins


def _line_of_branch(leaf: RefusedLeaf, is_one_of_many: bool) -> _NoteLine:
    """Returns the result of a branch, also where its line is not known."""
    # Where many share a line their shapes may differ.
    type_ = str(leaf.dtype) if is_one_of_many else _type_of_value(leaf.values[-1])
    text = f"{leaf.branch} gives {type_}"
    if leaf.passed_on:
        text += f" ({leaf.passed_on})"
    lines = _note_line(text, leaf.why.origin)
    if lines:
        return lines[0]
    return text, "", ""


def _note_line(text: str, origin: Origin | None) -> list[_NoteLine]:
    """Returns a line of source in a list; an empty list if it is not known."""
    return [] if origin is None else [(text, origin.place, origin.users.code)]


def _named_types(leaf: RefusedLeaf) -> tuple[str, str]:
    """Returns the dtypes of a leaf before and after, with the shapes where these differ."""
    last = leaf.values[-1]
    if leaf.is_reshaped:
        return type_text(leaf.values[0]), type_text(last)
    if is_python_number(last) or leaf.dtype == float0:
        return str(leaf.dtypes[0]), _type_of_value(last).partition("[")[0]
    return str(leaf.dtypes[0]), str(leaf.dtype)


def _type_of_value(value: Leaf) -> str:
    if is_python_number(value):
        return type(value).__name__
    # NumPy prints it as a list of fields.
    return "float0" if getattr(value, "dtype", None) == float0 else type_text(value)


# What to write


def _advice_lines(advice: Advice) -> list[str]:
    lines = list(_sentences("", advice.first))
    lines += _sentences("or ", advice.second)
    if advice.is_checked:
        lines.append(_CHECKED)
    casts: set[DType] = set()
    for remedy in advice.first + advice.second:
        casts |= remedy.casts_to
    rounding = rounding_sentence(sorted(casts, key=str))
    if rounding:
        lines.append(rounding)
    return lines


def _sentences(word: str, remedies: Sequence[Remedy]) -> Iterator[str]:
    """Yields a sentence for all remedies of one line that say the same."""
    for group in grouped(remedies, lambda remedy: (remedy.line, remedy.sentence)):
        paths = [leaf.written for remedy in group for leaf in remedy.leaves]
        write = group[0].sentence.replace(NAMES, _name_of_leaves(paths))
        place = f"at {group[0].line} " if group[0].line else ""
        sentence = f"{word}{place}{write}."
        yield sentence[0].upper() + sentence[1:]
        word = "and "  # whatever comes next is to be written as well
