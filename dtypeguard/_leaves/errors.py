"""The error and the warning that dtypeguard raises about dtypes.

This file does not import JAX, so that warnings can be filtered without it.
"""

from collections.abc import Iterable
from typing import NamedTuple

from .types import public


@public
class DtypeDriftError(TypeError):
    """A leaf cannot be cast back to its recorded dtype without loss.

    It is raised during tracing, before anything runs, so nothing is lost. The message has
    one line for each such leaf: its path, both dtypes, and what to write instead. More than
    three leaves that share types and a pattern of path, such as `[*].mu['*']`, share a line
    that says how many they are.

    Attributes:
        rows: every such leaf: its `path`, what it was `before` and is `after`, and the
            `remedy`.
    """

    # Within the error, a pickle finds it in `dtypeguard`.
    @public
    class Row(NamedTuple):
        """The texts of a leaf in a report: its path, both types, and what to write."""

        path: str
        before: str
        after: str
        remedy: str = ""

    def __init__(self, message: str = "", rows: Iterable[Row] = ()):
        super().__init__(message)
        self.rows: tuple[DtypeDriftError.Row, ...] = tuple(rows)


Row = DtypeDriftError.Row


@public
class DtypeGuardWarning(UserWarning):
    """The guard changed how the inner optimizer runs, or found a drift it has to report.

    It is issued during tracing, once for each message of a guarded optimizer or step.
    """


def more(page: str) -> str:
    """The last line of a message: the command that prints a page of the docs."""
    return f"\nMore on this: dtypeguard docs {page}"


def first_line_of(error: BaseException) -> str:
    """The first line of the message of an error, or the name of its type."""
    line, _, _ = str(error).strip().partition("\n")
    return line or type(error).__name__
