"""Fourth stage: writes a note, with a row for each cause, and what to write."""

import re
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .._leaves.dtypes import is_python_number
from .._leaves.groups import (
    CAUSES,
    FEW,
    Cells,
    examples,
    grouped,
    of_holders,
    rows_of_causes,
)
from .._leaves.rows import columns, rounding, type_text
from .._leaves.types import Leaf
from .._source.origin import Origin
from .choose import Choice
from .finding import RefusedLeaf

# The lines of a note on one cause, and on several.
_ONE, _SEVERAL = 12, 24

# A leaf; where branches return it in different types, what each of them returns.
_Unit = Sequence[RefusedLeaf]


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


class _Shape(NamedTuple):
    """How much of a note is written.

    Attributes:
        listed: how many leaves of a cause have a row each; more than that share one.
        has_examples: whether some of them are named.
        code: the lines of source: "all", those of the "causes", or "none".
    """

    listed: float
    has_examples: bool
    code: str


_WHOLE = _Shape(float("inf"), False, "all")
# From the fullest note to the shortest.
_SHAPES = (
    _Shape(FEW, True, "all"),
    _Shape(FEW, True, "causes"),
    _Shape(1, True, "causes"),
    _Shape(1, False, "causes"),
    _Shape(1, False, "none"),
)


def render(choice: Choice, is_whole: bool = False) -> str:
    """The note.

    Args:
        choice: what it says.
        is_whole: whether to list every leaf. Otherwise the note fits on a screen.
    """
    leaves = [leaf for cause in choice.causes for leaf in cause.leaves]
    leaves.sort(key=lambda leaf: leaf.number)
    units = grouped(leaves, lambda leaf: leaf.path if leaf.branch else leaf.number)
    units.sort(key=lambda unit: not _is_said(unit, choice))
    groups = grouped(units, _key)
    if is_whole:
        return "\n".join(_lines(choice, groups, len(groups), _WHOLE))
    most = _ONE if len(groups) == 1 else _SEVERAL
    notes = (_lines(choice, groups, CAUSES, shape) for shape in _SHAPES)
    note = next((lines for lines in notes if len(lines) <= most), None)
    return "\n".join(note or _lines(choice, groups, CAUSES, _SHAPES[-1]))


def noted(choice: Choice) -> tuple[NotedLeaf, ...]:
    """All leaves, in their order."""
    leaves = [leaf for cause in choice.causes for leaf in cause.leaves]
    leaves.sort(key=lambda leaf: leaf.number)
    return tuple(
        NotedLeaf(x.path, x.branch, (*map(_type, x.values),), *x.why[:3]) for x in leaves
    )


# What comes after an expression that is no part of another one.
_NO_PART = r"(?!\w|\.\w|\[|\()"


def _is_said(unit: _Unit, choice: Choice) -> bool:
    """Whether the first thing to write changes a leaf, or the line that is to blame."""
    said = " ".join(text for cause in choice.causes[:1] for text in cause.remedy[:1])
    texts = [_users(leaf.to_blame) for leaf in unit if leaf.to_blame]
    texts += [
        f"in place of {x.argument.text}" for x in unit if x.argument and x.argument.text
    ]
    return any(re.search(rf"{re.escape(text)}{_NO_PART}", said) for text in texts)


def _key(unit: _Unit) -> Hashable:
    """What leaves of one cause have in common."""
    return tuple(
        (x.branch, *map(str, x.dtypes), x.is_reshaped, _users(x.to_blame)) for x in unit
    )


def _users(line: Origin | None) -> str:
    return str(line.users) if line else ""


def _lines(
    choice: Choice, groups: Sequence[Sequence[_Unit]], most: int, shape: _Shape
) -> list[str]:
    lines, is_cut = rows_of_causes(
        groups,
        lambda unit: (_row(leaf, number == 0) for number, leaf in enumerate(unit)),
        _rows_of_many,
        _examples if shape.has_examples else lambda _: "",
        most=most,
        listed=shape.listed,
    )
    leaves = [leaf for group in groups[:most] for unit in group for leaf in unit]
    of_shown = {leaf.number for leaf in leaves}
    causes = [x for x in choice.causes if of_shown & {y.number for y in x.leaves}]
    remedies = list(dict.fromkeys(text for cause in causes for text in cause.remedy))
    types = [name for cause in causes for name in cause.types]
    tried = "Tried: the types then agree." * (choice.is_tried and bool(remedies))
    hint = "Every leaf: dtypeguard.explain(all=True), or dtypeguard run --all." * is_cut
    return [
        f"dtypeguard: {choice.headline}",
        *(f"  {line}" for line in (*lines, *_code(leaves, shape.code))),
        *filter(None, [*remedies, tried, rounding(types, " ".join(remedies)), hint]),
    ]


def _rows_of_many(group: Sequence[_Unit]) -> Iterator[Cells]:
    """Leaves of one cause: a row for each branch that returns them."""
    path = of_holders([unit[0].path for unit in group])
    for number, column in enumerate(zip(*group)):
        yield _row_of(column, path * (not number))


def _examples(group: Sequence[_Unit]) -> str:
    some = examples(group, lambda unit: np.size(unit[0].values[0]))
    return f"  {', '.join(unit[0].path for unit in some)}"


def _code(leaves: Sequence[RefusedLeaf], which: str) -> list[str]:
    """The lines of source that the rows name."""
    first = [leaf.why.begun if leaf.is_odd else None for leaf in leaves]
    named = [(line, *leaf.why.lines) for line, leaf in zip(first, leaves)]
    if which == "causes":
        named = [(leaf.to_blame,) for leaf in leaves]
    elif which == "none":
        named = []
    users = dict.fromkeys(line.users for pair in named for line in pair if line)
    return columns([(str(line), line.code) for line in users if line.code])


def _row(leaf: RefusedLeaf, is_first: bool) -> tuple[str, ...]:
    """A leaf in columns. A leaf that several branches return has its path once."""
    origin, cause, begun = leaf.why.places()
    types = " -> ".join(map(_type, leaf.values))
    made = ", ".join(filter(None, [leaf.unchanged, origin]))
    if leaf.is_odd and begun:  # the first value is the cause
        made, cause, begun = begun, made and f"promoted at {made}", cause
    return leaf.path if is_first else "", leaf.branch, types, made, cause, begun


def _row_of(leaves: Sequence[RefusedLeaf], path: str) -> tuple[str, ...]:
    """Leaves of one cause in columns: what all of them have in common."""
    first = leaves[0]
    names = "origin", "cause", "begun"
    are_several = lambda name: len({_users(getattr(leaf.why, name)) for leaf in leaves}) > 1
    unlike = dict.fromkeys(filter(are_several, names), None)
    given = "as it was given" if "as it was given" in first.unchanged else first.unchanged
    _, branch, types, *lines = _row(
        first._replace(unchanged=given, why=first.why._replace(**unlike)), True
    )
    if len({(*map(_type, leaf.values),) for leaf in leaves}) > 1:
        types = " -> ".join(map(str, first.dtypes))
    return path, branch, types, *lines


def _type(value: Leaf) -> str:
    if isinstance(value, np.dtype):
        return str(value)
    return type(value).__name__ if is_python_number(value) else type_text(value)
