"""The search for a plan: which lines stay wide where all products are narrow."""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from .._autocast.entries import ALL, PRODUCTS, PlanEntry
from .._autocast.plan import Plan
from .._leaves.rows import columns, percent
from .candidates import Candidate, candidates_in, grouped
from .search import Choosing, Chosen
from .trials import PlanTrials

# XLA leaves roundings out and puts operations together: so much it may add to an error.
_MORE = 1.25
_OF_PLAN = "default", "error", "held_out", "tolerance", "share", "loss_scale", "measured"


@dataclasses.dataclass(frozen=True, repr=False)
class PlanSearch:
    """How a plan was found; `print` it.

    Attributes:
        plan: the plan.
        runs: how many runs of the program were made.
        seconds: how long that took.
        is_minimal: whether no entry can be dropped; False if the runs were spent before.
        notes: what it could not reach, and what the last tenth of the tolerance costs.
        updates: the outputs of which the error is that of the update.
        lines: the numbers of the program's lines that its entries name.
        compiled: the error of the plan as XLA compiles the program here, where roundings
            may be left out; None with a loss scale.
    """

    plan: Plan
    runs: int
    seconds: float
    is_minimal: bool
    notes: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    lines: frozenset[int] = frozenset()
    compiled: float | None = None

    @property
    def is_within(self) -> bool:
        """Whether the plan is within its tolerance, on what is held out as well."""
        return is_within(self.plan, self.compiled, self.plan.tolerance or 0.0)

    @property
    def is_of_use(self) -> bool:
        """Whether the plan is within its tolerance, and anything is narrow by it."""
        return self.is_within and self.plan.share != 0

    @property
    def headline(self) -> str:
        """The plan in a sentence."""
        plan, bound = self.plan, percent(self.plan.tolerance or 0.0)
        if plan.share == 0 and self.is_within:
            return f"plan: nothing to gain: within {bound}, no product is narrow."
        share = f"{percent(plan.share or 0.0)} of the multiply-adds in {plan.narrow}"
        off = f"{percent(plan.error or 0.0)} off"
        off += "" if plan.held_out is None else f" ({percent(plan.held_out)} held out)"
        if is_within(plan, None, plan.tolerance or 0.0) and not self.is_within:
            off += f" ({percent(self.compiled or 0.0)} as XLA compiles it here)"
        within = "within" if self.is_within else "not within"
        count = count_of(len(plan.entries))
        return f"plan: {share}, {count} wide, {off}, {within} {bound}."

    def __str__(self) -> str:
        lines = [self.headline, *table_of(self.plan.entries)]
        lines += ["", *self.notes] if self.notes else []
        if self.updates:
            more = f" and {len(self.updates) - 2} more" * (len(self.updates) > 2)
            few = ", ".join(path or "the output" for path in self.updates[:2])
            lines.append(f"For {few}{more}, the error is that of the update.")
        if not self.is_minimal:
            lines.append("The runs were spent before each entry was known to be needed.")
        return "\n".join([*lines, f"{self.runs} runs in {self.seconds:.0f} s."])

    @property
    def data(self) -> dict[str, Any]:
        """All of it, for JSON."""
        plan = {name: getattr(self.plan, name) for name in _OF_PLAN}
        entries = [
            {**dataclasses.asdict(x), "dtype": str(x.dtype)} for x in self.plan.entries
        ]
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        narrow = {"narrow": str(self.plan.narrow), "entries": entries}
        more = {"seconds": round(self.seconds, 3), "lines": sorted(self.lines)}
        del own["plan"]
        return {**plan, **narrow, **own, **more, "ok": self.is_of_use}

    def __repr__(self) -> str:
        return f"PlanSearch({self.headline})"


def is_within(plan: Plan, compiled: float | None, bound: float) -> bool:
    """Whether a plan is within a tolerance: its inputs, held out ones, and compiled."""
    errors = [x for x in (plan.error, plan.held_out) if x is not None]
    holds = compiled is None or compiled <= _MORE * bound
    return bool(errors) and max(errors) <= bound and holds


def count_of(entries: int) -> str:
    return "1 line" if entries == 1 else f"{entries or 'no'} lines"


def table_of(entries: Sequence[PlanEntry]) -> list[str]:
    """The entries with what was measured of each."""
    if not entries:
        return []
    has_held_out = any(each.held_out is not None for each in entries)
    rows: list[tuple[str, ...]] = [
        ("wide", "off without", "held out" * has_held_out, "multiply-adds")
    ]
    for each in sorted(entries, key=lambda x: -(x.error or 0.0)):
        errors = ("" if x is None else percent(x) for x in (each.error, each.held_out))
        rows.append((str(each), *errors, percent(each.share or 0.0)))
    return columns(rows)


