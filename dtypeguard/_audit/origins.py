"""Where an equation was written. The one file that reads JAX's source information.

JAX keeps a traceback for every equation, `eqn.source_info.traceback`. It may change with
any release; without it audits say less and work all the same.
"""

import dataclasses
import functools
import itertools
import linecache
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import jax
import jaxlib
import numpy as np

_PATHS = sysconfig.get_paths()
_PACKAGES = tuple(_PATHS[name] + os.sep for name in ("purelib", "platlib"))
_NOBODYS = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep
    for file in (jax.__file__, jaxlib.__file__, np.__file__, os.path.dirname(__file__))
)
# A jaxpr is traced inside of these; further out is whoever called it first, and since
# traces are kept, that may be somebody else.
_TRACING = re.compile(r"(.*\.)?trace_to_(sub)?jaxpr\w*")


@dataclasses.dataclass(frozen=True)
class Origin:
    """A line of source.

    Attributes:
        file: its file, as Python knows it.
        line: its number.
        function: the function that it is in.
        code: the line itself, without indentation; empty if the file cannot be read.
    """

    file: str
    line: int
    function: str
    code: str

    def __str__(self) -> str:
        return f"{short(self.file)}:{self.line}"


def short(file: str) -> str:
    """A file as an import would find it, or from the working directory, or in full."""
    for root in (*_PACKAGES, os.getcwd() + os.sep):
        if file.startswith(root):
            return file.removeprefix(root)
    return file


def is_installed(file: str) -> bool:
    """Whether a file is part of an installed package."""
    return file.startswith(_PACKAGES)


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file is part of neither JAX, NumPy, Python nor dtypeguard."""
    if file.startswith(_PACKAGES):
        return not file.startswith(_NOBODYS)
    return not file.startswith((_PATHS["stdlib"] + os.sep, "<frozen ", *_NOBODYS))


def origin_of(equations: Sequence[Any]) -> Origin | None:
    """The innermost line outside JAX and dtypeguard that an equation comes from.

    Args:
        equations: the equation and those it is inside of, from the inside out. An equation
            in a function of JAX's own is the work of who called that.
    """
    for equation in equations:
        for frame in _own_frames(equation):
            if is_users(frame.file):
                return _origin(*frame)
    return None


def origin_of_frame(frame: FrameType, line: int | None = None) -> Origin:
    """The line that a running function is at, or another line of it."""
    code = frame.f_code
    number = (frame.f_lineno if line is None else line) or 0
    return _origin(code.co_filename, number, getattr(code, "co_qualname", code.co_name))


def origin_of_error(error: BaseException) -> Origin | None:
    """The innermost line outside JAX and dtypeguard that an error passed through."""
    found, traceback = None, error.__traceback__
    while traceback is not None:
        if is_users(traceback.tb_frame.f_code.co_filename):
            found = origin_of_frame(traceback.tb_frame, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


_CASTS = ("astype", "_astype", "asarray", "convert_element_type", "_ScalarMeta.__call__")


def is_explicit(equations: Sequence[Any]) -> bool:
    """Whether a conversion was asked for: by `astype`, `asarray` and the like."""
    frames = itertools.takewhile(
        lambda frame: not is_users(frame.file),
        itertools.chain.from_iterable(map(_own_frames, equations[:1])),
    )
    called = [frame.function for frame in frames]
    # What the user called comes last; behind it may be some wrappers of JAX's.
    return any(name in _CASTS for name in called[-6:]) and not any(
        "promote" in name for name in called
    )


def _origin(file: str, line: int, function: str) -> Origin:
    return Origin(file, line, function, linecache.getline(file, line).strip())


class _Frame(NamedTuple):
    file: str
    line: int
    function: str


def _own_frames(equation: Any) -> Iterator[_Frame]:
    """The frames of an equation inside the jaxpr that it belongs to, innermost first."""
    try:
        for frame in equation.source_info.traceback.frames:
            found = _Frame(frame.file_name, frame.line_num, frame.function_name)
            if not is_users(found.file) and _TRACING.fullmatch(found.function):
                return
            yield found
    except AttributeError:  # there is no traceback, or JAX has come to tell it otherwise
        return
