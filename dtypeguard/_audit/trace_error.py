"""Reduces an error of a trace to its record: the message, two types, the line."""

import re

from .._leaves.errors import DtypeDriftError
from .._program.trace import TraceFailed
from .._source.origin import origin_of_error
from .report import TraceError

# How JAX names two types in loops and branches and in operations.
_TYPE_PATTERN = r"(?:ShapedArray\()?([a-z_]+\d*\w*(?:\[[\w,]*\])?)"
_TWO_TYPES = re.compile(
    rf"has type {_TYPE_PATTERN}.{{1,80}}? has type {_TYPE_PATTERN}|"
    rf"got {_TYPE_PATTERN}, {_TYPE_PATTERN}",
    re.DOTALL,
)


def trace_error(failed: TraceFailed) -> TraceError:
    """Returns the record of an error that a traced function raised."""
    error = failed.__cause__ or failed
    message = str(error).strip()
    shown_message = message
    # The error of a guard lists leaves, each with what to write.
    if not isinstance(error, DtypeDriftError):
        shown_message = message.partition("\n")[0]
    origin = origin_of_error(error)
    is_of_users_function = origin is not None and origin.outermost is not None
    match = _TWO_TYPES.search(message)
    types = ()
    if match is not None:
        # The groups of the alternative that does not match are None.
        types = tuple(group for group in match.groups() if group)
    return TraceError(
        function=failed.args[0],
        message=f"{type(error).__name__}: {shown_message}",
        types=types,
        origin=origin,
        is_of_call=isinstance(error, TypeError) and not is_of_users_function,
    )
