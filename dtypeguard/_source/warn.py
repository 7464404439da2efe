"""Warns at the line of the user's that called dtypeguard."""

import inspect
import warnings

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
