"""What a sweep found, as a table and a closing line."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import optax

from dtypeguard._leaves.rows import columns

from .catalog import Unbuilt
from .sweep import Outcome


class OptimizerRow(NamedTuple):
    """One line of the table: counts of configurations, and the checks that failed."""

    id: str
    bare: int
    guarded: int
    rescued: int
    checks: str


_HEADER = ("optimizer", "bare", "guarded", "rescued", "checks that failed")
LEGEND = (
    ("bare", "configurations of dtypes and flags that fail a check as Optax has it"),
    ("guarded", "the same with dtypeguard.guard around it; any is a fault of dtypeguard"),
    ("rescued", "guarded ones whose update ran once more in float32, with a warning"),
    ("checks", "init, eval_shape: types of the first state, and of an update; scan, cond,"),
    ("", "MultiSteps: run in these; compilations: a jitted step compiles once"),
)


@dataclasses.dataclass(frozen=True)
class Report:
    """A sweep.

    Attributes:
        outcomes: those of every optimizer.
        unbuilt: what the sweep left out.
        seconds: how long it took.
    """

    outcomes: Sequence[Outcome]
    unbuilt: Sequence[Unbuilt]
    seconds: float

    @property
    def configurations(self) -> int:
        """The number of optimizers times the number of configurations."""
        return sum(not outcome.guarded for outcome in self.outcomes)

    @property
    def bare_failed(self) -> int:
        """In how many configurations the bare optimizer fails a check."""
        return _failed(self.outcomes, guarded=False)

    @property
    def guarded_failed(self) -> int:
        """In how many configurations the guarded optimizer fails a check."""
        return _failed(self.outcomes, guarded=True)

    def rows(self) -> list[OptimizerRow]:
        """One row per optimizer, in alphabetical order."""
        names = sorted({outcome.id for outcome in self.outcomes})
        return [_row(name, self.of(name)) for name in names]

    def of(self, name: str) -> list[Outcome]:
        """The outcomes of one optimizer."""
        return [outcome for outcome in self.outcomes if outcome.id == name]

    def table(self) -> list[str]:
        """The header and the rows as aligned text."""
        _, *counted, _ = _HEADER
        lines = [
            (name, *(str(n).rjust(len(head)) for head, n in zip(counted, counts)), checks)
            for name, *counts, checks in self.rows()
        ]
        return columns([_HEADER, *lines])

    def guarded_failures(self) -> list[str]:
        """Every failed check of a guarded optimizer, one per line."""
        return [
            f"{outcome.id}  {outcome.where}  {check}: {reason}"
            for outcome in self.outcomes
            if outcome.guarded
            for check, reason in outcome.failures.items()
        ]

    def skips(self) -> list[str]:
        """What the sweep skipped and why, a line for each optimizer and check."""
        lines = (
            f"{outcome.id}  {check}: {reason}"
            for outcome in self.outcomes
            for check, reason in outcome.skipped.items()
        )
        return sorted(set(lines))

    def closing_line(self) -> str:
        """The totals."""
        return (
            f"{self.configurations:,} configurations: bare {self.bare_failed:,} failed, "
            f"guarded {self.guarded_failed:,} failed ({self.seconds:.0f} s; "
            f"optax {optax.__version__}, jax {jax.__version__})"
        )

    def __str__(self) -> str:
        parts = [
            "\n".join(self.table()),
            *(
                "\n  ".join([title, *listed])
                for title, listed in (
                    ("Columns:", columns(LEGEND)),
                    ("Not swept:", [f"{left.id}: {left.reason}" for left in self.unbuilt]),
                    ("Skipped checks:", self.skips()),
                    ("Failures although guarded:", self.guarded_failures()),
                )
                if listed
            ),
            self.closing_line(),
        ]
        return "\n\n".join(parts)


def _row(name: str, outcomes: Sequence[Outcome]) -> OptimizerRow:
    failed = []
    for prefix, guarded in (("", False), ("guarded: ", True)):
        of_kind = [outcome for outcome in outcomes if outcome.guarded is guarded]
        counts = collections.Counter(check for o in of_kind for check in o.failures)
        checks = ", ".join(f"{check} {n}" for check, n in counts.items())
        failed += [prefix + checks] if checks else []
    bare, guarded = (_failed(outcomes, guarded=flag) for flag in (False, True))
    rescued = sum(outcome.rescues > 0 for outcome in outcomes)
    return OptimizerRow(name, bare, guarded, rescued, "; ".join(failed))


def _failed(outcomes: Iterable[Outcome], *, guarded: bool) -> int:
    return sum(bool(o.failures) for o in outcomes if o.guarded is guarded)
