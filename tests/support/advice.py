"""Takes what a note says to write, and writes it."""

import inspect
import linecache
import textwrap
from collections.abc import Callable
from typing import Any

import dtypeguard


def note_on(program: Callable[[], Any]) -> str:
    """The note on what a program raises."""
    try:
        with dtypeguard.explain():
            program()
    except (TypeError, ValueError) as error:
        notes = [n for n in getattr(error, "__notes__", ()) if n.startswith("dtypeguard: ")]
        if len(notes) != 1:
            raise
        return notes[0]
    raise ValueError(f"{program.__name__} raises nothing")


def applied(program: Callable[..., Any], *changes: tuple[str, str]) -> Callable[..., Any]:
    """A program with some of its text replaced, each once."""
    source = textwrap.dedent(inspect.getsource(program))
    for old, new in changes:
        if source.count(old) != 1:
            raise ValueError(f"{source.count(old)} times in {program.__name__}: {old}")
        source = source.replace(old, new)
    file = f"<{program.__name__} as told {len(linecache.cache)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names = {**program.__globals__, "dtypeguard": dtypeguard}
    exec(compile(source, file, "exec"), names)
    return names[program.__name__]
