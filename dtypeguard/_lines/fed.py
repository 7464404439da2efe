"""Which result an argument comes back as, by the names that JAX gives to both."""

from collections.abc import Sequence
from typing import NamedTuple

from .._leaves.paths import keys


class Fed(NamedTuple):
    """A leaf of an argument that may have come back from an earlier call."""

    path: str
    position: int
    results: Sequence[int]


def returned_as(leaves: Sequence[Fed], results: Sequence[str]) -> dict[str, int]:
    """The results that some leaves have come back as, by the paths of the leaves.

    A result of the same path in its item belongs to the argument at the position of the
    item, or else to the first one. A result comes back as one leaf alone.
    """
    names = [words(name) for name in results]
    ranked = []
    for leaf in leaves:
        _, *inner = words(leaf.path)
        for number in leaf.results:
            outer, end = names[number], len(names[number]) - len(inner)
            if end < 0 or outer[end:] != inner:
                continue
            item = outer[end - 1] if end > 1 else "0"
            is_there = item == str(leaf.position)
            if inner or is_there or end == 1:  # a name alone may be anything's
                ranked.append((not is_there, end, leaf.position, number, leaf.path))
    found: dict[str, int] = {}
    for _, _, _, number, path in sorted(ranked):
        if path not in found and number not in found.values():
            found[path] = number
    return found


def parameter(path: str) -> str:
    """The name of the parameter that a path begins with."""
    return next(iter(words(path)), "")


def words(path: str) -> list[str]:
    """The parts of a path without its signs, and without the `value` of a variable."""
    words = keys(path)
    return words[:-1] if {*words[1:][-1:]} & {"value", "raw_value"} else words
