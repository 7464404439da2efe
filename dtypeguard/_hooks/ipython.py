"""The extension of IPython: `%load_ext dtypeguard` adds the notes to errors in cells."""

import contextlib
import sys
from types import TracebackType
from typing import Any

from . import add_notes_if_jax, recording

_recordings: list[contextlib.AbstractContextManager[object]] = []


def load_ipython_extension(shell: Any) -> None:
    """Has errors in the cells that follow end with the note of `dtypeguard.explain`.

    Args:
        shell: IPython's.
    """
    shell.set_custom_exc((Exception,), _show_error)
    # JAX may be imported in any later cell, and until then there is nothing to record.
    shell.events.register("pre_run_cell", _begin_recording)
    _begin_recording()


def unload_ipython_extension(shell: Any) -> None:
    """Has errors shown as before.

    Args:
        shell: IPython's.
    """
    shell.set_custom_exc((), None)  # no type of error: IPython shows all
    shell.events.unregister("pre_run_cell", _begin_recording)
    if _recordings:
        _recordings.pop().__exit__(None, None, None)


def _begin_recording(*_: object) -> None:
    """Begins to record the lines that make arrays, once JAX is imported."""
    if "jax" in sys.modules and not _recordings:
        _recordings.append(recording())
        _recordings[0].__enter__()


def _show_error(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType,
    tb_offset: int | None = None,
) -> None:
    add_notes_if_jax(error)
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
