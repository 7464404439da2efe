"""The Python numbers that a program gives to JAX, which rounds them when it traces."""

import collections
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
        self._numbers: dict[tuple[str, int], list[float]] = {}
        self._found: collections.Counter[tuple[str, int, float]] = collections.Counter()

    def start_again(self) -> None:
        """The next number of each line is its first one."""
        self._found.clear()

    def next_number(self, origin: Origin, value: Leaf, dtype: DType) -> float | None:
        """The number that became the next `value` on a line, if it is another number."""
        rounded = float(np.asarray(value, dtype))

        is_it = lambda number: float(np.asarray(number).astype(dtype)) == rounded
        numbers = self._numbers.get((origin.file, origin.line), ())
        candidates = [x for x in numbers if is_it(x)]
        if not candidates and np.isfinite(rounded) and rounded != round(rounded):
            # JAX gives what a backward pass computes the line of the forward call.
            everywhere = {x for each in self._numbers.values() for x in each if is_it(x)}
            candidates = list(everywhere) if len(everywhere) == 1 else []
        if not candidates:
            return None
        # A line gives its numbers to JAX in the order of its equations.
        key = (origin.file, origin.line, rounded)
        number = candidates[self._found[key] % len(candidates)]
        self._found[key] += 1
        return None if number == rounded else number

    def _call(self, frame: FrameType, event: str, arg: object):
        back = frame.f_back
        if back is None or is_users(frame.f_code.co_filename):
            return None
        file = back.f_code.co_filename
        if is_users(file):
            numbers = list(_numbers(frame.f_locals.values()))
            if numbers:
                self._numbers.setdefault((file, back.f_lineno), []).extend(numbers)
        return None


def _numbers(values: Iterable[object]) -> Iterator[float]:
    for value in values:
        if type(value) in (float, int):
            yield float(value)  # pyright: ignore[reportArgumentType]: it is one of these
        elif isinstance(value, (tuple, list)):  # the variadic arguments
            yield from (float(x) for x in value if type(x) in (float, int))
