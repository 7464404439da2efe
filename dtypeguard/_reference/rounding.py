"""How far rounding takes the outputs of a program, from plain runs on moved inputs.

A program runs as written, in other dtypes and in float64. A difference is measured as a
whole, and in its largest element.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.compat import set_x64
from .._leaves.dtypes import bits, kind
from .._leaves.types import Jaxpr, Leaf
from .._numbers import plans
from .._numbers.formats import Formats, has_few_digits
from .._numbers.primitives import is_inexact
from .._numbers.program import NumericProgram
from .._numbers.python_numbers import PythonNumbers
from .._numbers.run import run
from .._numbers.sketches import SketchNode, sketches

# Up to so many times what some runs gave, rounding explains it; from so many on it is
# another computation.
EXPLAINS, FAR = 2.0, 2.5
# A difference of less than this part of what a program rounds is not of it.
_LEAST_PART = 0.5
# On so many other inputs a program rounds anew.
_DRAWS = 6
# Numbers of the source, and sums in another order, round by so many units in the last place
# of float32; in float64, of that.
_UNITS = 4.0
# A program so many times as far off as rounded inputs take it is much further off.
_OTHER = 8.0
_WIDE = Formats(np.dtype("float64"))
# One in eight moves up, and as many down: the variance is that of half a unit.
_STEPS = np.array([-1.0, 0, 0, 0, 0, 0, 0, 1])


class RunCall(NamedTuple):
    """A traced function, and what it is called with.

    Attributes:
        program: a closed jaxpr.
        numbers: the Python numbers that were given to JAX when it was traced.
        arrays: its inputs.
        in_float32: the same function of the same inputs, those narrower than float32 in
            float32: its constants have the digits that they have there. None if there
            are no such inputs, or it does not trace so.
    """

    program: Jaxpr
    numbers: PythonNumbers
    arrays: Sequence[Leaf]
    in_float32: "RunCall | None" = None


# The outputs for some inputs, or for those of the call.
Run = Callable[..., list[np.ndarray]]


def run_of(call: RunCall, formats: Formats | None = None) -> Run:
    """What runs a program: in some dtypes, or all of it in float64."""
    is_on: bool = formats is None or jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]: of JAX
    program = NumericProgram(call.program, formats or _WIDE, call.numbers)
    plan = (plans.wide if formats is None else plans.written)(program)

    def made_of(arrays: Sequence[Leaf] = call.arrays) -> list[np.ndarray]:
        pairs = zip(arrays, call.arrays)
        with set_x64(is_on):
            given = [jnp.asarray(x, y.dtype) for x, y in pairs]
            return [*map(numeric, run(program, plan, given))]

    return made_of


def sketched(call: RunCall) -> tuple[list[SketchNode], list[int | None]]:
    """The values of a program in float64 as sketches, and the numbers of its outputs."""
    with set_x64(True):
        return sketches(NumericProgram(call.program, _WIDE, call.numbers), call.arrays)


def moved(arrays: Sequence[Leaf], eps: float, seed: int) -> list[Leaf]:
    """Inputs some of whose numbers are a unit in the last place larger or smaller."""
    random = np.random.default_rng(seed)

    def one(x: Leaf) -> Leaf:
        if not is_inexact(x):
            return x
        dtype = np.complex128 if kind(x.dtype) == "complex" else np.float64
        flat = np.asarray(x).astype(dtype).ravel().view(np.float64)
        most = float(jnp.finfo(x.dtype).max)
        stays = has_few_digits(flat) | (flat == np.round(flat))
        with np.errstate(over="ignore"):
            steps = np.clip(flat * eps * random.choice(_STEPS, flat.shape), -most, most)
            other = np.where(stays, flat, np.clip(flat + steps, -most, most))
        return other.view(dtype).reshape(x.shape).astype(x.dtype)

    return [*map(one, arrays)]


def numeric(array: Leaf) -> np.ndarray:
    """An array in float64; complex numbers have an axis more. Empty for random keys."""
    dtype = getattr(array, "dtype", None)
    if kind(dtype) is None:
        return np.zeros(0)
    array = np.asarray(array)
    if kind(dtype) == "complex":
        array = np.stack([array.real, array.imag], -1)
    return array.astype(np.float64)


def sizes_of(off: np.ndarray, is_exact: bool) -> np.ndarray:
    """The size of a difference as a whole, and of its largest element.

    A root mean square; of what is exact, the share that is not 0.
    """
    if is_exact or not off.size:
        return np.array([np.count_nonzero(off) / max(off.size, 1), 0.0])
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.array([np.sqrt(np.mean(off**2)), np.max(np.abs(off))])
    return np.nan_to_num(found, nan=np.inf, posinf=np.inf)


def size_of(off: np.ndarray, is_exact: bool = False) -> float:
    """The size of a difference as a whole."""
    return float(sizes_of(off, is_exact)[0])


def difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The difference; 0 where both are the same infinity, or both not a number."""
    with np.errstate(invalid="ignore"):
        is_same = (x == y) | (np.isnan(x) & np.isnan(y))
        return np.where(is_same, 0.0, x - y)


