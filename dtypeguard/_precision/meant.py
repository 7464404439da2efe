"""The Python numbers that a program gives to JAX, which rounds them when it traces."""

import collections
import itertools
from collections.abc import Iterable, Iterator
from types import FrameType

import numpy as np

from .._leaves.files import is_users
from .._leaves.types import DType, Leaf
from .._program.origins import Origin
from .._program.watch import Calls


class Meant(Calls):
    """While entered, remembers the Python numbers in calls from the user's lines into JAX.

    A jaxpr has 1.0 where a program says 0.999 beside a bfloat16 array.
    """

    def __init__(self):
        self._numbers: dict[tuple[str, int], list[tuple[int | None, float]]] = {}
        self._found: collections.Counter[tuple[object, ...]] = collections.Counter()
        self._taken: collections.Counter[tuple[object, ...]] = collections.Counter()

    def start_again(self) -> None:
        """The next number of each call is its first one."""
        self._found.clear()

    def next_equation(self) -> None:
        """The next number belongs to another equation."""
        self._taken.clear()

    def next_number(
        self, origin: Origin, instruction: int | None, value: Leaf, dtype: DType
    ) -> float | None:
        """The number that became the next `value` of a call, if it is another number.

        Args:
            origin: the line of the call.
            instruction: which call on that line it is; None if that is not known.
            value: what the program has.
            dtype: what the number was rounded to.
        """
        rounded = float(np.asarray(value, dtype))
        is_it = lambda number: float(np.asarray(number).astype(dtype)) == rounded
        candidates = [
            number
            for place, number in self._numbers.get((origin.file, origin.line), ())
            if (place is None or instruction in (None, place)) and is_it(number)
        ]
        if not candidates and np.isfinite(rounded) and rounded != round(rounded):
            # JAX gives what a backward pass computes the line of the forward call.
            found = itertools.chain.from_iterable(self._numbers.values())
            everywhere = {number for _, number in found if is_it(number)}
            candidates = list(everywhere) if len(everywhere) == 1 else []
        key = origin.file, origin.line, instruction, rounded
        # An equation takes each of them once: the other 1 of a derivative is its own.
        if self._taken[key] == len(candidates):
            return None
        self._taken[key] += 1
        # A call gives its numbers to JAX in the order of its equations.
        number = candidates[self._found[key] % len(candidates)]
        self._found[key] += 1
        return None if number == rounded else number

    def _call(self, frame: FrameType, event: str, arg: object):
        back = frame.f_back
        if back is None or is_users(frame.f_code.co_filename):
            return None
        file = back.f_code.co_filename
        if is_users(file):
            # What is made an array may go into any call on the line.
            place = None if frame.f_code.co_qualname in _MAKERS else back.f_lasti
            numbers = [(place, x) for x in _numbers(frame.f_locals.values())]
            if numbers:
                self._numbers.setdefault((file, back.f_lineno), []).extend(numbers)
        return None


_MAKERS = "array", "asarray", "_ScalarMeta.__call__"


def _numbers(values: Iterable[object]) -> Iterator[float]:
    for value in values:
        if type(value) in (float, int):
            yield float(value)  # pyright: ignore[reportArgumentType]: it is one of these
        elif isinstance(value, (tuple, list)):  # the variadic arguments
            yield from (float(x) for x in value if type(x) in (float, int))
