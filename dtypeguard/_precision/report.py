"""What an audit of precision found, as text, JSON and HTML."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from .._autocast.plan import Plan
from .._costs.costs import LineCost
from .._costs.work import Work
from .._leaves.public import public
from .._leaves.rows import shown_fields
from .._reference.difference import Difference, Divergence
from .._source.origin import Origin
from . import html, text
from .page import Displayed, document
from .planning import PlanSearch
from .rows import LineDecision, LineLoss, ReportWords, Scaled


class Details(NamedTuple):
    """What a report has beside its answer.

    Attributes:
        lines: how many lines round.
        wide: the wide dtype.
        narrow: the dtype that the whole program was run in; None if as written.
        tolerance: the error that `fix` had to reach; None for a tenth of the squared error.
        price: the share of the operations of matrix products that the fix makes wide.
        left: the share of the squared error that it leaves.
        keeps: whether what its lines make stays wide up to an explicit cast. If not, it is
            cast back after each of them, since that is enough and makes less wide.
        compiled: the error as XLA compiles the program here: it may leave out a rounding
            that is undone at once.
        once: the error if the wide outputs were rounded once to the dtypes as written.
        explained: what the shares of all lines add up to: 1 less `flipped`, or 0 without an
            error. None if an output is not finite as written; then `share` compares the
            squares of the errors that lines cause alone.
        lost: the share of the numbers in the outputs that are 0 as written and not in wide
            types.
        scaling: what scaling the loss does, if the range of a dtype is too small for a
            backward pass; None if it is not, or none of the powers of two from 2^-16 to
            2^24 leaves less than half of the squared error.
        flipped: the share of the squared error that other decisions cause than those in
            wide types: masks, orders, branches, indices. Negative if they undo what
            rounding causes.
        decisions: the lines that decide otherwise, those that do most often first.
        turns_differ: whether a loop turns another number of times than in wide types.
        vanishing: the outputs that rounding alone decides, on the wide side as well, with
            their errors: the gradient of a bias without effect, a sum that cancels exactly.
            `error` and `outputs` leave them out, unless there is no other output. They are
            those more than 5% off of which float32 and float64 differ by a tenth of that;
            if float64 is the wide dtype, those that a change of the inputs by a few
            roundings changes so.
        not_separated: the loops whose decisions each run makes by itself; what flips there
            counts as rounding. It is "the program" if wide types are finite with their own
            decisions alone.
        held: the lines that use arrays in a dtype of 16 bits or less which were made before
            the program was traced: what that has rounded is not counted.
        is_of_integers: whether no output is floating: then an error is the share of the
            elements that differ from those in wide types.
        is_of_gradients: whether gradients in a narrow dtype are among the outputs, and no
            update.
        work: what the program computes, by dtype.
        raises: whether the program raises as it was run, and does not in wide types.
        matmul_precision: the device, or the precision, of its products; None if their own.
        precision: what the advice gives to products: "HIGH" or "HIGHEST".
        times_as_expensive: what this makes of the cost of a product there.
        words: how a report names what was run.
    """

    lines: int = 0
    wide: str = ""
    narrow: str | None = None
    tolerance: float | None = None
    price: float = math.nan
    left: float = math.nan
    keeps: bool = True
    compiled: float = math.nan
    once: float = math.nan
    explained: float | None = None
    lost: float = 0.0
    scaling: Scaled | None = None
    flipped: float = 0.0
    decisions: tuple[LineDecision, ...] = ()
    turns_differ: bool = False
    vanishing: Mapping[str, float] | None = None
    not_separated: tuple[str, ...] = ()
    held: tuple[Origin | None, ...] = ()
    is_of_integers: bool = False
    is_of_gradients: bool = False
    work: Work | None = None
    raises: bool = False
    matmul_precision: str | None = None
    precision: str = ""
    times_as_expensive: float = math.nan
    words: ReportWords = ReportWords("", "", "", "", "")


_NO_DETAILS = Details()
# Figures of 0.1 that are no longer told apart, with what serves.
_GONE = {
    "left_if_kept": "left",
    "price_if_kept": "price",
    "left_if_cast": "left",
    "price_if_cast": "price",
    "left_if_scaled": "scaling",
    "out_of_range": "scaling",
    "rounding": "error and flipped",
    "error_range": "error",
}


@public
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class PrecisionReport(Displayed):
    """What `dtypeguard.audit_precision` found; `print` it.

    The fields of `details` are attributes of the report as well.

    Attributes:
        error: how far the outputs of a plain run as written are from those of one in wide
            types, relative to the norms of these; the root mean square over them. Each run
            makes its own decisions, and each equation rounds, as where they run one by one.
            Infinity if an output is not finite as written; not a number if nothing was run.
        outputs: the error of each floating output, by path, but for those that vanish.
        losses: the lines with a share above 1%, the most important first.
        fix: those of a small set of lines that is worth computing wider.
        mended: the error of a run with these lines wide.
        unmoved: for each output that is an input with something added, such as params with
            their updates, the share of the elements that an update moves in wide types and
            not as written.
        not_finite: the line that makes the first value that is not finite as written, and
            leads to such an output; the line to fix may stand before it. None if all
            outputs are finite.
        costs: what makes the program compute wider than it is expected to.
        not_examined: the primitives that were run as written on both sides.
        differences: from the reference, an entry for each output that it has.
        divergence: where a reference that is a function begins to differ; None if rounding
            explains all, or there is no such function.
        search: with `narrow` and `tolerance`, how the plan was found; `print` it.
        details: all else that was measured.
    """

    error: float = math.nan
    outputs: dict[str, float] = dataclasses.field(default_factory=dict)
    losses: tuple[LineLoss, ...] = ()
    fix: tuple[LineLoss, ...] = ()
    mended: float = math.nan
    unmoved: dict[str, float] = dataclasses.field(default_factory=dict)
    not_finite: Origin | None = None
    costs: tuple[LineCost, ...] = ()
    not_examined: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    divergence: Divergence | None = None
    search: PlanSearch | None = None
    details: Details = _NO_DETAILS

    def __getattr__(self, name: str) -> Any:
        if name in Details._fields:
            return getattr(self.details, name)
        instead = f" Use {_GONE[name]}." if name in _GONE else ""
        message = f"a PrecisionReport has no attribute {name!r}.{instead}"
        raise AttributeError(message, name=name, obj=self)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *Details._fields]

    @property
    def plan(self) -> Plan | None:
        """Which lines stay wide where all else is narrow, for [`dtypeguard.autocast`][]."""
        return None if self.search is None else self.search.plan

    @property
    def loss_scale(self) -> float | None:
        """The power of two by which to multiply the loss; None if none helps."""
        return None if self.scaling is None else self.scaling.scale

    @property
    def scaled(self) -> float:
        """The error of a run with the loss scaled so."""
        return math.nan if self.scaling is None else self.scaling.error

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
        fields = {**vars(self), **self.details._asdict(), "plan": None, "words": None}
        for name in ("details", "plan", "words"):
            del fields[name]
        more = {"loss_scale": self.loss_scale, "scaled": self.scaled}
        more["search"] = None if self.search is None else {**self.search.data}
        if more["search"]:
            del more["search"]["seconds"]  # which differ each time
        return json.dumps(_plain({**fields, **more}), indent=1)

    def to_html(self) -> str:
        """One page that needs no network: the source, with what each line loses."""
        return document("dtypeguard precision", *self._html())

    def _html(self) -> tuple[str, str]:
        return html.body(self), html.STYLE


def _plain(value: Any) -> object:
    """A value as JSON can hold it, which has no infinity."""
    if dataclasses.is_dataclass(value):
        value = shown_fields(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
