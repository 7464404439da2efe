"""An error as it is read, and what is found of it: the leaves that JAX refuses."""

import functools
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .._leaves.dtypes import dtype_of, fits, kind
from .._leaves.types import Aval, DType, Leaf
from .._lines.sites import Argument, Site, sites
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
    """A leaf of a type that JAX refuses."""

    number: int  # its place among the leaves of the error
    path: str  # in the user's objects
    values: tuple[Aval | Leaf, ...]  # a carry's before and after, another's own
    why: Why = Why()
    place: int | None = None  # among all that the carry has
    is_of_first: bool = False  # whether the line of its first value is rather to be changed
    branch: str = ""  # that returns it, by the name of its parameter
    kept: str = ""  # what a branch returns as it was, as a note tells it
    argument: Argument | None = None  # that has the type

    @property
    def dtypes(self) -> list[DType]:
        """Those of the values."""
        return [getattr(x, "dtype", None) or dtype_of(x) for x in self.values]

    @property
    def is_castable(self) -> bool:
        """Whether a guard casts the leaf of a carry back."""
        old, new = self.dtypes[0], self.dtypes[-1]
        return old != new and kind(old) is not None and fits(old, new)

    @property
    def lacks_line(self) -> bool:
        """Whether a line of it is not known: a branch returns what it has cast itself."""
        is_carried = len(self.values) > 1
        is_forced = self.why.is_promoted or is_carried
        return (
            self.why.origin is None
            or (is_carried and self.why.begun is None)
            or (is_forced and self.why.cause is None and not self.branch)
        )

    @property
    def is_reshaped(self) -> bool:
        """Whether the values differ in their shapes."""
        return len({np.shape(value) for value in self.values}) > 1


class RefusedCall(NamedTuple):
    """A call whose arguments are refused."""

    wanted: DType | None  # that is taken; None if the arguments are to be alike
    site: Site
    keeps: bool = False  # whether JAX wants ints of what is no index and no size


class Finding(NamedTuple):
    """What an error is about: leaves, what has them, and the lines outside of JAX."""

    headline: str
    leaves: Sequence[RefusedLeaf]
    of: ControlFlow | RefusedCall
    sites: Sequence[Site] = ()
    remedies: Sequence[str] = ()  # what to write
