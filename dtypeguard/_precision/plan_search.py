"""What a search for a plan has found, as text."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .._autocast.entries import PRODUCTS, PlanEntry
from .._autocast.plan import Plan
from .._leaves.rows import columns, percent
from .candidates import Candidate
from .plan_check import holds_compiled

# From this share of the multiply-adds on, a line that many layers share is told of.
_MUCH = 0.01
_TRIED = "default", "wide", "off", "multiply-adds wide", "kept for backward"
_OF_PLAN = "default", "error", "held_out", "tolerance", "share", "loss_scale", "measured"


class Tried(NamedTuple):
    """A default, with the lines that have to stay wide there.

    Attributes:
        default: "all" or "products".
        entries: how many.
        error: with these.
        wide: the share of the multiply-adds that stays wide.
        kept: the bytes that are kept for the backward pass.
    """

    default: str
    entries: int
    error: float
    wide: float
    kept: float


@dataclasses.dataclass(frozen=True, repr=False)
class PlanSearch:
    """How a plan was found; `print` it.

    Attributes:
        plan: the plan.
        tried: the defaults, each with what has to stay wide there.
        runs: how many runs of the program were made.
        seconds: how long that took.
        is_minimal: whether no entry can be dropped; False if the runs were spent before.
        notes: what it could not reach, and what the last tenth of the tolerance costs.
        updates: the outputs of which the update counts, and not the new value.
        compiled: the error of the plan as XLA compiles the program here, where roundings
            may be left out; None with a loss scale.
    """

    plan: Plan
    tried: tuple[Tried, ...]
    runs: int
    seconds: float
    is_minimal: bool
    notes: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    compiled: float | None = None

    @property
    def is_within(self) -> bool:
        """Whether the plan is within its tolerance, on what is held out as well."""
        errors, bound = self._errors, self.plan.tolerance or 0.0
        is_within = bool(errors) and max(errors) <= bound
        return is_within and holds_compiled(self.compiled, bound)

    @property
    def is_of_use(self) -> bool:
        """Whether the plan is within its tolerance, and anything is narrow by it."""
        return self.is_within and self.plan.share != 0

    @property
    def _errors(self) -> list[float]:
        return [x for x in (self.plan.error, self.plan.held_out) if x is not None]

    @property
    def headline(self) -> str:
        """The plan in a sentence."""
        plan = self.plan
        words = [f"{percent(plan.share or 0.0)} of the multiply-adds in {plan.narrow}"]
        words.append(f"{count_of(len(plan.entries))} wide")
        off = f"{percent(plan.error or 0.0)} off"
        off += "" if plan.held_out is None else f" ({percent(plan.held_out)} held out)"
        bound = plan.tolerance or 0.0
        if plan.share == 0:
            return f"plan: nothing to gain: within {percent(bound)}, no product is narrow."
        if max(self._errors) <= bound and not holds_compiled(self.compiled, bound):
            off += f" ({percent(self.compiled or 0.0)} as XLA compiles it here)"
        within = "within" if self.is_within else "not within"
        return f"plan: {', '.join(words)}, {off}, {within} {percent(bound)}."

    def __str__(self) -> str:
        lines = [self.headline, *table_of(self.plan.entries)]
        rows: list[tuple[str, ...]] = [_TRIED]
        for each in self.tried:
            mark = "*" if each.default == self.plan.default else ""
            kept = f"{each.kept / 1e6:.3g} MB"
            entries = count_of(each.entries)
            error, wide = percent(each.error), percent(each.wide)
            rows.append((each.default + mark, entries, error, wide, kept))
        lines += ["", *columns(rows), *([""] if self.notes else []), *self.notes]
        if self.updates:
            few = _few(self.updates)
            lines.append(f"Of {few}, the change counts, not the new value.")
        if not self.is_minimal:
            lines.append("The runs were spent before each entry was known to be needed.")
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        return "\n".join([*lines, f"{runs} in {self.seconds:.0f} s."])

    @property
    def data(self) -> dict[str, Any]:
        """All of it, for JSON."""
        plan = {name: getattr(self.plan, name) for name in _OF_PLAN}
        entries = [
            {**dataclasses.asdict(x), "dtype": str(x.dtype)} for x in self.plan.entries
        ]
        return {
            **plan,
            "narrow": str(self.plan.narrow),
            "entries": entries,
            "ok": self.is_of_use,
            "tried": [each._asdict() for each in self.tried],
            "runs": self.runs,
            "seconds": round(self.seconds, 3),
            "is_minimal": self.is_minimal,
            "notes": [*self.notes],
            "updates": [*self.updates],
            "compiled": self.compiled,
        }

    def __repr__(self) -> str:
        return f"PlanSearch({self.headline})"


def _few(paths: Sequence[str]) -> str:
    """The first paths of some, and how many there are."""
    more = f" and {len(paths) - 2} more" if len(paths) > 2 else ""
    return f"{', '.join(path or 'the output' for path in paths[:2])}{more}"


def count_of(entries: int) -> str:
    return "1 line" if entries == 1 else f"{entries or 'no'} lines"


def table_of(entries: Sequence[PlanEntry]) -> list[str]:
    """The entries with what was measured of each."""
    if not entries:
        return []
    has_held_out = any(each.held_out is not None for each in entries)
    rows: list[tuple[str, ...]] = [
        ("wide", "off without", "held out" * has_held_out, "multiply-adds")
    ]
    for each in sorted(entries, key=lambda x: -(x.error or 0.0)):
        errors = ("" if x is None else percent(x) for x in (each.error, each.held_out))
        rows.append((str(each), *errors, percent(each.share or 0.0)))
    return columns(rows)


def notes_of(
    plan: Plan,
    items: Sequence[Candidate],
    bare: Mapping[str, float],
    unnamed: int,
    is_searched: bool,
) -> tuple[str, ...]:
    """What a search says beside its plan.

    Args:
        plan: with its figures.
        items: its entries.
        bare: the errors of the defaults without an entry.
        unnamed: how many equations that round have no line.
        is_searched: whether the runs were enough.
    """
    tolerance, error = plan.tolerance or 0.0, plan.error or 0.0
    wide = sum(each.work for each in items)
    made = []
    if bare.get(PRODUCTS, 0.0) > tolerance and wide:
        made.append(
            f"With products alone in {plan.narrow}, it is {percent(bare[PRODUCTS])} off: "
            f"{percent(wide)} of the multiply-adds stay wide."
        )
    if error > tolerance and is_searched:
        made.append(
            f"With all of its lines wide it is {percent(error)} off: the program rounds by "
            "casts of its own, which a plan leaves alone."
        )
    nearly = [x for x in plan.entries if (x.error or math.inf) <= 1.1 * tolerance]
    if nearly:
        dearest = max(nearly, key=lambda each: each.share or 0.0)
        made.append(
            f"The last tenth of the tolerance costs {percent(dearest.share or 0.0)} of the "
            f"multiply-adds: without {dearest} it is {percent(dearest.error or 0.0)} off."
        )
    is_shared = lambda x: x.layers > 1 and x.work >= _MUCH and x.scope is None
    shared = [each for each in items if is_shared(each)]
    if shared:
        most = max(shared, key=lambda each: each.work)
        made.append(
            f"{most.entry(plan.narrow)} is computed {most.layers} times"
            f"{', as others are,' * (len(shared) > 1)} in one dtype: a jax.named_scope "
            "around each layer tells them apart, but for turns of a loop."
        )
    if unnamed:
        equations = "1 equation" if unnamed == 1 else f"{unnamed} equations"
        made.append(f"{equations} that no line of yours leads to cannot have an entry.")
    if plan.loss_scale is not None:
        made.append(f"Measured with the loss multiplied by {plan.loss_scale:g}.")
    return tuple(made)
