"""What notes on errors are made from: JAX's frames in the error, and a record of lines.

JAX is to hide its frames from who prints an error, rather than take them out of it. It does
so by itself in IPython. pytest hides them as IPython does.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

_OPTION, _DEFAULT, _HIDDEN = "jax_traceback_filtering", "auto", "tracebackhide"


@contextlib.contextmanager
def kept_frames() -> Iterator[None]:
    """A context in which errors keep JAX's frames, if JAX is imported and not told how."""
    config: Any = getattr(sys.modules.get("jax"), "config", None)
    is_ours = getattr(config, _OPTION, None) == _DEFAULT
    if is_ours:
        config.update(_OPTION, _HIDDEN)
    try:
        yield
    finally:
        if is_ours and getattr(config, _OPTION) == _HIDDEN:
            config.update(_OPTION, _DEFAULT)


@contextlib.contextmanager
def recorded(is_wanted: bool = True) -> Iterator[None]:
    """A context in which the lines that make arrays are recorded, if JAX is imported."""
    if not is_wanted or "jax" not in sys.modules:
        yield
        return
    from .._lines.monitored import RECORD

    with RECORD:
        yield


def explain(error: BaseException | None) -> None:
    """Adds the notes to an error, if JAX is imported; says nothing if that fails."""
    if isinstance(error, Exception) and "jax" in sys.modules:
        with contextlib.suppress(Exception):  # better no note than another error
            from .._explain.explain import explain_error

            explain_error(error)
