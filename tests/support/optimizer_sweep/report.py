"""What a sweep found, as a table and a closing line."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import jax
import optax

from dtypeguard._leaves.rows import columns

from .catalog import Unbuilt
from .sweep import Outcome

_HEADER = "optimizer", "bare", "guarded", "rescued", "checks that failed"


@dataclasses.dataclass(frozen=True)
class Report:
    """A sweep: in how many configurations each optimizer fails a check.

    Attributes:
        outcomes: those of every optimizer.
        unbuilt: what the sweep left out.
        seconds: how long it took.
    """

    outcomes: Sequence[Outcome]
    unbuilt: Sequence[Unbuilt]
    seconds: float

    @property
    def bare_failed(self) -> int:
        """In how many configurations the bare optimizer fails a check."""
        return _failed(self.outcomes, guarded=False)

    @property
    def guarded_failed(self) -> int:
        """In how many configurations the guarded optimizer fails a check."""
        return _failed(self.outcomes, guarded=True)

    def __str__(self) -> str:
        names = sorted({outcome.id for outcome in self.outcomes})
        guarded = [outcome for outcome in self.outcomes if outcome.guarded]
        listed = {
            "Not swept:": [f"{left.id}: {left.reason}" for left in self.unbuilt],
            "Skipped checks:": sorted(
                {f"{o.id}  {c}: {why}" for o in guarded for c, why in o.skipped.items()}
            ),
            "Failures although guarded:": [
                f"{outcome.id}  {outcome.where}  {check}: {reason}"
                for outcome in guarded
                for check, reason in outcome.failures.items()
            ],
        }
        parts = ["\n".join(columns([_HEADER, *map(self._row, names)]))]
        parts += ["\n  ".join([title, *lines]) for title, lines in listed.items() if lines]
        ran_bare = len(guarded) < len(self.outcomes)
        bare = f"bare {self.bare_failed:,} failed, " if ran_bare else ""
        parts.append(
            f"{len(guarded):,} configurations: {bare}"
            f"guarded {self.guarded_failed:,} failed "
            f"({self.seconds:.0f} s; optax {optax.__version__}, jax {jax.__version__})"
        )
        return "\n\n".join(parts)

    def _row(self, name: str) -> tuple[str, ...]:
        outcomes = [outcome for outcome in self.outcomes if outcome.id == name]
        counts = [_failed(outcomes, guarded=x) for x in (False, True)]
        counts.append(sum(outcome.rescues > 0 for outcome in outcomes))
        failed = collections.Counter(
            f"guarded {check}" if outcome.guarded else check
            for outcome in outcomes
            for check in outcome.failures
        )
        checks = ", ".join(f"{check} {count}" for check, count in failed.items())
        return name, *(str(n).rjust(len(x)) for n, x in zip(counts, _HEADER[1:])), checks


def _failed(outcomes: Iterable[Outcome], *, guarded: bool) -> int:
    return sum(bool(o.failures) for o in outcomes if o.guarded is guarded)
