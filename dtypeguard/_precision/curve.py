"""The search for a plan: a curve from all narrow to all wide, of which each row was run."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence

import numpy as np

from .._autocast.plan import ALL, PRODUCTS, Plan
from .._leaves.table import columns, percent
from .._leaves.types import Args, DType, Function, PyTree
from .fix import smallest
from .plan_search import PlanSearch, error_of, is_within
from .planned import PlannedInputs, Trials, plannable
from .prepared import Prepared, Show, running
from .ranking import Ranking

# Without a tolerance, the plan keeps this part of what can be narrow.
_MOST_SHARE = 0.95
# Rows of the curve have at most these parts of the error of `autocast(f, dtype)`.
_PARTS = (1 / 2, 1 / 4)
# How often a plan is searched that is within the tolerance as it runs.
_ATTEMPTS = 3
# A tolerance may be exceeded by no more than this where runs one by one have no error.
_LARGEST_RATIO = 1e18
# Of the narrow lines that lose most, in a check.
_WORST = 5


def plan_call(
    f: Function,
    args: Args,
    kwargs: Mapping[str, PyTree] | None,
    narrow: DType,
    tolerance: float | None,
    inputs: PlannedInputs,
    show_status: Show,
) -> PlanSearch:
    """Searches the plan of a call."""
    prepared = plannable(f, args, kwargs, narrow, show_status)
    with running(prepared.traced, prepared.formats):
        return searched(prepared, tolerance, inputs, show_status)


def searched(
    prepared: Prepared,
    tolerance: float | None,
    inputs: PlannedInputs,
    show_status: Show,
) -> PlanSearch:
    """Searches the plan of a program that was run."""
    return _CurveSearch(prepared, tolerance, inputs, show_status).found()


class _CurveSearch:
    """Runs rows of the curve of a program.

    Parts are ranked by runs equation by equation; each row is then run as `autocast` has
    it, compiled, on all inputs.

    Attributes:
        rows: what was run, by the parts that are wide; None for all in the narrow dtype.
    """

    def __init__(
        self,
        prepared: Prepared,
        tolerance: float | None,
        inputs: PlannedInputs,
        show_status: Show,
    ):
        self._trials = Trials(prepared, inputs)
        self._tolerance = tolerance
        self._show = show_status
        scaled = prepared.runs.scaled()
        # What `autocast(f, dtype)` computes by.
        self._default_plan = Plan(
            np.dtype(self._trials.program.formats.narrow),
            default=PRODUCTS if self._trials.has_products else ALL,
            loss_scale=None if scaled is None else scaled.scale,
            tolerance=tolerance,
            measured=self._trials.name,
        )
        self._ranking = Ranking(
            self._trials, self._default_plan, inputs.budget, show_status
        )
        self.rows: dict[frozenset[int] | None, Plan] = {}

    def found(self) -> PlanSearch:
        """Returns the plan, with the curve."""
        # The first run, so that it is within any budget: rows are chosen by parts of it.
        error = self._ranking.error(())
        order = self._ranking.order()
        wanted = [
            frozenset(),
            self._ranking.whole(order[:1]),
            self._cheap_parts(order),
        ]
        if self._tolerance is None:
            for part in _PARTS:
                wanted.append(self._choose(order, part * error))
        for parts in [*wanted, frozenset(order)]:
            self._row(parts)
        if self._tolerance is not None:
            self._reach(order, self._tolerance)
        # By default products alone are narrow. That all could be is the other end of the
        # curve.
        if self._default_plan.default != ALL:
            self._show(f"running it with all in {self._default_plan.narrow}")
            plan = dataclasses.replace(self._default_plan, default=ALL)
            self.rows[None] = self._trials.measured(plan)
        key = self._best_row()
        # With nothing wide there is no entry to explain.
        if key:
            self._explain(key)
        return PlanSearch(
            plan=self.rows[key],
            curve=tuple(sorted(self.rows.values(), key=_by_share)),
            notes=tuple(self._notes(self.rows[key])),
            lines=self._ranking.lines(key or ()),
        )

    def _row(self, wide: frozenset[int]) -> Plan:
        """Returns the plan with some parts wide, with its measured figures."""
        if wide not in self.rows:
            self._show(f"running it with {len(wide)} lines wide")
            entries = self._ranking.entries(wide)
            plan = dataclasses.replace(self._default_plan, entries=entries)
            self.rows[wide] = self._trials.measured(plan)
        return self.rows[wide]

    def _choose(self, order: Sequence[int], bound: float) -> frozenset[int]:
        """Returns the cheaper of the best parts for their price and the cheapest ones."""
        ranking = self._ranking
        cheapest_first = sorted(order, key=lambda number: ranking.work_of([number]))
        # The best part for its price may be dear, where some cheap ones are enough
        # together.
        sets = [smallest(x, ranking.error, bound) for x in (order, cheapest_first)]
        return ranking.whole(min(sets, key=ranking.work_of))

    def _reach(self, order: Sequence[int], tolerance: float) -> None:
        """Runs rows until one is within the tolerance."""
        wide = frozenset[int]()
        for _ in range(_ATTEMPTS):
            error = error_of(self._row(wide))
            if error <= tolerance:
                return
            # Compiled, a program may leave out roundings, and have others.
            ratio = 1.0
            if 0 < error < math.inf:
                ratio = self._ranking.error(wide) / error
            wide = self._choose(order, tolerance * min(ratio, _LARGEST_RATIO))

    def _cheap_parts(self, order: Sequence[int]) -> frozenset[int]:
        """Returns the best parts that leave most of the work narrow."""
        room = (1 - _MOST_SHARE) * self._ranking.work_of(order)
        parts: set[int] = set()
        for number in order:
            work = self._ranking.work_of([number])
            if work <= room:
                room -= work
                parts.add(number)
        return frozenset(parts)

    def _best_row(self) -> frozenset[int] | None:
        """Returns the row with most narrow within the tolerance, or the best cheap one."""
        rows = self.rows

        def error(key: frozenset[int] | None) -> float:
            return error_of(rows[key])

        def share(key: frozenset[int] | None) -> float:
            return rows[key].share or 0.0

        if self._tolerance is None:
            most = max(share(key) for key in rows)
            cheap = [key for key in rows if share(key) >= _MOST_SHARE * most]
            return min(cheap, key=error)
        within = [key for key in rows if error(key) <= self._tolerance]
        if not within:
            # No row is within: the closest one, and the report says by how much it is not.
            return min(rows, key=error)

        def merit(key: frozenset[int] | None) -> tuple[float, int, float]:
            # Of plans with as much narrow, the one with fewer entries is easier to keep.
            return share(key), -len(rows[key].entries), -error(key)

        return max(within, key=merit)

    def _explain(self, wide: frozenset[int]) -> None:
        """Adds to the entries of a row what would be without each of them."""

        def error_without(parts: frozenset[int]) -> float | None:
            plan = self.rows.get(parts)
            # A row was run compiled, as the user runs it; the runs of the ranking are one
            # by one.
            if plan is not None and plan.error:
                return plan.error
            return self._ranking.tried(parts)

        entries = self._ranking.entries(wide, error_without)
        self.rows[wide] = dataclasses.replace(self.rows[wide], entries=entries)

    def _notes(self, plan: Plan) -> list[str]:
        """Returns what a search says beside its curve."""
        notes: list[str] = []
        if self._trials.apart is not None:
            apart = percent(self._trials.apart)
            notes.append(f"In float32, the outputs for two inputs are {apart} apart.")
        updated = self._trials.updated
        if updated:
            few = ", ".join(path or "the output" for path in updated[:2])
            more = f" and {len(updated) - 2} more" if len(updated) > 2 else ""
            notes.append(f"For {few}{more}, the error is that of the update.")
        if plan.loss_scale is not None:
            notes.append(f"Measured with the loss multiplied by {plan.loss_scale:g}.")
        if self._ranking.is_spent:
            notes.append("The runs were spent before all lines were tried.")
        return notes


def _by_share(plan: Plan) -> tuple[bool, float, float]:
    return plan.default != ALL, -(plan.share or 0.0), -error_of(plan)


def check_call(
    f: Function,
    args: Args,
    kwargs: Mapping[str, PyTree] | None,
    path: str | os.PathLike[str],
    tolerance: float | None,
    inputs: PlannedInputs,
    show_status: Show,
) -> PlanSearch:
    """Measures a function by the plan of a file."""
    plan = Plan.load(path)
    prepared = plannable(f, args, kwargs, plan.narrow, show_status)
    with running(prepared.traced, prepared.formats):
        trials = Trials(prepared, inputs)
        show_status("running it by the plan")
        # A file keeps the tolerance that its plan was searched for.
        bound = plan.tolerance if tolerance is None else tolerance
        measured = trials.measured(dataclasses.replace(plan, tolerance=bound))
        notes: list[str] = []
        if plan.error is not None:
            share = percent(plan.share or 0.0)
            notes.append(f"In the plan it was {percent(plan.error)} off, {share} narrow.")
        if not is_within(measured):
            # Runs of single lines are worth their time only where there is something to
            # blame.
            ranking = Ranking(trials, plan, inputs.budget, show_status)
            notes.append(f"Of what is {plan.narrow}, these lines lose most alone:")
            notes.extend(f"  {row}" for row in _worst_rows(ranking))
            notes.append("Search a plan anew, or give one of them an entry.")
    return PlanSearch(measured, (measured,), tuple(notes))


def _worst_rows(ranking: Ranking) -> list[str]:
    """Returns a table of the narrow lines that lose most alone."""
    errors: list[tuple[float, str]] = []
    for number, part in enumerate(ranking.parts):
        error = ranking.alone(number)
        if error is not None:
            errors.append((error, str(part.entries[-1])))
    errors.sort(reverse=True)
    return columns([(percent(error), name) for error, name in errors[:_WORST]])
