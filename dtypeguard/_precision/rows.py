"""The rows of a report of precision."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._leaves.table import percent, shown_fields
from .._source.origin import Origin, place_of

_MOST_NAMED = 3
# What to write where an update is rounded away.
STOCHASTICALLY = "dtypeguard.apply_updates(params, updates, key=key)"


class LineLoss(NamedTuple):
    """A line of source that loses precision.

    Attributes:
        origin: the line; None for the inputs of the program, which `narrow` rounds. Without
            a file if no line outside JAX leads to it.
        share: its share of the squared error of the outputs: what its rounding adds to the
            lines before it. Shares add up to what decisions leave, and may be negative.
        alone: the error of the outputs if only this line rounds; not a number if there was
            no time to measure it.
        left: the share of the squared error that is left if only this line is wide, by a
            run of the program; not a number for lines beyond the first four.
        dtypes: the dtypes that it rounds to.
        constant: the number on it that rounding changes most, "0.999 -> 1"; None
            if there is none.
        remedy: what to write, as a sentence; empty if the fix does without it.
        cast: the leaves that dtypeguard itself rounds on this line, such as "guard's cast
            of state[0].mu['w']"; None if the rounding is the program's own.
    """

    origin: Origin | None
    share: float
    alone: float
    left: float
    dtypes: tuple[str, ...]
    constant: str | None
    remedy: str
    cast: str | None = None

    @property
    def place(self) -> str:
        """Where it is."""
        if self.origin is None:
            return "the inputs"
        place = place_of(self.origin)
        if self.cast is not None:
            place += f", {self.cast}"
        return place


class OutputError(NamedTuple):
    """How far an output is off.

    Attributes:
        error: relative to its norm in wide types.
        unmoved: of an output that is an input with something added, such as params with
            their updates, the share of the elements that an update moves in wide types and
            not as written; else None.
        vanishes: whether rounding alone decides it, on the wide side as well: the gradient
            of a bias without effect, a sum that cancels exactly. It is more than 5% off,
            and a change of the inputs by a few roundings of the wide dtype changes it by a
            tenth of that. It is not counted, unless there is no other output.
    """

    error: float
    unmoved: float | None = None
    vanishes: bool = False


class Fixed(NamedTuple):
    """The program with the lines of the fix, or by the plan.

    Attributes:
        error: of a run; not a number if there was no time to find a fix.
        price: the share of the operations of matrix products that is wide then; by a plan,
            of the work.
    """

    error: float = math.nan
    price: float = math.nan


class PlainRun(NamedTuple):
    """How the program was run, and what a plain run tells beside its error.

    Attributes:
        wide: the wide dtype.
        narrow: the dtype that the whole program was run in; None if as written.
        tolerance: the error that the fix had to reach; None for a tenth of the squared one.
        matmul_precision: the device, or the precision, of its products; None if their own.
        compiled: the error as XLA compiles the program here: it may leave out a rounding
            that is undone at once.
        is_of_integers: whether no output is floating.
        raises: whether the program raises as it was run, and does not in wide types.
    """

    wide: str = ""
    narrow: str | None = None
    tolerance: float | None = None
    matmul_precision: str | None = None
    compiled: float = math.nan
    is_of_integers: bool = False
    raises: bool = False


class LineDecision(NamedTuple):
    """A line that decides by floating numbers, and decides otherwise in wide types.

    Attributes:
        origin: the line; None if no line outside JAX leads to it.
        flipped: how many of its decisions are others in wide types.
        count: how many it makes: a mask of 32,768 elements is as many.
    """

    origin: Origin | None
    flipped: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # a tuple counts so


class Decisions(NamedTuple):
    """Decisions that are others in wide types: masks, orders, branches, indices.

    Attributes:
        share: that of the squared error which they cause. Negative if they undo what
            rounding causes; not a number if there was no time to measure it.
        lines: those that decide otherwise, those that do most often first, and the loops
            that turn another number of times.
    """

    share: float = 0.0
    lines: tuple[LineDecision, ...] = ()


class RoundedArgument(NamedTuple):
    """A 16-bit argument that is 0 or 1, where a number next to it makes values finite.

    Attributes:
        path: of the argument.
        value: what it is.
        dtype: its dtype.
        meant: a number that its dtype rounds to that, and with which fewer values of a run
            in wide types stop being finite.
    """

    path: str
    value: float
    dtype: str
    meant: float

    def __str__(self) -> str:
        return (
            f"{self.path} is {self.value:g} in {self.dtype}, to which {self.meant:g} "
            "rounds. Make it in float32: write dtypeguard.guard(opt, policy=dtypeguard."
            "Policy(compute_dtype=jnp.float32)) before init, where it is of an "
            "optimizer's state."
        )


class UnknownConstant(NamedTuple):
    """A constant of 16 bits that may have been rounded before the program was traced.

    It is as narrow where the arguments are float32: closed over, or made with an explicit
    dtype. Both runs have it as it is.

    Attributes:
        origin: the line that uses it.
        value: what it is; of an array its first number of more than four binary digits.
        dtype: its dtype.
        within: half a unit in its last place.
    """

    origin: Origin | None
    value: float
    dtype: str
    within: float

    def __str__(self) -> str:
        within = f"within {self.within:.1g}, {place_or_inside_jax(self.origin)}"
        return f"{self.value:.6g} ({within})"


class IntegerMisfit(NamedTuple):
    """A line whose integers do not fit their dtype, on both sides of the comparison.

    What wraps where only bits are taken of it, as in a hash, is none; nor is what no output
    depends on.

    Attributes:
        origin: the line.
        dtype: of its result.
        value: the exact number that is furthest out of range; not a number if a float that
            is none was made an integer.
        count: how many numbers do not fit.
        size: how many the line makes.
    """

    origin: Origin | None
    dtype: str
    value: float
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # a tuple counts so
    size: int

    def __str__(self) -> str:
        info = jnp.iinfo(self.dtype)
        # Not a number is below no end: the upper one is told.
        end = info.min if self.value < info.min else info.max
        return (
            f"{place_or_inside_jax(self.origin)} makes {self.value:,.7g}, and {self.dtype} "
            f"ends at {end:,}: {self.count:,} of {self.size:,} numbers there do not fit, "
            "in wide types as well."
        )


class NarrowedBits(NamedTuple):
    """A line that narrows floats which become bits, a random key or integers.

    Attributes:
        origin: the line.
        before: the dtype that it narrows.
        after: the dtype to which it does.
        equal: how many of the different numbers become equal to another of them.
        different: how many there are.
    """

    origin: Origin | None
    before: str
    after: str
    equal: int
    different: int

    def __str__(self) -> str:
        return (
            f"{place_or_inside_jax(self.origin)} narrows {self.before} to {self.after} on "
            f"the way to bits, a key or an integer: {self.equal:,} of {self.different:,} "
            "different numbers become equal."
        )


class Unreached(NamedTuple):
    """What an audit has not come to in its time. The error does not depend on it.

    Attributes:
        lines: how many lines of the program have no share yet.
        explained: the share of the squared error of those that have one.
        seconds: the time that it had; None if there was no limit.
        is_interrupted: whether it was ended by Ctrl-C.
    """

    lines: int
    explained: float
    seconds: float | None
    is_interrupted: bool

    def __str__(self) -> str:
        end = "Interrupted"
        remedy = ""
        if not self.is_interrupted:
            end = f"Ended after {self.seconds:g} s"
            remedy = " Write seconds=None (--seconds none) for all of it."
        return (
            f"{end}. Lines not measured: {self.lines}; the others explain "
            f"{percent(self.explained)} of the squared error. The search for a fix has not "
            f"come to its end.{remedy}"
        )


class Unexamined(NamedTuple):
    """A primitive that ran as written on both sides, and where it stands."""

    primitive: str
    origin: Origin | None

    def __str__(self) -> str:
        return f"{self.primitive} at {place_or_inside_jax(self.origin)}"


class Scaled(NamedTuple):
    """A run with the loss scaled, of which the gradients are divided in wide types.

    Attributes:
        scale: the factor, a power of two from 2^-16 to 2^24.
        error: that of its outputs.
        dtype: the one whose range is too small without.
        lost: the share of the numbers in the outputs that are 0 as written and not in wide
            types.
    """

    scale: float
    error: float
    dtype: str
    lost: float

    def __str__(self) -> str:
        if self.scale < 1:
            return f"gradients overflow {self.dtype}"
        lost = percent(self.lost)
        return f"gradients underflow {self.dtype}: {lost} of their numbers are lost to 0"


def place_or_inside_jax(origin: Origin | None) -> str:
    """Returns where a line is."""
    if origin is None:
        return "a line inside JAX"
    return place_of(origin)


def few_of(items: Sequence[object]) -> str:
    """Returns the first of some items, and how many more there are."""
    text = ", ".join(map(str, items[:_MOST_NAMED]))
    more = len(items) - _MOST_NAMED
    if more > 0:
        text += f" and {more} more"
    return text


def left(error: float, total: float) -> float:
    """The share of the squared error that an error is; not a number of none."""
    if not total:
        return 0.0
    # It leaves all, of an infinite one as well; any finite error is nothing of that.
    if math.isinf(error):
        return 1.0
    return (error / total) ** 2


def plain(value: Any) -> Any:
    """A value as JSON can hold it, which has no infinity and no dtype."""
    if dataclasses.is_dataclass(value):
        value = shown_fields(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(plain, value))
    # JSON has no word for it, and `NaN` breaks most readers.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, np.dtype):
        return str(value)
    return value
