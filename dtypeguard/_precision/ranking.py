"""What a plan may keep wide, ranked by runs of the program."""

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import NamedTuple

from .._autocast.decide import by_plan
from .._autocast.matching import MatchedLine, key_of_line, matches
from .._autocast.plan import Plan, PlanEntry
from .planned import Trials

# To name a whole function, so much more of the work may become wide.
_LITTLE = 0.01


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
        """What a plan may have for it: its function, the expression, that in its scope."""
        place, expression, scope = self.line
        parts = (None, None), (expression, None), (expression, scope or None)
        return [PlanEntry(place, *each) for each in parts]


class Ranking:
    """Runs of a program by a plan, with some parts of what is narrow wide.

    Attributes:
        parts: what may stay wide; sets of them are of their places in this list.
        count: how many runs were made.
        is_spent: whether one was asked for, and none was left.
    """

    def __init__(
        self, trials: Trials, plan: Plan, budget: int, show_status: Callable[[str], None]
    ):
        self._trials, self._plan, self._budget = trials, plan, budget
        self._show, self.count, self.is_spent = show_status, 0, False
        self._errors: dict[frozenset[int], float] = {}
        program, widths = trials.program, by_plan(trials.program, plan)
        lines = dict[MatchedLine, MatchedLine]()
        by_line = defaultdict[MatchedLine, list[int]](list)
        for node in program.block.all_nodes():
            if node.rounds and trials.narrows(node, widths):
                line = key_of_line(node.stack)
                by_line[lines.setdefault(line.loose, line)].append(node.number)
        work = lambda numbers: sum(trials.work.get(number, 0.0) for number in numbers)
        self.parts = [
            Part(line, frozenset(numbers), work(numbers))
            for line, numbers in by_line.items()
            if line.place
        ]
        self._named = functools.cache(self._named_by)  # which ends with the search

    def _named_by(self, entry: PlanEntry) -> frozenset[int]:
        """The parts that an entry of a plan names."""
        parts = enumerate(self.parts)
        return frozenset(n for n, part in parts if matches(entry, part.line))

    def error(self, wide: Collection[int]) -> float:
        """The error with some parts wide; infinity if no run is left."""
        key = frozenset(wide)
        if key not in self._errors:
            if self.count >= self._budget:
                self.is_spent = True
                return math.inf
            self.count += 1
            self._show(f"trying what stays wide: run {self.count}")
            entries = (*self._plan.entries, *self.entries(key))
            plan = dataclasses.replace(self._plan, entries=entries)
            self._errors[key] = self._trials.error(self._trials.eager(plan))
        return self._errors[key]

    def tried(self, wide: Collection[int]) -> float | None:
        """The error with some parts wide; None if no run is left."""
        error = self.error(wide)
        return error if frozenset(wide) in self._errors else None

    def alone(self, number: int) -> float | None:
        """The error where one part alone rounds; None if no run is left."""
        return self.tried({*range(len(self.parts))} - {number})

    def order(self) -> list[int]:
        """The parts, those first of which a wide one leaves most for its price."""
        worth = lambda n: min(self.alone(n) or 0.0, 1e18) ** 2 / (self.parts[n].work or 1.0)
        return sorted(range(len(self.parts)), key=worth, reverse=True)

    def whole(self, wide: Collection[int]) -> frozenset[int]:
        """These parts, and the rest of a function where that is little work."""
        made = {*wide}
        for function in {self.parts[n].entries[0] for n in wide}:
            rest = self._named(function) - made
            if sum(self.parts[n].work for n in rest) <= _LITTLE:
                made |= rest
        return frozenset(made)

    def lines(self, wide: Collection[int]) -> frozenset[int]:
        """The numbers of the lines of some parts."""
        numbers = {number for n in wide for number in self.parts[n].nodes}
        nodes = self._trials.program.block.all_nodes()
        return frozenset(
            x.line for x in nodes if x.number in numbers and x.line is not None
        )

    def entries(
        self,
        wide: Collection[int],
        without: Callable[[frozenset[int]], float | None] = lambda _: None,
    ) -> tuple[PlanEntry, ...]:
        """Entries for some parts.

        `without` gives the error with an entry left out, of the parts that are wide then.
        """
        chosen, made = frozenset(wide), dict[PlanEntry, None]()
        for number in sorted(chosen):
            *wider, entry = self.parts[number].entries
            fitting = (each for each in wider if self._named(each) <= chosen)
            made[next(fitting, entry)] = None
        share = lambda entry: sum(self.parts[n].work for n in self._named(entry))
        return tuple(
            dataclasses.replace(x, error=without(chosen - self._named(x)), share=share(x))
            for x in made
        )
