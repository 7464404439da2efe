"""Names the casts that dtypeguard makes, so that an audit can attribute them to it.

Such a cast has no source line of its own: the innermost line outside dtypeguard is the call
of an update or a loop. The name, a `jax.named_scope`, holds the path of the leaf.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Sequence

import jax
from jax.core import Tracer

from .types import Leaf

# The name of a tree and the attribute or key of one of its parts.
_PART = re.compile(r"""\w+(\[\d+\])*(\.\w+|\['[^']*'\]|\["[^"]*"\])?""")


class Cast(str):
    """The name of a cast that dtypeguard makes; a user's scope of that name is a `str`."""

    owner: str
    path: str

    def __new__(cls, owner: str, path: str):
        cast = super().__new__(cls, f"{owner}'s cast of {path}")
        cast.owner, cast.path = owner, path
        return cast

    @property
    def part(self) -> str:
        """The part of the tree: all leaves of a first moment are one."""
        found = _PART.match(self.path)
        return found[0] if found else ""


class Casts:
    """Names the casts that the public function `owner` makes of the leaves of a tree."""

    def __init__(self, owner: str, name: str, paths: Callable[[], Sequence[str]]):
        self._owner = owner
        self._name = name
        self._paths = functools.cache(paths)

    def of(self, number: int, *leaves: Leaf) -> contextlib.AbstractContextManager[object]:
        """A context that names the cast of a leaf, by number, if an operand is traced."""
        if not any(isinstance(leaf, Tracer) for leaf in leaves):
            return contextlib.nullcontext()
        return jax.named_scope(Cast(self._owner, self._name + self._paths()[number]))


def shown(casts: Sequence[Cast]) -> str:
    """Casts of one owner in a message; of many, the first."""
    paths = [cast.path for cast in casts]
    if len(paths) > 3:
        paths[2:] = [f"{len(paths) - 2} more"]
    *before, last = paths
    listed = f"{', '.join(before)} and {last}" if before else last
    return Cast(casts[0].owner, listed)
