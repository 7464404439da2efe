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
        work: its share of the work of the program.
    """

    line: PlanEntry
    nodes: list[int]
    work: float


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
            run = len(self._errors) + 1
            self._show(f"trying what stays wide: run {run}")
            nodes = []
            for number in key:
                nodes.extend(self.parts[number].nodes)
            function = functools.partial(self._run_switched, nodes)
            inputs = self._trials.searched
            error = self._trials.error(function, inputs)
            self._errors[key] = error
        return self._errors[key]

    def alone(self, number: int) -> float:
        """Returns the error where one part alone rounds; 0 if no run is left."""
        wide = set(range(len(self.parts)))
        wide.remove(number)
        error = self.error(wide)
        # Infinity would make it the worst of all.
        return 0.0 if self.is_spent else error

    def order(self) -> list[int]:
        """Returns the parts by how much error a wide part takes away for its price."""

        def worth(number: int) -> float:
            # What costs nothing is worth no more than what costs all.
            price = self.parts[number].work or 1.0
            error = min(self.alone(number), LARGEST_ERROR)
            return error**2 / price

        numbers = range(len(self.parts))
        return sorted(numbers, key=worth, reverse=True)

    def work_of(self, numbers: Collection[int]) -> float:
        """Returns the share of the multiply-adds in some parts."""
        work = 0.0
        for number in numbers:
            work += self.parts[number].work
        return work

    def named(self, entries: Collection[PlanEntry]) -> list[int]:
        """Returns the parts that some entries of a plan name."""
        numbers = []
        for number, part in enumerate(self.parts):
            if any(matches(entry, part.line) for entry in entries):
                numbers.append(number)
        return numbers

    def entries(self, wide: Collection[int]) -> tuple[PlanEntry, ...]:
        """Returns the entries that name some parts and no more."""
        entries = {}
        for number in sorted(wide):
            line = self.parts[number].line
            entry = line
            of_expression = PlanEntry(line.place, line.expression)
            of_function = PlanEntry(line.place)
            # The entry that names most is the shortest to read.
            for wider in (of_expression, of_function):
                if set(self.named([wider])) <= set(wide):
                    entry = wider
            share = self.work_of(self.named([entry]))
            entry = dataclasses.replace(entry, share=share)
            entries[entry] = None
        return tuple(entries)


def _narrow_parts(trials: Trials, widths: WidthPlan) -> list[Part]:
    """Returns the narrow equations that round, by what an entry can name."""
    parts = {}
    for node in trials.program.block.all_nodes():
        # What is as written is narrow in the source: no entry can change it.
        if not node.rounds or not widths.entries[node.number]:
            continue
        line = key_of_line(node.stack)
        # What has no place in the source cannot be named by an entry.
        if not line.place or not is_narrow(node, widths):
            continue
        # Lines that an entry cannot tell apart are one.
        expression = without_floats(line.expression)
        key = dataclasses.replace(line, expression=expression)
        part = parts.setdefault(key, Part(line, [], 0.0))
        part.nodes.append(node.number)
        part.work += trials.work[node.number]
    return list(parts.values())
