"""What a sweep found, as a table and a closing line."""

import collections
from collections.abc import Iterable, Sequence

import jax
import optax

from dtypeguard._leaves.table import columns

from .catalog import Unbuilt
from .sweep import Outcome

_HEADER = "optimizer", "bare", "guarded", "checks that failed"


def failed(outcomes: Iterable[Outcome], guarded: bool) -> int:
    """In how many configurations bare or guarded optimizers fail a check."""
    return sum(bool(o.failures) for o in outcomes if o.guarded is guarded)


def report(outcomes: Sequence[Outcome], unbuilt: Sequence[Unbuilt], seconds: float) -> str:
    """In how many configurations each optimizer fails a check, and what was left out."""
    guarded = [outcome for outcome in outcomes if outcome.guarded]
    listed = {
        "Not swept:": [f"{left.id}: {left.reason}" for left in unbuilt],
        "Skipped checks:": sorted(
            {f"{o.id}  {c}: {why}" for o in guarded for c, why in o.skipped.items()}
        ),
        "Failures although guarded:": [
            f"{o.id}  {o.where}  {c}: {why}"
            for o in guarded
            for c, why in o.failures.items()
        ],
    }
    ran_bare = len(guarded) < len(outcomes)
    bare = f"bare {failed(outcomes, False):,} failed, " if ran_bare else ""
    rows = [_row(name, outcomes) for name in sorted({o.id for o in outcomes})]
    return "\n\n".join(
        [
            "\n".join(columns([_HEADER, *rows])),
            *("\n  ".join([title, *lines]) for title, lines in listed.items() if lines),
            f"{len(guarded):,} configurations: {bare}"
            f"guarded {failed(outcomes, True):,} failed "
            f"({seconds:.0f} s; optax {optax.__version__}, jax {jax.__version__})",
        ]
    )


def _row(name: str, outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    own = [outcome for outcome in outcomes if outcome.id == name]
    counts = collections.Counter(
        f"guarded {check}" if o.guarded else check for o in own for check in o.failures
    )
    checks = ", ".join(f"{check} {count}" for check, count in counts.items())
    numbers = (str(failed(own, x)) for x in (False, True))
    return name, *(n.rjust(len(title)) for n, title in zip(numbers, _HEADER[1:])), checks
