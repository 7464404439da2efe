"""The figures and rows of an audit of precision, of which a report is made."""

import dataclasses
import math

from .._autocast.plan import Plan
from .._costs.costs import NO_WORK, Work
from .._reference.difference import Difference, Divergence
from .._source.origin import Origin
from .found_plan import PlanSearch
from .rows import (
    Decisions,
    Fixed,
    IntegerMisfit,
    LineLoss,
    NarrowedBits,
    OutputError,
    PlainRun,
    RoundedArgument,
    Scaled,
    Unexamined,
    UnknownConstant,
    Unreached,
    left,
)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Figures:
    """What an audit found; `PrecisionReport` says what its fields are."""

    error: float = math.nan
    outputs: dict[str, OutputError] = dataclasses.field(default_factory=dict)
    losses: tuple[LineLoss, ...] = ()
    fixed: Fixed = dataclasses.field(default_factory=Fixed)
    decisions: Decisions = dataclasses.field(default_factory=Decisions)
    not_finite: Origin | None = None
    scaling: Scaled | None = None
    work: Work = NO_WORK
    differences: tuple[Difference, ...] = ()
    divergence: Divergence | None = None
    search: PlanSearch | None = None
    rounded: tuple[RoundedArgument, ...] = ()
    unknown: tuple[UnknownConstant, ...] = ()
    is_traced_wide: bool = True
    integers: tuple[IntegerMisfit, ...] = ()
    narrowed: tuple[NarrowedBits, ...] = ()
    unexamined: tuple[Unexamined, ...] = ()
    run: PlainRun = dataclasses.field(default_factory=PlainRun)
    unreached: Unreached | None = None

    @property
    def fix(self) -> tuple[LineLoss, ...]:
        """A small set of lines that is worth computing wider, which was run."""
        return tuple(loss for loss in self.losses if loss.remedy)

    @property
    def left(self) -> float:
        """The share of the squared error that the run with the lines of the fix leaves."""
        return left(self.fixed.error, self.error)

    @property
    def plan(self) -> Plan | None:
        """Which lines stay wide where all else is narrow, for [`dtypeguard.autocast`][]."""
        return None if self.search is None else self.search.plan

    @property
    def not_examined(self) -> tuple[str, ...]:
        """The primitives that were run as written on both sides."""
        return tuple(sorted({row.primitive for row in self.unexamined}))
