"""The search for a plan: which lines stay wide where all products are narrow.

A program runs by plans, against the same in wide types, on several inputs.
"""

import dataclasses
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._autocast.decide import by_plan
from .._autocast.emit import narrowed
from .._autocast.entries import ALL, PRODUCTS, PlanEntry
from .._autocast.matching import MatchedLine, key_of_line
from .._autocast.plan import Plan
from .._costs.work import operations, repetitions, wide_share
from .._leaves.compat import as_function
from .._leaves.rows import percent
from .._leaves.types import Jaxpr, Leaf
from .._numbers import plans
from .._numbers.formats import Formats
from .._numbers.nodes import Node
from .._numbers.plans import ROUNDED, WidthPlan
from .._numbers.program import NumericProgram
from .._program.graph import Graph
from .plan_report import PlanSearch
from .prepared import Prepared, Show
from .runs import Inputs
from .search import Spent, choose


class PlanTrials:
    """Runs of a program by plans.

    The error of an output is relative to its norm; that of an input with an update, such as
    params, to the norm of the update: rounded to bfloat16, new params are nearly right, and
    the update is gone.

    Attributes:
        count: how many runs were made.
        updated: the outputs that are an input with an update, each with that input.
    """

    def __init__(
        self,
        prepared: Prepared,
        given: Sequence[Sequence[Leaf]],
        held_out: Sequence[Sequence[Leaf]],
    ):
        self._prepared, self.program = prepared, prepared.measures.program
        self.count = 0
        self.updated = prepared.runs.updated
        self._last: tuple[Plan, Jaxpr] | None = None
        self._given = [*map(prepared.runs.inputs, given)]
        self._held_out = [*map(prepared.runs.inputs, held_out)]

    def alone(self, rounding: WidthPlan) -> float:
        """The error where some lines alone round, on the first inputs."""
        return self._error_on(self._given[0], rounding)

    def error(self, plan: Plan) -> float:
        """The greatest error of a plan on the inputs of the search."""
        return max(self._error_of(plan, inputs) for inputs in self._given)

    def held_out(self, plan: Plan) -> float | None:
        """The greatest error of a plan on what is held out; None if nothing is."""
        return max((self._error_of(plan, x) for x in self._held_out), default=None)

    def compiled(self, plan: Plan) -> float | None:
        """The error as XLA compiles the program here, which may leave out roundings.

        None with a loss scale, which is no part of the program.
        """
        if plan.loss_scale is not None:
            return None
        function = jax.jit(as_function(self._by_plan(plan)))
        return max(
            self._prepared.runs.error_of(lambda x=x: function(*x.arrays), x)
            for x in self._given
        )

    def share(self, plan: Plan) -> float:
        """The share of the multiply-adds that is narrow by a plan."""
        return 1 - wide_share(Graph(self._by_plan(plan)), plan.narrow)

    def _by_plan(self, plan: Plan) -> Jaxpr:
        """The program that `autocast` makes by a plan."""
        if self._last is None or self._last[0] != plan:
            self._last = plan, narrowed(self.program.jaxpr, plan)
        return self._last[1]

    def _error_of(self, plan: Plan, inputs: Inputs) -> float:
        scale = None if plan.loss_scale is None else np.float32(plan.loss_scale)
        formats = Formats(self.program.formats.wide)
        by = by_plan(self.program, plan)
        return self._error_on(inputs, by, formats=formats, scale=scale)

    def _error_on(self, inputs: Inputs, plan: WidthPlan, **options: Any) -> float:
        self.count += 1
        return self._prepared.runs.error(plan, inputs, **options)


class Candidate(NamedTuple):
    """An expression, or a whole function, that a plan may keep wide.

    Attributes:
        place: the file and the function.
        expression: its text; None for the whole function.
        scope: of `jax.named_scope`, if it is that alone; None for all.
        nodes: its equations, by their numbers.
        work: its share of the multiply-adds.
    """

    place: str
    expression: str | None
    scope: str | None
    nodes: frozenset[int]
    work: float

    def entry(self, dtype: np.dtype) -> PlanEntry:
        """The entry of a plan that has it in a dtype."""
        return PlanEntry(self.place, self.expression, self.scope, dtype, share=self.work)

    def rounding(self, program: NumericProgram) -> WidthPlan:
        """The plan in which it alone rounds."""
        plan = plans.wide(program)
        plan.entries[[*self.nodes]] = ROUNDED
        return plan


def candidates_in(program: NumericProgram) -> tuple[list[Candidate], int]:
    """What a plan may keep wide, and how many equations that round it cannot name.

    Lines with products are told apart by their scopes, where they have several: each scope
    may be a layer with a dtype of its own.
    """
    nodes = [*program.block.all_nodes()]
    total = sum(map(_work, nodes)) or 1.0
    by_line = defaultdict[MatchedLine, list[Node]](list)
    for node in nodes:
        if node.rounds:
            by_line[key_of_line(node.stack)].append(node)
    scopes = defaultdict[tuple[str, str | None], set[str]](set)
    for line, made in by_line.items():
        if any(map(_work, made)):
            scopes[line.place, line.expression].add(line.scope)
    groups, unnamed = defaultdict[tuple[str, str | None, str | None], list[Node]](list), 0
    for line, made in by_line.items():
        is_shared = len(scopes[line.place, line.expression]) > 1
        scope = line.scope or None if is_shared else None
        if line.place:
            groups[line.place, line.expression, scope] += made
        unnamed += len(made) * (not line.place)
    candidates = [
        Candidate(*key, frozenset(x.number for x in made), sum(map(_work, made)) / total)
        for key, made in groups.items()
    ]
    return candidates, unnamed


