"""Reads paths that are text already: those of JAX's messages, of notes and of locks."""

import itertools
import re
from collections.abc import Sequence

from .._leaves.table import FEW

# A part of a path, as `jax.tree_util.keystr` prints it.
_PART = re.compile(r"""\[(?:'[^']*'|"[^"]*"|[^\]]*)\]|\.?[^.\[]+""")


def parts(path: str) -> list[str]:
    """The parts of a path as they are written: `carry`, `[1]`, `.mu`, `['w']`."""
    return _PART.findall(path)


def keys(path: str) -> list[str]:
    """The parts of a path without their signs: `carry`, `1`, `mu`, `w`."""
    # JAX numbers the parts of a node without keys in two ways.
    numbered = (part.replace("<flat index ", "").strip(".[]<>") for part in parts(path))
    return [key[1:-1] if key[:1] in ("'", '"') else key for key in numbered]


def parameter(path: str) -> str:
    """The name of the parameter that a path begins with."""
    return next(iter(keys(path)), "")


def of_holders(paths: Sequence[str]) -> str:
    """How many leaves there are, and what holds them: `120 leaves of [0].mu and [0].nu`."""
    split = [parts(path) for path in paths]
    is_one = lambda level: len({*level}) == 1
    common = len([*itertools.takewhile(is_one, zip(*split))])
    held = list(dict.fromkeys("".join(path[: common + 1]) for path in split))
    held = held if len(held) <= FEW else ["".join(split[0][:common])]
    names = f"{', '.join(held[:-1])} and {held[-1]}" if held[1:] else held[0]
    return f"{len(paths)} leaves{names and f' of {names}'}"
