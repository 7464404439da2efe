"""Warns at the line of the user's that called dtypeguard."""

import inspect
import threading
import warnings
from typing import Any

from .._leaves.errors import DtypeGuardWarning
from .files import is_users, package


def warn_caller(message: str) -> None:
    """Issues a `DtypeGuardWarning` at the innermost line outside dtypeguard and JAX."""
    frame, level = inspect.currentframe(), 1
    is_inside = lambda file: package(file) == "dtypeguard" or not is_users(file)
    while frame is not None and is_inside(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, DtypeGuardWarning, stacklevel=level)


class WarnOnce:
    """Issues each warning once. All instances are equal.

    Equinox turns closures into pytrees, to compile once for two optimizers made alike
    (`OptaxMinimiser` in optimistix). It hashes and compares everything that a guard closes
    over.
    """

    def __init__(self) -> None:
        self._messages: set[str] = set()

    def __call__(self, message: str) -> None:
        """Calls `warn_caller`, unless this message was issued before."""
        if message not in self._messages:
            warn_caller(message)
            self._messages.add(message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WarnOnce)

    def __hash__(self) -> int:
        return hash(WarnOnce)


class Attempts:
    """Attempts at one call: a context that holds their warnings back until it ends.

    Then it shows those of the last attempt, the one that counts, and what guards issue
    once; all of them if the call raises. It leaves the filters of `warnings` as they are:
    under others, what is shown once would be shown anew in each call.

    All threads share `warnings.showwarning`. One function stands there, however many
    attempts run in however many threads, and the last of them puts the former one back.
    """

    def __enter__(self) -> "Attempts":
        global _show
        self._held: list[list[tuple[Any, ...]]] = [[]]
        with _LOCK:
            self._before = warnings.showwarning
            if self._before is not _hold_or_show:
                _show = self._before
            warnings.showwarning = _hold_or_show
            _RUNNING.append(self)
        _THREAD.attempts.append(self)
        return self

    def again(self) -> None:
        """Begins another attempt, which may issue what the one before issued."""
        if self._held[-1]:
            with _LOCK, warnings.catch_warnings():
                pass  # else what is shown once would count as shown
        self._held.append([])

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _THREAD.attempts.remove(self)
        with _LOCK:
            _RUNNING.remove(self)
            followers = [x for x in _RUNNING if x._before is _hold_or_show]
            if followers and self._before is not _hold_or_show:
                followers[0]._before = self._before  # in a thread that still holds back
            elif warnings.showwarning is _hold_or_show:
                warnings.showwarning = self._before
        *others, last = self._held
        is_shown = lambda category: kind or issubclass(category, DtypeGuardWarning)
        held = [x for attempt in others for x in attempt if is_shown(x[1])]
        for warning in (*held, *last):
            self._before(*warning)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.attempts: list[Attempts] = []


_THREAD = _Thread()
_LOCK = threading.RLock()
_RUNNING: list[Attempts] = []  # in all threads
_show = warnings.showwarning  # what stood there before the first of them


def _hold_or_show(*warning: Any) -> None:
    """Holds a warning back for the innermost attempt of this thread, or shows it."""
    if _THREAD.attempts:
        _THREAD.attempts[-1]._held[-1].append(warning)
    else:
        _show(*warning)
