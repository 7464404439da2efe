"""`dtypeguard demo`: ten programs that fail, and what one call changes.

Each file in `scenes/` is one, as a user would write it: its title, the `CALL`, and two
functions. Of what they return or raise, the first sentence and the first line of source
are shown.
"""

import argparse
import importlib
import linecache
import os
import re
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from .._explain.explain import explain
from .._leaves.compat import set_x64
from .._leaves.errors import DtypeGuardWarning
from .options import SCENES, Write, writer

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scenes")
# The folders of the scenes' files and of their lock, which lines are shown without.
_FOLDERS = re.compile(r"[^\s(]*scenes[/\\]|[^\s(]*[/\\](?=step\.lock)")
# A place, and what stands beside it.
_PLACE = re.compile(r"\S+\.py:\d+(?: \(in \S+\))?(?:(?: {2}|: ).*)?")
_RUNS = "runs, and gives back the types it was given"
_WIDTH = 100
_NEXT = """
Each is a file in {folder}
  dtypeguard demo prodigy             shows it in full, with what is reported
For your own files:
  dtypeguard run train.py             an error about types names your lines
  dtypeguard audit train.py:opt       the leaves of an optimizer that drift, and where
  dtypeguard precision train.py:loss --inputs train.py:inputs    lines that lose precision
  dtypeguard lock train.py:step --inputs train.py:inputs         what it computes in
  dtypeguard docs                     the pages of the documentation
"""


class PlayedHalf(NamedTuple):
    """How one half of a scene went: in short, and all that is reported."""

    text: str
    whole: str
    is_error: bool = False

    @property
    def line(self) -> str:
        """The first line of source below the headline."""
        line = _PLACE.search(_FOLDERS.sub("", self.whole.partition("\n")[2]))
        return re.sub(" {2,}", "  ", line[0]) if line else ""


class Scene(NamedTuple):
    """A scene that has run."""

    title: str
    call: str
    bare: PlayedHalf
    guarded: PlayedHalf

    @property
    def is_ok(self) -> bool:
        """Whether the second half went well."""
        return not self.guarded.is_error


def play(name: str) -> Scene:
    """Runs a scene."""
    module = importlib.import_module(f".scenes.{name}", __package__)
    title = (module.__doc__ or "").partition("\n")[0].rstrip(".")
    with set_x64(getattr(module, "X64", False)), jax.numpy_dtype_promotion("standard"):
        return Scene(title, module.CALL, _played(module.bare), _played(module.guarded))


def _played(half: Callable[[], Any]) -> PlayedHalf:
    """Runs a half, which returns nothing, a text, a report, or a text and a report."""
    try:
        with explain():
            found = half()
    except Exception as error:
        return _raised(error)
    text, report = found if isinstance(found, tuple) else (found or _RUNS,) * 2
    text = text if isinstance(text, str) else str(text).partition(": ")[2]
    return PlayedHalf(_first(text), str(report))


def _raised(error: Exception) -> PlayedHalf:
    whole = "".join(traceback.format_exception_only(error)).rstrip()
    note = whole.partition("\ndtypeguard: ")[2]
    return PlayedHalf(_first(f"{type(error).__name__}: {note or error}"), whole, True)


def _first(text: str) -> str:
    """The first sentence of a text, in its first line."""
    return _FOLDERS.sub("", text.partition("\n")[0].partition(". ")[0].rstrip("."))


def run(arguments: argparse.Namespace) -> int:
    """Runs all scenes, or shows one in full."""
    if not jax.config.values["jax_platforms"]:
        jax.config.update("jax_platforms", "cpu")  # all of it is small
    write, name = writer(), arguments.name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DtypeGuardWarning)
        return _all(write) if name is None else _one(write, name)


def _all(write: Write) -> int:
    releases = f"optax {optax.__version__}, jax {jax.__version__}"
    write(f"Ten programs, run here ({releases}): as they are, and with one call added.")
    scenes = []
    for number, name in enumerate(SCENES, start=1):
        scenes.append(scene := play(name))
        bare, file, failed = scene.bare, f"{name}.py", "" if scene.is_ok else "FAILED: "
        write(f"\n{number:2}  {scene.title:<{_WIDTH - 5 - len(file)}} {file}", "bold")
        write(_cut(f"    as is {bare.text}"), "red" if bare.is_error else "yellow")
        if bare.line:
            write(_cut(f"    line  {bare.line}"))
        style = "green" if scene.is_ok else "bold red"
        write(_cut(f"    with  {scene.call}: {failed}{scene.guarded.text}"), style)
    write(_NEXT.format(folder=FOLDER).rstrip())
    return 0 if all(scene.is_ok for scene in scenes) else 1


def _one(write: Write, name: str) -> int:
    scene, file = play(name), os.path.join(FOLDER, f"{name}.py")
    write(file, "bold")
    write("".join(linecache.getlines(file)))
    write("as it is:", "bold")
    write(f"{scene.bare.whole}\n")
    write(f"with {scene.call}:", "bold")
    write(f"{scene.guarded.whole}\n")
    return 0 if scene.is_ok else 1


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 4].rstrip()} ..."
