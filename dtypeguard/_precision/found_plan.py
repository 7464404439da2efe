"""A plan with the runs that show what it does, as text."""

import dataclasses
import math

from .._autocast.plan import PRODUCTS, Plan
from .._leaves.table import columns, percent
from .rows import few_of

# Errors above this are not finite, for all that a plan without a tolerance is held to.
_NOT_FINITE = 1e30


@dataclasses.dataclass(frozen=True, repr=False)
class PlanSearch:
    """A plan with the figures of its runs, after a search or a check.

    Attributes:
        plan: the plan.
        curve: plans from all narrow to all wide, with their figures; it is one of them.
        notes: what a reader of the figures has to know.
    """

    plan: Plan
    curve: tuple[Plan, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_within(self) -> bool:
        """Whether the plan is within its tolerance, on what is held out as well."""
        plan = self.plan
        # Where nobody asked for an error, any finite one will do.
        bound = _NOT_FINITE if plan.tolerance is None else plan.tolerance
        return max(error_of(plan), plan.held_out or 0.0) <= bound

    @property
    def is_of_use(self) -> bool:
        """Whether the plan is within its tolerance, and anything is narrow by it."""
        return self.is_within and self.plan.share != 0

    @property
    def headline(self) -> str:
        """The plan in a sentence."""
        plan = self.plan
        count = len(plan.entries)
        lines = {0: "no lines", 1: "1 line"}.get(count, f"{count} lines")
        text = (
            f"plan: {percent(share_of(plan))} of the work in {plan.narrow}, "
            f"{lines} wide, {percent(error_of(plan))} off"
        )
        if plan.held_out is not None:
            text += f" ({percent(plan.held_out)} held out)"
        if plan.tolerance is not None:
            within = "within" if self.is_within else "not within"
            text += f", {within} {percent(plan.tolerance)}"
        return f"{text}."

    def rows(self) -> list[str]:
        """Returns the curve as a table; the plan has a star."""
        table = [("", "off", "held out", "narrow", "in float32")]
        for plan in self.curve:
            table.append(
                (
                    # Plans are equal without their figures; the star is for one row.
                    "*" if plan is self.plan else " ",
                    percent(error_of(plan)),
                    "" if plan.held_out is None else percent(plan.held_out),
                    percent(share_of(plan)),
                    _wide_text(plan),
                )
            )
        return columns(table)

    def __str__(self) -> str:
        return "\n".join([self.headline, *self.rows(), *self.notes])

    def __repr__(self) -> str:
        return f"PlanSearch({self.headline})"


def _wide_text(plan: Plan) -> str:
    """Returns what a plan has in float32, in few words."""
    if not plan.entries:
        return "all but products" if plan.default == PRODUCTS else "nothing"
    return few_of(plan.entries)


def error_of(plan: Plan) -> float:
    """Returns the error of a plan that was run."""
    # A plan that was never run is worse than any plan that was.
    return math.inf if plan.error is None else plan.error


def share_of(plan: Plan) -> float:
    """Returns how much of the work is narrow by a plan that was run."""
    return plan.share or 0.0