class Beyond(NamedTuple):
    """How many times what rounding gave a difference has.

    Attributes:
        times: of it, as a whole or in its largest element.
        is_largest: whether it is the largest element that has it.
        is_small: whether it is less than what this precision rounds at least.
    """

    times: float = math.inf
    is_largest: bool = False
    is_small: bool = False


class Rounding:
    """A program in some precision beside itself in float64.

    Attributes:
        made: its outputs.
        most: for each output, the greatest sizes of what rounding gave.
        is_far: whether it is much further off than rounded inputs take it.
        source: the size of what rounded numbers of the source give.
    """

    def __init__(
        self,
        call: RunCall,
        written: Run,
        wide: Run,
        truth: list[np.ndarray],
        exact: list[bool],
        dtype: np.dtype,
        moves: bool,
    ):
        self._dtype, self._given, self.made = dtype, [*zip(truth, exact)], written()
        own, given = [self._measured(self.made, truth)], list[list[np.ndarray]]()
        for seed in range(_DRAWS):
            arrays = moved(call.arrays, float(jnp.finfo(dtype).eps), seed)
            there = wide(arrays)
            own.append(self._measured(written(arrays), there))
            given.append(self._measured(there, truth))
        drawn = [*own, *(given if moves else ())]
        self._least = [min(x[0] for x in each) for each in zip(*drawn)]
        rounded = self._measured([_rounded(x, dtype) for x in truth], truth)
        self.is_far = any(
            x[0] > _OTHER * max(each[0] for each in others)
            for x, *others in zip(own[0], *given, rounded)
        )
        unit = _UNITS * min(float(jnp.finfo(x).eps) for x in (dtype, np.float32))
        source = self._measured([x * (1 + unit * (not e)) for x, e in self._given], truth)
        self.source = [float(each[0]) for each in source]
        drawn += [source, *([rounded] if moves else [])]
        self._most = [np.max(x, 0) for x in zip(*drawn)]
        self.most = [float(each[0]) for each in self._most]

    def _measured(
        self, made: list[np.ndarray], beside: list[np.ndarray]
    ) -> list[np.ndarray]:
        trios = zip(made, beside, self._given)
        return [sizes_of(difference(x, y), is_exact) for x, y, (_, is_exact) in trios]

    def beyond(self, n: int, off: np.ndarray, grid: np.dtype) -> Beyond:
        """How far a difference of an output is beyond it, for a reference of a dtype."""
        truth, is_exact = self._given[n]
        again = difference(_rounded(self.made[n], grid), truth)
        most = np.maximum(self._most[n], sizes_of(again, is_exact))
        found = sizes_of(off, is_exact)
        is_finer = bits(grid) >= 32 > bits(self._dtype) and not is_exact
        if is_finer and found[0] < _LEAST_PART * self._least[n]:
            return Beyond(FAR, is_small=True)
        if is_exact:  # of a share of few elements
            most = most + (most / max(off.size, 1)) ** 0.5
        whole, largest = map(excess, found, most)
        return Beyond(max(whole, largest), whole < min(largest, FAR))


def _rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x.astype(dtype).astype(np.float64)


def excess(size: float, most: float) -> float:
    """How many times as great a size is; 0 if it is not greater."""
    if size <= most:
        return 0.0
    return float(size / most) if most else math.inf
