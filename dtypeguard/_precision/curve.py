"""The search for a plan: a curve from all narrow to all wide, of which each row was run."""

import dataclasses
import functools
import math
from collections.abc import Collection, Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from .._autocast.decide import by_plan
from .._autocast.emit import Emitter
from .._autocast.matching import key_of_line, matches, without_floats
from .._autocast.plan import ALL, PRODUCTS, FilePath, Plan, PlanEntry
from .._leaves.dtypes import bits
from .._leaves.leaf_type import type_or_class
from .._leaves.table import percent
from .._leaves.types import Args, DType, Function, Kwargs, Leaf
from .._numbers.compiled import jit_quickly
from .._numbers.formats import Formats
from .._numbers.measure import LARGEST_ERROR, Inputs
from .._numbers.plans import WidthPlan
from .._numbers.run import run
from .._program.jaxprs import Arrays
from .._program.program import Node
from .fix import smallest
from .found_plan import PlanSearch, error_of, share_of
from .planned import PlannedInputs, planned_call
from .prepared import Prepared, Show, first_bad_line
from .rows import few_of
from .runs import work_shares
from .switched import switched_program
from .time_limit import TimeLimit

# The part of the time of an audit in which a plan is searched: the rest is for lines.
_TIME_OF_PLAN = 0.5
# Without a tolerance, the plan keeps this part of what can be narrow.
_MOST_SHARE = 0.95
# How often a plan is searched that is within the tolerance as it runs.
_ATTEMPTS = 3
# Of the narrow lines that lose most, in a check.
_WORST = 5
_NARROW_BITS = 16
_SAME_FORM = "Give a plan inputs of the same types and shapes, in the same order."


def plan_call(
    f: Function,
    args: Args,
    kwargs: Kwargs | None,
    narrow: DType,
    tolerance: float | None,
    inputs: PlannedInputs,
    show: Show,
) -> PlanSearch:
    """Searches the plan of a call."""
    with planned_call(f, args, kwargs, narrow, show) as prepared:
        first_bad_line(prepared)
        curve = Curve(prepared, inputs, _default_plan(prepared, tolerance))
        curve.search()
        return curve.found()


def search_in_time(
    prepared: Prepared, tolerance: float, inputs: PlannedInputs, limit: TimeLimit
) -> PlanSearch | None:
    """Returns the plan with the rows that were run in time; None if none was."""
    curve = None
    with limit.phase(_TIME_OF_PLAN):
        curve = Curve(prepared, inputs, _default_plan(prepared, tolerance))
        curve.search()
    return curve.found() if curve and curve.rows else None


def check_call(
    f: Function,
    args: Args,
    kwargs: Kwargs | None,
    path: FilePath,
    tolerance: float | None,
    inputs: PlannedInputs,
    show: Show,
) -> PlanSearch:
    """Measures a function by the plan of a file."""
    plan = Plan.load(path)
    notes = []
    if plan.error is not None:
        notes.append(
            f"In the plan it was {percent(plan.error)} off, "
            f"{percent(share_of(plan))} narrow."
        )
    # A file keeps the tolerance that its plan was searched for.
    if tolerance is not None:
        plan = dataclasses.replace(plan, tolerance=tolerance)
    with planned_call(f, args, kwargs, plan.narrow, show) as prepared:
        first_bad_line(prepared)
        curve = Curve(prepared, inputs, plan)
        measured = curve.measured(plan)
        search = PlanSearch(measured, (measured,))
        # Runs of single lines are worth their time only where there is something to blame.
        if not search.is_within:
            notes.append(f"Of what is {plan.narrow}, these lines lose most alone:")
            notes.extend(curve.worst_rows())
            notes.append("Search a plan anew, or give one of them an entry.")
    return dataclasses.replace(search, notes=tuple(notes))


@dataclasses.dataclass(eq=False)
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


