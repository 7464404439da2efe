"""What the page of a report says on lines of source."""

import math

from .._audit.page import html_table
from .._costs.costs import LineCost
from .._costs.work import Work
from .._leaves.rows import percent
from .._source.origin import Origin, place_of
from . import html
from .loss import LineLoss
from .records import LineDecision


def mark_of_loss(
    loss: LineLoss, widened: str, is_chosen: bool, is_spread: bool
) -> html.Mark:
    """A mark on a line that loses precision.

    Args:
        loss: the line.
        widened: how its remedy computes it, such as "in float32".
        is_chosen: whether it is one of those to change.
        is_spread: whether the error is spread, so that no line is to be read by itself.
    """
    said = [f"{html.bar_label(loss.share)}: rounds to {' and '.join(loss.dtypes)}"]
    said += [loss.constant] if loss.constant else []
    said.append(f"{percent(loss.alone)} off if only this line rounds")
    if not math.isnan(loss.left):
        said.append(f"{percent(loss.left)} of the squared error left with it {widened}")
    origin = loss.origin
    inner = f"{origin}  {origin.code}" if origin and origin.called_from else ""
    return html.Mark(
        origin,
        loss.place,
        "" if is_spread else "; ".join(said),
        inner=loss.cast or inner,
        loses=loss.share,
        is_chosen=is_chosen,
    )


def mark_of_decision(decision: LineDecision, wide: str) -> html.Mark:
    """A mark on a line that decides otherwise in wide types."""
    origin, part = decision.origin, decision.flipped / decision.count
    place = "inside JAX" if origin is None else place_of(origin)
    told = f"{percent(part)} of {decision.count:,} decisions are others in {wide}"
    return html.Mark(origin, place, told)


def marks_of_cost(cost: LineCost) -> list[html.Mark]:
    """A mark where values become wide, and one on the line that makes them so."""
    cause = cost.cause if isinstance(cost.cause, Origin) else None
    origin = cost.origin or cause
    is_own = cause is None or origin is None or str(cause.users) == str(origin.users)
    made = "" if cause is not None and is_own else f" because of {place_of(cost.cause)}"
    made += ", by an explicit cast" if cost.is_cast else ""
    said = [
        f"{html.bar_label(cost.share)} of the matrix products run wide{made}",
        f"{html.bar_label(cost.saves)} saved if this alone is narrow",
    ]
    if not math.isnan(cost.harm):
        said.append(f"{percent(cost.harm)} error added if it is")
    place = place_of(origin or cost.cause)
    marks = [html.Mark(origin, place, "; ".join(said), pays=cost.share)]
    if cause is not None and not is_own:
        said = f"What this line makes is wide: {place} runs wide because of it."
        marks.append(html.Mark(cause, place_of(cause), said))
    return marks


def work_table(work: Work) -> str:
    """The work by dtype, as shares."""
    kinds = [(each, sum(each.values()) or 1.0) for each in (work.flops, work.bytes)]
    shares = lambda dtype: [html.bar_label(n.get(dtype, 0.0) / total) for n, total in kinds]
    dtypes = dict.fromkeys((*work.flops, *work.bytes))
    rows = [(("", dtype), *((share, "") for share in shares(dtype))) for dtype in dtypes]
    return html_table(("dtype", "matrix products", "bytes read and written"), rows)
