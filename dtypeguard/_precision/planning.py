"""Searches a plan: which lines stay wide where the rest is narrow, within a tolerance."""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from .._autocast.entries import ALL, PRODUCTS
from .._autocast.plan import Plan
from .candidates import Candidate, candidates_in, grouped
from .choosing import Choosing, Chosen, Spent
from .plan_check import holds_compiled
from .plan_search import PlanSearch, Tried, notes_of
from .trials import Cost, PlanTrials

# Of the plans with about the least bytes kept, the one with the fewest entries is taken.
_ABOUT = 1.1
# How many more of the multiply-adds may be wide for that.
_SHARE = 0.005


class _Option(NamedTuple):
    """What stays wide with a default, and what that costs."""

    default: str
    chosen: Chosen[Candidate]
    every: list[Candidate]
    error: float
    cost: Cost


class Planning:
    """The search for a plan.

    Args:
        trials: of the program.
        plan: without entries: its dtype, tolerance, loss scale, and what is measured.
        show_status: called with what it is about to do.
    """

    def __init__(self, trials: PlanTrials, plan: Plan, show_status: Callable[[str], None]):
        self._trials, self._bare, self._show = trials, plan, show_status
        self._tolerance = math.inf if plan.tolerance is None else plan.tolerance
        self._wide = trials.program.formats.wide
        self._candidates, self._unnamed = candidates_in(trials.program)
        self._errors: dict[tuple[str, frozenset[int]], float] = {}
        self._compiled: dict[tuple[str, frozenset[int]], float | None] = {}
        self._alone: dict[Candidate, float] = {}

    def search(self) -> PlanSearch:
        """Searches, and measures what it has found."""
        started = time.monotonic()
        options = [*map(self._option, self._defaults())]
        best = self._best(options)
        items = self._needed(best)
        plan = self._measured(best.default, items)
        share = 1 - self._trials.cost(plan).wide
        plan = dataclasses.replace(plan, share=share)
        tried = tuple(
            Tried(x.default, len(grouped(x.chosen.items, x.every)), x.error, *x.cost)
            for x in options
        )
        return PlanSearch(
            plan=plan,
            tried=tried,
            runs=self._trials.count,
            compiled=self._error_compiled(best.default, items),
            seconds=time.monotonic() - started,
            is_minimal=best.chosen.is_minimal,
            notes=notes_of(
                plan,
                items,
                self._bare_errors(),
                self._unnamed,
                best.chosen.error < math.inf,
            ),
        )

    def _defaults(self) -> Sequence[str]:
        """The defaults that are worth a search: all narrow alone, if that is enough."""
        has_products = any(each.has_products for each in self._candidates)
        defaults = (ALL, PRODUCTS) if has_products else (ALL,)
        for default in defaults:
            self._show(f"running it with {default} in {self._bare.narrow}")
            error = self._error(default, (), is_asked=True)
            is_enough = default == ALL and error <= self._tolerance
            if is_enough and self._holds_compiled(ALL, ()):
                return (ALL,)
        return defaults

    def _bare_errors(self) -> dict[str, float]:
        """The errors of the defaults without an entry, as far as they were run."""
        return {x: self._errors[x, frozenset()] for x, n in self._errors if not n}

    def _option(self, default: str) -> _Option:
        """The fewest lines that stay wide with a default."""
        every = [x for x in self._candidates if default != PRODUCTS or x.has_products]
        error_of = lambda items: self._error(default, items)
        try:
            if error_of(()) <= self._tolerance:
                chosen = Chosen[Candidate]((), error_of(()), True, True)
            else:
                order = self._ranked(every)
                self._show(f"looking for lines that stay wide, by default {default}")
                search = Choosing(order, self._error_alone, error_of, self._tolerance)
                chosen = search.chosen()
        except Spent:
            chosen = Chosen((*every,), math.inf, False, False)
        plan = self._plan(default, chosen.items)
        return _Option(default, chosen, every, chosen.error, self._trials.cost(plan))

    def _ranked(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Candidates with the best gain for their price first, products last."""
        squares = {each: min(self._error_alone(each), 1e18) ** 2 for each in candidates}
        price = lambda each: each.work if each.work else each.size or 1.0
        gain = lambda each: squares[each] / price(each)
        return sorted(candidates, key=lambda each: (each.work > 0, -gain(each)))

    def _error_alone(self, candidate: Candidate) -> float:
        if candidate not in self._alone:
            count = len(self._alone) + 1
            self._show(f"measuring line {count} of {len(self._candidates)}")
            self._alone[candidate] = self._trials.alone(candidate)
        return self._alone[candidate]

    def _best(self, options: Sequence[_Option]) -> _Option:
        """The cheapest of those within the tolerance, or that with the least error."""
        within = [each for each in options if each.chosen.is_within]
        if not within:
            return min(options, key=lambda each: (each.error, each.cost))
        if len(within) > 1:  # what XLA leaves out may change which side a decision takes
            holds = lambda each: self._holds_compiled(each.default, each.chosen.items)
            within = [*filter(holds, within)] or within
        least = min(each.cost.wide for each in within)
        cheap = [each for each in within if each.cost.wide <= least + _SHARE]
        kept = min(each.cost.kept for each in cheap)
        cheap = [each for each in cheap if each.cost.kept <= _ABOUT * kept]
        return min(cheap, key=lambda x: (len(grouped(x.chosen.items, x.every)), x.cost))

    def _holds_compiled(self, default: str, items: Collection[Candidate]) -> bool:
        return holds_compiled(self._error_compiled(default, items), self._tolerance)

    def _error_compiled(self, default: str, items: Collection[Candidate]) -> float | None:
        """The same as XLA compiles it; each program compiles once."""
        key = default, _numbers(items)
        if key not in self._compiled:
            self._compiled[key] = self._trials.compiled(self._plan(default, items))
        return self._compiled[key]

    def _needed(self, option: _Option) -> list[Candidate]:
        """The entries, without those that none of the others needs."""
        items = grouped(option.chosen.items, option.every)
        for item in [*items] if option.chosen.is_minimal else ():
            rest = [other for other in items if other is not item]
            if self._error(option.default, rest, is_asked=True) <= self._tolerance:
                return self._needed(
                    option._replace(chosen=option.chosen._replace(items=(*rest,)))
                )
        return items

    def _measured(self, default: str, items: Sequence[Candidate]) -> Plan:
        """The plan with its figures."""
        entries = []
        for number, item in enumerate(items):
            self._show(f"measuring without entry {number + 1} of {len(items)}")
            rest = [other for other in items if other is not item]
            entries.append(
                dataclasses.replace(
                    item.entry(self._wide),
                    error=self._error(default, rest, is_asked=True),
                    held_out=self._trials.held_out(self._plan(default, rest)),
                )
            )
        plan = dataclasses.replace(self._bare, default=default, entries=(*entries,))
        return dataclasses.replace(
            plan,
            error=self._error(default, items, is_asked=True),
            held_out=self._trials.held_out(plan),
        )

    def _plan(self, default: str, items: Collection[Candidate]) -> Plan:
        entries = tuple(item.entry(self._wide) for item in items)
        return dataclasses.replace(self._bare, default=default, entries=entries)

    def _error(
        self, default: str, items: Collection[Candidate], is_asked: bool = False
    ) -> float:
        """The error with some lines wide, on the inputs of the search.

        Args:
            default: of the plan.
            items: the lines.
            is_asked: whether it is a figure of the result: the budget is no limit then.
        """
        key = default, _numbers(items)
        if key not in self._errors:
            self._errors[key] = self._trials.error(self._plan(default, items), is_asked)
        return self._errors[key]


def _numbers(items: Collection[Candidate]) -> frozenset[int]:
    """The equations of some lines, by which runs are known again."""
    return frozenset[int]().union(*(item.numbers for item in items))
