"""Reads paths that are text already: those of JAX's messages, of labels and of locks."""

import re
from collections.abc import Sequence

from .._leaves.key_path import joined
from .._leaves.table import FEW

# A part of a path, as `jax.tree_util.keystr` prints it.
_PART = re.compile(r"""\[(?:'[^']*'|"[^"]*"|[^\]]*)\]|\.?[^.\[]+""")


def parts(path: str) -> list[str]:
    """Returns the parts of a path as they are written: `carry`, `[1]`, `.mu`, `['w']`."""
    return _PART.findall(path)


def parameter(path: str) -> str:
    """Returns the name of the parameter that a path begins with."""
    names = parts(path)
    return names[0].strip(".[]'\"") if names else ""


def of_holders(paths: Sequence[str]) -> str:
    """Returns the number of leaves and their holders: `120 leaves of [0].mu and [0].nu`."""
    split_paths = [parts(path) for path in paths]
    depth = 0
    for level in zip(*split_paths):
        if len(set(level)) > 1:
            break
        depth += 1
    holders: list[str] = []
    for path in split_paths:
        holder = "".join(path[: depth + 1])
        if holder not in holders:
            holders.append(holder)
    if len(holders) > FEW:  # more would not fit in a row
        holders = ["".join(split_paths[0][:depth])]
    names = joined(holders)
    return f"{len(paths)} leaves of {names}" if names else f"{len(paths)} leaves"
