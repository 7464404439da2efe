"""Names the casts that dtypeguard makes, for audits of a program to tell whose they are.

Such a cast has no line of source of its own: the innermost one outside dtypeguard is where
somebody calls an update or a loop. The name, a `jax.named_scope`, has the path of the leaf.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from jax.core import Tracer

from .types import Leaf

_NAME = re.compile(r"(\w+)'s cast of (.+)", re.DOTALL)
# The name of a tree, and what tells its parts from each other: an attribute or a key.
_PART = re.compile(r"""\w+(\[\d+\])*(\.\w+|\['[^']*'\]|\["[^"]*"\])?""")


class Cast(NamedTuple):
    """A cast that dtypeguard makes.

    Attributes:
        owner: the public function that makes it.
        path: of the leaf, after the name of its tree.
    """

    owner: str
    path: str

    def __str__(self) -> str:
        return f"{self.owner}'s cast of {self.path}"

    @property
    def part(self) -> str:
        """The part of the tree: all leaves of a first moment are one."""
        found = _PART.match(self.path)
        return found[0] if found else ""


class Casts:
    """Names the casts of the leaves of a tree.

    Args:
        owner: the public function that makes them.
        name: of the tree.
        paths: returns the paths of its leaves; called once, if anything is traced.
    """

    def __init__(self, owner: str, name: str, paths: Callable[[], Sequence[str]]):
        self._owner = owner
        self._name = name
        self._paths = functools.cache(paths)

    def of(self, number: int, *leaves: Leaf) -> contextlib.AbstractContextManager[object]:
        """A context that names the equations of the cast of a leaf, given by number.

        Args:
            number: of the leaf in its tree.
            *leaves: what is cast. Nothing is named if none of them is being traced.
        """
        if not any(isinstance(leaf, Tracer) for leaf in leaves):
            return contextlib.nullcontext()
        cast = Cast(self._owner, self._name + self._paths()[number])
        return jax.named_scope(str(cast))


def cast_of(name: str) -> Cast | None:
    """The cast that a scope is named after; None for another scope."""
    found = _NAME.fullmatch(name)
    return Cast(*found.groups()) if found else None


def shown(casts: Sequence[Cast]) -> str:
    """Casts of one owner in a message; of many, the first."""
    paths = [cast.path for cast in casts]
    if len(paths) > 3:
        paths[2:] = [f"{len(paths) - 2} more"]
    *before, last = paths
    listed = f"{', '.join(before)} and {last}" if before else last
    return str(casts[0]._replace(path=listed))