class Curve:
    """Plans of a program, from all narrow to all wide.

    Parts are ranked by runs of one program with switches; each row is then run as
    `autocast` has it, compiled, on all inputs.

    Attributes:
        rows: the plans that were run, with their figures, which plans are equal without.
    """

    def __init__(self, prepared: Prepared, inputs: PlannedInputs, plan: Plan):
        self._prepared = prepared
        runs = prepared.runs
        self._program = runs.program
        self._searched = [runs.inputs(prepared.measures.arrays)]
        self._searched.extend(map(self._inputs, inputs.also))
        self._held_out = list(map(self._inputs, inputs.held_out))
        # The share of each equation in the multiply-adds, or in all that rounds.
        self._work = runs.work
        if not any(runs.work.values()):
            self._work = work_shares(self._program, lambda node: float(node.rounds))
        self._plan = plan
        self.rows: dict[Plan, Plan] = {}
        self._budget = inputs.budget
        self._errors: dict[frozenset[Part], float] = {}
        # Whether a run was asked for, and none was left.
        self._is_spent = False
        widths = by_plan(self._program, plan)
        self._parts = self._narrow_parts(widths)
        self._run_switched = switched_program(self._program, widths, plan.loss_scale)

    def search(self) -> None:
        """Runs the rows; what was run counts wherever it ends."""
        self._run(self._plan)
        # By default products alone are narrow. That all could be is the other end of the
        # curve.
        self._run(dataclasses.replace(self._plan, default=ALL))
        order = sorted(self._parts, key=self._worth, reverse=True)
        self._run(self._plan_with(order[:1]))
        self._run(self._plan_with(order))
        if self._plan.tolerance is not None:
            self._reach(order, self._plan.tolerance)
        self._explain(self._best_row())

    def found(self) -> PlanSearch:
        """Returns the plan, with the curve and what a search says beside it."""
        notes = []
        updated = [
            self._prepared.traced.paths[number] or "the output"
            for number in self._prepared.runs.updated
        ]
        if updated:
            notes.append(f"For {few_of(updated)}, the error is that of the update.")
        if self._plan.loss_scale is not None:
            notes.append(f"Measured with the loss multiplied by {self._plan.loss_scale:g}.")
        if self._is_spent:
            notes.append("The runs were spent before all lines were tried.")
        return PlanSearch(
            self._best_row(),
            tuple(sorted(self.rows.values(), key=_narrowest_first)),
            tuple(notes),
        )

    def worst_rows(self) -> Iterator[str]:
        """Yields the narrow lines that lose most alone."""
        for part in sorted(self._parts, key=self._alone, reverse=True)[:_WORST]:
            error = self._alone(part)
            # That of a line for which no run was left is 0.
            if error:
                yield f"  {percent(error)}  {part.line}"

    # What is run

    def _inputs(self, call: tuple[Args, Kwargs]) -> Inputs:
        """Returns other arguments as inputs of the program."""
        paths = self._prepared.subject.given.paths
        tree = self._prepared.subject.other(*call)
        if len(tree.paths) != len(paths):
            raise TypeError(
                f"audit_precision got other inputs of {len(tree.paths)} arrays, and the "
                f"arguments have {len(paths)}. {_SAME_FORM}"
            )
        arrays = []
        for path, tree_path, leaf, aval in zip(
            paths,
            tree.paths,
            tree.arrays,
            self._program.jaxpr.in_avals,
        ):
            array = jnp.asarray(leaf)
            # Of other types, it would be another program, with other lines that lose.
            if (tree_path, array.shape, array.dtype) != (path, aval.shape, aval.dtype):
                raise TypeError(
                    f"audit_precision got other inputs with {tree_path}: "
                    f"{type_or_class(leaf)}, and the arguments have {path}: "
                    f"{type_or_class(aval)}. {_SAME_FORM}"
                )
            arrays.append(array)
        return self._prepared.runs.inputs(arrays)

    def _greatest_error(self, function: Function, inputs: list[Inputs]) -> float:
        """Returns the greatest error of what computes the program, on some inputs.

        The greatest, not the mean: a plan has to be right for all of them.
        """
        return max(self._prepared.runs.error_of(function, example) for example in inputs)

    def measured(self, plan: Plan) -> Plan:
        """Returns a plan with the figures of what `autocast` makes, as XLA compiles it.

        With a loss scale, which is no part of the program, it runs equation by equation.
        """
        self._prepared.show("running it by a plan")
        widths = by_plan(self._program, plan)
        if plan.loss_scale is None:
            emit = Emitter(plan).emit_as_returned
            function = jit_quickly(
                functools.partial(emit, self._program.jaxpr, self._prepared.traced.traces)
            )
        else:

            def function(*arrays: Leaf) -> Arrays:
                return run(
                    self._program,
                    widths,
                    arrays,
                    # Without a narrow dtype: the plan says which equations are narrow.
                    formats=Formats(self._program.formats.wide),
                    scale=plan.loss_scale,
                )

        share = 0.0
        for node in self._program.block.all_nodes():
            if is_narrow(node, widths):
                share += self._work[node.number]
        held_out = None
        if self._held_out:
            held_out = self._greatest_error(function, self._held_out)
        return dataclasses.replace(
            plan,
            error=self._greatest_error(function, self._searched),
            held_out=held_out,
            share=share,
        )

    def _narrow_parts(self, widths: WidthPlan) -> list[Part]:
        """Returns the narrow equations that round, by what an entry can name."""
        parts = {}
        for node in self._program.block.all_nodes():
            # What is as written is narrow in the source: no entry can change it.
            if not node.rounds or not widths.entries[node.number]:
                continue
            if not is_narrow(node, widths):
                continue
            line = key_of_line(node.stack)
            # What has no place in the source cannot be named by an entry.
            if not line.place:
                continue
            part = parts.setdefault(
                # Lines that an entry cannot tell apart are one.
                dataclasses.replace(line, expression=without_floats(line.expression)),
                Part(line, [], 0.0),
            )
            part.nodes.append(node.number)
            part.work += self._work[node.number]
        return list(parts.values())

    # Rows

    def _plan_with(self, wide: Collection[Part]) -> Plan:
        """Returns the plan whose entries name some parts and no more."""
        entries = {}
        for part in self._parts:
            if part not in wide:
                continue
            entry = part.line
            # The entry that names most is the shortest to read.
            for wider in (PlanEntry(entry.place, entry.expression), PlanEntry(entry.place)):
                if self._named(wider) <= set(wide):
                    entry = wider
            entry = dataclasses.replace(entry, share=_work_of(self._named(entry)))
            entries[entry] = None
        return dataclasses.replace(self._plan, entries=tuple(entries))

    def _named(self, entry: PlanEntry) -> set[Part]:
        """Returns the parts that an entry of a plan names."""
        return {part for part in self._parts if matches(entry, part.line)}

    def _run(self, plan: Plan) -> float:
        """Returns the error of a plan, which is a row from now on."""
        if plan not in self.rows:
            self.rows[plan] = self.measured(plan)
        return error_of(self.rows[plan])

    def _best_row(self) -> Plan:
        """Returns the plan with most narrow within the tolerance, or the best cheap one."""
        rows = self.rows.values()
        tolerance = self._plan.tolerance
        if tolerance is None:
            enough = _MOST_SHARE * max(map(share_of, rows))
            return min([plan for plan in rows if share_of(plan) >= enough], key=error_of)
        within = [plan for plan in rows if error_of(plan) <= tolerance]
        if within:
            return max(within, key=_merit)
        # The closest one, and the report says by how much it is not within.
        return min(rows, key=error_of)

    def _explain(self, plan: Plan) -> None:
        """Adds to the entries of a row what would be without each, if runs are left."""
        entries = []
        for entry in plan.entries:
            # Another entry may name the same parts: that of the function around its own.
            remaining = set(plan.entries) - {entry}
            wide = set().union(*map(self._named, remaining))
            error = self._measured_error(wide)
            entries.append(dataclasses.replace(entry, error=error))
        self.rows[plan] = dataclasses.replace(plan, entries=tuple(entries))

    # Ranks

    def _measured_error(self, wide: Collection[Part]) -> float | None:
        """Returns the error with some parts wide; None if no run is left."""
        key = frozenset(wide)
        if key not in self._errors:
            count = len(self._errors)
            if count >= self._budget:
                self._is_spent = True
                return None
            self._prepared.show(f"trying what stays wide: run {count + 1}")
            is_narrow = np.ones(self._program.size, bool)
            for part in wide:
                is_narrow[part.nodes] = False
            self._errors[key] = self._greatest_error(
                functools.partial(self._run_switched, is_narrow), self._searched
            )
        return self._errors[key]

    def _error(self, wide: Collection[Part]) -> float:
        """Returns the error with some parts wide; infinity if no run is left."""
        error = self._measured_error(wide)
        # Not an error of the program: a search takes it for not enough, and ends.
        return math.inf if error is None else error

    def _alone(self, part: Part) -> float:
        """Returns the error where one part alone rounds; 0 if no run is left."""
        # Infinity would make it the worst of all.
        return self._measured_error(set(self._parts) - {part}) or 0.0

    def _worth(self, part: Part) -> float:
        """Returns how much error a part takes away if it is wide, for its price."""
        # What costs nothing is worth no more than what costs all.
        return min(self._alone(part), LARGEST_ERROR) ** 2 / (part.work or 1.0)

    def _reach(self, order: Sequence[Part], tolerance: float) -> None:
        """Runs rows until one is within the tolerance."""
        wide = []
        for _ in range(_ATTEMPTS):
            error = self._run(self._plan_with(wide))
            if error <= tolerance:
                return
            # Compiled, a program may leave out roundings, and have others.
            ratio = min(self._error(wide), LARGEST_ERROR) / min(error, LARGEST_ERROR)
            bound = tolerance * ratio
            # The best part for its price may be dear, where some cheap ones are enough.
            cheapest_first = sorted(order, key=lambda part: part.work)
            wide = min(
                smallest(order, self._error, bound),
                smallest(cheapest_first, self._error, bound),
                key=_work_of,
            )
        self._run(self._plan_with(wide))


