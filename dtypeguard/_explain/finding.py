"""An error as it is read, and what is found of it: the leaves that JAX refuses."""

import dataclasses
import functools
import traceback
from collections.abc import Sequence

import numpy as np

from .._leaves.dtypes import dtype_of, fits, is_weak, kind, rank
from .._leaves.types import Aval, DType, Leaf
from .._source.files import is_installed
from .._source.origin import Origin, Why
from .._tracebacks.sites import Argument, Site, sites
from .frames import ControlFlow

# That of a leaf which is none.
NO_ARGUMENT = Argument("", (), None)


class Failure:
    """An error with JAX's own frames, and the lines outside JAX, both outside in."""

    def __init__(self, error: BaseException):
        self.message = str(error)
        self._trace = error.__traceback__
        self.frames = [frame for frame, _ in traceback.walk_tb(self._trace)]
        # XLA's errors name dtypes too, and come without a frame of JAX's.
        self.is_runtime_error = isinstance(error, RuntimeError)

    # They read and parse source, which an error about something else does not need.
    @functools.cached_property
    def sites(self) -> Sequence[Site]:
        """The lines outside of JAX."""
        return sites(self._trace)

    @property
    def is_of_jax(self) -> bool:
        """Whether JAX raised it, and not what JAX has called."""
        return bool(self.sites[-1].called_frames)


@dataclasses.dataclass(frozen=True, eq=False)
class RefusedLeaf:
    """A leaf of a type that JAX refuses.

    Attributes:
        path: in the user's objects.
        values: a carry's before and after, another leaf's own.
        why: the lines behind its type.
        place: its place in the whole carry; -1 for another leaf.
        begun_for: the line that forced the first dtype of the leaf of a carry.
        counts: how many inputs of a body have its first dtype, and its last.
        branch: the branch that returns it, by the name of its parameter.
        passed_on: how a branch, or an index, has what was there before, as a note says it.
        argument: the argument that has the type.
        wanted: the dtype that a call takes; None if its arguments are to be alike.
    """

    path: str
    values: tuple[Aval | Leaf, ...]
    why: Why = dataclasses.field(default_factory=Why)
    place: int = -1
    begun_for: Origin | None = None
    counts: Sequence[int] = (0, 0)
    branch: str = ""
    passed_on: str = ""
    argument: Argument = NO_ARGUMENT
    wanted: DType | None = None

    @property
    def dtypes(self) -> list[DType]:
        """The dtypes of the values."""
        # `dtype_of` has none for a float0, of which arrays of NumPy are made.
        return [getattr(x, "dtype", None) or dtype_of(x) for x in self.values]

    @property
    def dtype(self) -> DType:
        """The refused dtype; for the leaf of a carry, the dtype after a turn."""
        return self.dtypes[-1]

    @property
    def first_dtype(self) -> DType:
        """The dtype of the first value: for the leaf of a carry, that before a turn."""
        return self.dtypes[0]

    @property
    def value(self) -> Aval | Leaf:
        """The value of the refused dtype."""
        return self.values[-1]

    @property
    def begins_weak(self) -> bool:
        """Whether the first value has not chosen its type."""
        return is_weak(self.values[0])

    @property
    def is_castable(self) -> bool:
        """Whether a guard casts the leaf of a carry back."""
        # A weak leaf takes the type that comes back.
        if self.place < 0 or self.is_reshaped or self.begins_weak:
            return False
        return fits(self.first_dtype, self.dtype)

    @property
    def made_at(self) -> str:
        """The user's line that gave the leaf its type; empty if it is not known."""
        return users_line(self.why.origin)

    @property
    def begun_at(self) -> str:
        """The user's line that gave the first value its type; empty if it is not known."""
        return users_line(self.why.begun)

    @property
    def is_computed(self) -> bool:
        """Whether a line computes the leaf of other values."""
        return self.why.is_promoted or self.why.cause is not None

    @property
    def written(self) -> str:
        """The leaf as the call writes it, else its path."""
        if self.argument.is_whole and self.argument.text:
            return self.argument.text
        return self.path

    @property
    def is_odd_after(self) -> bool:
        """Whether the dtype in which the leaf of a carry comes back is the odd one.

        Then the line that gave it this dtype is to be changed. In 16 bits a sum or an
        average would stall: such a leaf begins wider.
        """
        first, last = self.counts
        is_long = self.first_dtype.itemsize >= 4
        return self.is_castable and is_long and first - last > 1

    @property
    def begins_as_rarer(self) -> bool:
        """Whether the leaf of a carry begins in the rarer one of its dtypes.

        Then the odd one is made where it begins, and else in the body. The odd dtype is
        most often the mistake: on 36 programs by others it told the line to change more
        often than the lossless direction did.
        """
        if not self.begun_at:
            return False
        # What has no line in the body is to be changed where it begins.
        if self.begins_weak or self.why.origin is None:
            return True
        if self.is_of_optimizer or self.why.cause is None:  # the user's own cast
            return False
        # By kind first: a float among ints is no narrow float.
        first, last = zip(map(rank, self.dtypes), self.counts)
        return first <= last

    @property
    def is_reshaped(self) -> bool:
        """Whether the values differ in their shapes."""
        return len(set(map(np.shape, self.values))) > 1

    @property
    def widens(self) -> bool:
        """Whether the leaf of a carry loses nothing if it begins as it comes back."""
        if self.is_reshaped or self.begins_weak:
            return True
        return width(self.dtype) > width(self.first_dtype)

    def is_narrower_than(self, dtype: DType) -> bool:
        """Returns whether another dtype of its kind holds more than the refused one."""
        if kind(self.dtype) != kind(dtype):
            return False
        return width(self.dtype) < width(dtype)

    @property
    def is_of_optimizer(self) -> bool:
        """Whether an optimizer, or what adds its updates, gave the leaf its type."""
        # A guard mends both: its updates have the dtypes of the params.
        origin = self.why.origin
        if origin is None:
            return False
        return origin.is_of_optimizer or origin.is_of_apply_updates


@dataclasses.dataclass(frozen=True)
class SharedArrays:
    """A call that donates one array in several arguments.

    Attributes:
        holder: the arguments, as the call writes them.
    """

    holder: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """What an error is about.

    Attributes:
        headline: the first sentence of the note.
        leaves: those that JAX refuses.
        cause: what has them; the line of a call whose arguments they are.
    """

    headline: str
    leaves: Sequence[RefusedLeaf]
    cause: ControlFlow | Site | SharedArrays


def width(dtype: DType) -> tuple[int, int]:
    """Returns what is greater for a dtype that holds more."""
    # bfloat16 and float16 are alike here: neither holds all numbers of the other.
    return rank(dtype), dtype.itemsize


def users_line(line: Origin | None) -> str:
    """Returns the user's own line; empty if it is not known, or a package's."""
    # Nobody is to edit an installed package.
    if line is None or is_installed(line.users.file):
        return ""
    return str(line.users)
