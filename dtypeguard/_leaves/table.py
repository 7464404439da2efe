"""Tables of messages: leaves that share a cause have one row."""

import dataclasses
import math
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
    ends with `and 3 more kinds` where there are too many for a message.
    """

    headline: str
    changes: Sequence[LeafChange]

    def rows(self) -> tuple[Row, ...]:
        """Returns the texts of every change, for `DtypeDriftError.rows`."""
        return tuple(change.row() for change in self.changes)

    def __str__(self) -> str:
        most_rows = FEW * CAUSES
        rows: list[Row] = []
        for group in grouped(self.changes, _kind_of_change):
            # Many leaves of few kinds are told by kind alone, so that every kind is told.
            is_listed = len(group) <= FEW and len(self.changes) <= most_rows
            if is_listed or len(group) == 1:
                rows.extend(change.row() for change in group)
            else:
                rows.append(_common_row(group))
        listed = rows[:most_rows]
        types = arrows([(row.before, row.after) for row in listed])
        paths = [row.path for row in listed]
        remedies = [row.remedy for row in listed]
        lines = columns(list(zip(paths, types, remedies)))
        lines += and_more(len(rows) - len(listed), "kind")
        return "\n".join([self.headline, *(f"  {line}" for line in lines)])


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
    types = {(change.before, change.after) for change in changes}
    if len(types) == 1:
        row = first.row()
    else:
        before = _text_without_shape(first.before)
        after = _text_without_shape(first.after)
        row = Row("", before, after, first.remedy)
    return row._replace(path=f"{len(changes)} leaves {path_with_stars(first.path)}")


def _text_without_shape(described: LeafType | str | None) -> str:
    if isinstance(described, LeafType):
        return described.without_shape
    return described or ABSENT


def grouped(items: Iterable[_T], key: Callable[[_T], Hashable]) -> list[list[_T]]:
    """Returns the items with equal keys together, in the order of the first of each."""
    # Not `itertools.groupby`, for which equal keys have to stand beside each other.
    groups: dict[Hashable, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def count(items: Sequence[object]) -> str:
    """Returns `1 leaf` or `2 leaves`."""
    return "1 leaf" if len(items) == 1 else f"{len(items)} leaves"


def and_more(number: int, noun: str = "cause") -> list[str]:
    """Returns the line `and 3 more causes`; nothing for none."""
    if number == 0:
        return []
    return [f"and 1 more {noun}" if number == 1 else f"and {number} more {noun}s"]


def arrows(changes: Sequence[tuple[str, str]]) -> list[str]:
    """Returns `before -> after` for each, with the arrows below each other."""
    befores = _padded([before for before, _ in changes])
    return [f"{before} -> {after}" for before, (_, after) in zip(befores, changes)]


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows as lines with their columns aligned; empty columns are left out."""
    padded = [_padded(column) for column in zip(*rows) if any(column)]
    return ["  ".join(cells).rstrip() for cells in zip(*padded)]


def _padded(cells: Sequence[str]) -> list[str]:
    width = max((len(cell) for cell in cells), default=0)
    return [cell.ljust(width) for cell in cells]


def percent(share: float) -> str:
    """Returns a share of 1 with two digits, as reports print it."""
    if math.isinf(share):
        return "inf"
    digits = ".0f" if share >= 0.1 else ".2g"
    text = f"{100 * share:{digits}}"
    # Rounding errors may put a share of nothing just below 0.
    return "0%" if text == "-0" else f"{text}%"


def shown_fields(record: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, except those that its `repr` leaves out."""
    names = [field.name for field in dataclasses.fields(record) if field.repr]
    return {name: getattr(record, name) for name in names}