def _work_of(parts: Collection[Part]) -> float:
    """Returns the share of the work in some parts."""
    # In any order the same: sets have none.
    return math.fsum(part.work for part in parts)


def _default_plan(prepared: Prepared, tolerance: float | None) -> Plan:
    """Returns what `autocast(f, dtype)` computes by."""
    runs = prepared.runs
    f = prepared.subject.f
    # A callable object has no name of its own.
    class_name = type(f).__name__
    name = getattr(f, "__name__", class_name)
    within = ", with the gradient inside" if runs.program.backward else ""
    return Plan(
        narrow=np.dtype(prepared.formats.narrow),
        default=PRODUCTS if any(runs.work.values()) else ALL,
        loss_scale=runs.scaled and runs.scaled.scale,
        tolerance=tolerance,
        measured=f"autocast({name}){within}",
    )


def _merit(plan: Plan) -> tuple[float, ...]:
    # Of plans with as much narrow, the one with fewer entries is easier to keep.
    return share_of(plan), -len(plan.entries), -error_of(plan)


def _narrowest_first(plan: Plan) -> tuple[float, ...]:
    return plan.default != ALL, -share_of(plan), -error_of(plan)


def is_narrow(node: Node, widths: WidthPlan) -> bool:
    """Returns whether an equation computes in 16 bits, by the plan or as written."""
    computes = widths.computes(int(widths.entries[node.number]))
    if computes is not None:
        return bits(computes.dtype) <= _NARROW_BITS
    # An equation that the plan leaves as written computes in its widest operand.
    for var in node.eqn.invars:
        if bits(getattr(var.aval, "dtype", None)) > _NARROW_BITS:
            return False
    return True
