"""What a sweep found, as a table, as a closing line and as JSON."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import optax

from .catalog import Unbuilt
from .sweep import Outcome


class Row(NamedTuple):
    """One line of the table: counts of configurations, and the checks that failed."""

    id: str
    bare: str
    guarded: str
    rescued: str
    checks: str


HEADER = Row("optimizer", "bare", "guarded", "rescued", "checks that failed")


@dataclasses.dataclass(frozen=True)
class Report:
    """A whole sweep.

    Attributes:
        outcomes: those of every optimizer.
        unbuilt: what could not be swept.
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

    def rows(self) -> list[Row]:
        """One row an optimizer, in alphabetical order."""
        by_id = collections.defaultdict(list)
        for outcome in self.outcomes:
            by_id[outcome.id].append(outcome)
        return [_row(name, by_id[name]) for name in sorted(by_id)]

    def guarded_failures(self) -> list[str]:
        """Every failed check of a guarded optimizer, on a line of its own."""
        return [
            f"{outcome.id}  {outcome.configuration}, x64 {'on' if outcome.x64 else 'off'}"
            f"  {check}: {reason}"
            for outcome in self.outcomes
            if outcome.guarded
            for check, reason in outcome.failures.items()
        ]

    def skips(self) -> list[str]:
        """What was skipped and why, a line for each optimizer and check."""
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

    def as_json(self) -> dict[str, Any]:
        """All of it, for `json.dump`."""
        return {
            "optax": optax.__version__,
            "jax": jax.__version__,
            "configurations": self.configurations,
            "bare_failed": self.bare_failed,
            "guarded_failed": self.guarded_failed,
            "seconds": round(self.seconds, 3),
            "outcomes": [dataclasses.asdict(outcome) for outcome in self.outcomes],
            "unbuilt": [left._asdict() for left in self.unbuilt],
        }


def plain_table(rows: Sequence[Row]) -> str:
    """The table in plain text, columns aligned."""
    lines = [HEADER, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join(
            (
                line.id.ljust(widths[0]),
                *(line[column].rjust(widths[column]) for column in (1, 2, 3)),
                line.checks,
            )
        ).rstrip()
        for line in lines
    )


def _row(name: str, outcomes: Sequence[Outcome]) -> Row:
    failed_checks = []
    for guarded in (False, True):
        counts = collections.Counter(
            check
            for outcome in outcomes
            if outcome.guarded is guarded
            for check in outcome.failures
        )
        prefix = "guarded: " * (guarded and bool(counts))
        failed_checks.append(prefix + ", ".join(f"{c} {n}" for c, n in counts.items()))
    return Row(
        name,
        str(_failed(outcomes, guarded=False)),
        str(_failed(outcomes, guarded=True)),
        str(sum(outcome.rescues > 0 for outcome in outcomes)),
        "; ".join(filter(None, failed_checks)),
    )


def _failed(outcomes: Iterable[Outcome], *, guarded: bool) -> int:
    return sum(bool(o.failures) for o in outcomes if o.guarded is guarded)
