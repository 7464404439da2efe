"""Reduces an error of a trace to its record: the message, two types, the line."""

import re

from .._leaves.errors import DtypeDriftError
from .._program.trace import TraceFailed
from .._source.origin import origin_of_error
from .report import TraceError

# How JAX names two types: for loops and branches, and for operations.
_TYPE_IN_MESSAGE = r"(?:ShapedArray\()?((?:[a-z_]+\d*\w*)?(?:\[[\w,]*\]|\([\d, ]*\))?)"
_TWO_TYPES = (
    re.compile(
        rf"has type {_TYPE_IN_MESSAGE}.{{1,80}}? has type {_TYPE_IN_MESSAGE}", re.DOTALL
    ),
    re.compile(rf"(?:got|broadcasting:) {_TYPE_IN_MESSAGE}, {_TYPE_IN_MESSAGE}", re.DOTALL),
)
# How Python refuses a call. It has no type of error for that.
_LACKS_ARGUMENT = re.compile(r"missing \d+ required keyword-only argument")


def trace_error(failed: TraceFailed) -> TraceError:
    """Returns the record of an error that a traced function raised."""
    error = failed.__cause__ or failed
    message = str(error).strip()
    # The error of a guard lists leaves, each with what to write.
    is_of_guard = isinstance(error, DtypeDriftError)
    shown_message = message if is_of_guard else message.partition("\n")[0]
    is_type_error = isinstance(error, TypeError)
    return TraceError(
        function=failed.args[0],
        message=f"{type(error).__name__}: {shown_message}",
        types=_types_in(message),
        origin=origin_of_error(error),
        is_type_error=is_type_error,
        lacks_argument=is_type_error and _LACKS_ARGUMENT.search(message) is not None,
    )


def _types_in(message: str) -> tuple[str, ...]:
    """Returns the two types that a message of JAX names; empty if it names none."""
    for pattern in _TWO_TYPES:
        match = pattern.search(message)
        if match is not None:
            return match.groups()
    return ()
