"""A line of source as reports print it, and the frames that lead to it."""

import dataclasses
import dis
import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import NamedTuple

from .._leaves.internals import ADDING, UPDATES
from .files import is_installed, is_recorded, is_users, line_text, package
from .syntax import line_at


@dataclasses.dataclass(frozen=True)
class Origin:
    """A line of source.

    Attributes:
        file: its file, as Python knows it.
        line: its number.
        function: the function that contains it.
        code: its text, without indentation; empty if the file cannot be read.
        called_from: for a line of an installed package, the innermost line of the user's
            own code that led there; None if there is none.
    """

    file: str
    line: int
    function: str
    code: str
    called_from: "Origin | None" = None
    # The frames that led to it, inside out. Reports leave them out.
    _through: "tuple[Frame, ...]" = dataclasses.field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        return line_text(self.file, self.line)

    @property
    def users(self) -> "Origin":
        """The line that the user can edit: this one, or the one that called the package."""
        return self.called_from or self

    @property
    def is_of_optimizer(self) -> bool:
        """Whether it runs inside the `update` of an Optax optimizer, not just a helper."""
        return is_update(self._through)

    @property
    def is_of_apply_updates(self) -> bool:
        """Whether Optax or Equinox adds updates to params there."""
        return any(f.is_in(code) for f in self._through for code in ADDING.codes())

    @property
    def outermost(self) -> "Frame | None":
        """The outermost of the user's own functions that led to it."""
        own = [f for f in self._through if is_users(f.file) and not is_installed(f.file)]
        return own[-1] if own else None

    @property
    def place(self) -> str:
        """The line as reports print it, the user's own line first."""
        return f"{self.users} (in {self})" if self.called_from else str(self)


class Why(NamedTuple):
    """The lines behind the type of a value.

    Attributes:
        origin: the line that gave it the type: a promotion, a cast, or what made it.
        cause: the line that forced that, where it made the wider operand of a promotion.
        begun: the line that gave the first value of a carry its type.
        is_promoted: whether the line of `origin` reads other types as well.
        is_earlier: whether the value was made before lines were recorded, or none has it.
    """

    origin: Origin | None = None
    cause: Origin | None = None
    begun: Origin | None = None
    is_promoted: bool = False
    is_earlier: bool = False

    @property
    def root(self) -> Origin | None:
        """The line to edit for another type."""
        return self.cause or self.origin

    def places(self) -> tuple[str, str, str]:
        """The lines as they are printed."""
        told = ("", self.origin), ("forced by ", self.cause), ("begins at ", self.begun)
        made, forced, first = (word + x.place if x else "" for word, x in told)
        return made, forced, first


def origin_of_frame(frame: FrameType, line: int | None = None) -> Origin:
    """The current line of a running function, or another line of it."""
    outer = [each for each in callers(frame) if is_users(each.f_code.co_filename)]
    found = origin_of_frames([frame_of(frame, line), *map(frame_of, outer)])
    assert found is not None
    return found


def origin_of_error(error: BaseException) -> Origin | None:
    """The innermost line outside JAX and dtypeguard that an error passed through."""
    frames = [frame_of(*pair) for pair in traceback.walk_tb(error.__traceback__)]
    return origin_of_frames(each for each in reversed(frames) if is_users(each.file))


def origin_of_frames(frames: Iterable["Frame"]) -> Origin | None:
    """The line of the innermost of some frames, given inside out."""
    through = tuple(frames)
    if not through:
        return None
    first, *outer = through
    own = [frame for frame in outer if not is_installed(frame.file)]
    users = origin_of_frames(own[:1]) if is_installed(first.file) else None
    return Origin(*first, line_at(first.file, first.line), users, through)


def origin_at(file: str, line: int, function: str) -> Origin:
    """A line of which nothing but its function is known."""
    return Origin(file, line, function, line_at(file, line))


def origin_of_return(code: CodeType) -> Origin | None:
    """The one line on which a user's function returns, or its first; else None."""
    if not is_recorded(code.co_filename):
        return None
    ends = (x for x in dis.get_instructions(code) if x.opname.startswith("RETURN_"))
    lines = {x.positions.lineno for x in ends if x.positions}
    line = lines.pop() if len(lines) == 1 else None
    return origin_at(code.co_filename, line or code.co_firstlineno, code.co_qualname)


def is_update(frames: Iterable["Frame"]) -> bool:
    """Whether a call passes through the `update` of an Optax optimizer."""
    return any(
        package(frame.file) == "optax" and frame.function.rpartition(".")[2] in UPDATES
        for frame in frames
    )


def callers(frame: FrameType) -> Iterator[FrameType]:
    """The callers of a frame, inside out."""
    while (caller := frame.f_back) is not None:
        frame = caller
        yield frame


def release(frames: Iterable[FrameType]) -> None:
    """Lets go of what reading the variables of running functions keeps alive.

    Before Python 3.13 a function keeps the dict of its variables that was read last.
    """
    for frame in frames:
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if is_function and sys.version_info < (3, 13):
            variables = frame.f_locals
            if sys.getrefcount(variables) <= 3:  # nobody else holds it: `locals()`
                variables.clear()


def frame_of(frame: FrameType, line: int | None = None) -> "Frame":
    """A running function at its current line, or another."""
    code = frame.f_code
    line = frame.f_lineno if line is None else line
    return Frame(code.co_filename, line or 0, code.co_qualname)


class Frame(NamedTuple):
    file: str
    line: int
    function: str

    def is_in(self, code: CodeType) -> bool:
        """Whether it runs a function, or one that is written in it."""
        if self.file != code.co_filename:
            return False
        lines = [line for *_, line in code.co_lines() if line]
        return min(lines) <= self.line <= max(lines)


def place_of(origin: Origin | str) -> str:
    """A line or an input as reports print it."""
    if isinstance(origin, str):
        return origin
    return origin.place if origin.file else "inside JAX"