def _work(node: Node) -> float:
    return operations(node.eqn) * repetitions(node.stack)


def grouped(chosen: Sequence[Candidate], every: Sequence[Candidate]) -> list[Candidate]:
    """Candidates as entries: a scope less, or a whole function, where all of it is in."""
    made = [*chosen]
    for key_of in (lambda x: (x.place, x.expression), lambda x: (x.place, None)):
        numbers, parts = defaultdict(frozenset), defaultdict[Any, list[Candidate]](list)
        for each in every:
            numbers[key_of(each)] |= each.nodes
        for each in made:
            parts[key_of(each)].append(each)
        made = []
        for (place, expression), found in parts.items():
            is_whole = numbers[place, expression] == nodes_of(found)
            work = sum(x.work for x in found)
            whole = Candidate(place, expression, None, nodes_of(found), work)
            made += [whole] if is_whole else found
    return made


def nodes_of(items: Collection[Candidate]) -> frozenset[int]:
    """The equations of some candidates, by which runs are known again."""
    return frozenset[int]().union(*(item.nodes for item in items))


class Planning:
    """The search for a plan: all products narrow, or all of it if there are none."""

    def __init__(self, trials: PlanTrials, plan: Plan, budget: int, show_status: Show):
        self._trials, self._budget, self._show = trials, budget, show_status
        self._tolerance = math.inf if plan.tolerance is None else plan.tolerance
        candidates, self._unnamed = candidates_in(trials.program)
        products = [each for each in candidates if each.work]
        self._candidates = products or candidates
        self._bare = dataclasses.replace(plan, default=PRODUCTS if products else ALL)
        self._errors: dict[frozenset[int], float] = {}
        self._alone: dict[Candidate, float] = {}

    def search(self) -> PlanSearch:
        """Searches, and measures what it has found."""
        started = time.monotonic()
        self._show(f"running it with {self._bare.default} in {self._bare.narrow}")
        items, is_minimal = (), True
        if self._error(()) > self._tolerance:
            order = sorted(self._candidates, key=self._worth)
            self._show("looking for lines that stay wide")
            parts = order, self._error_alone, self._error_tried, self._tolerance
            items, is_minimal = choose(*parts)
        items = grouped(items, self._candidates)
        plan = self._measured(items)
        numbers, nodes = nodes_of(items), self._trials.program.block.all_nodes()
        lines = {x.line for x in nodes if x.number in numbers and x.line is not None}
        return PlanSearch(
            plan=plan,
            runs=self._trials.count,
            seconds=time.monotonic() - started,
            is_minimal=is_minimal,
            notes=(*self._notes(plan, items),),
            lines=frozenset(lines),
            compiled=self._trials.compiled(plan),
        )

    def _worth(self, candidate: Candidate) -> tuple[bool, float]:
        """Candidates with the best gain for their price come first, products last."""
        square = min(self._error_alone(candidate), 1e18) ** 2
        return candidate.work > 0, -square / (candidate.work or 1.0)

    def _error_alone(self, candidate: Candidate) -> float:
        if candidate not in self._alone:
            count = len(self._alone) + 1
            self._show(f"measuring line {count} of {len(self._candidates)}")
            rounding = candidate.rounding(self._trials.program)
            if self._trials.count >= self._budget:
                return math.inf
            self._alone[candidate] = self._trials.alone(rounding)
        return self._alone[candidate]

    def _measured(self, items: Sequence[Candidate]) -> Plan:
        """The plan with its figures."""
        plan, entries = self._plan(items), list[PlanEntry]()
        for number, entry in enumerate(plan.entries):
            self._show(f"measuring without entry {number + 1} of {len(items)}")
            error = self._error([*items[:number], *items[number + 1 :]])
            entries.append(dataclasses.replace(entry, error=error))
        return dataclasses.replace(
            plan,
            entries=(*entries,),
            error=self._error(items),
            held_out=self._trials.held_out(plan),
            share=self._trials.share(plan),
        )

    def _plan(self, items: Collection[Candidate]) -> Plan:
        dtype = self._trials.program.formats.wide
        entries = tuple(item.entry(dtype) for item in items)
        return dataclasses.replace(self._bare, entries=entries)

    def _error(self, items: Collection[Candidate]) -> float:
        """The error with some lines wide, on the inputs of the search."""
        key = nodes_of(items)
        if key not in self._errors:
            self._errors[key] = self._trials.error(self._plan(items))
        return self._errors[key]

    def _error_tried(self, items: Collection[Candidate]) -> float:
        """The same, as long as there are runs left."""
        if nodes_of(items) not in self._errors and self._trials.count >= self._budget:
            raise Spent
        return self._error(items)

    def _notes(self, plan: Plan, items: Sequence[Candidate]) -> Iterator[str]:
        """What a search says beside its plan."""
        work, bare = sum(each.work for each in items), self._errors[frozenset()]
        if bare > self._tolerance and work:
            yield (
                f"With products alone in {plan.narrow}, it is {percent(bare)} off: "
                f"{percent(work)} of the multiply-adds stay wide."
            )
        if self._unnamed:
            equations = "1 equation" if self._unnamed == 1 else f"{self._unnamed} equations"
            yield f"{equations} that no line of yours leads to cannot have an entry."
        if plan.loss_scale is not None:
            yield f"Measured with the loss multiplied by {plan.loss_scale:g}."
