"""Whether rounding explains how a reference differs from a program.

Rounding is drawn anew some times, so that its distribution is known: how far it takes an
output, in one element, on the whole, and in one direction.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.compat import set_x64
from .._leaves.dtypes import bits, kind
from .._leaves.types import Jaxpr, Leaf
from .._paired.measure import compiled
from .._paired.plain import Plain
from .._paired.python_numbers import PythonNumbers
from .._paired.values import Formats
from .difference import Difference, percent

# How many draws of roundings there are.
_DRAWS = 16
# What rounding explains ends so many standard deviations above its mean. From twice that on
# it is another computation; between the two another algorithm may round more.
_DEVIATIONS = 5
_FAR = 2
# A difference of less than this part of the least that rounding gives is not of it.
_LEAST = 0.5
# A difference follows the values if so much of it does, and this many times what rounding
# has of it.
_FOLLOWS, _TIMES = 0.5, 4
_GROUPS = 16
# What float32 inputs give is another function if it is further from the program than so
# many times what rounding explains.
_OTHER = 8
_LEAST_GROUP = 32


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


class Draws:
    """A program run plainly, with one draw of its roundings or another.

    Args:
        call: the program and its inputs.
        formats: the dtypes of the runs.
        is_wide: whether they are in wide types.
    """

    def __init__(self, call: Call, formats: Formats, is_wide: bool):
        plain = Plain(call.program, formats, call.numbers, is_wide)
        self._arrays = [*call.arrays]
        run = lambda arrays, seed: plain.run(arrays, seed=seed)[0]
        lowered = jax.jit(run).lower(self._arrays, jnp.uint32(0))
        self._run = compiled(lowered)

    def outputs(self, seed: int = 0) -> list[np.ndarray]:
        """The outputs; as they are without a seed."""
        made = self._run(self._arrays, jnp.uint32(seed))
        return [numeric(x) for x in made]


class Wide:
    """A program in wide types, which tell two functions apart: its outputs and rounding.

    Attributes:
        truth: the outputs in float64, of their own decisions.

    Args:
        call: the program as it is; run with its inputs in float32 if that is known.
        dtype: the wide dtype whose rounding counts.
    """

    def __init__(self, call: Call, dtype: np.dtype):
        self._call, self._dtype = call.in_float32 or call, dtype
        with set_x64(True):
            draws = Draws(self._call, Formats(np.dtype("float64")), True)
            self.truth = draws.outputs()
        self._draws = draws

    def spreads(self, statistics: Sequence["Statistics"]) -> list["Spread"]:
        """How far rounding in the wide dtype takes each output."""
        is_double = self._dtype == np.float64
        with set_x64(True) if is_double else contextlib.nullcontext():
            draws = self._draws
            if not is_double:
                draws = Draws(self._call, Formats(self._dtype), True)
            return spreads(draws, self.truth, statistics)[1]


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

    Args:
        truth: the output in float64.
        is_exact: whether it has integers or bools: then it counts what differs.
    """

    def __init__(self, truth: np.ndarray, is_exact: bool):
        self._truth, self._is_exact = truth, is_exact
        self.names = ["whole"]
        if is_exact or truth.size < 2:
            return
        self.names += ["largest", "mean", "along"]
        self._unit = truth.ravel() / (np.linalg.norm(truth) or 1.0)
        groups = min(_GROUPS, truth.size // _LEAST_GROUP)
        if groups > 1:
            self.names.append("by value")
            self._order = np.argsort(truth, axis=None)
            self._starts = np.arange(groups) * truth.size // groups
            self._counts = np.diff([*self._starts, truth.size])
        self._axes = [
            axis
            for axis, length in enumerate(truth.shape)
            if length > 1 and truth.size >= _LEAST_GROUP * length
        ]
        self.names += [f"axis {axis}" for axis in self._axes]

    def __call__(self, off: np.ndarray) -> np.ndarray:
        """The sizes of a difference; infinity where it is not finite."""
        if self._is_exact:
            return np.array([np.mean(off != 0) if off.size else 0.0])
        if not np.isfinite(off).all():
            return np.full(len(self.names), np.inf)
        found = [np.linalg.norm(off)]
        if off.size > 1:
            flat = off.ravel()
            found += [np.max(np.abs(flat)), abs(flat.sum()) / flat.size**0.5]
            found.append(abs(flat @ self._unit))
        if "by value" in self.names:
            sums = np.add.reduceat(flat[self._order], self._starts)
            found.append(np.linalg.norm(sums / np.sqrt(self._counts)))
        for axis in self._axes if off.size > 1 else ():
            others = tuple(n for n in range(off.ndim) if n != axis)
            count = off.size / off.shape[axis]
            found.append(np.linalg.norm(off.sum(others)) / count**0.5)
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


def spreads(
    draws: Draws, truth: Sequence[np.ndarray], statistics: Sequence[Statistics]
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
        least = np.maximum(np.minimum(first, mean) - _DEVIATIONS * deviation, 0)
        beyond = float(first[0] / (mean + _DEVIATIONS * deviation)[0])
        all_drawn = np.concatenate([first[None], drawn])
        parts = np.max(all_drawn / all_drawn[:, :1], axis=0)
    most[np.isnan(most)] = np.inf
    least[~np.isfinite(least)] = 0
    parts[~np.isfinite(parts)] = 0
    return Spread(least, most, parts, beyond)


def difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The difference; 0 where both are the same infinity, or both not a number."""
    with np.errstate(invalid="ignore"):
        off = x - y
    off[(x == y) | (np.isnan(x) & np.isnan(y))] = 0
    return off


def differences(
    call: Call,
    paths: Sequence[str],
    given: dict[int, np.ndarray],
    reference: Call | None,
) -> tuple[Difference, ...]:
    """The verdict for each output that a reference has.

    Args:
        call: the program.
        paths: of all its outputs.
        given: the reference of each output, by number, if it is a tree.
        reference: the same function otherwise written, if it is one.
    """
    avals = call.program.out_avals
    exact = [kind(x.dtype) not in ("float", "complex") for x in avals]
    narrow = _narrowest(call)
    dtype = np.dtype("float32" if bits(narrow) < 32 else "float64")
    draws, wide = Draws(call, call.formats, False), Wide(call, dtype)
    statistics = [*map(Statistics, wide.truth, exact)]
    written, as_written = spreads(draws, wide.truth, statistics)
    if call.in_float32 is not None and not all(map(_is_same, as_written)):
        return differences(call._replace(in_float32=None), paths, given, reference)
    rows = [paths, written, wide.truth, statistics, as_written, wide.spreads(statistics)]
    cases = [_Case(*row, narrow, dtype, is_exact) for *row, is_exact in zip(*rows, exact)]
    if reference is not None:
        own = Draws(reference, reference.formats, False).outputs()
        other = Wide(reference, dtype)
        rows = zip(cases, avals, own, other.truth, other.spreads(statistics))
        return tuple(
            case.of_function(*row) for case, x, *row in rows if kind(x.dtype) is not None
        )
    found, lower = [], _Lower(call, wide.truth, statistics)
    for number, array in sorted(given.items()):
        grid = _grid(array)
        is_lower = not exact[number] and bits(grid) < 32
        covered = lower.spread(grid, number) if is_lower else None
        found.append(cases[number].of_array(numeric(array), grid, covered))
    return tuple(found)


def _is_same(spread: Spread) -> bool:
    """Whether the distance to the truth is of the size of rounding."""
    return not spread.beyond > _OTHER


class _Lower:
    """A program as if all of it were of the dtype of a reference, run if that is asked."""

    def __init__(self, call: Call, truth: list[np.ndarray], statistics: list[Statistics]):
        self._call, self._rest = call, (truth, statistics)
        self._known: dict[np.dtype, list[Spread]] = {}

    def spread(self, dtype: np.dtype, number: int) -> Spread | None:
        if all(bits(x) <= bits(dtype) for x in _dtypes(self._call.program)):
            return None
        if dtype not in self._known:
            formats = self._call.formats._replace(narrow=dtype)
            draws = Draws(self._call, formats, False)
            self._known[dtype] = spreads(draws, *self._rest)[1]
        return self._known[dtype][number]


@dataclasses.dataclass
class _Case:
    """An output of a program, and what rounding does to it."""

    path: str
    written: np.ndarray
    truth: np.ndarray
    sizes: Statistics
    as_written: Spread
    in_wide: Spread
    narrow: np.dtype
    wide: np.dtype
    is_exact: bool

    def of_array(
        self, array: np.ndarray, grid: np.dtype, lower: Spread | None
    ) -> Difference:
        """The verdict on an array; `lower` is the spread of its low precision, if any."""
        spread = self.as_written if lower is None else self.as_written.joined(lower)
        make = self._maker(array, spread.most[0])
        lost = ~np.isfinite(array) & np.isfinite(self.truth)
        if lost.any():
            what = "NaN" if np.isnan(array[lost]).any() else "infinity"
            count = f"{np.count_nonzero(lost)} of {lost.size} elements"
            return make("differs", f"the reference has {what} in {count}")
        off = difference(array, self.truth)
        if self._is_rounded_once(array, off, grid):
            return make("rounding")
        found = self.sizes(off)
        if (worst := self._beyond(found, spread.most)) is not None:
            number, times = worst
            verdict = "differs" if times > _FAR else "undecidable"
            return make(verdict, self._why(number, times), self._shows(verdict))
        if self.is_exact or bits(grid) <= bits(self.narrow):
            return make("rounding")
        return self._of_finer(found, spread, make)

    def _of_finer(self, found: np.ndarray, spread: Spread, make) -> Difference:
        """The verdict on an array that rounds less than the program, and more than wide."""
        names = self.sizes.names
        told = (
            f"in float64 the program is {percent(self._relative(found[0]))} from the "
            f"reference, where rounding in {self.wide} explains "
            f"{percent(self._relative(self.in_wide.most[0]))} and in {self.narrow} "
            f"{percent(self._relative(spread.most[0]))}"
        )
        for number, name in enumerate(names):
            if name in ("along", "by value") and found[0] > 0:
                part, usual = found[number] / found[0], spread.parts[number]
                if part > _FOLLOWS and part > _TIMES * usual:
                    how = f"{told}; and it follows the values, as rounding does not"
                    return make("differs", how, str(self.wide))
        if found[0] < _LEAST * spread.least[0]:
            return make("undecidable", told, str(self.wide))
        return make("rounding")

    def of_function(
        self, own: np.ndarray, own_truth: np.ndarray, own_wide: Spread
    ) -> Difference:
        """The verdict on a function, which runs in wide types as well."""
        rounds = self.sizes(difference(own, own_truth))[0]
        most = float(np.hypot(rounds, self.as_written.most[0]))
        make = self._maker(own, most)
        is_low = bits(self.narrow) < 32
        known = (self.in_wide if is_low else self.as_written).joined(own_wide)
        found = self.sizes(difference(own_truth, self.truth))[:2]
        worst = self._beyond(found, known.most[:2])
        if worst is None:
            return make("rounding")
        if worst[1] <= _FAR:
            return make("undecidable", self._why(*worst), str(self.wide))
        if found[0] > self.as_written.most[0]:
            return make("differs")
        told = (
            f"in {self.wide} they are {percent(self._relative(found[0]))} apart, where "
            f"rounding explains {percent(self._relative(known.most[0]))}"
        )
        return make("differs", told, str(self.wide))

    def _maker(self, reference: np.ndarray, most: float):
        off = difference(self.written, reference)
        if self.is_exact:
            error, size = float(self.sizes(off)[0]), 1.0
        else:
            size = self._size(reference)
            error = float(np.linalg.norm(off)) / size
        error = error if math.isfinite(error) else math.inf

        def make(verdict: str, reason: str = "", shows_in: str | None = None):
            return Difference(
                self.path, error, float(most / size), verdict, reason, shows_in
            )

        return make

    def _size(self, reference: np.ndarray) -> float:
        finite = reference[np.isfinite(reference)]
        return float(np.linalg.norm(finite) or np.linalg.norm(self.truth) or 1.0)

    def _relative(self, size: float) -> float:
        return float(size / (np.linalg.norm(self.truth) or 1.0))

    def _is_rounded_once(
        self, array: np.ndarray, off: np.ndarray, grid: np.dtype
    ) -> bool:
        """Whether an array is what wide types give, rounded to its own dtype."""
        if self.is_exact:
            return not off.any()
        most = self.in_wide.most
        if not np.isfinite(most[:2]).all():
            return False
        info = jnp.finfo(grid)
        with np.errstate(under="ignore", over="ignore"):
            last = np.abs(self.truth) * (float(info.eps) / 2)
            half = np.maximum(last, float(info.smallest_subnormal) / 2)
        largest = most[1] if len(most) > 1 else most[0]
        within = np.abs(off) <= half * (1 + 1e-9) + _FAR * largest
        whole = np.linalg.norm(half) + _FAR * most[0]
        return bool(within.all()) and bool(np.linalg.norm(off) <= whole)

    def _beyond(self, found: np.ndarray, most: np.ndarray) -> tuple[int, float] | None:
        """The size that rounding explains least, and how many times what it does."""
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.where(found > most, found / most, 0)
        times[np.isnan(times)] = 0
        if times[0] > _FAR:
            return 0, float(times[0])
        number = int(np.argmax(times))
        return (number, float(times[number])) if times[number] > 1 else None

    def _why(self, number: int, times: float) -> str:
        if self.is_exact or (number == 0 and times > _FAR):
            return ""
        name, of = self.sizes.names[number], f"{times:.2g} times what rounding gives"
        text = {
            "whole": f"it is {of}; another algorithm for the same may round as much",
            "largest": f"one element is off by {of}",
            "mean": f"the differences have a mean, {of}",
            "along": f"the differences follow the values, {of}",
            "by value": f"the differences are a function of the values, {of}",
        }
        return text.get(name, f"the differences are alike along other axes than {name[5:]}, {of}")

    def _shows(self, verdict: str) -> str | None:
        return str(self.wide) if verdict == "undecidable" else None


def _dtypes(program: Jaxpr) -> set[np.dtype]:
    """The floating dtypes of a program."""
    from .._program.graph import jaxprs_in, open_jaxpr

    program = open_jaxpr(program)
    variables = [*program.invars, *program.constvars]
    found: set[np.dtype] = set()
    for eqn in program.eqns:
        variables += eqn.outvars
        for inside in jaxprs_in(eqn.params):
            found |= _dtypes(inside)
    dtypes = (getattr(var.aval, "dtype", None) for var in variables)
    return found | {dtype for dtype in dtypes if kind(dtype) in ("float", "complex")}


def _narrowest(call: Call) -> np.dtype:
    """The narrowest floating dtype in which a program computes."""
    dtypes = _dtypes(call.program)
    if call.formats.narrow is not None:
        dtypes.add(call.formats.narrow)
    found = min(dtypes, key=lambda dtype: (bits(dtype), str(dtype)))
    return np.dtype({64: "float64", 32: "float32"}.get(bits(found), found))


def _grid(array: np.ndarray) -> np.dtype:
    """The narrowest dtype that has all numbers of an array."""
    numbers = numeric(array)
    for name in ("bfloat16", "float16", "float32"):
        dtype = jnp.dtype(name)
        with np.errstate(over="ignore"):
            back = numbers.astype(dtype).astype(np.float64)
        if np.array_equal(back, numbers, equal_nan=True):
            return dtype
    return np.dtype("float64")
