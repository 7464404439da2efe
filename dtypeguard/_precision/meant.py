"""The Python numbers that a program gives to JAX, which rounds them when it traces."""

import collections
import itertools
from collections.abc import Iterable, Iterator
from types import FrameType

import numpy as np

from .._leaves.files import is_users
from .._leaves.types import DType, Leaf
from .._program.calls import Calls
from .._program.origins import Chain, Origin, calls_of_frame


class Meant(Calls):
    """While entered, remembers the Python numbers in calls from the user's lines into JAX.

    A jaxpr has 1.0 where a program says 0.999 beside a bfloat16 array.
    """

    def __init__(self):
        self._numbers: dict[tuple[str, int], list[tuple[Chain | None, float]]] = {}
        self._found: collections.Counter[tuple[object, ...]] = collections.Counter()
        self._taken: collections.Counter[tuple[object, ...]] = collections.Counter()

    def start_again(self) -> None:
        """The next number of each call is its first one."""
        self._found.clear()

    def next_equation(self) -> None:
        """The next number belongs to another equation."""
        self._taken.clear()

    def next_number(
        self, origin: Origin, calls: Chain, value: Leaf, dtype: DType
    ) -> float | None:
        """The number that became the next `value` of a call, if it is another number.

        Args:
            origin: the line of the call.
            calls: the calls that lead there, inside out; () if they are not known.
            value: what the program has.
            dtype: what the number was rounded to.
        """
        rounded = float(np.asarray(value, dtype))
        is_it = lambda number: float(np.asarray(number).astype(dtype)) == rounded
        given = self._numbers.get((origin.file, origin.line), ())
        given = [(chain, number) for chain, number in given if is_it(number)]
        # JAX may give what a rule of a derivative computes the callers of another call.
        depth = None if any(chain == calls for chain, _ in given) else 1
        candidates = [
            number
            for chain, number in given
            if chain is None or not calls or chain[:depth] == calls[:depth]
        ]
        if not candidates and np.isfinite(rounded) and rounded != round(rounded):
            # JAX gives what a backward pass computes the line of the forward call.
            found = itertools.chain.from_iterable(self._numbers.values())
            everywhere = {number for _, number in found if is_it(number)}
            candidates = list(everywhere) if len(everywhere) == 1 else []
        key = origin.file, origin.line, calls, rounded
        # An equation takes each of them once: the other 1 of a derivative is its own.
        if self._taken[key] == len(candidates):
            return None
        self._taken[key] += 1
        # A call gives its numbers to JAX in the order of its equations.
        number = candidates[self._found[key] % len(candidates)]
        self._found[key] += 1
        return None if number == rounded else number

    def call(self, frame: FrameType) -> None:
        back = frame.f_back
        if back is None or is_users(frame.f_code.co_filename):
            return
        if not is_users(back.f_code.co_filename):
            return
        # What is made an array may go into any call on the line.
        is_maker = frame.f_code.co_qualname in _MAKERS
        if numbers := list(_numbers(frame.f_locals.values())):
            chain = None if is_maker else calls_of_frame(back)
            line = back.f_code.co_filename, back.f_lineno
            found = self._numbers.setdefault(line, [])
            found.extend((chain, number) for number in numbers)


_MAKERS = "array", "asarray", "_ScalarMeta.__call__"


def _numbers(values: Iterable[object]) -> Iterator[float]:
    for value in values:
        if type(value) in (float, int):
            yield float(value)  # pyright: ignore[reportArgumentType]: it is one of these
        elif isinstance(value, (tuple, list)):  # the variadic arguments
            yield from (float(x) for x in value if type(x) in (float, int))
