"""What a note says to write. A remedy is data: it is tried, and its sentence made at last.

A remedy says whether it is right nowhere: `choose.py` has the candidates in their order.
"""

import dataclasses

from .._leaves.cast_text import lost
from .._leaves.dtypes import kind
from .._leaves.leaf_type import type_text
from .._leaves.types import DType
from .finding import RefusedLeaf
from .trial import LoopTrial

Leaves = tuple[RefusedLeaf, ...]


@dataclasses.dataclass(frozen=True)
class Remedy:
    """Something to write.

    Attributes:
        leaves: the leaf that it is for; all that are guarded.
        line: where it is to be written; empty if no line is known.
    """

    leaves: Leaves
    line: str

    def sentence(self, names: str) -> str:
        """What to write for leaves of these names, without the line."""
        raise NotImplementedError

    @property
    def casts_to(self) -> set[DType]:
        """The dtypes to which it casts wider values."""
        return set()

    def try_in(self, loop: LoopTrial) -> None:
        """Changes the types of a loop as it would change the program; here not at all."""


@dataclasses.dataclass(frozen=True)
class BeginAs(Remedy):
    """To begin a leaf in the dtype in which it is needed."""

    dtype: DType

    def try_in(self, loop: LoopTrial) -> None:
        # With the type that comes back: a shape may have changed as well.
        for leaf in self.leaves:
            loop.begin(leaf.place, leaf.values[-1])

    def sentence(self, names: str) -> str:
        leaf = self.leaves[0]
        before = leaf.dtypes[0]
        if leaf.is_reshaped:
            return f"begin {names} as {type_text(leaf.values[-1])}"
        # Within a kind it is made wider, or was rounded by mistake.
        loss = lost(before, self.dtype) if kind(before) != kind(self.dtype) else ""
        return f"begin {names} as {self.dtype}{loss}"


@dataclasses.dataclass(frozen=True)
class CastBack(Remedy):
    """To cast a leaf back at the line that changed its dtype."""

    @property
    def casts_to(self) -> set[DType]:
        return {self.leaves[0].dtypes[0]}

    def try_in(self, loop: LoopTrial) -> None:
        for leaf in self.leaves:
            loop.cast_back(leaf.place)

    def sentence(self, names: str) -> str:
        target, source = self.leaves[0].dtypes
        return f"cast {names} back to {target}: {_cast_advice(source, target)}"


@dataclasses.dataclass(frozen=True)
class GuardBody(Remedy):
    """To guard the body of a loop, which casts all leaves back."""

    what: str
    function: str
    carry: int

    @property
    def casts_to(self) -> set[DType]:
        return {leaf.dtypes[0] for leaf in self.leaves if leaf.is_castable}

    def try_in(self, loop: LoopTrial) -> None:
        for leaf in self.leaves:
            loop.cast_back(leaf.place)

    def sentence(self, names: str) -> str:
        step = f"{self.function}, carry={self.carry}" if self.carry else self.function
        return f"guard {self.what}: dtypeguard.guard_step({step})"


@dataclasses.dataclass(frozen=True)
class GuardOptimizer(Remedy):
    """To guard the optimizer that returns another dtype than it was given."""

    @property
    def casts_to(self) -> set[DType]:
        # Of an operand that an optimizer is refused, no dtype before is known.
        carried = [leaf for leaf in self.leaves if len(leaf.values) > 1]
        return {leaf.dtypes[0] for leaf in carried if leaf.is_castable}

    def sentence(self, names: str) -> str:
        return "wrap the optimizer: dtypeguard.guard(opt)"


@dataclasses.dataclass(frozen=True)
class CastArgument(Remedy):
    """To cast an argument of a call."""

    dtype: DType

    @property
    def casts_to(self) -> set[DType]:
        return {self.dtype}

    def sentence(self, names: str) -> str:
        cast = _cast_advice(self.leaves[0].dtype, self.dtype)
        return f"cast {names} to {self.dtype}: {cast}"


@dataclasses.dataclass(frozen=True)
class MakeNumber(Remedy):
    """To give a Python number of another type."""

    number: int | float | complex | bool
    loss: str

    def sentence(self, names: str) -> str:
        # The number itself: `int(x)` at its line would hide that a fraction is lost.
        name = type(self.number).__name__
        article = "an" if name == "int" else "a"
        return f"make {names} {article} {name}: {self.number!r}{self.loss}"


@dataclasses.dataclass(frozen=True)
class GiveArray(Remedy):
    """To give an array for a Python number, where Python has no number of the dtype."""

    dtype: DType

    @property
    def casts_to(self) -> set[DType]:
        return {self.dtype}

    def sentence(self, names: str) -> str:
        # Python has one type of floats, and none of 16 bits.
        number = self.leaves[0].values[-1]
        return f'give {names} as jnp.asarray({number!r}, "{self.dtype}")'


@dataclasses.dataclass(frozen=True)
class LeaveOutOfGrad(Remedy):
    """To differentiate the floats alone, where there are ints beside them."""

    def sentence(self, names: str) -> str:
        return f"leave {names} out of what is differentiated, and give the floats alone"


@dataclasses.dataclass(frozen=True)
class OwnArrays(Remedy):
    """To give each leaf an array of its own, where a call donates what others hold."""

    holder: str

    def sentence(self, names: str) -> str:
        call = f"dtypeguard.strong({self.holder})"
        return f"before the first call give each leaf an array of its own: {call}"


@dataclasses.dataclass(frozen=True)
class ReturnFromBranch(Remedy):
    """To return a result in another dtype, from the branches that are named."""

    branches: tuple[str, ...]
    dtype: DType
    is_number: bool  # which has no method to cast it

    @property
    def casts_to(self) -> set[DType]:
        return {self.dtype}

    def sentence(self, names: str) -> str:
        cast = _cast_advice(self.leaves[0].dtype, self.dtype)
        if self.is_number:
            cast = f'jnp.asarray(..., "{self.dtype}")'
        branches = " and ".join(self.branches)
        return f"let {branches} return {names} as {self.dtype}: {cast}"


def _cast_advice(source: DType, target: DType) -> str:
    """Returns a cast as code, which needs no import, with the digits that it loses."""
    is_real_part = kind(source) == "complex" and kind(target) != "complex"
    real = ".real" if is_real_part else ""
    return f'{real}.astype("{target}"){lost(source, target)}'
