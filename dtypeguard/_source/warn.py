"""Warns at the line of the user's that called dtypeguard."""

import inspect
import threading
import warnings
from typing import Any

from .._leaves.errors import DtypeGuardWarning
from .files import is_users


def warn_caller(message: str) -> None:
    """Issues a `DtypeGuardWarning` at the innermost line outside dtypeguard and JAX."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and not is_users(frame.f_code.co_filename):
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
    """

    def __enter__(self) -> "Attempts":
        self._held: list[list[tuple[Any, ...]]] = [[]]
        self._thread: int | None = threading.get_ident()
        self._show = warnings.showwarning
        warnings.showwarning = self._hold
        return self

    def again(self) -> None:
        """Begins another attempt, which may issue what the one before issued."""
        if self._held[-1]:
            with warnings.catch_warnings():
                pass  # else what is shown once would count as shown
        self._held.append([])

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread = None  # another thread may have kept `_hold` to restore it
        if warnings.showwarning == self._hold:
            warnings.showwarning = self._show
        *others, last = self._held
        is_shown = lambda category: kind or issubclass(category, DtypeGuardWarning)
        held = [x for attempt in others for x in attempt if is_shown(x[1])]
        for warning in (*held, *last):
            self._show(*warning)

    def _hold(self, *warning: Any) -> None:
        if threading.get_ident() == self._thread:
            self._held[-1].append(warning)
        else:
            self._show(*warning)
