"""The error and the warning that dtypeguard raises about dtypes."""

import inspect
import warnings

from .files import is_users
from .public import public


@public
class DtypeDriftError(TypeError):
    """A leaf cannot be cast back to its recorded dtype without loss.

    It is raised during tracing, before anything runs, so nothing is lost. The message has
    one line for each such leaf: its path, both dtypes, and what to write instead.
    """


@public
class DtypeGuardWarning(UserWarning):
    """The guard changed how the inner optimizer runs, or found a drift it has to report.

    It is issued during tracing, once for each message of a guarded optimizer or step.
    """


def more(page: str) -> str:
    """The last line of a message, which points to a page of the docs by its title."""
    return f"\nMore on this: '{page}' in the docs of dtypeguard."


def first_line(error: BaseException) -> str:
    """The first line of the message of an error, or the name of its type."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


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
