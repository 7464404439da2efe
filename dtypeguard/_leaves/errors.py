"""The one error and the one warning that dtypeguard raises about dtypes."""

import inspect
import warnings

from .files import is_users
from .public import public


@public
class DtypeDriftError(TypeError):
    """A leaf cannot be brought back to its recorded dtype without losing something.

    Raised while the update is traced, so nothing has run and nothing is lost. Every
    offending leaf stands on a line of its own: its path, both dtypes, and what to
    write instead.
    """


@public
class DtypeGuardWarning(UserWarning):
    """The guard changed how the inner optimizer runs, or saw a drift it was told of.

    Issued while the update is traced, once for the same message of the same guarded
    optimizer.
    """


def more(page: str) -> str:
    """The last line of a message of which a page of the docs, by its title, says more."""
    return f"\nMore on this: '{page}' in the docs of dtypeguard."


def warn_caller(message: str) -> None:
    """Issues a `DtypeGuardWarning` at the line outside dtypeguard and JAX that led here."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, DtypeGuardWarning, stacklevel=level)


class WarnOnce:
    """Issues each warning once. Any two are equal, as what they belong to may be.

    Equinox makes pytrees of closures, to compile once for two optimizers made alike
    (`OptaxMinimiser` in optimistix): it hashes and compares all that a guard closes over.
    """

    def __init__(self) -> None:
        self._messages: set[str] = set()

    def __call__(self, message: str) -> None:
        """`warn_caller`, unless it was called with this message before."""
        if message not in self._messages:
            warn_caller(message)
            self._messages.add(message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WarnOnce)

    def __hash__(self) -> int:
        return hash(WarnOnce)
