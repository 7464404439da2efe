"""Ignores warnings for a time, also where another thread does."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def warnings_ignored() -> Iterator[None]:
    """Ignores warnings until the end of a `with` statement.

    `warnings.catch_warnings` puts back the list of filters that it has found. Of two that
    overlap in two threads, the last puts back what the first has added, for good:
    https://docs.python.org/3/library/warnings.html#concurrent-safety-of-context-managers.
    """
    filters: Any = warnings.filters  # a list, which type checkers take for a sequence
    ignore = ("ignore", None, Warning, None, 0)
    filters.insert(0, ignore)
    try:
        yield
    finally:
        filters.remove(ignore)
        # A list that `catch_warnings` has made meanwhile, in this thread or another.
        if warnings.filters is not filters:
            with contextlib.suppress(ValueError):
                warnings.filters.remove(ignore)  # pyright: ignore[reportAttributeAccessIssue]: as above
