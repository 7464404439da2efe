"""What an audit of precision found, as text, JSON and HTML."""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Sequence
from typing import ClassVar

from .._autocast.plan import Plan
from .._costs.costs import LineCost
from .._costs.work import Work
from .._leaves.page import Displayed, document, html_table
from .._leaves.public import public
from .._leaves.rows import columns, percent, shown_fields
from .._reference.difference import Difference, Divergence, details_of, headline_of
from .._source.origin import Origin, place_of
from . import html
from .loss import STOCHASTICALLY, LineLoss
from .marks import mark_of_decision, mark_of_loss, marks_of_cost, work_table
from .plan_search import PlanSearch
from .runs import LineDecision
from .search import MOST_ALONE as _MOST_ALONE


@public
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class PrecisionReport(Displayed):
    """What `dtypeguard.audit_precision` found; `print` it.

    Attributes:
        error: how far the outputs of a plain run as written are from those of one in wide
            types, relative to the norms of these; the root mean square over them. Each run
            makes its own decisions, and each equation rounds, as where they run one by one.
            Infinity if an output is not finite as written; not a
            number if nothing was run, as `left` is then.
        outputs: the error of each floating output, by path, but for those that vanish.
        losses: the lines with a share above 1%, the most important first.
        fix: those of a small set of lines that is worth computing wider.
        mended: the error of a plain run with these lines wide.
        left: the share of the squared error that it leaves.
        price: the share of the operations of matrix products that it makes wide.
        keeps: whether what they make stays wide in it, up to an explicit cast. If not, it
            is cast back after each of them, since that is enough and makes less wide.
        left_if_kept: as `left`, if it stays wide.
        price_if_kept: as `price`, then.
        left_if_cast: as `left`, if it is cast back. Not a number if `price_if_kept` is 0 or
            inputs are among the lines, as `price_if_cast` is then.
        price_if_cast: as `price`, then.
        unmoved: for each output that is an input with something added, such as params with
            their updates, the share of the elements that an update moves in wide types and
            not as written.
        is_of_integers: whether no output is floating: then an error is the share of the
            elements that differ from those in wide types.
        is_of_gradients: whether gradients in a narrow dtype are among the outputs, and no
            such update.
        lost: the share of the numbers in the outputs that are 0 as written and not in wide
            types.
        loss_scale: the power of two by which to multiply the loss, if the range of a dtype
            is too small for a backward pass; None if it is not, or none of those from 2^-16
            to 2^24 that were tried leaves less than half of the squared error.
        scaled: the error of a plain run with the loss scaled so, of which the gradients are
            divided in wide types.
        left_if_scaled: the share of the squared error that it leaves.
        out_of_range: the dtype of that range, such as "float16".
        flipped: the share of the squared error that other decisions cause than those in
            wide types: masks, orders, branches, indices. Negative if they undo what
            rounding causes.
        decisions: the lines that decide otherwise, those that do most often first.
        turns_differ: whether a loop turns another number of times than in wide types.
        error_range: of a program in float32 that loses much, the least and the greatest
            error of inputs that differ by a rounding, these among them; None if it is about
            the same.
        compiled: the error as XLA compiles the program here: it may leave out a rounding
            that is undone at once.
        once: the error if the wide outputs were rounded once to the dtypes as written.
        explained: what the shares of all lines add up to: 1 less `flipped`, or 0 without an
            error. None if an output is not finite as written; then `share` compares the
            squares of the errors that lines cause alone.
        lines: how many lines round.
        wide: the wide dtype.
        narrow: the dtype that the whole program was run in; None if as written.
        tolerance: the error that `fix` had to reach; None for a tenth of the squared error.
        not_examined: the primitives that were run as written on both sides.
        not_separated: the loops whose decisions each run makes by itself, such as those of
            many turns that compare floats: what flips there counts as rounding. It is "the
            program" if wide types are finite with their own decisions alone.
        held: the lines that use arrays in a dtype of 16 bits or less which were made before
            the program was traced, or meanwhile: what that has rounded is not counted.
        work: what the program computes, by dtype.
        costs: the sources of what runs wider than necessary.
        vanishing: the outputs that rounding alone decides, on the wide side as well, with
            their errors: the gradient of a bias without effect, a sum that cancels exactly,
            and what an optimizer makes of such a gradient. They measure nothing, so `error`
            and `outputs` leave them out, unless there is no other output. They are those
            more than 5% off of which float32 and float64 differ by a tenth of that; if
            float64 is the wide dtype, those that a change of the inputs by a few roundings
            changes so. An output that is lost has a value in wide types, and counts.
        not_finite: the line that makes the first value that is not finite as written, and
            leads to such an output; the line to fix may stand before it. None if all
            outputs are finite.
        differences: from the reference, an entry for each output that it has.
        divergence: where a reference that is a function begins to differ; None if rounding
            explains all, or there is no such function.
        plan: with `narrow` and `tolerance`, which lines stay wide where all else is narrow,
            for [`dtypeguard.autocast`][].
        search: how that was found, with what each line costs; `print` it.
    """

    error: float = math.nan
    outputs: dict[str, float] = dataclasses.field(default_factory=dict)
    losses: tuple[LineLoss, ...] = ()
    fix: tuple[LineLoss, ...] = ()
    mended: float = math.nan
    left: float = math.nan
    price: float = math.nan
    keeps: bool = True
    left_if_kept: float = math.nan
    price_if_kept: float = math.nan
    left_if_cast: float = math.nan
    price_if_cast: float = math.nan
    unmoved: dict[str, float] = dataclasses.field(default_factory=dict)
    is_of_integers: bool = False
    is_of_gradients: bool = False
    lost: float = 0.0
    loss_scale: float | None = None
    scaled: float = math.nan
    left_if_scaled: float = math.nan
    out_of_range: str | None = None
    flipped: float = 0.0
    decisions: tuple[LineDecision, ...] = ()
    turns_differ: bool = False
    error_range: tuple[float, float] | None = None
    compiled: float = math.nan
    once: float = math.nan
    explained: float | None = None
    lines: int = 0
    wide: str = ""
    narrow: str | None = None
    tolerance: float | None = None
    not_examined: tuple[str, ...] = ()
    not_separated: tuple[str, ...] = ()
    held: tuple[Origin | None, ...] = ()
    work: Work | None = None
    costs: tuple[LineCost, ...] = ()
    not_finite: Origin | None = None
    vanishing: dict[str, float] = dataclasses.field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    divergence: Divergence | None = None
    plan: Plan | None = dataclasses.field(default=None, repr=False)
    search: PlanSearch | None = dataclasses.field(default=None, repr=False)

    # What the figures mean, for reports of other runs than one in wide types.
    _off: ClassVar[str] = "|as written - wide| / |wide|"

    def __eq__(self, other: object) -> bool:
        """Whether all fields are the same; what is not a number is equal to itself."""
        if not isinstance(other, PrecisionReport) or type(self) is not type(other):
            return NotImplemented
        return _fields(self) == _fields(other)

    @property
    def is_spread(self) -> bool:
        """Whether the error is spread over many lines, and not even a few stand out."""
        most, *others = sorted((loss.share for loss in self.losses), reverse=True) or [0.0]
        return len(self.fix) > 3 and most < 0.5 and most + sum(others[:2]) < 0.75

    @property
    def rounding(self) -> float:
        """The error that rounding alone causes, with the decisions as written."""
        part = 1 - self.flipped
        return self.error * part**0.5 if part > 0 else 0.0

    @property
    def _is_rounded_once(self) -> bool:
        """Whether the error is about that of rounding the outputs of wide types once."""
        return 0 < self.once < math.inf and self.error <= _ABOUT * self.once

    @property
    def _all_vanish(self) -> bool:
        """Whether no output has a value; then all of them count."""
        return bool(self.vanishing) and {*self.vanishing} == {*self.outputs}

    @property
    def _setting(self) -> str:
        """How the program was run; empty if as written."""
        return "" if self.narrow is None else f"in {self.narrow}"

    @property
    def _widened(self) -> str:
        """How the lines of the fix are computed."""
        return f"in {self.wide}"

    @property
    def _become(self) -> str:
        """What the products of the fix become."""
        return self.wide

    @property
    def headline(self) -> str:
        """How it went: in one sentence, and in one before it on a reference."""
        if not self.differences:
            return self._headline_of_error()
        if self._is_beside_rounding:
            return headline_of(self.differences)
        own = self._headline_of_error()
        return f"{headline_of(self.differences)} {own[:1].upper()}{own[1:]}"

    @property
    def _is_beside_rounding(self) -> bool:
        """Whether the answer on a reference is no matter of lines in narrow dtypes."""
        verdicts = {each.verdict for each in self.differences}
        return "differs" in verdicts or (bool(verdicts) and self.wide == "float64")

    def _headline_of_error(self) -> str:
        """One sentence on its own error, or on its costs; before it one on updates."""
        text = self._headline_of_outputs()
        if not self._is_stuck:
            return text
        return " ".join([*self._updates(), text[:1].upper() + text[1:]])

    @property
    def _is_stuck(self) -> bool:
        """Whether rounding takes most of an update away."""
        return max(self.unmoved.values(), default=0.0) > _MOST_STUCK

    def _headline_of_outputs(self) -> str:
        if math.isnan(self.error):
            return self._headline_of_costs() + " Nothing was run."
        if self._all_vanish:
            return f"the outputs are 0 but for rounding, in {self.wide} as well."
        if not self.error and self.not_examined:
            return f"the outputs are those of {self.wide}, as far as they were examined."
        if not self.error:
            return f"the outputs are those of {self.wide}."
        if math.isinf(self.error):
            first = self.not_finite
            how = self._setting or "as written"
            text = f"the outputs are not finite {how}, and are in {self.wide}"
            text += self._range()
            return (
                f"{text}: {first.place} is the first that is not." if first else f"{text}."
            )
        begin = f"{self._setting} the outputs" if self._setting else "the outputs"
        least, most = self.error_range or (self.error, self.error)
        error = percent(self.error)
        if self.error_range:
            error = f"{percent(least)} to {percent(most)}"
        off = f"{begin} are {error} off"
        if self.is_of_integers:
            begin = f"{self._setting} " if self._setting else ""
            off = f"{begin}{error} of the elements of the outputs differ"
        if self.error_range:
            off += ", by inputs that differ by a rounding"
        more = _MUCH * self.error
        if self.compiled < least - more or self.compiled > most + more:
            off += f" ({percent(self.compiled)} as XLA compiles it here)"
        off += self._range()
        if self.tolerance is not None and self.error <= self.tolerance:
            return f"{off}, within {percent(self.tolerance)}."
        if self.flipped > 0.5:
            off += f": {percent(self.flipped)} of the squared error is decisions"
            return f"{off}." if self.fix else f"{off}, and no line helps."
        if self.is_spread:
            dtypes = sorted({d for loss in self.losses for d in loss.dtypes})
            off += f". That is the cost of {' and '.join(dtypes)}"
            if self._is_rounded_once:
                return f"{off}: rounding the outputs once gives {percent(self.once)}."
            return (
                f"{off}: the error is spread over {len(self.fix)} lines, and none stands "
                "out."
            )
        if not self.fix:
            is_open = bool(self.losses) and self.loss_scale is None
            helps = any(loss.left < _HALF for loss in self.losses)  # at a price
            where = f" but where all becomes {self._become}" * helps
            return f"{off}, and no line helps{where}." if is_open else f"{off}."
        if not self._is_cause:
            return f"{off}."
        if len(self.fix) == 1:
            return f"{off}, and one line of {self.lines} causes it."
        return f"{off}, and {len(self.fix)} lines of {self.lines} cause it."

    @property
    def _is_cause(self) -> bool:
        """Whether the lines of the fix lose most of the precision themselves.

        A line may help because what it makes is wide from there on.
        """
        explained = self.explained
        if explained is None or self.tolerance is not None:
            return True
        alone = max((loss.alone for loss in self.fix), default=0.0)
        is_most = sum(loss.share for loss in self.fix) > _MOST_OF_IT * explained
        return is_most or alone > _NEARLY_ALL * self.error

    @property
    def _makes_all_wide(self) -> bool:
        """Whether the fix helps since nearly all that comes after is wide as well."""
        is_all = self.price > _EXPENSIVE and self.keeps and self.tolerance is None
        return is_all and not self._is_cause

    def _range(self) -> str:
        """What happens where the range of a dtype is too small."""
        if self.loss_scale is None:
            return ""
        if self.loss_scale < 1:
            return f", since gradients overflow {self.out_of_range}"
        lost = f"{percent(self.lost)} of their numbers are 0, and not in {self.wide}"
        return f", since gradients underflow {self.out_of_range}: {lost}"

    def _scaling(self) -> list[str]:
        """What scaling the loss does."""
        if self.loss_scale is None:
            return []
        scale = f"{self.loss_scale:.0f}"
        if self.loss_scale < 1:
            scale = f"2**-{-math.log2(self.loss_scale):.0f}"
        left = f"{percent(self.left_if_scaled)} of the squared error"
        return [
            f"Multiply the loss by {scale}, and divide the gradients by it in {self.wide}: "
            f"{percent(self.scaled)} off, {left} is left. Or keep the params in "
            f"{self.wide}."
        ]

    def _answer(self) -> list[str]:
        """What the lines of the fix do, against the tolerance if there is one."""
        if self.loss_scale is not None and not self.fix:
            return [f"With the loss scaled it is {percent(self.scaled)}."]
        if self._all_vanish or not self.fix or (self.is_spread and self.tolerance is None):
            return []
        count = len(self.fix)
        lines = "one line" if count == 1 else f"{count} lines"
        is_named = self.flipped <= 0.5 and not self.is_spread and self._is_cause
        if is_named:  # by the first sentence
            lines = "it" if count == 1 else f"these {lines}"
        elif count == 1:
            lines = self.fix[0].place
        begin = f"With {lines} {self._widened} it is {percent(self.mended)}"
        if self.price > _EXPENSIVE:
            and_so = ", but so" if self._makes_all_wide else ", and"
            begin += f"{and_so} {percent(self.price)} of the matrix products become "
            begin += self._become
        if self.tolerance is None:
            return [f"{begin}."]
        allowed = f"your {percent(self.tolerance)}"
        if self.mended <= self.tolerance:
            return [f"{begin}, within {allowed}."]
        return [f"{begin}: no choice of lines reaches {allowed}."]

    @functools.cached_property
    def _legend(self) -> list[str]:
        """What the columns are, on the first report of a process that has them."""
        off = "the share of elements that differ" if self.is_of_integers else self._off
        share = "of its square"
        if self._is_decided:
            share += " less that of decisions"
        text = (
            f"Off is {off}, the root mean square over the outputs; share: {share}"
            "; alone: off if only this line rounds; left: of the square with only "
            f"this line {self._widened}"
        )
        is_new = text not in _LEGENDS
        _LEGENDS.add(text)
        return [f"{text}."] * is_new

    @property
    def _is_decided(self) -> bool:
        """Whether decisions that flipped cause most of the error."""
        return self.flipped > _MOSTLY

    @property
    def _shown(self) -> Sequence[LineLoss]:
        """The losses of the table: where decisions matter, few have a share."""
        if not self._is_decided:
            return self.losses
        return [x for n, x in enumerate(self.losses) if n < _MOST_ALONE or x in self.fix]

    def _decided(self) -> list[str]:
        """What decisions that flipped cause, and where."""
        if not self.decisions and not self.turns_differ:
            return []
        how = "cancels" if self.flipped < 0 else percent(self.flipped)
        text = "decisions that flipped" + f": {how}" * (not self.is_of_integers)
        if self.turns_differ:
            text += "; a loop turns another number of times"
        rows = [
            (
                percent(each.flipped / each.count),
                f"of {each.count:,}",
                "inside JAX" if each.origin is None else place_of(each.origin),
                _code(each.origin),
            )
            for each in self.decisions[:_MOST_DECISIONS]
        ]
        return [text, *columns(rows)]

    def _headline_of_costs(self) -> str:
        if self.work is None or not self.work.flops:
            return "there are no matrix products to count."
        if not self.work.wide:
            return f"no matrix product runs wider than {self.work.narrow}."
        text = f"{percent(self.work.wide)} of the operations of matrix products run wider"
        if not self.costs:
            return f"{text} than {self.work.narrow}; no line makes 1% of them so."
        count = (
            f"{len(self.costs)} sources make" if len(self.costs) > 1 else "one source makes"
        )
        return f"{text} than {self.work.narrow}; {count} them so."

    def _cost_rows(self) -> list[str]:
        """The table of costs."""
        if not self.costs:
            return []
        rows: list[Sequence[str]] = [("share", "saves", "harm", "line", "made wide by", "")]
        for cost in self.costs[:_MOST_ROWS]:
            origin, cause = cost.origin, cost.cause
            is_same = isinstance(cause, Origin) and cause == origin
            by = "a cast" if cost.is_cast else "itself" if is_same else place_of(cause)
            rows.append(
                (
                    f"{100 * cost.share:.0f}%",
                    f"{100 * cost.saves:.0f}%",
                    "" if math.isnan(cost.harm) else percent(cost.harm),
                    "" if origin is None else place_of(origin),
                    by,
                    _code(cause) if isinstance(cause, Origin) else _code(origin),
                )
            )
        return columns(rows)

    def _costs(self) -> list[str]:
        """The table of costs, and what to write."""
        if not self.costs:
            return []
        if not math.isnan(self.error) and not any(c.saves >= 0.01 for c in self.costs):
            causes = [*dict.fromkeys(place_of(cost.cause) for cost in self.costs)]
            begin = self._headline_of_costs().partition(";")[0]
            more = f" and {len(causes) - 3} more" * (len(causes) > 3)
            return [f"costs: {begin}, since {', '.join(causes[:3])}{more} are wide."]
        lines = [f"costs: {self._headline_of_costs()}"] * (not math.isnan(self.error))
        lines += [f"  {row}" for row in self._cost_rows()]
        lines += self._cost_advice()
        if len(self.costs) > _MOST_ROWS:
            lines.append(f"{len(self.costs) - _MOST_ROWS} more are in to_json().")
        return lines

    def _cost_advice(self) -> list[str]:
        """What to write for the greatest costs, and what it saves."""
        lines, mended = [], {place_of(x.origin) for x in self.fix if x.origin}
        for cost in self.costs[:_MOST_ROWS]:
            if place_of(cost.cause) in mended or cost.harm > _MOST_HARM * self.error > 0:
                continue  # what is to be wide is not to be narrow
            saves = [] if percent(cost.saves) == "0%" else [percent(cost.saves)]
            if cost.share - cost.saves > 0.005 and cost.others:
                more = percent(cost.share - cost.saves) + " more" * bool(saves)
                others = ", ".join(cost.others[:3]) + ", ..." * (len(cost.others) > 3)
                saves.append(f"{more} only together with {others}")
            if saves:
                lines.append(f"{cost.remedy} It saves {', and '.join(saves)}.")
        return lines

    def rows(self) -> list[str]:
        """The table of losses."""
        if not self.losses:
            return []
        head = ("share", "alone", "left", "pass", "line", "scope", "rounds to", "")
        rows: list[Sequence[str]] = [head]
        # Beside decisions, shares are those in what rounding alone causes.
        by_rounding = 1 - self.flipped if self._is_decided and self.flipped < 1 else 1.0
        for loss in self._shown:
            code = loss.origin.code if loss.origin else ""
            dtypes = ", ".join(loss.dtypes) + (f"; {loss.constant}" * bool(loss.constant))
            part = loss.share / by_rounding
            share = "cancels" if part < -0.01 else f"{100 * max(part, 0):.0f}%"
            left = "" if math.isnan(loss.left) else f"{loss.left:.2f}"
            alone, way = percent(loss.alone), loss.of_pass
            scope = _shortened(loss.scope)
            rows.append((share, alone, left, way, loss.place, scope, dtypes, code))
        left_out = {3} if not any(loss.backward > 0 for loss in self.losses) else set()
        left_out |= {5} if not any(loss.scope for loss in self.losses) else set()
        return columns(
            [[x for n, x in enumerate(row) if n not in left_out] for row in rows]
        )

    def _rows_left_out(self) -> list[str]:
        more = len(self.losses) - len(self._shown)
        return [f"{more} more lines are in to_json()."] * bool(more)

    def __str__(self) -> str:
        if self._is_beside_rounding:
            return "\n".join([f"precision: {self.headline}", *self._compared()])
        lines = [" ".join([f"precision: {self.headline}", *self._answer()])]
        lines += self._compared()
        table = *self.rows(), *self._rows_left_out(), *self._decided()
        lines += [f"  {row}" for row in table]
        lines += self._legend if self.losses else []
        lines += [
            *self._scaling(),
            *self._advice(),
            *self._left(),
            *self._costs(),
            *self._notes(),
        ]
        if self.search is not None:
            lines.append(f"For dtypeguard.autocast, a {self.search.headline}")
        return "\n".join(lines)

    def _compared(self) -> list[str]:
        """What tells whether the reference is another computation, and where it begins."""
        told = details_of(self.differences, self.divergence)
        if self.differences and self.decisions and self.flipped > _LEAST_FLIPPED:
            told.append(
                f"Rounding includes decisions that flip: {percent(self.flipped)} of the "
                "square of the program's own error."
            )
        return told

    def _advice(self) -> list[str]:
        """What to write for each line of the fix; nothing where no line stands out."""
        fix = () if self.is_spread or self._makes_all_wide else self.fix
        return list(dict.fromkeys(loss.remedy for loss in fix))

    def _left(self) -> list[str]:
        """What the advice leaves of the error, and what it costs."""
        if not self._advice():
            return []
        lines = "it" if len(self.fix) == 1 else "these lines"
        how = "" if self.keeps else " and cast back after"
        told = f"With {lines} {self._widened}{how}, {percent(self.left)} of the squared "
        told += "error is left"
        if not self.price_if_kept > 0:
            return [f"{told}."]
        told += f", and {percent(self.price)} of the matrix products become {self._become}."
        other, left, price = "Kept so", self.left_if_kept, self.price_if_kept
        if self.keeps:
            other, left, price = "Cast back after", self.left_if_cast, self.price_if_cast
        if not left < _HALF:  # not a number where it was not run
            return [told]
        become = f"{percent(price)} become {self._become}"
        return [f"{told} {other}, {percent(left)} is left, and {become}."]

    def _worst(self) -> str | None:
        """The path of the one output, of several, that has nearly all of the error."""
        path = max(self.outputs, key=self.outputs.__getitem__, default="")
        most = self.outputs.get(path, 0.0)
        if len(self.outputs) < 3 or not 0 < most < math.inf:
            return None
        parts = [(error / most) ** 2 for error in self.outputs.values()]
        return path if sum(parts) < 1 / _NEARLY_ALL else None

    def _updates(self) -> list[str]:
        """What rounding does to updates, which the error of one step hardly shows."""
        if self.is_of_gradients and self.error:
            told = (
                "What rounding does to the update is not in it: audit the step that adds "
                "these gradients to the params."
            )
            if self._is_rounded_once and not self.fix:
                return [
                    "The gradients are rounded to the dtype of their weights: "
                    f"differentiate with respect to w.astype(jnp.{self.wide}). {told}"
                ]
            return [told]
        stuck = {path: share for path, share in self.unmoved.items() if share > 0.01}
        if not stuck:
            return []
        most = max(stuck, key=stuck.__getitem__)
        also = f", and in {len(stuck) - 1} more" * (len(stuck) > 1)
        return [
            f"Rounding takes the update away in {percent(stuck[most])} of the elements of "
            f"{most or 'the output'}{also}: keep it in {self.wide}, or write "
            f"{STOCHASTICALLY}."
        ]

    def _notes(self) -> list[str]:
        notes = [] if self._is_stuck else self._updates()
        is_said = self.is_spread and self._is_rounded_once
        if self.once > 0 and math.isfinite(self.error) and not is_said:
            notes.append(f"Rounding the outputs once gives {percent(self.once)}.")
        cancels = [x for x in self.losses if x.alone > 2 * self.error and self.error]
        if cancels:
            notes.append(
                "Some lines cause more error alone than all lines together: their "
                "roundings cancel. A gradient, or several steps, tells more."
            )
        if worst := self._worst():
            off = percent(self.outputs[worst])
            notes.append(
                f"Nearly all of the squared error is that of {worst}, which is {off} off. "
                "An audit without it tells of the others."
            )
        elif len(self.outputs) > 2 and 0 < self.error < math.inf:
            worst = sorted(self.outputs, key=lambda path: -self.outputs[path])[:3]
            told = [f"{path} ({percent(self.outputs[path])})" for path in worst]
            notes.append(f"Furthest off of {len(self.outputs)} outputs: {', '.join(told)}.")
        if self.vanishing and not self._all_vanish:
            notes.append(
                f"0 but for rounding, in {self.wide} as well, or made of such values, and "
                f"not counted: {_grouped(self.vanishing)}."
            )
        if self.held:
            places = [place_of(x) if x else "inside JAX" for x in self.held]
            more = f" and {len(places) - 3} more" * (len(places) > 3)
            notes.append(
                "Constants that the program holds in 16 bits or less are taken as they "
                f"are, on {', '.join(dict.fromkeys(places[:3]))}{more}."
            )
        if self.not_separated:
            *few, last = self.not_separated[:3]
            places = f"{', '.join(few)} and {last}" if few else last
            notes.append(
                f"Decisions that flip in {places} count as rounding: each run makes its "
                "own."
            )
        if self.not_examined:
            notes.append(
                f"Run as written, without a look inside: {', '.join(self.not_examined)}."
            )
        if self.work is not None and self.costs and self.work.has_while:
            notes.append("The body of a while_loop counts once in the costs.")
        if self.work is not None and self.work.not_counted:
            notes.append(f"Not counted as work: {', '.join(self.work.not_counted)}.")
        return notes

    def to_json(self) -> str:
        """All of it as JSON."""
        return json.dumps(_plain(self), indent=1)

    def to_html(self) -> str:
        """One page that needs no network: the source, with what each line loses."""
        return document("dtypeguard precision", *self._html())

    def _html(self) -> tuple[str, str]:
        chosen = () if self.is_spread else self.fix
        marks = [
            mark_of_loss(loss, self._widened, loss in chosen, self.is_spread)
            for loss in self.losses
        ]
        marks += [mark for cost in self.costs for mark in marks_of_cost(cost)]
        marks += [mark_of_decision(each, self.wide) for each in self.decisions]
        figures = {}
        if self.outputs:
            outputs = sorted(self.outputs.items(), key=lambda pair: -pair[1])
            rows = [
                (("", path or "the output"), (percent(error), ""))
                for path, error in outputs
            ]
            figures["The error of each output"] = html_table(("output", "error"), rows)
        if self.work is not None and self.work.bytes:
            figures["What it computes, by dtype"] = work_table(self.work)
        cheaper = self._cost_advice()
        if cheaper and not math.isnan(self.error):
            cheaper.append(self._headline_of_costs().capitalize())
        advice = {
            "What to change": [*self._scaling(), *self._advice(), *self._left()],
            "What makes it cheaper": cheaper,
        }
        notes = [f"{x.capitalize()}." for x in self._decided()[:1]]
        notes = [*self._compared(), *notes, *self._notes()]
        answer = [] if self._is_beside_rounding else self._answer()
        headline = " ".join([self.headline, *answer])
        body = html.body(headline, marks, advice, notes, figures, self.is_spread)
        return body, html.STYLE


