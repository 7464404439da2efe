"""`dtypeguard demo`: ten programs that fail, and what one call changes."""

import argparse
import linecache
import warnings

import jax
import optax

from .._demo import NAMES
from .._demo.scene import FOLDER, play
from .._leaves.errors import DtypeGuardWarning
from .output import Write, writer

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


def demo(arguments: argparse.Namespace) -> int:
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
    for number, name in enumerate(NAMES, start=1):
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
    scene = play(name)
    write(scene.file, "bold")
    write("".join(linecache.getlines(scene.file)))
    write("as it is:", "bold")
    write(f"{scene.bare.whole}\n")
    write(f"with {scene.call}:", "bold")
    write(f"{scene.guarded.whole}\n")
    return 0 if scene.is_ok else 1


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 4].rstrip()} ..."
