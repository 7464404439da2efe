"""The lines of source at which a program rounds."""

from collections.abc import Hashable

import numpy as np

from .._leaves.casts import Cast
from .._program.jaxprs import Arrays, Stack
from .._program.program import LOOPS
from .._source.origin import Origin
from .._tracebacks.written import Written
from .annotation import relative_change

# The line of what JAX computes with no line of the user's around it.
NOWHERE = Origin("", 0, "", "")


class Line:
    """A line of source that rounds.

    Attributes:
        origin: where it is; None for the inputs of the program, which `narrow` rounds, and
            without a file for what JAX computes with no line of the user's around it.
        constants: arrays of numbers that were rounded when the program was traced, each
            with what became of them.
        casts: the casts of dtypeguard that it stands for, if it is none of the user's.
        only_casts: whether it rounds by casts alone that are written on it.
        is_in_loop: whether a loop computes it.
        has_asked: whether a product on it, which a device rounds, asks for a precision.
    """

    def __init__(self, origin: Origin | None):
        self.origin = origin
        self.casts: dict[Cast, None] = {}
        self.dtypes: set[str] = set()
        self.primitives: set[str] = set()
        self.constants: list[Arrays] = []
        self.only_casts = True
        self.is_in_loop = False
        self.has_asked = False

    def note(self, stack: Stack, dtype: str) -> None:
        """Notes an equation that rounds on it, and its dtype as written."""
        name = stack[0].primitive.name
        written = Written(stack)
        self.dtypes.add(dtype)
        self.primitives.add(name)
        is_cast = name == "convert_element_type" and written.is_explicit
        # A line of casts alone is told to go, and not to be computed wider.
        self.only_casts &= is_cast and written.is_of_users
        # What a loop rounds is rounded in each turn, which advice has to say.
        for outer in stack[1:]:
            self.is_in_loop |= outer.primitive.name in LOOPS

    @property
    @np.errstate(invalid="ignore")  # infinity less infinity
    def rounded_constant(self) -> str | None:
        """The number that rounding changes most, and the rounded one; None without any."""
        if not self.constants:
            return None
        numbers, rounded = np.concatenate(self.constants, axis=1)
        changes = relative_change(numbers, rounded)
        # All numbers that become 1 are as far off, relative to what they leave.
        differences = abs(rounded - numbers)
        place = np.lexsort([differences, changes])[-1]
        # An infinity is rounded to itself.
        if not changes[place]:
            return None
        # With so many digits, float32 numbers that differ are told apart.
        return f"{numbers[place]:.9g} -> {rounded[place]:.9g}"


class Lines(list[Line]):
    """The lines of a program, numbered as they come."""

    def __init__(self):
        super().__init__()
        self._numbers: dict[Hashable, int] = {}

    def number_of(self, stack: Stack) -> int:
        """Returns the number of an equation's line; a new one if there is none yet.

        Of a package, each line of the user's that calls it is another. So is each part of
        a tree that dtypeguard casts.
        """
        key = self._key(stack)
        new_number = len(self)
        number = self._numbers.setdefault(key, new_number)
        if number == new_number:
            self.append(Line(_origin_of(stack)))
        cast = Written(stack).cast_of_ours
        if cast is not None:
            self[number].casts[cast] = None
        return number

    def find(self, stack: Stack) -> int | None:
        """Returns the number of an equation's line; None if nothing rounds there."""
        key = self._key(stack)
        return self._numbers.get(key)

    def _key(self, stack: Stack) -> Hashable:
        origin = _origin_of(stack)
        key: Hashable = ()
        if origin is not None:
            users = origin.users
            # A line of a package is another line for each line of the user's that calls it.
            key = (origin.file, origin.line, users.file, users.line)
        cast = Written(stack).cast_of_ours
        if cast is None:
            return key
        return (key, cast.owner, cast.part)


def _origin_of(stack: Stack) -> Origin | None:
    # The inputs of the program have no line.
    if not stack:
        return None
    return Written(stack).origin or NOWHERE
