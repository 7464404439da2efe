"""Names the user's line that leads to a warning over dtypes inside of a package.

Python prints a warning at a line of the package, or of JAX.
"""

import itertools
import re
import sys
import warnings
from collections.abc import Callable
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
        if is_recorded(filename) or not _DTYPE.search(str(message)):
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
            print(text, file=sys.stderr)
