"""JAX's traceback filtering, which is off while errors are to be explained.

`dtypeguard run` imports this file while JAX is being imported. It may use JAX's options and
nothing else of JAX.
"""

import threading

import jax


class Unfiltered:
    """Keeps JAX's traceback filtering off while any context is open, in any thread.

    Attributes:
        before: the option outside of any context.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self.before = ""

    def enter(self) -> None:
        with self._lock:
            if not self._open:
                self.before = jax.config.jax_traceback_filtering  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import
                jax.config.update("jax_traceback_filtering", "off")
            self._open += 1

    def leave(self) -> None:
        with self._lock:
            self._open -= 1
            now = jax.config.jax_traceback_filtering  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import
            if not self._open and now == "off":
                jax.config.update("jax_traceback_filtering", self.before)


UNFILTERED = Unfiltered()
