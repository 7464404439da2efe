"""The fields of a report of precision, and what follows from them."""

import dataclasses
import math
from typing import Any, ClassVar, Generic, TypeVar

from .._autocast.plan import Plan
from .._costs.costs import LineCost
from .._costs.work import Work
from .._reference.difference import Difference, Divergence
from .._source.origin import Origin
from .loss import LineLoss
from .plan_search import PlanSearch
from .records import (
    Compared,
    Costs,
    Decided,
    Errors,
    LineDecision,
    Losses,
    Setting,
    Updates,
)

T = TypeVar("T")


class Field(Generic[T]):
    """A field of a record of a report, under a name of the report's.

    Args:
        path: the names that lead to it.
        absent: its value if there is no such record.
    """

    def __init__(self, path: str, absent: Any = None):
        self._path, self._absent = path.split("."), absent

    def __get__(self, report: object, owner: type | None = None) -> T:
        value: Any = report
        for name in self._path:
            value = getattr(value, name, self._absent)
        return value


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Findings:
    """What an audit found; see `PrecisionReport`, which has the names of its parts."""

    setting: Setting = dataclasses.field(default_factory=Setting)
    errors: Errors = dataclasses.field(default_factory=Errors)
    by_line: Losses = dataclasses.field(default_factory=Losses)
    decided: Decided = dataclasses.field(default_factory=Decided)
    updates: Updates = dataclasses.field(default_factory=Updates)
    spent: Costs = dataclasses.field(default_factory=Costs)
    compared: Compared = dataclasses.field(default_factory=Compared)
    search: PlanSearch | None = None

    # In the order of their JSON.
    error: ClassVar[Field[float]] = Field("errors.total")
    outputs: ClassVar[Field[dict[str, float]]] = Field("errors.outputs")
    losses: ClassVar[Field[tuple[LineLoss, ...]]] = Field("by_line.lines")
    fix: ClassVar[Field[tuple[LineLoss, ...]]] = Field("by_line.fix")
    mended: ClassVar[Field[float]] = Field("by_line.best.error")
    left: ClassVar[Field[float]] = Field("by_line.best.left")
    price: ClassVar[Field[float]] = Field("by_line.best.price")
    keeps: ClassVar[Field[bool]] = Field("by_line.keeps")
    left_if_kept: ClassVar[Field[float]] = Field("by_line.kept.left")
    price_if_kept: ClassVar[Field[float]] = Field("by_line.kept.price")
    left_if_cast: ClassVar[Field[float]] = Field("by_line.cast.left")
    price_if_cast: ClassVar[Field[float]] = Field("by_line.cast.price")
    unmoved: ClassVar[Field[dict[str, float]]] = Field("updates.unmoved")
    is_of_integers: ClassVar[Field[bool]] = Field("errors.is_of_integers")
    is_of_gradients: ClassVar[Field[bool]] = Field("updates.is_of_gradients")
    lost: ClassVar[Field[float]] = Field("errors.lost")
    loss_scale: ClassVar[Field[float | None]] = Field("by_line.scaled.scale")
    scaled: ClassVar[Field[float]] = Field("by_line.scaled.error", math.nan)
    left_if_scaled: ClassVar[Field[float]] = Field("by_line.scaled.left", math.nan)
    out_of_range: ClassVar[Field[str | None]] = Field("by_line.scaled.dtype")
    flipped: ClassVar[Field[float]] = Field("decided.flipped")
    decisions: ClassVar[Field[tuple[LineDecision, ...]]] = Field("decided.lines")
    turns_differ: ClassVar[Field[bool]] = Field("decided.turns_differ")
    error_range: ClassVar[Field[tuple[float, float] | None]] = Field("errors.range")
    compiled: ClassVar[Field[float]] = Field("errors.compiled")
    once: ClassVar[Field[float]] = Field("errors.once")
    explained: ClassVar[Field[float | None]] = Field("by_line.explained")
    lines: ClassVar[Field[int]] = Field("setting.lines")
    wide: ClassVar[Field[str]] = Field("setting.wide")
    narrow: ClassVar[Field[str | None]] = Field("setting.narrow")
    tolerance: ClassVar[Field[float | None]] = Field("setting.tolerance")
    not_examined: ClassVar[Field[tuple[str, ...]]] = Field("setting.not_examined")
    not_separated: ClassVar[Field[tuple[str, ...]]] = Field("setting.not_separated")
    held: ClassVar[Field[tuple[Origin | None, ...]]] = Field("setting.held")
    work: ClassVar[Field[Work | None]] = Field("spent.work")
    costs: ClassVar[Field[tuple[LineCost, ...]]] = Field("spent.lines")
    not_finite: ClassVar[Field[Origin | None]] = Field("errors.not_finite")
    vanishing: ClassVar[Field[dict[str, float]]] = Field("errors.vanishing")
    differences: ClassVar[Field[tuple[Difference, ...]]] = Field("compared.differences")
    divergence: ClassVar[Field[Divergence | None]] = Field("compared.divergence")

    @property
    def plan(self) -> Plan | None:
        """The plan of `search`."""
        return None if self.search is None else self.search.plan

    @property
    def is_spread(self) -> bool:
        """Whether the error is spread over many lines, and not even a few stand out."""
        return self.by_line.is_spread

    @property
    def rounding(self) -> float:
        """The error that rounding alone causes, with the decisions as written."""
        part = 1 - self.flipped
        return self.error * part**0.5 if part > 0 else 0.0

    def __eq__(self, other: object) -> bool:
        """Whether all fields are the same; what is not a number is equal to itself."""
        if not isinstance(other, Findings) or type(self) is not type(other):
            return NotImplemented
        return _fields(self) == _fields(other)


def json_names() -> list[str]:
    """The names of the fields of the records, in the order of their JSON."""
    return [name for name, each in vars(Findings).items() if isinstance(each, Field)]


def _fields(report: Findings) -> str:
    """The fields of a report as text, in which what is not a number equals itself."""
    names = (field.name for field in dataclasses.fields(report))
    return repr({name: getattr(report, name) for name in names})
