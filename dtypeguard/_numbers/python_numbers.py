"""The Python numbers that a program gives to JAX, which rounds them when it traces."""

import collections
import itertools
from collections.abc import Iterable, Iterator
from types import FrameType

import jax.numpy as jnp
import numpy as np

from .._leaves.types import DType, Leaf
from .._lines.calls import Calls
from .._lines.tracebacks import Chain, calls_of_frame
from .._source.inert import variables_of
from .._source.origin import Origin


class PythonNumbers(Calls):
    """While entered, remembers the Python numbers in calls from the user's lines into JAX.

    A jaxpr has 1.0 where a program says 0.999 beside a bfloat16 array. Casts to the dtype
    that a value has become equations.
    """

    def __init__(self):
        self._numbers: dict[tuple[str, int], list[tuple[Chain | None, float]]] = {}
        self._given: collections.Counter[tuple[object, ...]] = collections.Counter()

    def start_again(self) -> None:
        """The next number of each call is its first one."""
        self._given.clear()

    def next_number(
        self, origin: Origin, calls: Chain, value: Leaf, dtype: DType
    ) -> float | None:
        """The number that became the next `value` of a call, if it is another number."""
        rounded = float(np.asarray(value, dtype))
        is_it = lambda number: held(number, dtype) == rounded
        passed = self._numbers.get((origin.file, origin.line), ())
        passed = [(chain, number) for chain, number in passed if is_it(number)]
        # JAX may give what a rule of a derivative computes the callers of another call.
        depth = None if any(chain == calls for chain, _ in passed) else 1
        candidates = [
            number
            for chain, number in passed
            if chain is None or not calls or chain[:depth] == calls[:depth]
        ]
        if not candidates and np.isfinite(rounded) and rounded != round(rounded):
            # JAX gives what a backward pass computes the line of the forward call.
            everywhere = itertools.chain.from_iterable(self._numbers.values())
            numbers = {number for _, number in everywhere if is_it(number)}
            candidates = list(numbers) if len(numbers) == 1 else []
        if not candidates:
            return None
        key = origin.file, origin.line, calls, rounded
        # A call gives its numbers to JAX in the order of its equations.
        number = candidates[self._given[key] % len(candidates)]
        self._given[key] += 1
        return None if number == rounded else number

    def into_jax(self, frame: FrameType, user: FrameType) -> None:
        if numbers := list(_numbers(variables_of(frame).values())):
            # What is made an array may go into any call on the line.
            chain = None if frame.f_code in _MAKERS else calls_of_frame(user)
            line = user.f_code.co_filename, user.f_lineno
            passed = self._numbers.setdefault(line, [])
            passed.extend((chain, number) for number in numbers)


def held(number: float, dtype: DType) -> float:
    """The number that a dtype has for another one; NumPy warns of -1e9 in float16."""
    with np.errstate(over="ignore"):
        return float(np.asarray(number).astype(dtype))


_MAKERS = tuple(
    function.__code__ for function in (jnp.array, jnp.asarray, type(jnp.float32).__call__)
)


def _numbers(values: Iterable[object]) -> Iterator[float]:
    for value in values:
        if type(value) in (float, int):
            yield float(value)  # pyright: ignore[reportArgumentType]: it is one of these
        elif isinstance(value, (tuple, list)):  # the variadic arguments
            yield from (float(x) for x in value if type(x) in (float, int))
