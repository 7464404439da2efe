"""What a report of precision says of costs: a headline, a table, what to write."""

import math
from collections.abc import Sequence

from .._leaves.rows import columns, percent
from .._source.origin import Origin, place_of
from .findings import Findings

# Of the table.
_MOST_ROWS = 10
# What makes an error of more than this part of the program's own is not advised.
_MOST_HARM = 0.5


def headline_of_costs(report: Findings) -> str:
    """How much runs wide."""
    work, costs = report.work, report.costs
    if work is None or not work.flops:
        return "there are no matrix products to count."
    if not work.wide:
        return f"no matrix product runs wider than {work.narrow}."
    text = f"{percent(work.wide)} of the operations of matrix products run wider than "
    if not costs:
        return f"{text}{work.narrow}; no line makes 1% of them so."
    count = f"{len(costs)} sources make" if len(costs) > 1 else "one source makes"
    return f"{text}{work.narrow}; {count} them so."


def costs(report: Findings) -> list[str]:
    """The table of costs, and what to write."""
    if not report.costs:
        return []
    is_run = not math.isnan(report.error)
    told = headline_of_costs(report)
    if is_run and not any(cost.saves >= 0.01 for cost in report.costs):
        causes = [*dict.fromkeys(place_of(cost.cause) for cost in report.costs)]
        more = f" and {len(causes) - 3} more" * (len(causes) > 3)
        begin = told.partition(";")[0]
        return [f"costs: {begin}, since {', '.join(causes[:3])}{more} are wide."]
    more = len(report.costs) - _MOST_ROWS
    return [
        *[f"costs: {told}"] * is_run,
        *(f"  {row}" for row in _rows(report)),
        *cost_advice(report),
        *[f"{more} more are in to_json()."] * (more > 0),
    ]


def _rows(report: Findings) -> list[str]:
    rows: list[Sequence[str]] = [("share", "saves", "harm", "line", "made wide by", "")]
    for cost in report.costs[:_MOST_ROWS]:
        origin, cause = cost.origin, cost.cause
        is_same = isinstance(cause, Origin) and cause == origin
        rows.append(
            (
                f"{100 * cost.share:.0f}%",
                f"{100 * cost.saves:.0f}%",
                "" if math.isnan(cost.harm) else percent(cost.harm),
                "" if origin is None else place_of(origin),
                "a cast" if cost.is_cast else "itself" if is_same else place_of(cause),
                code_of(cause if isinstance(cause, Origin) else origin),
            )
        )
    return columns(rows)


def cost_advice(report: Findings) -> list[str]:
    """What to write for the greatest costs, and what it saves."""
    lines, mended = [], {place_of(x.origin) for x in report.fix if x.origin}
    for cost in report.costs[:_MOST_ROWS]:
        if place_of(cost.cause) in mended or cost.harm > _MOST_HARM * report.error > 0:
            continue  # what is to be wide is not to be narrow
        saves = [] if percent(cost.saves) == "0%" else [percent(cost.saves)]
        if cost.share - cost.saves > 0.005 and cost.others:
            more = percent(cost.share - cost.saves) + " more" * bool(saves)
            others = ", ".join(cost.others[:3]) + ", ..." * (len(cost.others) > 3)
            saves.append(f"{more} only together with {others}")
        if saves:
            lines.append(f"{cost.remedy} It saves {', and '.join(saves)}.")
    return lines


def code_of(origin: Origin | None) -> str:
    """The user's code on a line."""
    return "" if origin is None else origin.users.code
