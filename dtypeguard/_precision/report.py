"""What an audit of precision found: its figures and its rows, as text and JSON."""

import dataclasses
import json
import math
from typing import Any

from .._autocast.plan import Plan
from .._costs.costs import LineCost, Work
from .._leaves.types import public
from .._reference.difference import Difference, Divergence
from .._source.origin import Origin
from . import text
from .curve import PlanSearch
from .rows import LineDecision, LineLoss, Scaled, left, plain


@public
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class PrecisionReport:
    """What `dtypeguard.audit_precision` found; `print` it.

    Attributes:
        error: how far the outputs of a plain run as written are from those of one in wide
            types, relative to the norms of these; the root mean square over them. Each run
            makes its own decisions, and each equation rounds, as where they run one by one.
            Infinity if an output is not finite as written; not a number if nothing was run.
            Of a program without a floating output, the share of the elements that differ.
        outputs: the error of each floating output, by path, but for those that vanish.
        losses: the lines with a share above 1%, the most important first. If an output is
            not finite, `share` compares the squares of the errors that lines cause alone.
        fix: those of a small set of lines that is worth computing wider.
        mended: the error of a run with these lines wide.
        price: the share of the operations of matrix products that it makes wide.
        unmoved: for each output that is an input with something added, such as params with
            their updates, the share of the elements that an update moves in wide types and
            not as written.
        vanishing: the outputs that rounding alone decides, on the wide side as well, with
            their errors: the gradient of a bias without effect, a sum that cancels exactly.
            `error` and `outputs` leave them out, unless there is no other output. They are
            those more than 5% off that a change of the inputs by a few roundings of the
            wide dtype changes by a tenth of that.
        not_finite: the line that makes the first value that is not finite as written, and
            leads to such an output; the line to fix may stand before it. None if all
            outputs are finite.
        compiled: the error as XLA compiles the program here: it may leave out a rounding
            that is undone at once.
        flipped: the share of the squared error that other decisions cause than those in
            wide types: masks, orders, branches, indices. Negative if they undo what
            rounding causes.
        decisions: the lines that decide otherwise, those that do most often first, and the
            loops that turn another number of times.
        scaling: what scaling the loss does, if the range of a dtype is too small for a
            backward pass, and it helps.
        work: what the program computes, by dtype.
        costs: what makes the program compute wider than it is expected to.
        differences: from the reference, an entry for each output that it has.
        divergence: where a reference that is a function begins to differ; None if rounding
            explains all, or there is no such function.
        search: with `narrow` and `tolerance`, how the plan was found; `print` it.
        not_examined: the primitives that were run as written on both sides.
        is_of_integers: whether no output is floating.
        raises: whether the program raises as it was run, and does not in wide types.
        wide: the wide dtype.
        narrow: the dtype that the whole program was run in; None if as written.
        tolerance: the error that `fix` had to reach; None for a tenth of the squared error.
        matmul_precision: the device, or the precision, of its products; None if their own.
    """

    error: float = math.nan
    outputs: dict[str, float] = dataclasses.field(default_factory=dict)
    losses: tuple[LineLoss, ...] = ()
    fix: tuple[LineLoss, ...] = ()
    mended: float = math.nan
    price: float = math.nan
    unmoved: dict[str, float] = dataclasses.field(default_factory=dict)
    vanishing: dict[str, float] = dataclasses.field(default_factory=dict)
    not_finite: Origin | None = None
    compiled: float = math.nan
    flipped: float = 0.0
    decisions: tuple[LineDecision, ...] = ()
    scaling: Scaled | None = None
    work: Work | None = None
    costs: tuple[LineCost, ...] = ()
    differences: tuple[Difference, ...] = ()
    divergence: Divergence | None = None
    search: PlanSearch | None = None
    not_examined: tuple[str, ...] = ()
    is_of_integers: bool = False
    raises: bool = False
    wide: str = ""
    narrow: str | None = None
    tolerance: float | None = None
    matmul_precision: str | None = None

    @property
    def left(self) -> float:
        """The share of the squared error that the run with the lines of the fix leaves."""
        return left(self.mended, self.error)

    @property
    def plan(self) -> Plan | None:
        """Which lines stay wide where all else is narrow, for [`dtypeguard.autocast`][]."""
        return None if self.search is None else self.search.plan

    @property
    def is_spread(self) -> bool:
        """Whether the error is spread over many lines, and not even a few stand out."""
        most, *others = sorted((x.share for x in self.losses), reverse=True) or [0.0]
        return len(self.fix) > 3 and most < 0.5 and most + sum(others[:2]) < 0.75

    @property
    def headline(self) -> str:
        """How it went: in one sentence, and in one before it on a reference."""
        return text.headline(self)

    def rows(self) -> list[str]:
        """The table of losses."""
        return text.rows(self)

    def __str__(self) -> str:
        return "\n".join(text.report(self))

    def __eq__(self, other: object) -> bool:
        """Whether all fields are the same; what is not a number is equal to itself."""
        if type(self) is not type(other):
            return NotImplemented
        return repr(vars(self)) == repr(vars(other))

    def to_json(self) -> str:
        """All of it as JSON."""
        return json.dumps(plain(self), indent=1)

    def __repr__(self) -> str:
        return f"<PrecisionReport: {self.headline}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))
