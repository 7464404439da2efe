"""Watches what JAX does in a script, from the moment at which the script imports it.

Nothing here imports JAX. Until the script does, it may set variables that JAX reads, or
choose which JAX it imports.
"""

import contextlib
import sys
from typing import Any


class ScriptWatch:
    """A context in which JAX keeps its frames; compilations and arrays are recorded.

    As a finder of modules it sees JAX import its own files, and finds none of them.
    """

    def __init__(self) -> None:
        self._unfiltered: Any = None
        self._recording = contextlib.ExitStack()
        self._recompiled: Any = None
        self._warned: Any = None
        self._is_open = False

    def __enter__(self):
        self._is_open = True
        sys.meta_path.insert(0, self)
        self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_open = False  # before JAX 0.9 no listener can be taken away
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._unfiltered:
            self._unfiltered.leave()
        self._recording.close()
        if self._warned:
            self._warned.stop()

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Starts with the first file of JAX's after its options."""
        if name.startswith("jax."):
            self._start()

    def lines(self, is_whole: bool = False) -> list[str]:
        """The list of what was compiled again for its types; may be empty."""
        return self._recompiled.lines(is_whole) if self._recompiled else []

    def changed(self) -> list[Any]:
        """The functions that were compiled again."""
        return self._recompiled.changed() if self._recompiled else []

    def _start(self) -> None:
        if not hasattr(sys.modules.get("jax"), "config"):
            return
        sys.meta_path.remove(self)
        with contextlib.suppress(Exception):  # a module of that name is not JAX
            from jax import monitoring

            from .._explain.unfiltered import UNFILTERED

            UNFILTERED.enter()
            self._unfiltered = UNFILTERED
            monitoring.register_event_duration_secs_listener(self._listen)
            from .._lines.monitored import RECORD
            from .warned import DtypeWarnings

            self._recording.enter_context(RECORD)
            self._warned = DtypeWarnings()
            self._warned.start()

    def _listen(self, event: str, duration_secs: float, **kwargs: object) -> None:
        if not self._is_open or not event.endswith("/backend_compile_duration"):
            return
        try:
            from .._lines.recompiled import Compilations

            self._recompiled = self._recompiled or Compilations()
            self._recompiled.record(sys._getframe(1))
        except Exception:  # the list lacks it; the script runs on
            return
