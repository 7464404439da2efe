"""A line of source as reports print it, and the frames that lead to it."""

import dataclasses
import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import NamedTuple

from .._leaves.internals import ADDING, UPDATES, ForeignNames
from .files import is_installed, is_users, line_text, package
from .syntax import line_at


class Frame(NamedTuple):
    """A running function, at one of its lines."""

    file: str
    line: int
    function: str

    @property
    def name(self) -> str:
        """The name of the function alone."""
        _, _, name = self.function.rpartition(".")
        return name


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
    _through: tuple[Frame, ...] = dataclasses.field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        return line_text(self.file, self.line)

    @property
    def users(self) -> "Origin":
        """The line that the user can edit: where a package was called, not inside of it."""
        if self.called_from is None:
            return self
        return self.called_from

    @property
    def is_of_optimizer(self) -> bool:
        """Whether it runs inside the `update` of an Optax optimizer, not just a helper."""
        return is_update(self._through)

    @property
    def is_of_apply_updates(self) -> bool:
        """Whether Optax or Equinox adds updates to params there."""
        return _passes_through(self._through, {"optax", "equinox"}, ADDING)

    @property
    def outermost(self) -> Frame | None:
        """The outermost of the user's own functions that led to it."""
        outermost = None
        for frame in self._through:
            if not is_installed(frame.file):
                outermost = frame
        return outermost

    @property
    def place(self) -> str:
        """The line as reports print it, the user's own line first."""
        if self.called_from is None:
            return str(self)
        return f"{self.called_from} (in {self})"


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
        if self.cause is None:
            return self.origin
        return self.cause

    def places(self) -> list[str]:
        """Returns the lines as they are printed; empty where there is none."""
        places = []
        lines = (self.origin, self.cause, self.begun)
        for words, line in zip(("", "forced by ", "begins at "), lines):
            if line is None:
                places.append("")
            else:
                places.append(words + line.place)
        return places


def origin_of_frame(frame: FrameType, line: int | None = None) -> Origin | None:
    """Returns the current line of a running function, or another line of it."""
    outer_frames = map(frame_of, callers(frame))
    return origin_of_frames([frame_of(frame, line), *outer_frames])


def origin_of_error(error: BaseException) -> Origin | None:
    """Returns the innermost line outside JAX and dtypeguard that an error came through."""
    # A traceback has the line that raised, where the frame may have gone on.
    outermost = error.__traceback__
    frames = []
    for frame, line in traceback.walk_tb(outermost):
        frames.append(frame_of(frame, line))
    # A traceback begins at the outermost frame.
    frames.reverse()
    return origin_of_frames(frames)


def origin_of_frames(frames: Iterable[Frame]) -> Origin | None:
    """Returns the innermost line outside JAX and dtypeguard; frames come inside out."""
    through = tuple(frame for frame in frames if is_users(frame.file))
    if not through:
        return None
    innermost = through[0]
    called_from = None
    if is_installed(innermost.file):
        # Users cannot edit a package, but its call.
        for frame in through:
            if not is_installed(frame.file):
                called_from = origin_at(*frame)
                break
    code = line_at(innermost.file, innermost.line)
    return Origin(*innermost, code, called_from, through)


def origin_at(file: str, line: int, function: str) -> Origin:
    """Returns a line of which nothing but its function is known."""
    code = line_at(file, line)
    return Origin(file, line, function, code)


def function_name(code: CodeType) -> str:
    """Returns the name of a function; a lambda or a comprehension is a part of it."""
    names = [name for name in code.co_qualname.split(".") if not name.startswith("<")]
    return ".".join(names) or "<module>"


def origin_of_code(code: CodeType) -> Origin:
    """Returns the first line of a function."""
    return origin_at(code.co_filename, code.co_firstlineno, code.co_qualname)


def is_update(frames: Iterable[Frame]) -> bool:
    """Returns whether a call passes through the `update` of an Optax optimizer."""
    return _passes_through(frames, {"optax"}, UPDATES)


def _passes_through(
    frames: Iterable[Frame], packages: set[str], names: ForeignNames
) -> bool:
    passed = {package(frame.file) for frame in frames if frame.name in names}
    # A user's function of that name is another one.
    return not packages.isdisjoint(passed)


def callers(frame: FrameType) -> Iterator[FrameType]:
    """Yields the callers of a frame, inside out."""
    while (caller := frame.f_back) is not None:
        frame = caller
        yield frame


def release(frames: Iterable[FrameType]) -> None:
    """Frees the variables of running functions that reading them keeps alive.

    Before Python 3.13 a function keeps the dict of its variables that was read last.
    """
    if sys.version_info >= (3, 13):
        return
    for frame in frames:
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if not is_function:
            continue
        variables = frame.f_locals
        num_references = sys.getrefcount(variables)
        if num_references <= 3:  # nobody else holds it: `locals()`
            variables.clear()


def frame_of(frame: FrameType, line: int | None = None) -> Frame:
    """Returns a running function at its current line, or another."""
    code = frame.f_code
    # An instruction may have no line.
    return Frame(code.co_filename, line or frame.f_lineno or 0, code.co_qualname)


def place_of(origin: Origin | str) -> str:
    """Returns a line or an input as reports print it."""
    if isinstance(origin, str):
        return origin
    if not origin.file:
        return "inside JAX"
    return origin.place
