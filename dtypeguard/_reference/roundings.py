"""How far rounding takes the outputs of a program: its roundings are drawn some times.

An output is measured as a whole, in one element, and in one direction.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.compat import set_x64
from .._leaves.dtypes import bits, kind
from .._leaves.types import DType, Jaxpr, Leaf
from .._numbers.measure import compiling
from .._paired.plain import Plain
from .._numbers.python_numbers import PythonNumbers
from .._paired.shaken import Draw, draw
from .._numbers.subject import largest
from .._numbers.formats import Formats

_DOUBLE = np.dtype("float64")
# How many draws of roundings there are.
_DRAWS = 16
# What rounding explains ends so many standard deviations above its mean.
_DEVIATIONS = 5
# How often a draw is below the least.
_RARE = 0.003
# A function of the values is looked for in so many groups of so many of them, at least.
_GROUPS, _LEAST_GROUP = 16, 32

Draws = Literal["all", "constants", "none"]


class Call(NamedTuple):
    """A traced function, and what it is called with.

    Attributes:
        program: a closed jaxpr.
        numbers: the Python numbers that were given to JAX when it was traced.
        arrays: its inputs.
        formats: the dtypes of the audit.
        in_float32: the same function of the same inputs, those narrower than float32 in
            float32: its constants have the digits that they have there. None if there
            are no such inputs, or it is another function then.
    """

    program: Jaxpr
    numbers: PythonNumbers
    arrays: Sequence[Leaf]
    formats: Formats
    in_float32: "Call | None" = None


class Roundings:
    """A program run plainly, with one draw of its roundings or another.

    Args:
        call: the program and its inputs.
        formats: the dtypes of the runs.
        is_wide: whether they are in wide types.
        draws: what seeds change: all that rounds, the constants of the source alone, or
            nothing.
    """

    def __init__(self, call: Call, formats: Formats, is_wide: bool, draws: Draws = "all"):
        plain = Plain(call.program, formats, call.numbers, is_wide)
        self._arrays, self._draws = [*call.arrays], draws
        self._size = largest(call.program) if draws == "all" else 1  # constants are scalars
        run = lambda arrays, draw: plain.run(arrays, draw=draw)[0]
        self._run = compiling(jax.jit(run).lower(self._arrays, self._draw(0)))

    def _draw(self, seed: int) -> Draw | None:
        if self._draws == "none":
            return None
        return draw(seed, self._size, self._draws == "all")

    def outputs(
        self, seed: int = 0, arrays: Sequence[Leaf] | None = None
    ) -> list[np.ndarray]:
        """The outputs; as they are without a seed. Possibly of other inputs."""
        given = self._arrays if arrays is None else [*arrays]
        made = self._run()(given, self._draw(seed))
        return [numeric(x) for x in made]


class Wide:
    """A program in wide types, which tell two functions apart: its outputs and rounding.

    Args:
        call: the program as it is; run with its inputs in float32 if that is known.
        draws: what seeds change: see `Roundings`.
        dtype: the wide dtype whose rounding is drawn.
    """

    def __init__(self, call: Call, draws: Draws, dtype: np.dtype = _DOUBLE):
        call = call.in_float32 or call
        self._arrays, is_double = call.arrays, dtype == _DOUBLE
        with set_x64(True):
            changed: Draws = draws if is_double else "none"
            self._double = Roundings(call, Formats(_DOUBLE), True, changed)
        is_other = not is_double and draws == "all"
        self._drawn = Roundings(call, Formats(dtype), True) if is_other else self._double

    @functools.cached_property
    def truth(self) -> list[np.ndarray]:
        """The outputs in float64, of their own decisions."""
        with set_x64(True):
            return self._double.outputs()

    def spreads(self, statistics: Sequence["Statistics"]) -> list["Spread"]:
        """How far rounding in the wide dtype takes each output, of what is drawn."""
        on = set_x64(True) if self._drawn is self._double else contextlib.nullcontext()
        with on:
            return spreads(self._drawn, self.truth, statistics)[1]

    def of_inputs(
        self, given: Sequence[Leaf], statistics: Sequence["Statistics"]
    ) -> list["Spread"]:
        """How far the rounding of narrow inputs takes each output.

        A reference may be that of the inputs before they were rounded.
        """
        sizes = []
        for seed in range(_DRAWS):
            random = np.random.default_rng(seed)
            arrays = [
                _before(x, narrow.dtype, random) for x, narrow in zip(self._arrays, given)
            ]
            with set_x64(True):
                made = self._double.outputs(arrays=arrays)
            pairs = zip(statistics, made, self.truth)
            sizes.append([size(difference(x, y)) for size, x, y in pairs])
        return [_spread(np.zeros_like(each[0]), np.array(each)) for each in zip(*sizes)]


def _before(x: Leaf, dtype: DType, random: np.random.Generator) -> Leaf:
    """An input as it may have been before it was rounded to a narrow dtype."""
    if not 0 < bits(dtype) < 32:
        return x
    part = random.uniform(-1, 1, x.shape) * float(jnp.finfo(dtype).eps) / 2
    return jnp.asarray(np.asarray(x) * (1 + part), x.dtype)


def numeric(array: Leaf) -> np.ndarray:
    """An array in float64; complex numbers have an axis more. Empty for random keys."""
    dtype = getattr(array, "dtype", None)
    if kind(dtype) is None:
        return np.zeros(0)
    array = np.asarray(array)
    if kind(dtype) == "complex":
        array = np.stack([array.real, array.imag], -1)
    return array.astype(np.float64)


class Statistics:
    """Sizes of a difference: as a whole, in one element, and in one direction.

    Rounding has no direction, so what has one is seen below it: a mean, a part along the
    values, a function of the values, something common to all along an axis.

    Attributes:
        names: of the sizes.
        is_exact: whether it counts elements that differ.

    Args:
        truth: the output in float64.
        is_exact: whether it has integers or bools: then it counts what differs.
    """

    def __init__(self, truth: np.ndarray, is_exact: bool):
        self.is_exact = is_exact
        finite = np.where(np.isfinite(truth), truth, 0.0).ravel()
        self._unit = finite / (np.linalg.norm(finite) or 1.0)
        has_more = truth.size > 1 and not is_exact
        groups = min(_GROUPS, truth.size // _LEAST_GROUP) if has_more else 0
        self._starts = np.arange(groups) * truth.size // max(groups, 1)
        self._order = np.argsort(truth, axis=None) if groups > 1 else None
        is_long = lambda length: 1 < length <= truth.size // _LEAST_GROUP
        self._axes = [n for n, length in enumerate(truth.shape) if is_long(length)]
        if not has_more:
            self._axes = []
        self.names = ["whole"]
        self.names += ["largest", "mean", "along"] * has_more
        self.names += ["by value"] * (self._order is not None)
        self.names += [f"axis {axis}" for axis in self._axes]

    def __call__(self, off: np.ndarray) -> np.ndarray:
        """The sizes of a difference; infinity where it is not finite."""
        if self.is_exact:
            return np.array([np.mean(off != 0) if off.size else 0.0])
        if not np.isfinite(off).all():
            return np.full(len(self.names), np.inf)
        flat = off.ravel()
        found = [float(np.linalg.norm(off))]
        if "along" in self.names:
            mean = abs(float(flat.sum())) / flat.size**0.5
            found += [float(np.max(np.abs(flat))), mean, abs(float(flat @ self._unit))]
        if self._order is not None:
            sums = np.add.reduceat(flat[self._order], self._starts)
            counts = np.diff(np.append(self._starts, flat.size))
            found.append(float(np.linalg.norm(sums / np.sqrt(counts))))
        for axis in self._axes:
            others = tuple(n for n in range(off.ndim) if n != axis)
            count = off.size / off.shape[axis]
            found.append(float(np.linalg.norm(off.sum(others))) / count**0.5)
        return np.array(found)


@dataclasses.dataclass
class Spread:
    """How far rounding takes an output.

    Attributes:
        least: of each size, what hardly a draw is below.
        most: what hardly a draw is above.
        parts: the sizes relative to the whole, at most.
        beyond: how far the outputs as they are lie beyond what draws alone explain, as a
            multiple of it.
    """

    least: np.ndarray
    most: np.ndarray
    parts: np.ndarray
    beyond: float = 0.0

    def joined(self, other: "Spread") -> "Spread":
        """What covers both."""
        return Spread(
            np.minimum(self.least, other.least),
            np.maximum(self.most, other.most),
            np.maximum(self.parts, other.parts),
        )

    def scaled(self, times: float) -> "Spread":
        """That of roundings so many times as large."""
        return Spread(self.least * times, self.most * times, self.parts)


def spreads(
    draws: Roundings, truth: Sequence[np.ndarray], statistics: Sequence[Statistics]
) -> tuple[list[np.ndarray], list[Spread]]:
    """The outputs as they are, and how far their rounding takes each.

    The distance to the truth is one draw, which others are added to: it also has what does
    not depend on a draw, such as the order of a sum, or numbers of the source.
    """
    base = draws.outputs()
    firsts = [s(difference(y, t)) for s, y, t in zip(statistics, base, truth)]
    sizes: list[list[np.ndarray]] = [[] for _ in base]
    for seed in range(1, _DRAWS + 1):
        for known, s, x, y in zip(sizes, statistics, draws.outputs(seed), base):
            known.append(s(difference(x, y)))
    return base, [_spread(*each) for each in zip(firsts, map(np.array, sizes))]


def _spread(first: np.ndarray, drawn: np.ndarray) -> Spread:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = np.sqrt(np.mean(drawn**2, axis=0))
        deviation = np.std(drawn, axis=0, ddof=1)
        most = np.maximum(first, mean) + _DEVIATIONS * deviation
        freedom = (mean / deviation) ** 2 / 2  # that of a norm with this deviation
        least = mean * _RARE ** (1 / np.maximum(freedom, 0.5))
        beyond = float(first[0] / (mean + _DEVIATIONS * deviation)[0])
        all_drawn = np.concatenate([first[None], drawn])
        parts = np.max(all_drawn / all_drawn[:, :1], axis=0)
    most[np.isnan(most)] = np.inf
    least[~np.isfinite(least)] = 0
    parts[~np.isfinite(parts)] = 1
    return Spread(least, most, parts, beyond)


def difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The difference; 0 where both are the same infinity, or both not a number."""
    with np.errstate(invalid="ignore"):
        is_same = (x == y) | (np.isnan(x) & np.isnan(y))
        return np.where(is_same, 0.0, x - y)
