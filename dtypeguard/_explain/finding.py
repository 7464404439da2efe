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
        self._is_runtime_error = isinstance(error, RuntimeError)

    # They read and parse source, which an error about something else does not need.
    @functools.cached_property
    def sites(self) -> Sequence[Site]:
        """The lines outside of JAX."""
        return sites(self._trace)

    @property
    def is_of_jax(self) -> bool:
        """Whether JAX raised it, and not what JAX has called."""
        return bool(self.sites and self.sites[-1].called_frames)

    @property
    def may_be_a_check(self) -> bool:
        """Whether another library may have raised it over its arguments."""
        # XLA's errors name dtypes too, and come without a frame of JAX's.
        return not (self.is_of_jax or self._is_runtime_error)

    @property
    def is_of_backward_pass(self) -> bool:
        """Whether JAX was adding up what the rules of derivatives have returned."""
        # JAX has no public function for it: a release that names it otherwise loses a note.
        names = [frame.f_code.co_name for frame in self.frames]
        return any(name.startswith("backward_pass") for name in names)


@dataclasses.dataclass(frozen=True, eq=False)
class RefusedLeaf:
    """A leaf of a type that JAX refuses.

    Attributes:
        path: in the user's objects.
        values: a carry's before and after, another leaf's own.
        why: the lines behind its type.
        place: its place in the whole carry; -1 for another leaf.
        begins_as_rarer: whether it begins in the rarer one of its dtypes, among all inputs
            of a body. Then the odd one is made where it begins, and else in the body.
        begun_for: the line that forced the first dtype of the leaf of a carry.
        majority: how many more inputs of a body have its first dtype than have its last.
        branch: the branch that returns it, by the name of its parameter.
        passed_on: how a branch returns what was there before, as a note says it.
        argument: the argument that has the type.
        wanted: the dtype that a call takes; None if its arguments are to be alike.
    """

    path: str
    values: tuple[Aval | Leaf, ...]
    why: Why = dataclasses.field(default_factory=Why)
    place: int = -1
    begins_as_rarer: bool = False
    begun_for: Origin | None = None
    majority: int = 0
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
    def is_castable(self) -> bool:
        """Whether a guard casts the leaf of a carry back."""
        first = self.dtypes[0]
        # A weak leaf has chosen no type: it takes the one that comes back.
        if self.place < 0 or self.is_reshaped or is_weak(self.values[0]):
            return False
        return fits(first, self.dtype)

    @property
    def made_at(self) -> str:
        """The user's line that gave the leaf its type; empty if it is not known."""
        return users_line(self.why.origin)

    @property
    def is_in_unwritten_container(self) -> bool:
        """Whether a container holds the argument that the call does not write."""
        return self.argument.source is None and self.argument.path != ()

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
        before, after = self.dtypes
        is_of_kind = self.is_castable and kind(before) == kind(after)
        return is_of_kind and before.itemsize >= 4 and self.majority > 1

    @property
    def is_reshaped(self) -> bool:
        """Whether the values differ in their shapes."""
        return len({np.shape(value) for value in self.values}) > 1

    @property
    def widens(self) -> bool:
        """Whether the leaf of a carry loses nothing if it begins as it comes back."""
        if self.is_reshaped or is_weak(self.values[0]):
            return True
        return width(self.dtype) > width(self.dtypes[0])

    def is_narrower_than(self, dtype: DType) -> bool:
        """Returns whether another dtype of its kind holds more than the refused one."""
        return kind(self.dtype) == kind(dtype) and width(self.dtype) < width(dtype)

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
