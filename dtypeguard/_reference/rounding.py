"""How far rounding takes the outputs of a program, from plain runs on moved inputs.

A difference is measured as a whole, in its largest element, and in directions that
rounding does not have.
"""

import jax.numpy as jnp
import numpy as np

from .runs import Call, Run, moved

# On so many other inputs a program rounds anew.
_DRAWS = 6
# The least elements of an output that have directions.
_LEAST = 16
# Rounding has a root of the number of elements less in a direction than as a whole; this
# many times that is no direction yet.
_CHANCE = 4.0


def measures(off: np.ndarray, truth: np.ndarray, is_exact: bool) -> dict[str, float]:
    """The sizes of a difference, each as a root mean square over the elements.

    Args:
        off: the difference.
        truth: the output in float64.
        is_exact: whether the output has integers or bools: then what differs is counted.
    """
    if is_exact or not off.size:
        return {"whole": float(np.mean(off != 0)) if off.size else 0.0}
    with np.errstate(over="ignore", invalid="ignore"):
        found = {"whole": float(np.sqrt(np.mean(off**2))), "largest": np.abs(off).max()}
        if off.size >= _LEAST:
            finite = np.where(np.isfinite(truth), truth, 0.0)
            for name, direction in _directions(finite).items():
                size = np.linalg.norm(direction) * off.size**0.5
                found[name] = abs(np.vdot(direction, off)) / (size or 1.0)
            axes = [n for n, length in enumerate(off.shape) if length > 1]
            for axis in axes if len(axes) > 1 else ():
                found[f"axis {axis}"] = np.sqrt(np.mean(np.mean(off, axis) ** 2))
    return {name: float(np.nan_to_num(x, nan=np.inf)) for name, x in found.items()}


def _directions(x: np.ndarray) -> dict[str, np.ndarray]:
    size, square = np.abs(x), x**2
    return {
        "mean": np.ones_like(x),
        "values": x,
        "by size": size - size.mean(),
        "by sign": x * size,
        "by square": square - square.mean(),
    }


def difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The difference; 0 where both are the same infinity, or both not a number."""
    with np.errstate(invalid="ignore"):
        is_same = (x == y) | (np.isnan(x) & np.isnan(y))
        return np.where(is_same, 0.0, x - y)


class Rounding:
    """A program in some precision beside itself in float64.

    Attributes:
        made: its outputs.
        most: for each output, the greatest of each measure that rounding gave.

    Args:
        call: the program in this precision, whose inputs are moved.
        written: a run of it.
        wide: one of the same function in float64.
        truth: its outputs.
        exact: whether each output has integers or bools.
        dtype: that of the precision.
        moves: whether inputs have been rounded to it as well.
    """

    def __init__(
        self,
        call: Call,
        written: Run,
        wide: Run,
        truth: list[np.ndarray],
        exact: list[bool],
        dtype: np.dtype,
        moves: bool = True,
    ):
        self._given, self.made = (truth, exact), written()
        own, of_inputs = [self._measured(self.made, truth)], []
        for seed in range(_DRAWS):
            arrays = moved(call.arrays, float(jnp.finfo(dtype).eps), seed)
            there = wide(arrays)
            own.append(self._measured(written(arrays), there))
            of_inputs.append(self._measured(there, truth))
        with np.errstate(over="ignore"):
            rounded = [x.astype(dtype).astype(np.float64) for x in truth]
        of_inputs.append(self._measured(rounded, truth))
        self._own, self._of_inputs = own[0], _greatest(of_inputs)
        self.most = _greatest([*own, *(of_inputs if moves else [])])

    def _measured(self, made: list[np.ndarray], beside: list[np.ndarray]):
        pairs = zip(made, beside, *self._given)
        return [measures(difference(x, y), t, exact) for x, y, t, exact in pairs]

    def beyond(self, n: int, off: np.ndarray, grid: np.dtype) -> tuple[float, str]:
        """How many times what rounding gives a difference has, and in which measure.

        Args:
            n: the number of the output.
            off: the difference from the truth.
            grid: the dtype of the reference.
        """
        with np.errstate(over="ignore"):
            rounded = self.made[n].astype(grid).astype(np.float64)
        truth, exact = (each[n] for each in self._given)
        own = measures(difference(rounded, truth), truth, exact)
        found, most = measures(off, truth, exact), _greatest([[self.most[n]], [own]])[0]
        chance = _CHANCE * most["whole"] / max(off.size, 1) ** 0.5
        if exact:
            most["whole"] += (most["whole"] / max(off.size, 1)) ** 0.5
        is_direction = lambda name: name not in ("whole", "largest") and name[:4] != "axis"
        with np.errstate(divide="ignore", invalid="ignore"):
            times = {
                name: np.float64(x) / max(most[name], chance * is_direction(name)) if x else 0
                for name, x in found.items()
            }
        name = max(times, key=lambda name: np.nan_to_num(times[name], nan=0))
        return float(np.nan_to_num(times[name], nan=0, posinf=np.inf)), name

    def is_far(self, times: float) -> bool:
        """Whether an output is so many times as far off as rounded inputs take it."""
        pairs = zip(self._own, self._of_inputs)
        return any(own["whole"] > times * moved["whole"] for own, moved in pairs)


def _greatest(found: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    return [{k: max(x[k] for x in each) for k in each[0]} for each in zip(*found)]
