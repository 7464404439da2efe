"""What a plan may keep wide, ranked by runs of the program."""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection
from typing import NamedTuple

from .._autocast.decide import by_plan
from .._autocast.matching import MatchedLine, key_of_line, matches
from .._autocast.plan import Plan, PlanEntry
from .planned import Trials
from .prepared import Show

# To name a whole function, so much more of the work may become wide.
_LITTLE_WORK = 0.01
# An error that is not finite counts as this.
_LARGEST_ERROR = 1e18


class Part(NamedTuple):
    """An expression of the source that a plan may keep wide.

    Attributes:
        line: where it is.
        nodes: its equations, by their numbers.
        work: its share of the multiply-adds.
    """

    line: MatchedLine
    nodes: frozenset[int]
    work: float

    @property
    def entries(self) -> list[PlanEntry]:
        """The entries of its function, its expression, and the expression in its scope."""
        place, expression, scope = self.line
        return [
            PlanEntry(place, None, None),
            PlanEntry(place, expression, None),
            PlanEntry(place, expression, scope or None),
        ]


class Ranking:
    """Runs of a program by a plan, with some parts of what is narrow wide.

    Attributes:
        parts: what may stay wide; sets of them are of their places in this list.
        count: how many runs were made.
        is_spent: whether one was asked for, and none was left.
    """

    def __init__(self, trials: Trials, plan: Plan, budget: int, show_status: Show):
        self._trials = trials
        self._plan = plan
        self._budget = budget
        self._show = show_status
        self.count = 0
        self.is_spent = False
        self._errors: dict[frozenset[int], float] = {}
        self.parts: list[Part] = []
        for line, numbers in self._narrow_lines().items():
            # What has no place in the source cannot be named by an entry.
            if line.place:
                work = sum(trials.work.get(number, 0.0) for number in numbers)
                self.parts.append(Part(line, frozenset(numbers), work))
        self._named = functools.cache(self._parts_named)  # which ends with the search

    def _narrow_lines(self) -> dict[MatchedLine, list[int]]:
        """Returns the narrow equations that round, by their lines."""
        program = self._trials.program
        widths = by_plan(program, self._plan)
        first_lines: dict[MatchedLine, MatchedLine] = {}
        numbers: dict[MatchedLine, list[int]] = {}
        for node in program.block.all_nodes():
            if node.rounds and self._trials.narrows(node, widths):
                line = key_of_line(node.stack)
                # Lines that an entry cannot tell apart are one.
                line = first_lines.setdefault(line.loose, line)
                numbers.setdefault(line, []).append(node.number)
        return numbers

    def _parts_named(self, entry: PlanEntry) -> frozenset[int]:
        """Returns the parts that an entry of a plan names."""
        numbers: list[int] = []
        for number, part in enumerate(self.parts):
            if matches(entry, part.line):
                numbers.append(number)
        return frozenset(numbers)

    def error(self, wide: Collection[int]) -> float:
        """Returns the error with some parts wide; infinity if no run is left."""
        key = frozenset(wide)
        if key not in self._errors:
            if self.count >= self._budget:
                self.is_spent = True
                # Not an error of the program: a search takes it for not enough, and ends.
                return math.inf
            self.count += 1
            self._show(f"trying what stays wide: run {self.count}")
            entries = (*self._plan.entries, *self.entries(key))
            plan = dataclasses.replace(self._plan, entries=entries)
            self._errors[key] = self._trials.error(self._trials.eager(plan))
        return self._errors[key]

    def tried(self, wide: Collection[int]) -> float | None:
        """Returns the error with some parts wide; None if no run is left."""
        error = self.error(wide)
        return error if frozenset(wide) in self._errors else None

    def alone(self, number: int) -> float | None:
        """Returns the error where one part alone rounds; None if no run is left."""
        wide = set(range(len(self.parts)))
        wide.remove(number)
        return self.tried(wide)

    def order(self) -> list[int]:
        """Returns the parts by how much error a wide part takes away for its price."""

        def worth(number: int) -> float:
            error = min(self.alone(number) or 0.0, _LARGEST_ERROR)
            return error**2 / (self.parts[number].work or 1.0)

        return sorted(range(len(self.parts)), key=worth, reverse=True)

    def whole(self, wide: Collection[int]) -> frozenset[int]:
        """Returns parts with the rest of their functions, where that is little work."""
        parts = set(wide)
        # An entry for a whole function survives edits that one for an expression does not.
        for function in {self.parts[number].entries[0] for number in wide}:
            rest = self._named(function) - parts
            if self.work_of(rest) <= _LITTLE_WORK:
                parts |= rest
        return frozenset(parts)

    def work_of(self, parts: Collection[int]) -> float:
        """Returns the share of the multiply-adds in some parts."""
        return sum(self.parts[number].work for number in parts)

    def lines(self, wide: Collection[int]) -> frozenset[int]:
        """Returns the program's lines of some parts, by their numbers."""
        nodes: set[int] = set()
        for number in wide:
            nodes |= self.parts[number].nodes
        lines: set[int] = set()
        for node in self._trials.program.block.all_nodes():
            if node.number in nodes and node.line is not None:
                lines.add(node.line)
        return frozenset(lines)

    def entries(
        self,
        wide: Collection[int],
        error_without: Callable[[frozenset[int]], float | None] | None = None,
    ) -> tuple[PlanEntry, ...]:
        """Returns entries for some parts.

        Args:
            wide: the parts.
            error_without: gives the error of the parts that are wide without an entry.
        """
        chosen = frozenset(wide)
        widest: dict[PlanEntry, frozenset[int]] = {}
        for number in sorted(chosen):
            entry = self._widest_entry(number, chosen)
            widest[entry] = self._named(entry)
        entries: list[PlanEntry] = []
        for entry, parts in widest.items():
            error = None if error_without is None else error_without(chosen - parts)
            share = self.work_of(parts)
            entries.append(dataclasses.replace(entry, error=error, share=share))
        return tuple(entries)

    def _widest_entry(self, number: int, chosen: frozenset[int]) -> PlanEntry:
        """Returns the first entry of a part that names no part which is not chosen."""
        # The entry that names most comes first: it is the shortest to read.
        *wider, narrowest = self.parts[number].entries
        for entry in wider:
            if self._named(entry) <= chosen:
                return entry
        return narrowest
