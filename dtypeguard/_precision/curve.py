"""The search for a plan: a curve from all narrow to all wide, of which each row was run."""

import dataclasses
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from .._autocast.plan import ALL, PRODUCTS, Plan
from .._leaves.table import columns, percent
from .._leaves.types import Args, DType, Function, PyTree
from .fix import smallest
from .planned import PlannedInputs, Trials, plannable
from .prepared import Prepared, Show, running
from .ranking import Ranking

# Without a tolerance, the plan keeps this part of what can be narrow.
_MOST_SHARE = 0.95
# Rows of the curve have at most these parts of the error of `autocast(f, dtype)`.
_PARTS = 1 / 2, 1 / 4
# How often a plan is searched that is within the tolerance as it runs.
_ATTEMPTS = 3
# Of the narrow lines that lose most, in a check.
_WORST = 5


@dataclasses.dataclass(frozen=True, repr=False)
class PlanSearch:
    """A plan that was searched or checked, with the runs that show what it does.

    Attributes:
        plan: the plan.
        curve: plans from all narrow to all wide, with their figures; it is one of them.
        notes: what a reader of the figures has to know.
        lines: the numbers of the program's lines that its entries name.
    """

    plan: Plan
    curve: tuple[Plan, ...]
    notes: tuple[str, ...] = ()
    lines: frozenset[int] = dataclasses.field(default=frozenset(), repr=False)

    @property
    def is_within(self) -> bool:
        """Whether the plan is within its tolerance, on what is held out as well."""
        return is_within(self.plan)

    @property
    def is_of_use(self) -> bool:
        """Whether the plan is within its tolerance, and anything is narrow by it."""
        return self.is_within and self.plan.share != 0

    @property
    def headline(self) -> str:
        """The plan in a sentence."""
        plan = self.plan
        if plan.share == 0 and self.is_within:
            bound = percent(plan.tolerance or 0.0)
            return f"plan: nothing to gain: within {bound}, no product is narrow."
        share = f"{percent(plan.share or 0.0)} of the multiply-adds in {plan.narrow}"
        count = len(plan.entries)
        wide = "1 line" if count == 1 else f"{count or 'no'} lines"
        return f"plan: {share}, {wide} wide, {_off_tolerance(plan)}."

    def rows(self) -> list[str]:
        """The curve as a table; the plan has a star."""
        rows = [("", "off", "held out", "narrow", "in float32")]
        for plan in self.curve:
            out = "" if plan.held_out is None else percent(plan.held_out)
            figures = percent(plan.error or 0.0), out, percent(plan.share or 0.0)
            rows.append(("*" if plan is self.plan else " ", *figures, _wide_text(plan)))
        return columns(rows)

    def __str__(self) -> str:
        return "\n".join([self.headline, *self.rows(), *self.notes])

    def __repr__(self) -> str:
        return f"PlanSearch({self.headline})"


def _wide_text(plan: Plan) -> str:
    """What a plan has in float32, in few words."""
    if not plan.entries:
        return "all but products" if plan.default == PRODUCTS else "nothing"
    few = ", ".join(map(str, plan.entries[:2]))
    return few + f", {len(plan.entries) - 2} more" * (len(plan.entries) > 2)


def is_within(plan: Plan) -> bool:
    """Whether the figures of a plan are within its tolerance, finite without one."""
    errors = [x for x in (plan.error, plan.held_out) if x is not None]
    bound = 1e30 if plan.tolerance is None else plan.tolerance
    return bool(errors) and max(errors) <= bound


