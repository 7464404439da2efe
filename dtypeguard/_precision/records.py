"""What an audit of precision finds, a record for each question. See `PrecisionReport`."""

import dataclasses
import math
from typing import NamedTuple

from .._costs.costs import LineCost
from .._costs.work import Work
from .._numbers.plans import WidthPlan
from .._reference.difference import Difference, Divergence
from .._source.origin import Origin
from .loss import LineLoss


@dataclasses.dataclass(frozen=True)
class LineDecision:
    """A line that decides by floating numbers, and decides otherwise in wide types.

    Attributes:
        origin: the line; None if no line outside JAX leads to it.
        flipped: how many of its decisions are others in wide types.
        count: how many it makes: a mask of 32,768 elements is as many.
    """

    origin: Origin | None
    flipped: int
    count: int


class WideLines(NamedTuple):
    """A plain run with some lines wide.

    Attributes:
        error: that of its outputs.
        left: the share of the squared error as written that it leaves.
        price: the share of the operations of matrix products that it makes wide.
        plan: what was run; None for the program as written, and in a report.
    """

    error: float = math.nan
    left: float = math.nan
    price: float = math.nan
    plan: WidthPlan | None = None


class Scaled(NamedTuple):
    """A plain run with the loss scaled, of which the gradients are divided in wide types.

    Attributes:
        scale: the factor, a power of two.
        error: that of its outputs.
        left: the share of the squared error as written that it leaves.
        dtype: the one whose range is too small without.
    """

    scale: float
    error: float
    left: float
    dtype: str


class ReportWords(NamedTuple):
    """How a report names what was run.

    Attributes:
        setting: how the program was run; empty if as written.
        widened: how the lines of the fix are computed.
        become: what their products become.
        off: what an error is.
    """

    setting: str
    widened: str
    become: str
    off: str = "|as written - wide| / |wide|"


class Setting(NamedTuple):
    """What was run; `products` has the words for products as a device computes them."""

    lines: int = 0
    wide: str = ""
    narrow: str | None = None
    tolerance: float | None = None
    not_examined: tuple[str, ...] = ()
    not_separated: tuple[str, ...] = ()
    held: tuple[Origin | None, ...] = ()
    products: ReportWords | None = None

    @property
    def words(self) -> ReportWords:
        """How a report names it."""
        setting = "" if self.narrow is None else f"in {self.narrow}"
        return self.products or ReportWords(setting, f"in {self.wide}", self.wide)


@dataclasses.dataclass(frozen=True)
class Errors:
    """How far off the outputs are; `total` is that of all."""

    total: float = math.nan
    outputs: dict[str, float] = dataclasses.field(default_factory=dict)
    vanishing: dict[str, float] = dataclasses.field(default_factory=dict)
    compiled: float = math.nan
    once: float = math.nan
    range: tuple[float, float] | None = None
    lost: float = 0.0
    is_of_integers: bool = False
    not_finite: Origin | None = None


class Decided(NamedTuple):
    """What decisions that flipped do, and on which lines."""

    flipped: float = 0.0
    lines: tuple[LineDecision, ...] = ()
    turns_differ: bool = False


class Losses(NamedTuple):
    """Which lines lose precision, and what to do.

    Attributes:
        lines: those that lose it.
        explained: what the shares of all lines add up to.
        fix: those to compute wider.
        keeps: whether what they make is to stay so.
        kept: the run in which it does.
        cast: that in which it is cast back.
        scaled: that with the loss scaled.
        at_once: what to write in place of a remedy for each line.
    """

    lines: tuple[LineLoss, ...] = ()
    explained: float | None = None
    fix: tuple[LineLoss, ...] = ()
    keeps: bool = True
    kept: WideLines = WideLines()
    cast: WideLines = WideLines()
    scaled: Scaled | None = None
    at_once: str | None = None

    @property
    def best(self) -> WideLines:
        """The run that is advised."""
        return self.kept if self.keeps else self.cast

    @property
    def is_spread(self) -> bool:
        """Whether the error is spread over many lines, and not even a few stand out."""
        most, *others = sorted((loss.share for loss in self.lines), reverse=True) or [0.0]
        return len(self.fix) > 3 and most < 0.5 and most + sum(others[:2]) < 0.75


@dataclasses.dataclass(frozen=True)
class Updates:
    """What rounding does to updates."""

    unmoved: dict[str, float] = dataclasses.field(default_factory=dict)
    is_of_gradients: bool = False


class Costs(NamedTuple):
    """What is computed, by dtype, and what makes it wide."""

    work: Work | None = None
    lines: tuple[LineCost, ...] = ()


class Compared(NamedTuple):
    """How a reference differs."""

    differences: tuple[Difference, ...] = ()
    divergence: Divergence | None = None
