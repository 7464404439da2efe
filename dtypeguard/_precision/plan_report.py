"""What a search for a plan, and a check of one, have found."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from .._autocast.entries import PlanEntry
from .._autocast.plan import Plan
from .._leaves.rows import columns, percent, shown_fields
from .rows import plain

# XLA leaves roundings out and puts operations together: so much it may add to an error.
_MORE = 1.25


@dataclasses.dataclass(frozen=True, repr=False)
class PlanSearch:
    """How a plan was found; `print` it.

    Attributes:
        plan: the plan.
        runs: how many runs of the program were made.
        seconds: how long that took.
        is_minimal: whether no entry can be dropped; False if the runs were spent before.
        notes: what it could not reach, and how far off products alone are.
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
        return is_within(self.plan, self.compiled)

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
        return f"plan: {share}, {wide} wide, {_off(plan, self.compiled)}."

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
        found = shown_fields(self) | shown_fields(self.plan)
        del found["plan"]
        return plain(found) | {"seconds": round(self.seconds, 3), "ok": self.is_of_use}

    def __repr__(self) -> str:
        return f"PlanSearch({self.headline})"


@dataclasses.dataclass(frozen=True)
class PlanCheck:
    """What a program by a plan was measured to be.

    Attributes:
        path: of the plan.
        plan: the plan.
        now: the plan with the tolerance and the figures of the check.
        compiled: the error as XLA compiles the program here; None with a loss scale.
        worst: the narrow lines that cause most alone, with that error; none if within.
    """

    path: str
    plan: Plan
    now: Plan
    compiled: float | None
    worst: tuple[tuple[str, float], ...] = ()

    @property
    def is_within(self) -> bool:
        """Whether it is within the tolerance; without one, whether it is finite."""
        return is_within(self.now, self.compiled)

    def __str__(self) -> str:
        plan, now = self.plan, self.now
        lines = [f"{self.path}: {_off(now, self.compiled)}."]
        lines.append(
            f"Now {percent(now.share or 0.0)} of the multiply-adds are {plan.narrow}; in "
            f"the plan {percent(plan.share or 0.0)}, {percent(plan.error or 0.0)} off."
        )
        if self.worst:
            worst = columns([(percent(x), name) for name, x in self.worst])
            lines += [f"Of what is {plan.narrow}, these lines lose most alone:"]
            lines += [*(f"  {x}" for x in worst)]
            lines.append("Search a plan anew, or give one of them an entry.")
        return "\n".join(lines)

    @property
    def data(self) -> dict[str, Any]:
        """All of it, for JSON."""
        own = {"path": self.path, "compiled": self.compiled, "worst": self.worst}
        return plain(shown_fields(self.now) | own | {"ok": self.is_within})


def is_within(plan: Plan, compiled: float | None) -> bool:
    """Whether a plan is within its tolerance: its inputs, held out ones, and compiled."""
    errors = [x for x in (plan.error, plan.held_out) if x is not None]
    bound = 1e30 if plan.tolerance is None else plan.tolerance
    holds = compiled is None or compiled <= _MORE * bound
    return bool(errors) and max(errors) <= bound and holds


def _off(plan: Plan, compiled: float | None) -> str:
    """How far off a plan is, and whether that is within its tolerance."""
    off = f"{percent(plan.error or 0.0)} off"
    off += "" if plan.held_out is None else f" ({percent(plan.held_out)} held out)"
    is_good = is_within(plan, compiled)
    if is_within(plan, None) and not is_good:
        off += f" ({percent(compiled or 0.0)} as XLA compiles it here)"
    if plan.tolerance is None:
        return off
    return f"{off}, {'within' if is_good else 'not within'} {percent(plan.tolerance)}"


def table_of(entries: Sequence[PlanEntry]) -> list[str]:
    """The entries with what was measured of each."""
    rows: list[tuple[str, ...]] = [("wide", "off without", "multiply-adds")]
    for each in sorted(entries, key=lambda x: -(x.error or 0.0)):
        errors = "" if each.error is None else percent(each.error)
        rows.append((str(each), errors, percent(each.share or 0.0)))
    return columns(rows) if entries else []
