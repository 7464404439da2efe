"""What a plan may keep wide, ranked by runs of the program."""

import dataclasses
import functools
import math
from collections.abc import Collection

from .._autocast.decide import by_plan
from .._autocast.matching import key_of_line, matches, without_floats
from .._autocast.plan import Plan, PlanEntry
from .._numbers.measure import LARGEST_ERROR
from .._numbers.plans import WidthPlan
from .planned import Trials, is_narrow
from .prepared import Show
from .switched import switched_program


@dataclasses.dataclass
class Part:
    """An expression of the source that a plan may keep wide.

    Attributes:
        line: where it is.
        nodes: its equations, by their numbers.
        work: its share of the multiply-adds.
    """

    line: PlanEntry
    nodes: list[int]
    work: float

    @property
    def entries(self) -> list[PlanEntry]:
        """The entries of its function, its expression, and the expression in its scope."""
        place = self.line.place
        return [PlanEntry(place), PlanEntry(place, self.line.expression), self.line]


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
        self.parts = _narrow_parts(trials, widths)
        self._run_switched = switched_program(trials.program, widths, plan.loss_scale)

    def error(self, wide: Collection[int]) -> float:
        """Returns the error with some parts wide; infinity if no run is left."""
        key = frozenset(wide)
        if key not in self._errors:
            if len(self._errors) >= self._budget:
                self.is_spent = True
                # Not an error of the program: a search takes it for not enough, and ends.
                return math.inf
            self._show(f"trying what stays wide: run {len(self._errors) + 1}")
            nodes: list[int] = []
            for number in key:
                nodes.extend(self.parts[number].nodes)
            function = functools.partial(self._run_switched, nodes)
            self._errors[key] = self._trials.error(function, self._trials.searched)
        return self._errors[key]

    def alone(self, number: int) -> float:
        """Returns the error where one part alone rounds; 0 if no run is left."""
        everything = set(range(len(self.parts)))
        error = self.error(everything - {number})
        return 0.0 if self.is_spent else error

    def order(self) -> list[int]:
        """Returns the parts by how much error a wide part takes away for its price."""

        def worth(number: int) -> float:
            error = min(self.alone(number), LARGEST_ERROR)
            return error**2 / (self.parts[number].work or 1.0)

        return sorted(range(len(self.parts)), key=worth, reverse=True)

    def work_of(self, numbers: Collection[int]) -> float:
        """Returns the share of the multiply-adds in some parts."""
        work = 0.0
        for number in numbers:
            work += self.parts[number].work
        return work

    def named(self, entries: Collection[PlanEntry]) -> list[int]:
        """Returns the parts that some entries of a plan name."""
        numbers: list[int] = []
        for number, part in enumerate(self.parts):
            if any(matches(entry, part.line) for entry in entries):
                numbers.append(number)
        return numbers

    def entries(self, wide: Collection[int]) -> tuple[PlanEntry, ...]:
        """Returns the entries that name some parts and no more."""
        entries: dict[PlanEntry, None] = {}
        for number in sorted(wide):
            # The entry that names most is the shortest to read.
            *wider, entry = self.parts[number].entries
            for candidate in reversed(wider):
                if set(self.named([candidate])) <= set(wide):
                    entry = candidate
            share = self.work_of(self.named([entry]))
            entries[dataclasses.replace(entry, share=share)] = None
        return tuple(entries)


def _narrow_parts(trials: Trials, widths: WidthPlan) -> list[Part]:
    """Returns the narrow equations that round, by what an entry can name."""
    parts: dict[PlanEntry, Part] = {}
    for node in trials.program.block.all_nodes():
        is_planned = widths.entries[node.number] and is_narrow(node, widths)
        line = key_of_line(node.stack)
        # What has no place in the source cannot be named by an entry.
        if node.rounds and is_planned and line.place:
            # Lines that an entry cannot tell apart are one.
            expression = without_floats(line.expression)
            key = dataclasses.replace(line, expression=expression)
            part = parts.setdefault(key, Part(line, [], 0.0))
            part.nodes.append(node.number)
            part.work += trials.work[node.number]
    return list(parts.values())