# The legends that this process has printed.
_LEGENDS = set[str]()
# What leaves less than this part of the squared error helps.
_HALF = 0.5
# From this share of the squared error on, it is decisions that matter.
_MOSTLY = 0.5
# XLA leaves out roundings. From this part of the error on, that is said.
_MUCH = 0.1
# The share of what lines explain from which on those of a fix are its cause.
_MOST_OF_IT = 0.5
# From this share of the products on, what a fix makes of them is in the first sentence.
_EXPENSIVE = 0.5
# From this share of its elements on, an update that is lost is the first thing to tell.
_MOST_STUCK = 0.5
# What makes an error of more than this part of the program's own is not advised.
_MOST_HARM = 0.5
# Errors up to this ratio are about the same.
_ABOUT = 1.25
# From this share of the squared error on, beside a reference, decisions are named.
_LEAST_FLIPPED = 0.01
# Of a scope that is shown.
_LONGEST = 40
# Of the lines that decide.
_MOST_DECISIONS = 5
# Of the table of costs.
_MOST_ROWS = 10
# The part of the squared error from which on an output hides those of the others.
_NEARLY_ALL = 0.9


def _fields(report: PrecisionReport) -> str:
    """The fields of a report as text, in which what is not a number equals itself."""
    names = (field.name for field in dataclasses.fields(report))
    return repr({name: getattr(report, name) for name in names})


def _shortened(scope: str) -> str:
    """A scope that leaves room for the rest of its line."""
    return scope if len(scope) <= _LONGEST else f"...{scope[3 - _LONGEST :]}"


def _code(origin: Origin | None) -> str:
    return "" if origin is None else origin.users.code


def _grouped(errors: dict[str, float]) -> str:
    """Paths that differ by numbers as one, each with the greatest error."""
    groups = dict[str, list[str]]()
    for path in errors:
        groups.setdefault(_NUMBER.sub("*", path), []).append(path)
    told = []
    for paths in groups.values():
        most = percent(max(errors[path] for path in paths))
        parts = zip(*(_NUMBER.split(path) for path in paths))
        pattern = "".join(each[0] if len({*each}) == 1 else "*" for each in parts)
        many = f"{len(paths)} of {pattern} (up to {most} off)"
        told.append(many if len(paths) > 1 else f"{paths[0] or 'the output'} ({most} off)")
    return ", ".join(told)


_NUMBER = re.compile(r"(\d+)")


def _plain(value: object) -> object:
    """A value as JSON can hold it, which has no infinity."""
    if dataclasses.is_dataclass(value):
        value = shown_fields(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