def _off_tolerance(plan: Plan) -> str:
    """How far off a plan is, and whether that is within its tolerance."""
    off = f"{percent(plan.error or 0.0)} off"
    off += "" if plan.held_out is None else f" ({percent(plan.held_out)} held out)"
    if plan.tolerance is None:
        return off
    return f"{off}, {'' if is_within(plan) else 'not '}within {percent(plan.tolerance)}"


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
    """Searches the plan of a program that was run.

    Lines are ranked by runs equation by equation; each row of the curve is then run as
    `autocast` has it, compiled, on all inputs.
    """
    trials = Trials(prepared, inputs)
    scaled = prepared.runs.scaled()
    bare = Plan(
        np.dtype(trials.program.formats.narrow),
        default=PRODUCTS if trials.has_products else ALL,
        loss_scale=None if scaled is None else scaled.scale,
        tolerance=tolerance,
        measured=trials.name,
    )
    ranking = Ranking(trials, bare, inputs.budget, show_status)
    rows = dict[frozenset[int], Plan]()

    def row(wide: Collection[int]) -> Plan:
        if wide not in rows:
            show_status(f"running it with {len(wide)} lines wide")
            plan = dataclasses.replace(bare, entries=ranking.entries(wide))
            rows[frozenset(wide)] = trials.measured(plan)
        return rows[frozenset(wide)]

    bare_error, order = ranking.error(()), ranking.order()
    price = lambda wide: sum(ranking.parts[n].work for n in wide)
    orders = order, sorted(order, key=lambda n: price([n]))

    def choose(bound: float) -> frozenset[int]:
        """The cheaper one of the best for their price and of the cheapest ones."""
        found = (smallest(each, ranking.error, bound) for each in orders)
        return ranking.whole(min(found, key=price))

    wanted = [frozenset(), ranking.whole(order[:1]), _cheap(order, ranking)]
    if tolerance is None:
        wanted += [choose(part * bare_error) for part in _PARTS]
    for wide in (*wanted, frozenset(order)):
        row(wide)
    wide = frozenset[int]()
    for _ in range(_ATTEMPTS):
        error = row(wide).error or 0.0
        if tolerance is None or error <= tolerance:
            break
        # Compiled, a program may leave out roundings, and have others.
        ratio = ranking.error(wide) / error if 0 < error < math.inf else 1.0
        wide = choose(tolerance * min(ratio, 1e18))
    every: dict[_PlanKey, Plan] = {**rows}
    if bare.default != ALL:
        show_status(f"running it with all in {bare.narrow}")
        every[None] = trials.measured(dataclasses.replace(bare, default=ALL))
    key = _chosen_row(every, tolerance)
    if key:
        run = {each: plan.error or 0.0 for each, plan in rows.items()}
        without = lambda wide: run.get(wide) or ranking.tried(wide)
        entries = ranking.entries(key, without)
        every[key] = dataclasses.replace(every[key], entries=entries)
    by_share = lambda plan: (plan.default != ALL, -plan.share, -plan.error)
    return PlanSearch(
        plan=every[key],
        curve=(*sorted(every.values(), key=by_share),),
        notes=(*_search_notes(trials, ranking, every[key]),),
        lines=ranking.lines(key or ()),
    )


def _cheap(order: Sequence[int], ranking: Ranking) -> frozenset[int]:
    """The best ones that leave most of the work narrow."""
    room = (1 - _MOST_SHARE) * sum(part.work for part in ranking.parts)
    made = list[int]()
    for number in order:
        if ranking.parts[number].work <= room:
            room -= ranking.parts[number].work
            made.append(number)
    return frozenset(made)


_PlanKey = frozenset[int] | None


def _chosen_row(rows: Mapping[_PlanKey, Plan], tolerance: float | None) -> _PlanKey:
    """The row with most narrow of those within a tolerance, or the best cheap one."""
    error, share = (lambda k: rows[k].error or 0.0), (lambda k: rows[k].share or 0.0)
    if tolerance is None:
        most = max(map(share, rows))
        return min((k for k in rows if share(k) >= _MOST_SHARE * most), key=error)
    within = [k for k in rows if error(k) <= tolerance]
    worth = lambda k: (share(k), -len(rows[k].entries), -error(k))
    return max(within, key=worth) if within else min(rows, key=error)


def _search_notes(trials: Trials, ranking: Ranking, plan: Plan) -> Iterator[str]:
    """What a search says beside its curve."""
    if trials.apart is not None:
        yield f"In float32, the outputs for two inputs are {percent(trials.apart)} apart."
    if trials.updated:
        more = f" and {len(trials.updated) - 2} more" * (len(trials.updated) > 2)
        few = ", ".join(path or "the output" for path in trials.updated[:2])
        yield f"For {few}{more}, the error is that of the update."
    if plan.loss_scale is not None:
        yield f"Measured with the loss multiplied by {plan.loss_scale:g}."
    if ranking.is_spent:
        yield "The runs were spent before all lines were tried."


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
        bound = plan.tolerance if tolerance is None else tolerance
        now = trials.measured(dataclasses.replace(plan, tolerance=bound))
        notes = []
        if plan.error is not None:
            share = percent(plan.share or 0.0)
            notes.append(f"In the plan it was {percent(plan.error)} off, {share} narrow.")
        if not is_within(now):
            ranking = Ranking(trials, plan, inputs.budget, show_status)
            alone = [(ranking.alone(n), x) for n, x in enumerate(ranking.parts)]
            worst = sorted((x, str(part.entries[-1])) for x, part in alone if x is not None)
            rows = [(percent(x), name) for x, name in worst[: -_WORST - 1 : -1]]
            notes.append(f"Of what is {plan.narrow}, these lines lose most alone:")
            notes += [f"  {row}" for row in columns(rows)]
            notes.append("Search a plan anew, or give one of them an entry.")
    return PlanSearch(now, (now,), (*notes,))
