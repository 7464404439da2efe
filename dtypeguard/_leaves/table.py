"""Tables of messages: leaves that share a cause have one row."""

import collections
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from .errors import Row
from .key_path import path_with_stars
from .leaf_change import ABSENT, LeafChange
from .leaf_type import LeafType

_T = TypeVar("_T")

# Leaves of one cause that have a row each.
FEW = 3
# Causes that a message lists: with their leaves they fit on a screen.
CAUSES = 5


@dataclasses.dataclass(frozen=True)
class Table:
    """A headline and the changes of leaves below it.

    Its text has a line for all changes that share dtypes, remedy and pattern of path, and
    ends with `and 3 more rows` where there are too many for a message.
    """

    headline: str
    changes: Sequence[LeafChange]

    def rows(self) -> tuple[Row, ...]:
        """Returns the texts of every change, for `DtypeDriftError.rows`."""
        return tuple(change.row() for change in self.changes)

    def __str__(self) -> str:
        rows: list[Row] = []
        for group in grouped(self.changes, _kind_of_change):
            if len(group) > FEW:
                rows.append(_common_row(group))
            else:
                rows += [change.row() for change in group]
        few_rows = rows[: FEW * CAUSES]
        types = arrows([(row.before, row.after) for row in few_rows])
        cells = []
        for row, change in zip(few_rows, types):
            cells.append((row.path, change, row.remedy))
        lines = columns(cells) + and_more(len(rows) - len(few_rows), "row")
        return "\n  ".join([self.headline, *lines])


def _kind_of_change(change: LeafChange) -> Hashable:
    return (
        _text_without_shape(change.before),
        _text_without_shape(change.after),
        change.remedy,
        path_with_stars(change.path),
    )


def _common_row(changes: Sequence[LeafChange]) -> Row:
    """Returns one row for changes that share dtypes, remedy and pattern of path."""
    first = changes[0]
    path = f"{len(changes)} leaves {path_with_stars(first.path)}"
    before = _text_without_shape(first.before)
    after = _text_without_shape(first.after)
    return Row(path, before, after, first.remedy)


def _text_without_shape(described: LeafType | str | None) -> str:
    if isinstance(described, LeafType):
        return described.without_shape
    return described or ABSENT


def grouped(items: Iterable[_T], key: Callable[[_T], Hashable]) -> list[list[_T]]:
    """Returns the items with equal keys together, in the order of the first of each."""
    # Not `itertools.groupby`, for which equal keys have to stand beside each other.
    groups = collections.defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())


def count(items: Sequence[object]) -> str:
    """Returns `1 leaf` or `2 leaves`."""
    if len(items) == 1:
        return "1 leaf"
    return f"{len(items)} leaves"


def and_more(number: int, noun: str = "cause") -> list[str]:
    """Returns the line `and 3 more causes`; nothing for none."""
    if number == 0:
        return []
    if number > 1:
        noun += "s"
    return [f"and {number} more {noun}"]


def arrows(changes: Sequence[tuple[str, str]]) -> list[str]:
    """Returns `before -> after` for each, with the arrows below each other."""
    width = max([len(before) for before, _ in changes], default=0)
    return [f"{before:{width}} -> {after}" for before, after in changes]


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows as lines with their columns aligned; empty columns are left out."""
    lines = ["" for _ in rows]
    for column in zip(*rows):
        width = max(map(len, column))
        if width == 0:
            continue
        for i, cell in enumerate(column):
            lines[i] += f"  {cell:{width}}"
    return [line[2:].rstrip() for line in lines]


def percent(share: float) -> str:
    """Returns a share of 1 with two digits, as reports print it."""
    digits = ".2g"
    if share >= 0.1:
        digits = ".0f"
    # Without the sign of -0.0.
    return f"{100 * share:z{digits}}%"


def shown_fields(record: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, except those that its `repr` leaves out."""
    names = [field.name for field in dataclasses.fields(record) if field.repr]
    return {name: getattr(record, name) for name in names}
