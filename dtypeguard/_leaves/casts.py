"""Names for the casts that dtypeguard makes, so that an audit can tell them apart.

Such a cast has no source line of its own: the innermost line outside dtypeguard is the call
of an update or a loop. A `jax.named_scope` says which leaf is cast.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence

import jax
from jax import tree_util
from jax.core import Tracer

from .key_path import KeyPath, leaves_of_holders, path_text
from .types import Leaf


class Cast(str):
    """The name of a cast that dtypeguard makes; a user's scope of that name is a `str`."""

    # `jax.named_scope` takes a string. JAX keeps the object, and its attributes with it.
    owner: str
    path: KeyPath

    def __new__(cls, owner: str, path: KeyPath):
        cast = super().__new__(cls, f"{owner}'s cast of {path_text(path)}")
        cast.owner = owner
        cast.path = path
        return cast

    @property
    def part(self) -> str:
        """The part of the tree: all leaves of a first moment are one."""
        # The states of a chain stand in tuples: their first field or key says what it is.
        path_of_part = []
        for depth, key in enumerate(self.path):
            path_of_part.append(key)
            if depth > 0 and not isinstance(key, tree_util.SequenceKey):
                break
        return path_text(tuple(path_of_part))


class Casts:
    """Names the casts that the public function `owner` makes of the leaves of a tree."""

    def __init__(self, owner: str, paths: Callable[[], Sequence[KeyPath]]):
        self._owner = owner
        # A walk over the tree, which most calls do not need.
        self._paths = functools.cache(paths)

    def of(self, number: int, *leaves: Leaf) -> contextlib.AbstractContextManager[object]:
        """Returns a context that names the cast of a leaf, if an operand is traced."""
        for leaf in leaves:
            if isinstance(leaf, Tracer):
                path = self._paths()[number]
                return jax.named_scope(Cast(self._owner, path))
        return contextlib.nullcontext()


def casts_text(casts: Sequence[Cast]) -> str:
    """Returns the name of casts of one owner in a message."""
    names = leaves_of_holders([cast.path for cast in casts])
    return f"{casts[0].owner}'s cast of {names}"
