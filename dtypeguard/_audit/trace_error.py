"""Reduces a page of types that do not match to the two that disagree."""

import dataclasses
import re
import traceback

from .._guard import guard
from .._leaves.errors import DtypeDriftError
from .._source.origin import Origin, origin_of_error


@dataclasses.dataclass(frozen=True)
class TraceError:
    """Why `init`, `update` or a step does not trace."""

    function: str  # "init", "update" or "step"
    message: str  # the first line of the error; all of a `DtypeDriftError`
    types: tuple[str, ...]  # the two that disagree; empty if the error names none
    origin: Origin | None  # the innermost line outside JAX and dtypeguard that raised it
    is_guarded: bool = dataclasses.field(default=False, repr=False)

    @property
    def is_of_optimizer(self) -> bool:
        """Whether floats disagree in the `update` of an optimizer that nothing guards."""
        is_inside = self.origin is not None and self.origin.is_of_optimizer
        are_floats = all(map(_FLOAT.match, self.types))
        return is_inside and are_floats and bool(self.types) and not self.is_guarded

    @property
    def is_of_dtypes(self) -> bool:
        """Whether two types disagree, and not two shapes such as `(3,)` and `(4,)`."""
        return bool(self.types) and not self.types[0].startswith("(")

    @property
    def is_of_a_loop(self) -> bool:
        """Whether the carry of a loop came back in other types."""
        return bool(_CARRY.search(self.message))

    @property
    def is_of_call(self) -> bool:
        """Whether it is a `TypeError` outside of the user's own functions."""
        is_inside = self.origin is not None and self.origin.outermost is not None
        return self.message.startswith("TypeError") and not is_inside

    def lines(self) -> list[str]:
        """The two types, the user's line and the message."""
        types = " and ".join(self.types)
        origin = self.origin
        where = f"{origin.place}  {origin.users.code}" if origin else ""
        head = filter(None, [types and f"{types} disagree", where])
        return [*head, *self.message.splitlines()]


_GUARD = guard.__file__
_FLOAT = re.compile(r"b?float\d")
# The messages of scan, while_loop and fori_loop, in newer and older releases of JAX.
_CARRY = re.compile(
    r"(carry|body_fun) (in|out)put and (carry )?(in|out)put must have", re.IGNORECASE
)
# How JAX names two types: for loops and branches, for older ones, for operations.
_TYPE = r"(?:ShapedArray\()?((?:[a-z_]+\d*\w*)?(?:\[[\w,]*\]|\([\d, ]*\))?)"
_PAIRS = tuple(
    re.compile(pattern.replace("TYPE", _TYPE), re.DOTALL)
    for pattern in (
        r"has type TYPE.{1,80}? has type TYPE",
        r"DIFFERENT TYPE.{1,20}? vs\. TYPE",
        r"dtypes \('TYPE', '(?!')TYPE'\)",
        r"(?:got|broadcasting:) TYPE, TYPE",
    )
)


def reduce_error(error: BaseException | None, function: str) -> TraceError:
    """The part of an error that is worth a report."""
    message = str(error).strip()
    found = filter(None, (pair.search(message) for pair in _PAIRS))
    types = next((match.groups() for match in found), ())
    if not isinstance(error, DtypeDriftError):
        message = message.partition("\n")[0]
    first = f"{type(error).__name__}: {message}"
    origin = None if error is None else origin_of_error(error)
    return TraceError(function, first, types, origin, _is_guarded(error))


def _is_guarded(error: BaseException | None) -> bool:
    codes = (frame.f_code for frame, _ in traceback.walk_tb(error and error.__traceback__))
    return any(code.co_filename == _GUARD for code in codes)
