"""The Python numbers that a program gives to JAX, which rounds them when it traces."""

from collections.abc import Iterable, Iterator
from types import FrameType

import numpy as np

from .._leaves.files import is_users
from .._leaves.types import DType, Leaf
from .._program.origins import Origin
from .._program.watch import Calls


class Meant(Calls):
    """While entered, remembers the Python floats in calls from the user's lines into JAX.

    A jaxpr has 1.0 where a program says 0.999 beside a bfloat16 array.
    """

    def __init__(self):
        self._numbers: dict[tuple[str, int], set[float]] = {}

    def number(self, origin: Origin, value: Leaf, dtype: DType) -> float | None:
        """The number that a line gave to JAX and that became `value`, if it is another."""
        rounded = float(np.asarray(value, dtype))
        numbers = self._numbers.get((origin.file, origin.line))
        if numbers is None:
            # JAX gives what a backward pass computes the line of the forward call.
            numbers = set().union(*self._numbers.values())
        rounds = lambda x: float(np.asarray(x).astype(dtype)) == rounded
        candidates = [x for x in numbers if x != rounded and rounds(x)]
        return candidates[0] if len(candidates) == 1 else None

    def _call(self, frame: FrameType, event: str, arg: object):
        back = frame.f_back
        if back is None or is_users(frame.f_code.co_filename):
            return None
        file = back.f_code.co_filename
        if is_users(file):
            floats = list(_floats(frame.f_locals.values()))
            if floats:
                self._numbers.setdefault((file, back.f_lineno), set()).update(floats)
        return None


def _floats(values: Iterable[object]) -> Iterator[float]:
    for value in values:
        if type(value) is float:
            yield value
        elif isinstance(value, (tuple, list)):  # the variadic arguments
            yield from (x for x in value if type(x) is float)
