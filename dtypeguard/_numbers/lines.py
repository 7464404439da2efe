"""The lines of source at which a program rounds."""

from collections.abc import Hashable, Iterable

import numpy as np

from .._leaves.casts import Cast
from .._program.jaxprs import Arrays, Stack
from .._program.program import LOOPS
from .._source.origin import Origin
from .._tracebacks.written import Written

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
        is_in_loop: whether a loop computes it.
        has_asked: whether a product on it, which a device rounds, asks for a precision.
    """

    def __init__(self, origin: Origin | None):
        self.origin = origin
        self.casts: dict[Cast, None] = {}
        self.dtypes: set[str] = set()
        self.primitives: set[str] = set()
        self.constants: list[Arrays] = []
        self.is_in_loop = False
        self.has_asked = False

    def note(self, stack: Stack, dtypes: Iterable[str]) -> None:
        """Notes an equation that rounds on it, and its dtypes as written."""
        self.dtypes.update(dtypes)
        self.primitives.add(stack[0].primitive.name)
        # What a loop rounds is rounded in each turn, which advice has to say.
        for outer in stack[1:]:
            self.is_in_loop |= outer.primitive.name in LOOPS

    @property
    @np.errstate(all="ignore")  # infinity less infinity, and a division by 0
    def rounded_constant(self) -> str | None:
        """The number that rounding changes most, and the rounded one; None without any."""
        if not self.constants:
            return None
        numbers, rounded = np.concatenate(self.constants, axis=1)
        # A decay says what it leaves: 0.999 and 1 are as far apart as 0.001 and 0.
        complements = abs(1 - numbers)
        sizes = np.minimum(abs(numbers), complements)
        differences = abs(rounded - numbers)
        changes = differences / sizes
        # What is infinite was a mask before; 0 and 1 are in all dtypes.
        changes[~np.isfinite(changes)] = 0
        # All numbers that become 1 are as far off, relative to what they leave.
        place = np.lexsort([differences, changes])[-1]
        if not changes[place]:
            return None
        # float32 keeps seven digits of what was meant; nine tell what became of it apart.
        return f"{numbers[place]:.7g} -> {rounded[place]:.9g}"


def key_of_line(stack: Stack) -> Hashable:
    """Returns a key, equal for equations of one line.

    Of a package, each line of the user's that calls it is another. So is each part of a
    tree that dtypeguard casts.
    """
    written = Written(stack)
    origin = written.origin or NOWHERE
    users = origin.users
    key = (origin.file, origin.line, users.file, users.line)
    cast = written.cast_of_ours
    if cast is None:
        return key
    return (key, cast.owner, cast.part)
