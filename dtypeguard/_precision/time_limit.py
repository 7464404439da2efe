"""How long an audit may measure lines, after which it reports what it has."""

import contextlib
import math
import time
from collections.abc import Iterator


class _TimeIsUp(Exception):
    """Ends a phase of the work."""


class TimeLimit:
    """The time of an audit; what it leaves after the headline is for lines.

    Attributes:
        seconds: how long; None for as long as it takes.
        is_interrupted: whether the user has ended it with Ctrl-C.
        is_complete: whether every phase has come to its end.
    """

    def __init__(self, seconds: float | None = None):
        self.seconds = seconds
        self.is_interrupted = False
        self.is_complete = True
        self._start = time.monotonic()
        self._end = math.inf

    @contextlib.contextmanager
    def phase(self, part: float) -> Iterator[None]:
        """A phase that ends when this part of the time left is over, or with Ctrl-C.

        The report has what was measured until then.
        """
        if self.seconds is not None:
            begin = time.monotonic()
            seconds_left = self._start + self.seconds - begin
            self._end = begin + part * seconds_left
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
        if self.is_interrupted or time.monotonic() >= self._end:
            raise _TimeIsUp
