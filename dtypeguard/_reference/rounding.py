"""How far rounding takes the outputs of a program, from plain runs on moved inputs.

A difference is measured as a whole, in its largest element, and in directions that
rounding does not have.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits
from .runs import Run, RunCall, moved

# Up to so many times what some runs gave, rounding explains it; from so many on it is
# another computation.
EXPLAINS, FAR = 2.0, 2.5
# A difference of less than this part of what a program rounds is not of it.
_LEAST_PART, SMALL = 0.5, "small"
# On so many other inputs a program rounds anew.
_DRAWS = 6
# The least elements of an output that have directions.
_LEAST = 16
# In a direction, rounding is by the root of the number of elements less than as a whole;
# this many times that is chance.
_CHANCE = 4.0
# Numbers of the source, and sums in another order, round by so many units in the last place
# of float32; in float64, of that.
_UNITS = 4.0
# A program so many times as far off as rounded inputs take it is much further off.
_OTHER = 8.0

# The sizes of a difference by name, as root mean squares over the elements.
Measures = dict[str, float]


def measures(off: np.ndarray, truth: np.ndarray, is_exact: bool) -> Measures:
    """The sizes of a difference, as a whole and in directions."""
    found = {"whole": size_of(off, is_exact)}
    if is_exact or not off.size:
        return found
    with np.errstate(over="ignore", invalid="ignore"):
        found["largest"] = np.max(np.abs(off))
        if off.size >= _LEAST:
            unit = np.where(np.isfinite(truth), truth, 0.0)
            unit = unit / (size_of(unit) or 1.0)
            found |= {"mean": abs(np.mean(off)), "values": abs(np.mean(off * unit))}
            axes = [n for n, length in enumerate(off.shape) if length > 1]
            for axis in axes if len(axes) > 1 else ():
                found[f"axis {axis}"] = size_of(np.mean(off, axis))
    return {
        name: float(np.nan_to_num(x, nan=np.inf, posinf=np.inf))
        for name, x in found.items()
    }


def size_of(off: np.ndarray, is_exact: bool = False) -> float:
    """A root mean square, or the share that is not 0; 0 of nothing."""
    if is_exact or not off.size:
        return np.count_nonzero(off) / max(off.size, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.nan_to_num(np.sqrt(np.mean(off**2)), nan=np.inf, posinf=np.inf))


def difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The difference; 0 where both are the same infinity, or both not a number."""
    with np.errstate(invalid="ignore"):
        is_same = (x == y) | (np.isnan(x) & np.isnan(y))
        return np.where(is_same, 0.0, x - y)


class Rounding:
    """A program in some precision beside itself in float64.

    Attributes:
        made: its outputs.
        most: for each output, the greatest size of what rounding gave.
        least: the least size of what the program rounds, or of what its inputs did.
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
        own, given = [self._measured(self.made, truth)], list[list[Measures]]()
        for seed in range(_DRAWS):
            arrays = moved(call.arrays, float(jnp.finfo(dtype).eps), seed)
            there = wide(arrays)
            own.append(self._measured(written(arrays), there))
            given.append(self._measured(there, truth))
        drawn = [*own, *(given if moves else ())]
        self.least = [min(x["whole"] for x in each) for each in zip(*drawn)]
        given.append(self._measured([_rounded(x, dtype) for x in truth], truth))
        self.is_far = any(
            first["whole"] > _OTHER * max(x["whole"] for x in others)
            for first, *others in zip(own[0], *given)
        )
        unit = _UNITS * min(float(jnp.finfo(x).eps) for x in (dtype, np.float32))
        source = self._measured([x * (1 + unit * (not e)) for x, e in self._given], truth)
        self.source = [each["whole"] for each in source]
        self._most = [*map(_greatest, zip(*own, source, *(given if moves else ())))]
        self.most = [each["whole"] for each in self._most]

    def _measured(self, made: list[np.ndarray], beside: list[np.ndarray]) -> list[Measures]:
        trios = zip(made, beside, self._given)
        return [measures(difference(x, y), *given) for x, y, given in trios]

    def beyond(self, n: int, off: np.ndarray, grid: np.dtype) -> tuple[float, str]:
        """How many times what rounding gave a difference has, and in which measure.

        A reference of a finer dtype may be nearer than this precision: that is "small".
        """
        truth, is_exact = self._given[n]
        again = difference(_rounded(self.made[n], grid), truth)
        most = _greatest([self._most[n], measures(again, truth, is_exact)])
        whole, count = most["whole"], max(off.size, 1)
        chance = _CHANCE * whole / count**0.5 if count >= _LEAST else 0.0
        if is_exact:  # of a share of few elements
            chance = whole + (whole / count) ** 0.5
        found = measures(off, truth, is_exact)
        is_finer = bits(grid) >= 32 > bits(self._dtype) and not is_exact
        if is_finer and found["whole"] < _LEAST_PART * self.least[n]:
            return FAR, SMALL
        times = {x: excess(size, max(most[x], chance)) for x, size in found.items()}
        worst = "whole" if times["whole"] > FAR else max(times, key=times.__getitem__)
        return times[worst], worst


def _rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x.astype(dtype).astype(np.float64)


def excess(size: float, most: float) -> float:
    """How many times as great a size is; 0 if it is not greater."""
    if size <= most:
        return 0.0
    return size / most if most else np.inf


def _greatest(found: Sequence[Measures]) -> Measures:
    return {name: max(each[name] for each in found) for name in found[0]}
