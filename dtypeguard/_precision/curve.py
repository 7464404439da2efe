"""The search for a plan: a curve from all narrow to all wide, of which each row was run."""

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from .._autocast.plan import ALL, PRODUCTS, Plan
from .._leaves.table import percent
from .._leaves.types import Args, DType, Function, PyTree
from .._numbers.measure import LARGEST_ERROR
from .fix import smallest
from .found_plan import PlanSearch, error_of, share_of
from .headline import few_of
from .planned import PlannedInputs, Trials, plannable
from .prepared import Prepared, Show
from .ranking import Ranking

# Without a tolerance, the plan keeps this part of what can be narrow.
_MOST_SHARE = 0.95
# How often a plan is searched that is within the tolerance as it runs.
_ATTEMPTS = 3
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
    with plannable(f, args, kwargs, narrow, show_status) as prepared:
        curve = Curve(prepared, tolerance, inputs, show_status)
        curve.search()
        return curve.found()


class Curve:
    """Plans of a program, from all narrow to all wide.

    Parts are ranked by runs of one program with switches; each row is then run as
    `autocast` has it, compiled, on all inputs.

    Attributes:
        rows: the plans that were run, with their figures, which plans are equal without.
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
        scaled = prepared.runs.scaled
        # What `autocast(f, dtype)` computes by.
        self._default_plan = Plan(
            np.dtype(self._trials.program.formats.narrow),
            default=PRODUCTS if self._trials.has_products else ALL,
            loss_scale=None if scaled is None else scaled.scale,
            tolerance=tolerance,
            measured=self._trials.name,
        )
        plan = self._default_plan
        self._ranking = Ranking(self._trials, plan, inputs.budget, show_status)
        self.rows: dict[Plan, Plan] = {}

    def search(self) -> None:
        """Runs the rows; what was run counts wherever it ends."""
        self._run(self._default_plan)
        # By default products alone are narrow. That all could be is the other end of the
        # curve.
        all_narrow = dataclasses.replace(self._default_plan, default=ALL)
        self._run(all_narrow)
        order = self._ranking.order()
        self._run(self._plan_of(order[:1]))
        self._run(self._plan_of(order))
        if self._tolerance is not None:
            self._reach(order, self._tolerance)
        self._explain(self._best_row())

    def found(self) -> PlanSearch:
        """Returns the plan, with the curve."""
        plan = self._best_row()
        curve = sorted(self.rows.values(), key=_narrowest_first)
        notes = self._notes(plan)
        return PlanSearch(
            plan=plan,
            curve=tuple(curve),
            notes=tuple(notes),
        )

    def _plan_of(self, wide: Collection[int]) -> Plan:
        entries = self._ranking.entries(wide)
        return dataclasses.replace(self._default_plan, entries=entries)

    def _run(self, plan: Plan) -> float:
        """Returns the error of a plan, which is a row from now on."""
        if plan not in self.rows:
            self._show("running it by a plan")
            self.rows[plan] = self._trials.measured(plan)
        return error_of(self.rows[plan])

    def _reach(self, order: Sequence[int], tolerance: float) -> None:
        """Runs rows until one is within the tolerance."""
        wide = []
        for _ in range(_ATTEMPTS):
            error = self._run(self._plan_of(wide))
            if error <= tolerance:
                return
            # Compiled, a program may leave out roundings, and have others.
            switched_error = min(self._ranking.error(wide), LARGEST_ERROR)
            ratio = switched_error / min(error, LARGEST_ERROR)
            wide = self._enough(order, tolerance * ratio)
        self._run(self._plan_of(wide))

    def _enough(self, order: Sequence[int], bound: float) -> list[int]:
        """Returns the cheaper of the best parts for their price and the cheapest ones."""
        ranking = self._ranking

        # The best part for its price may be dear, where some cheap ones are enough
        # together.
        def work_of(number: int) -> float:
            return ranking.parts[number].work

        cheapest_first = sorted(order, key=work_of)
        best = smallest(order, ranking.error, bound)
        cheapest = smallest(cheapest_first, ranking.error, bound)
        return min(best, cheapest, key=ranking.work_of)

    def _best_row(self) -> Plan:
        """Returns the plan with most narrow within the tolerance, or the best cheap one."""
        rows = list(self.rows.values())
        if self._tolerance is None:
            greatest = max(map(share_of, rows))
            enough = _MOST_SHARE * greatest
            cheap = []
            for plan in rows:
                if share_of(plan) >= enough:
                    cheap.append(plan)
            return min(cheap, key=error_of)
        within = []
        for plan in rows:
            if error_of(plan) <= self._tolerance:
                within.append(plan)
        if not within:
            # No row is within: the closest one, and the report says by how much it is not.
            return min(rows, key=error_of)
        return max(within, key=_merit)

    def _explain(self, plan: Plan) -> None:
        """Adds to the entries of a row what would be without each of them."""
        entries = []
        for entry in plan.entries:
            remaining = set(plan.entries) - {entry}
            wide = self._ranking.named(remaining)
            error = self._ranking.error(wide)
            entries.append(dataclasses.replace(entry, error=error))
        row = dataclasses.replace(plan, entries=tuple(entries))
        self.rows[plan] = row

    def _notes(self, plan: Plan) -> list[str]:
        """Returns what a search says beside its curve."""
        notes = []
        trials = self._trials
        if trials.updated:
            paths = few_of(trials.updated)
            notes.append(f"For {paths}, the error is that of the update.")
        if plan.loss_scale is not None:
            notes.append(f"Measured with the loss multiplied by {plan.loss_scale:g}.")
        if self._ranking.is_spent:
            notes.append("The runs were spent before all lines were tried.")
        return notes


def _merit(plan: Plan) -> tuple[float, int, float]:
    share = share_of(plan)
    # Of plans with as much narrow, the one with fewer entries is easier to keep.
    entries = len(plan.entries)
    error = error_of(plan)
    return share, -entries, -error


def _narrowest_first(plan: Plan) -> tuple[bool, float, float]:
    has_default = plan.default != ALL
    share = share_of(plan)
    error = error_of(plan)
    return has_default, -share, -error


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
    notes = []
    if plan.error is not None:
        share = percent(share_of(plan))
        error = percent(plan.error)
        notes.append(f"In the plan it was {error} off, {share} narrow.")
    with plannable(f, args, kwargs, plan.narrow, show_status) as prepared:
        trials = Trials(prepared, inputs)
        show_status("running it by the plan")
        # A file keeps the tolerance that its plan was searched for.
        bound = plan.tolerance if tolerance is None else tolerance
        plan = dataclasses.replace(plan, tolerance=bound)
        measured = trials.measured(plan)
        search = PlanSearch(measured, (measured,), tuple(notes))
        if search.is_within:
            return search
        # Runs of single lines are worth their time only where there is something to blame.
        ranking = Ranking(trials, plan, inputs.budget, show_status)
        notes.append(f"Of what is {plan.narrow}, these lines lose most alone:")
        notes.extend(_worst_rows(ranking))
        notes.append("Search a plan anew, or give one of them an entry.")
    return dataclasses.replace(search, notes=tuple(notes))


def _worst_rows(ranking: Ranking) -> list[str]:
    """Returns the narrow lines that lose most alone."""
    numbers = range(len(ranking.parts))
    worst_first = sorted(numbers, key=ranking.alone, reverse=True)
    rows = []
    for number in worst_first[:_WORST]:
        error = percent(ranking.alone(number))
        line = ranking.parts[number].line
        rows.append(f"  {error}  {line}")
    return rows
