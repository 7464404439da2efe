"""Ignores warnings for a time, also where another thread does."""

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

_LOCK = threading.Lock()


@contextlib.contextmanager
def warnings_ignored(category: type[Warning] = Warning) -> Iterator[None]:
    """Ignores the warnings of a category until the end of a `with` statement.

    `warnings.catch_warnings` puts back the list of filters that it has found. Of two that
    overlap in two threads, the last puts back what the first has added, for good:
    https://docs.python.org/3/library/warnings.html#concurrent-safety-of-context-managers.
    This takes out its own filter, and leaves all others alone.
    """
    filters: Any = warnings.filters  # a list, which type checkers take for a sequence
    ignore = ("ignore", None, category, None, 0)
    with _LOCK:
        filters.insert(0, ignore)
    try:
        yield
    finally:
        with _LOCK:
            _take_out(ignore, filters)
            # What `catch_warnings` has made of it within, in this thread or another.
            _take_out(ignore, warnings.filters)


def _take_out(ignore: object, filters: Any) -> None:
    for place, entry in enumerate(filters):
        if entry is ignore:  # an equal filter may be the user's
            del filters[place]
            return
