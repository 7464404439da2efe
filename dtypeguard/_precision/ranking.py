"""What a plan may keep wide, ranked by runs of the program."""

import dataclasses
import functools
import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from .._autocast.decide import by_plan
from .._autocast.matching import MatchedLine, key_of_line, matches
from .._autocast.plan import Plan, PlanEntry
from .._numbers.plans import WidthPlan
from .planned import Trials
from .prepared import Show
from .switched import switched_program

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
        is_spent: whether a run was asked for, and none was left.
    """

    def __init__(self, trials: Trials, plan: Plan, budget: int, show_status: Show):
        self._trials = trials
        self._budget = budget
        self._show = show_status
        self.is_spent = False
        self._errors: dict[frozenset[int], float] = {}
        widths = by_plan(trials.program, plan)
        self.parts = self._narrow_parts(widths)
        nodes = [part.nodes for part in self.parts]
        scale = plan.loss_scale
        self._run_switched = switched_program(trials.program, widths, nodes, scale)
        self._named = functools.cache(self._parts_named)  # which ends with the search

    def _narrow_parts(self, widths: WidthPlan) -> list[Part]:
        """Returns the narrow equations that round, by what an entry can name."""
        first_lines: dict[MatchedLine, MatchedLine] = {}
        numbers: dict[MatchedLine, list[int]] = {}
        for node in self._trials.program.block.all_nodes():
            if node.rounds and self._trials.narrows(node, widths):
                line = key_of_line(node.stack)
                # Lines that an entry cannot tell apart are one.
                line = first_lines.setdefault(line.loose, line)
                numbers.setdefault(line, []).append(node.number)
        parts: list[Part] = []
        for line, nodes in numbers.items():
            # What has no place in the source cannot be named by an entry.
            if line.place:
                work = sum(self._trials.work.get(number, 0.0) for number in nodes)
                parts.append(Part(line, frozenset(nodes), work))
        return parts

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
            if len(self._errors) >= self._budget:
                self.is_spent = True
                # Not an error of the program: a search takes it for not enough, and ends.
                return math.inf
            self._show(f"trying what stays wide: run {len(self._errors) + 1}")
            function = functools.partial(self._run_switched, key)
            self._errors[key] = self._trials.error(function)
        return self._errors[key]

    def alone(self, number: int) -> float:
        """Returns the error where one part alone rounds; 0 if no run is left."""
        wide = set(range(len(self.parts)))
        wide.remove(number)
        error = self.error(wide)
        return 0.0 if self.is_spent else error

    def order(self) -> list[int]:
        """Returns the parts by how much error a wide part takes away for its price."""
        worth: list[float] = []
        for number, part in enumerate(self.parts):
            error = min(self.alone(number), _LARGEST_ERROR)
            worth.append(error**2 / (part.work or 1.0))
        return [int(number) for number in np.argsort(-np.array(worth), stable=True)]

    def work_of(self, parts: Collection[int]) -> float:
        """Returns the share of the multiply-adds in some parts."""
        return sum(self.parts[number].work for number in parts)

    def lines(self, plan: Plan) -> frozenset[int]:
        """Returns the program's lines that a plan has wide, by their numbers."""
        nodes: set[int] = set()
        for number in self.named(plan):
            nodes |= self.parts[number].nodes
        lines: set[int] = set()
        for node in self._trials.program.block.all_nodes():
            if node.number in nodes and node.line is not None:
                lines.add(node.line)
        return frozenset(lines)

    def named(self, plan: Plan) -> frozenset[int]:
        """Returns the parts that the entries of a plan name."""
        return frozenset[int]().union(*(self._named(entry) for entry in plan.entries))

    def entries(self, wide: frozenset[int]) -> tuple[PlanEntry, ...]:
        """Returns the entries that name some parts and no more."""
        entries: dict[PlanEntry, None] = {}
        for number in sorted(wide):
            entry = self._widest_entry(number, wide)
            share = self.work_of(self._named(entry))
            entries[dataclasses.replace(entry, share=share)] = None
        return tuple(entries)

    def _widest_entry(self, number: int, wide: frozenset[int]) -> PlanEntry:
        """Returns the first entry of a part that names no part which is not wide."""
        # The entry that names most comes first: it is the shortest to read.
        *wider, narrowest = self.parts[number].entries
        for entry in wider:
            if self._named(entry) <= wide:
                return entry
        return narrowest
