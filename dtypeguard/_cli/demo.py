"""`dtypeguard demo`: ten programs that fail, and what one call changes.

Each file in `scenes/` is one, as a user would write it: its title, the `CALL`, and a
function that runs with or without it. Of what that returns or raises, the first sentence
and the first line of source are shown.
"""

import argparse
import importlib
import linecache
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO

import jax
import optax

from .._explain.explain import explain
from .._leaves.compat import set_x64
from .._leaves.quiet import warnings_ignored
from .forms import notes_on
from .options import UsageError, right
from .output import print_text

SCENES = (
    "prodigy",
    "schedule_free",
    "lbfgs",
    "fromage",
    "zero_nans",
    "failing_scan",
    "compiles_again",
    "stalled_loss",
    "as_on_a_tpu",
    "lost_cast",
)
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scenes")
# The folders of the scenes' files and of their lock, which lines are shown without.
_FOLDERS_OF_SCENES = re.compile(r"[^\s(]*scenes[/\\]|[^\s(]*[/\\](?=step\.lock)")
# A place, and what stands beside it.
_PLACE = re.compile(r"\S+\.py:\d+(?: \(in \S+\))?(?:(?: {2}|: ).*)?")
_KEEPS_TYPES = "runs, and gives back the types it was given"
_WIDTH = 100
_FURTHER = f"""
With optax {optax.__version__} and jax {jax.__version__}, as is and with one call added.
Each is a file in {FOLDER}
  dtypeguard demo prodigy             shows it in full, with what is reported
For your own files:
  dtypeguard run train.py             an error about types names your lines
  dtypeguard audit train.py:opt       the leaves of an optimizer that drift, and where
  dtypeguard precision train.py:loss --inputs train.py:inputs    lines that lose precision
  dtypeguard lock train.py:step --inputs train.py:inputs         what it computes in
  dtypeguard docs                     the pages of the documentation"""


class Played(NamedTuple):
    """How one half of a scene went."""

    report: str
    is_error: bool = False

    @property
    def sentence(self) -> str:
        """The first sentence of the report."""
        # A full stop within a number or a name has no space behind it.
        sentence = self.report.partition("\n")[0].partition(". ")[0].rstrip(".")
        return _FOLDERS_OF_SCENES.sub("", sentence)


def play(name: str) -> tuple[Any, Played, Played]:
    """Runs a scene: its module, as it is, and with the call."""
    # By its name: a scene in full imports none of the others.
    scene = importlib.import_module(f".scenes.{name}", __package__)
    # As users have it, whatever the options of this process are.
    with set_x64(getattr(scene, "X64", False)), jax.numpy_dtype_promotion("standard"):
        return scene, _play_half(scene.run, False), _play_half(scene.run, True)


def _play_half(run: Callable[[bool], object], has_call: bool) -> Played:
    """Runs a scene with or without its call; it returns a report, or nothing."""
    try:
        with explain():
            return Played(str(run(has_call) or _KEEPS_TYPES))
    except Exception as error:
        message = str(error)
        # The note says more than JAX's message.
        for note in notes_on(error):
            message = note.text.removeprefix("dtypeguard: ")
        return Played(f"{type(error).__name__}: {message}", is_error=True)


def demo_command(options: argparse.Namespace, stdout: TextIO) -> int:
    """Runs all scenes, or shows one in full; returns 1 if one fails with the call."""
    if not jax.config.values["jax_platforms"]:
        jax.config.update("jax_platforms", "cpu")  # all of it is small
    if options.name not in (None, *SCENES):
        raise UsageError(f"no scene is called {options.name!r}. {right('demo')}")
    names = SCENES
    describe = _in_short
    if options.name is not None:
        names = (options.name,)
        describe = _in_full
    status = 0
    # A scene says itself what a warning would say.
    with warnings_ignored():
        for name in names:
            scene, bare, guarded = play(name)
            print_text(describe(name, scene, bare, guarded), stdout)
            if guarded.is_error:
                status = 1
    if options.name is None:
        print_text(_FURTHER, stdout)
    return status


def _in_short(name: str, scene: Any, bare: Played, guarded: Played) -> str:
    """Returns a scene in a few lines."""
    title = (scene.__doc__ or "").partition("\n")[0].rstrip(".")
    lines = [
        "",
        f"{SCENES.index(name) + 1:2}  {title}  {name}.py",
        f"    as is {bare.sentence}",
    ]
    place = _PLACE.search(_FOLDERS_OF_SCENES.sub("", bare.report.partition("\n")[2]))
    if place is not None:
        lines.append(f"    line  {place[0]}")
    verdict = "FAILED: " if guarded.is_error else ""
    lines.append(f"    with  {scene.CALL}: {verdict}{guarded.sentence}")
    return "\n".join(map(_cut, lines))


def _in_full(name: str, scene: Any, bare: Played, guarded: Played) -> str:
    """Returns a scene and both reports."""
    file = os.path.join(FOLDER, f"{name}.py")
    source = "".join(linecache.getlines(file))
    # The reports are whole here: `_in_short` has their first lines.
    as_is = f"as it is:\n{bare.report}\n"
    with_call = f"with {scene.CALL}:\n{guarded.report}\n"
    return "\n".join([file, source, as_is, with_call])


def _cut(text: str) -> str:
    if len(text) <= _WIDTH:
        return text
    return f"{text[: _WIDTH - 4].rstrip()} ..."
