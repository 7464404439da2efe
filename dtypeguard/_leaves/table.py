"""Tables of messages: leaves that share a cause have one row."""

import collections
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
    ends with `and 3 more rows` where there are too many for a message.
    """

    headline: str
    changes: Sequence[LeafChange]

    def rows(self) -> list[Row]:
        """Returns the texts of every change, for `DtypeDriftError.rows`."""
        return [change.row() for change in self.changes]

    def __str__(self) -> str:
        rows: list[Row] = []
        for group in grouped(self.changes, _pattern_of_change):
            if len(group) > FEW:
                pattern = _pattern_of_change(group[0])
                path = f"{len(group)} leaves {pattern.path}"
                rows.append(pattern._replace(path=path))
            else:
                rows += [change.row() for change in group]
        most = FEW * CAUSES
        cells = []
        for row in rows[:most]:
            cells.append((row.path, f"{row.before} -> {row.after}", row.remedy))
        lines = columns(cells)
        lines += and_more(len(rows[most:]), "row")
        return "\n  ".join([self.headline, *lines])


def _pattern_of_change(change: LeafChange) -> Row:
    """Returns the row of a change, without shapes and with stars in its path."""
    path = path_with_stars(change.path)
    before = _text_without_shape(change.before)
    after = _text_without_shape(change.after)
    return Row(path, before, after, change.remedy)


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
    if math.isinf(share):
        return "inf"
    digits = ".2g"
    if share >= 0.1:
        digits = ".0f"
    # Without the sign of -0.0.
    return f"{100 * share:z{digits}}%"


def shown_fields(record: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, except those that its `repr` leaves out."""
    fields = {}
    for field in dataclasses.fields(record):
        if field.repr:
            fields[field.name] = getattr(record, field.name)
    return fields
