"""Reads paths that are text already: those of JAX's messages, of labels and of locks."""

import re
from collections.abc import Iterable

from .._leaves.key_path import leaves_of_holders

# A part of a path, as `jax.tree_util.keystr` prints it.
_PART = re.compile(r"""\[(?:'[^']*'|"[^"]*"|[^\]]*)\]|\.?[^.\[]+""")


def parts(path: str) -> tuple[str, ...]:
    """Returns the parts of a path as they are written: `carry`, `[1]`, `.mu`, `['w']`."""
    return tuple(_PART.findall(path))


def parameter(path: str) -> str:
    """Returns the name of the parameter that a path begins with."""
    name = "".join(parts(path)[:1])
    return name.strip(".[]'\"")


def of_holders(paths: Iterable[str]) -> str:
    """Returns the number of leaves and their holders: `120 leaves of [0].mu and [0].nu`."""
    return leaves_of_holders([parts(path) for path in paths])
