"""What an audit of precision found, as text, JSON and HTML."""

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence

from .._audit.page import Displayed, document, html_table
from .._leaves.public import public
from .._leaves.rows import percent, shown_fields
from . import html, sections
from .costs_told import cost_advice, costs, headline_of_costs
from .findings import Findings, json_names
from .headline import answer, headline, is_beside_rounding
from .marks import mark_of_decision, mark_of_loss, marks_of_cost, work_table
from .notes import notes


@public
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class PrecisionReport(Findings, Displayed):
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

    @property
    def headline(self) -> str:
        """How it went: in one sentence, and in one before it on a reference."""
        return headline(self)

    def rows(self) -> list[str]:
        """The table of losses."""
        return sections.rows(self)

    def __str__(self) -> str:
        is_short = is_beside_rounding(self)
        return "\n".join(
            itertools.chain(*(part(self) for part in _SECTIONS[: 2 if is_short else None]))
        )

    @functools.cached_property
    def _legend(self) -> list[str]:
        """What the columns are, on the first report of a process that has them."""
        text = sections.legend(self)
        is_new = bool(self.losses) and text not in sections.LEGENDS
        sections.LEGENDS.update([text] * is_new)
        return [text] * is_new

    def to_json(self) -> str:
        """All of it as JSON."""
        names = [*json_names(), *(x for x in shown_fields(self) if x not in _RECORDS)]
        return json.dumps(_plain({name: getattr(self, name) for name in names}), indent=1)

    def to_html(self) -> str:
        """One page that needs no network: the source, with what each line loses."""
        return document("dtypeguard precision", *self._html())

    def _html(self) -> tuple[str, str]:
        chosen = () if self.is_spread else self.fix
        widened = self.setting.words.widened
        marks = [
            mark_of_loss(loss, widened, loss in chosen, self.is_spread)
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
        cheaper = cost_advice(self)
        if cheaper and not math.isnan(self.error):
            cheaper.append(headline_of_costs(self).capitalize())
        parts = sections.scaling, sections.advice, sections.left
        advice = {
            "What to change": [told for part in parts for told in part(self)],
            "What makes it cheaper": cheaper,
        }
        decided = [f"{x.capitalize()}." for x in sections.decided(self)[:1]]
        told = [*sections.compared(self), *decided, *notes(self)]
        body = html.body(_first(self), marks, advice, told, figures, self.is_spread)
        return body, html.STYLE


def _first(report: PrecisionReport) -> str:
    told = [] if is_beside_rounding(report) else answer(report)
    return " ".join([report.headline, *told])


def _search(report: PrecisionReport) -> list[str]:
    search = report.search
    return [] if search is None else [f"For dtypeguard.autocast, a {search.headline}"]


# What is printed, one below the other; the first two alone where a reference differs by
# another computation.
_SECTIONS: Sequence[Callable[[PrecisionReport], list[str]]] = (
    lambda report: [f"precision: {_first(report)}"],
    sections.compared,
    sections.table,
    lambda report: report._legend,
    sections.scaling,
    sections.advice,
    sections.left,
    costs,
    notes,
    _search,
)
_RECORDS = {field.name for field in dataclasses.fields(Findings)}


def _plain(value: object) -> object:
    """A value as JSON can hold it, which has no infinity."""
    if dataclasses.is_dataclass(value):
        value = shown_fields(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
