"""Names the user's line that leads to a warning over dtypes inside of a package.

Python prints a warning at a line of the package, or of JAX.
"""

import contextlib
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from .._source.files import is_recorded, is_users, package
from .._source.origin import Origin, callers, origin_of_frame

_DTYPE = re.compile(r"\b(bfloat16|(float|u?int|complex)\d+)\b")


class DtypeWarnings:
    """Prints a line behind such a warning, where that is shown: once for each line."""

    def __init__(self) -> None:
        self._before: Callable[..., None] = warnings.showwarning
        self._lines: set[tuple[str, Origin]] = set()

    def start(self) -> None:
        """Begins."""
        self._before, warnings.showwarning = warnings.showwarning, self._show

    def stop(self) -> None:
        """Ends, unless the script shows warnings in its own way."""
        if warnings.showwarning == self._show:
            warnings.showwarning = self._before

    def _show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        *rest: Any,
        **named: Any,
    ) -> None:
        self._before(message, category, filename, *rest, **named)
        if not _DTYPE.search(str(message)):
            return
        if is_recorded(filename):
            return
        is_jax = lambda file: package(file) == "jax"
        frames = list(itertools.islice(callers(sys._getframe()), 1000))
        files = (frame.f_code.co_filename for frame in frames)
        if not is_jax(next((x for x in files if is_jax(x) or is_users(x)), "")):
            return
        user = next((x for x in frames if is_recorded(x.f_code.co_filename)), None)
        line = origin_of_frame(user) if user else None
        if line and (str(message), line) not in self._lines:
            self._lines.add((str(message), line))
            text = f"dtypeguard run: the warning above comes from {line}: {line.code}"
            made: list[str] = []
            with contextlib.suppress(Exception):  # the warning is shown in any case
                made += _made(frames, str(message))
            print(text, *made, sep="\n    ", file=sys.stderr)


def _made(frames: Sequence[FrameType], message: str) -> Iterator[str]:
    """The lines of the two arrays that a warning is about: what is written, and to what."""
    # Not before: this file is imported while the script imports JAX.
    from .._leaves.dtypes import dtype_of, is_array
    from .._leaves.rows import type_text
    from .._lines.record import recorded

    named = {match[0] for match in _DTYPE.finditer(message)}
    of_jax = itertools.takewhile(lambda x: not is_users(x.f_code.co_filename), frames)
    for frame in of_jax:
        pair = [frame.f_locals.get(name) for name in ("x", "y")]
        types = {str(dtype_of(x)) for x in pair if is_array(x)}
        if len(types) == 2 and types <= named:
            for value in pair:
                origin, cause, *_ = recorded(value)
                forced = f", forced by {cause.users}" if cause else ""
                if origin:
                    yield f"{type_text(value)} is made at {origin.users}{forced}"
            return