class Planning:
    """The search for a plan: all products narrow, or all of it if there are none."""

    def __init__(self, trials: PlanTrials, plan: Plan, show_status: Callable[[str], None]):
        self._trials, self._show = trials, show_status
        self._tolerance = math.inf if plan.tolerance is None else plan.tolerance
        candidates, self._unnamed = candidates_in(trials.program)
        products = [each for each in candidates if each.has_products]
        self._candidates = products or candidates
        default = PRODUCTS if products else ALL
        self._bare = dataclasses.replace(plan, default=default)
        self._errors: dict[frozenset[int], float] = {}
        self._alone: dict[Candidate, float] = {}

    def search(self) -> PlanSearch:
        """Searches, and measures what it has found."""
        started = time.monotonic()
        self._show(f"running it with {self._bare.default} in {self._bare.narrow}")
        if self._error((), is_asked=True) <= self._tolerance:
            chosen = Chosen[Candidate]((), self._error(()), True, True)
        else:
            order = sorted(self._candidates, key=self._worth)
            self._show("looking for lines that stay wide")
            choosing = Choosing(order, self._error_alone, self._error, self._tolerance)
            chosen = choosing.chosen()
        items = grouped(chosen.items, self._candidates)
        items = self._needed(items) if chosen.is_minimal else items
        plan = self._measured(items)
        plan = dataclasses.replace(plan, share=self._trials.share(plan))
        numbers, nodes = _numbers(items), self._trials.program.block.all_nodes()
        return PlanSearch(
            plan=plan,
            runs=self._trials.count,
            seconds=time.monotonic() - started,
            is_minimal=chosen.is_minimal or chosen.error < math.inf,
            notes=(*self._notes(plan, items),),
            lines=frozenset(
                x.line for x in nodes if x.number in numbers and x.line is not None
            ),
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
            self._alone[candidate] = self._trials.alone(candidate)
        return self._alone[candidate]

    def _needed(self, items: list[Candidate]) -> list[Candidate]:
        """The entries, without those that none of the others needs."""
        for item in items:
            rest = [other for other in items if other is not item]
            if self._error(rest, is_asked=True) <= self._tolerance:
                return self._needed(rest)
        return items

    def _measured(self, items: Sequence[Candidate]) -> Plan:
        """The plan with its figures."""
        entries = []
        for number, item in enumerate(items):
            self._show(f"measuring without entry {number + 1} of {len(items)}")
            rest = [other for other in items if other is not item]
            error = self._error(rest, is_asked=True)
            held_out = self._trials.held_out(self._plan(rest))
            entry = item.entry(self._trials.program.formats.wide)
            entries.append(dataclasses.replace(entry, error=error, held_out=held_out))
        plan = dataclasses.replace(self._bare, entries=(*entries,))
        error, held_out = self._error(items, is_asked=True), self._trials.held_out(plan)
        return dataclasses.replace(plan, error=error, held_out=held_out)

    def _plan(self, items: Collection[Candidate]) -> Plan:
        wide = self._trials.program.formats.wide
        entries = tuple(item.entry(wide) for item in items)
        return dataclasses.replace(self._bare, entries=entries)

    def _error(self, items: Collection[Candidate], is_asked: bool = False) -> float:
        """The error with some lines wide, on the inputs of the search."""
        key = _numbers(items)
        if key not in self._errors:
            self._errors[key] = self._trials.error(self._plan(items), is_asked)
        return self._errors[key]

    def _notes(self, plan: Plan, items: Sequence[Candidate]) -> Iterator[str]:
        """What a search says beside its plan."""
        tolerance, error = plan.tolerance or 0.0, plan.error or 0.0
        wide, bare = sum(each.work for each in items), self._errors[frozenset()]
        if bare > tolerance and wide:
            yield (
                f"With products alone in {plan.narrow}, it is {percent(bare)} off: "
                f"{percent(wide)} of the multiply-adds stay wide."
            )
        if tolerance < error < math.inf and len(items) == len(self._candidates):
            yield (
                f"With all of its lines wide it is {percent(error)} off: the program "
                "rounds by casts of its own, which a plan leaves alone."
            )
        nearly = [x for x in plan.entries if (x.error or math.inf) <= 1.1 * tolerance]
        if nearly:
            dearest = max(nearly, key=lambda each: each.share or 0.0)
            yield (
                "The last tenth of the tolerance costs "
                f"{percent(dearest.share or 0.0)} of the multiply-adds: without {dearest} "
                f"it is {percent(dearest.error or 0.0)} off."
            )
        if self._unnamed:
            equations = "1 equation" if self._unnamed == 1 else f"{self._unnamed} equations"
            yield f"{equations} that no line of yours leads to cannot have an entry."
        if plan.loss_scale is not None:
            yield f"Measured with the loss multiplied by {plan.loss_scale:g}."


def _numbers(items: Collection[Candidate]) -> frozenset[int]:
    """The equations of some lines, by which runs are known again."""
    return frozenset[int]().union(*(item.numbers for item in items))
