"""A plan beside what its program is off now."""

import dataclasses
from typing import Any

from .._autocast.plan import Plan
from .._leaves.rows import columns, percent

# XLA leaves roundings out and puts operations together: so much it may add to an error.
_MORE = 1.25


def holds_compiled(compiled: float | None, tolerance: float) -> bool:
    """Whether a program is within a tolerance as XLA compiles it, if that is known."""
    return compiled is None or compiled <= _MORE * tolerance


@dataclasses.dataclass(frozen=True)
class PlanCheck:
    """What a program by a plan was measured to be.

    Attributes:
        path: of the plan.
        plan: the plan.
        tolerance: the error that is allowed; not a number if the plan has none.
        error: how far the program by the plan is off.
        held_out: the same on inputs that are held out.
        compiled: the error as XLA compiles the program here; None with a loss scale.
        share: the part of the multiply-adds that is narrow.
        worst: the narrow lines that cause most alone, with that error; none if within.
    """

    path: str
    plan: Plan
    tolerance: float
    error: float
    held_out: float | None
    compiled: float | None
    share: float
    worst: tuple[tuple[str, float], ...] = ()

    @property
    def is_within(self) -> bool:
        """Whether it is within the tolerance; without one, whether it is finite."""
        errors = [self.error, *([] if self.held_out is None else [self.held_out])]
        is_within = all(error <= self._bound for error in errors)
        return is_within and holds_compiled(self.compiled, self._bound)

    @property
    def _bound(self) -> float:
        return self.tolerance if self.tolerance == self.tolerance else 1e30

    @property
    def headline(self) -> str:
        within = "within" if self.is_within else "not within"
        off = f"{percent(max(self.error, self.held_out or 0.0))} off"
        is_otherwise = self.error <= self._bound
        if is_otherwise and not holds_compiled(self.compiled, self._bound):
            off += f" ({percent(self.compiled or 0.0)} as XLA compiles it here)"
        return f"{self.path}: {off}, {within} {percent(self.tolerance)}."

    def __str__(self) -> str:
        shown = lambda x: "" if x is None else percent(x)
        plan = self.plan
        rows = [
            ("", "now", "in the plan"),
            ("off", shown(self.error), shown(plan.error)),
            ("off, as compiled", shown(self.compiled), ""),
            ("off, held out", shown(self.held_out), shown(plan.held_out)),
            (f"multiply-adds in {plan.narrow}", shown(self.share), shown(plan.share)),
        ]
        lines = [self.headline, *columns([row for row in rows if any(row[1:])])]
        if self.worst:
            lines += [f"Of what is {plan.narrow}, these lines lose most alone:"]
            lines += [
                f"  {each}"
                for each in columns([(percent(x), name) for name, x in self.worst])
            ]
            lines.append("Search a plan anew, or give one of them an entry.")
        return "\n".join(lines)

    @property
    def data(self) -> dict[str, Any]:
        """All of it, for JSON."""
        fields = dataclasses.asdict(dataclasses.replace(self, plan=Plan(self.plan.narrow)))
        del fields["plan"]
        return {**fields, "ok": self.is_within}
