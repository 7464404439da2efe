"""An error as it is read, and what is found of it: the leaves that JAX refuses."""

import functools
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .._leaves.dtypes import dtype_of
from .._leaves.types import Aval, DType, Leaf
from .._lines.sites import Argument, Site, sites
from .._source.files import is_installed
from .._source.origin import Why
from .frames import ControlFlow


class Failure:
    """An error with JAX's own frames, and the lines outside JAX, both outside in."""

    def __init__(self, error: BaseException):
        self.message = str(error)
        self.frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        self._trace = error.__traceback__

    @functools.cached_property
    def sites(self) -> Sequence[Site]:
        return sites(self._trace)

    @property
    def is_of_jax(self) -> bool:
        """Whether JAX raised it, and not what JAX has called."""
        return bool(self.sites and self.sites[-1].inside)


class RefusedLeaf(NamedTuple):
    """A leaf of a type that JAX refuses.

    Attributes:
        number: its place among the leaves of the error.
        path: of the leaf, in the user's objects.
        values: that have its types: a carry's before and after, another's own.
        why: the lines behind its type.
        place: of the leaf among all that the carry, or the result of branches, has.
        is_castable: whether a guard casts the leaf of a carry back.
        is_of_first: whether the line of its first value is rather to be changed.
        branch: that returns it, by the name of its parameter.
        kept: what a branch returns as it was, as a note tells it.
        argument: that has the type.
    """

    number: int
    path: str
    values: tuple[Aval | Leaf, ...]
    why: Why = Why()
    place: int | None = None
    is_castable: bool = False
    is_of_first: bool = False
    branch: str = ""
    kept: str = ""
    argument: Argument | None = None

    @property
    def dtypes(self) -> list[DType]:
        """Those of the values."""
        return [getattr(x, "dtype", None) or dtype_of(x) for x in self.values]

    @property
    def is_reshaped(self) -> bool:
        """Whether the values differ in their shapes."""
        return len({np.shape(value) for value in self.values}) > 1


class RefusedCall(NamedTuple):
    """A call whose arguments are refused.

    Attributes:
        wanted: the dtype that is taken; None if the arguments are to be alike.
        name: of the call.
        site: the line of the call.
        keeps: whether floats stand where JAX wants ints, and are no index and no size.
    """

    wanted: DType | None
    name: str
    site: Site
    keeps: bool = False


class Finding(NamedTuple):
    """What an error is about: leaves, what has them, and the lines outside of JAX."""

    headline: str
    leaves: Sequence[RefusedLeaf]
    of: ControlFlow | RefusedCall
    sites: Sequence[Site] = ()


def users_sites(sites: Sequence[Site]) -> list[Site]:
    """The user's own lines that an error passed through, inside out."""
    return [site for site in reversed(sites) if not is_installed(site.file)]
