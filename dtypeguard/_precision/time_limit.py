"""How long an audit may measure lines, after which it reports what it has."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator


class _TimeIsUp(Exception):
    """Ends a phase of the work."""


@dataclasses.dataclass
class TimeLimit:
    """The time of an audit; what it leaves after the headline is for lines.

    Attributes:
        seconds: how long; None for as long as it takes.
        is_interrupted: whether the user has ended it with Ctrl-C.
        is_complete: whether every phase has come to its end.
        end: when the phase ends.
        start: when the audit began.
    """

    seconds: float | None = None
    is_interrupted: bool = False
    is_complete: bool = True
    end: float = math.inf
    start: float = dataclasses.field(default_factory=time.monotonic)

    @contextlib.contextmanager
    def phase(self, part: float) -> Iterator[None]:
        """A phase that ends when this part of the time left is over, or with Ctrl-C.

        The report has what was measured until then.
        """
        if self.seconds is not None:
            begin = time.monotonic()
            self.end = begin + part * (self.start + self.seconds - begin)
        try:
            yield
        except _TimeIsUp:
            self.is_complete = False
        except KeyboardInterrupt:
            self.is_complete = False
            self.is_interrupted = True

    def check(self) -> None:
        """Ends the phase if its time is over; asked before each run."""
        # Interrupted once, later phases end at their first run: Ctrl-C means all of it.
        if self.is_interrupted or time.monotonic() >= self.end:
            raise _TimeIsUp
