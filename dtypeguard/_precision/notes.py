"""What a report of precision notes at its end, a function for each note."""

import math
import re
from collections.abc import Iterable

from .._leaves.rows import percent
from .._source.origin import place_of
from .findings import Findings
from .headline import NEARLY_ALL, all_vanish, is_rounded_once, is_stuck, updates

_NUMBER = re.compile(r"(\d+)")


def notes(report: Findings) -> list[str]:
    """All that apply."""
    return [told for find in _NOTES for told in find(report)]


def _updates(report: Findings) -> Iterable[str]:
    if not is_stuck(report):  # else they are the first sentence
        yield from updates(report)


def _once(report: Findings) -> Iterable[str]:
    is_said = report.is_spread and is_rounded_once(report)
    if report.once > 0 and math.isfinite(report.error) and not is_said:
        yield f"Rounding the outputs once gives {percent(report.once)}."


def _cancels(report: Findings) -> Iterable[str]:
    if report.error and any(x.alone > 2 * report.error for x in report.losses):
        yield (
            "Some lines cause more error alone than all lines together: their "
            "roundings cancel. A gradient, or several steps, tells more."
        )


def _furthest(report: Findings) -> Iterable[str]:
    outputs = report.outputs
    worst = sorted(outputs, key=lambda path: -outputs[path])[:3]
    if len(outputs) < 3 or not 0 < report.error < math.inf:
        return
    first, most = worst[0], outputs[worst[0]]
    if sum((error / most) ** 2 for error in outputs.values()) < 1 / NEARLY_ALL:
        yield (
            f"Nearly all of the squared error is that of {first}, which is "
            f"{percent(most)} off. An audit without it tells of the others."
        )
        return
    told = [f"{path} ({percent(outputs[path])})" for path in worst]
    yield f"Furthest off of {len(outputs)} outputs: {', '.join(told)}."


def _vanishing(report: Findings) -> Iterable[str]:
    if report.vanishing and not all_vanish(report):
        yield (
            f"0 but for rounding, in {report.wide} as well, or made of such values, and "
            f"not counted: {_grouped(report.vanishing)}."
        )


def _held(report: Findings) -> Iterable[str]:
    if report.held:
        places = [place_of(x) if x else "inside JAX" for x in report.held]
        more = f" and {len(places) - 3} more" * (len(places) > 3)
        yield (
            "Constants that the program holds in 16 bits or less are taken as they "
            f"are, on {', '.join(dict.fromkeys(places[:3]))}{more}."
        )


def _not_separated(report: Findings) -> Iterable[str]:
    if report.not_separated:
        *few, last = report.not_separated[:3]
        places = f"{', '.join(few)} and {last}" if few else last
        yield f"Decisions that flip in {places} count as rounding: each run makes its own."


def _not_examined(report: Findings) -> Iterable[str]:
    if report.not_examined:
        yield f"Run as written, without a look inside: {', '.join(report.not_examined)}."


def _work(report: Findings) -> Iterable[str]:
    if report.work is not None and report.costs and report.work.has_while:
        yield "The body of a while_loop counts once in the costs."
    if report.work is not None and report.work.not_counted:
        yield f"Not counted as work: {', '.join(report.work.not_counted)}."


_NOTES = (
    _updates,
    _once,
    _cancels,
    _furthest,
    _vanishing,
    _held,
    _not_separated,
    _not_examined,
    _work,
)


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
