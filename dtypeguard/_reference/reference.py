"""Whether rounding explains how a reference differs from a program."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits, kind
from .._leaves.rows import percent
from .._leaves.types import Jaxpr
from .._numbers.primitives import is_inexact
from .._numbers.subject import avals_in
from .difference import Difference
from .roundings import (
    Call,
    Roundings,
    Spread,
    Statistics,
    Wide,
    difference,
    numeric,
    spreads,
)

# From so many times what rounding explains on it is another computation; below, another
# algorithm for the same may round more.
_FAR = 2
# A difference of less than this part of the least that rounding gives is not of it.
_LEAST = 0.5
# A difference follows the values if so much of it does, and this many times what rounding
# has of it.
_FOLLOWS, _TIMES = 0.5, 4
# Two libraries return exp, erf or digamma up to so many units in the last place apart.
_LIBRARY = 4
# What float32 inputs give is another function if it is further from the program than so
# many times what rounding explains.
_OTHER = 8


class Compared(NamedTuple):
    """Verdicts, and the calls that they are of.

    Attributes:
        differences: the verdicts.
        call: the program.
        reference: the other function, if there is one.
    """

    differences: tuple[Difference, ...]
    call: Call
    reference: Call | None


def differences(
    call: Call,
    paths: Sequence[str],
    given: dict[int, np.ndarray],
    reference: Call | None,
) -> Compared:
    """The verdict for each output that a reference has.

    Args:
        call: the program.
        paths: of all its outputs.
        given: the reference of each output, by number, if it is a tree.
        reference: the same function otherwise written, if it is one.
    """
    has_float32 = [x.in_float32 is not None for x in (call, reference) if x is not None]
    if any(has_float32) and not all(has_float32):  # the same on both sides
        return _as_given(call, paths, given, reference)
    avals = call.program.out_avals
    exact = [kind(x.dtype) not in ("float", "complex") for x in avals]
    narrow = _narrowest(call)
    dtype = np.dtype("float32" if bits(narrow) < 32 else "float64")
    draws = Roundings(call, call.formats, False)
    wide = Wide(call, "all" if reference is None else "none", dtype)
    function = None if reference is None else _Function(reference)  # all compile at once
    statistics = [*map(Statistics, wide.truth, exact)]
    written, as_written = spreads(draws, wide.truth, statistics)
    if call.in_float32 is not None and not all(map(_is_same, as_written)):
        return _as_given(call, paths, given, reference)
    if call.in_float32 is not None and reference is None:
        rounded = wide.of_inputs(call.arrays, statistics)
        as_written = [*map(Spread.joined, as_written, rounded)]
    if function is None:
        in_wide = wide.spreads(statistics)
    else:  # compared in float64, which tells without draws of another dtype
        scale = float(jnp.finfo(dtype).eps) / float(jnp.finfo(narrow).eps)
        in_wide = [each.scaled(scale) for each in as_written]
        if not all(np.isfinite(each.most).all() for each in in_wide):
            in_wide = Wide(call, "all", dtype).spreads(statistics)
    cases = [
        _Case(
            path, y, wide.truth[n], statistics[n], as_written[n], in_wide[n], narrow, dtype
        )
        for n, (path, y) in enumerate(zip(paths, written))
    ]
    if function is not None:
        if any(has_float32) and not function.is_rounding_of(cases):
            return _as_given(call, paths, given, reference)
        verdicts = function.verdicts(cases, statistics)
        is_number = [kind(x.dtype) is not None for x in avals]
        return Compared((*itertools.compress(verdicts, is_number),), call, reference)
    found, lower = [], _Lower(call, wide.truth, statistics)
    for number, array in sorted(given.items()):
        grid, case = _grid(array), cases[number]
        made = case.of_array(numeric(array), grid, None)
        is_lower = not exact[number] and bits(grid) < max(32, bits(narrow))
        if made.verdict != "rounding" and is_lower:
            covered = lower.spread(grid, number)
            made = case.of_array(numeric(array), grid, covered)
        found.append(made)
    return Compared(tuple(found), call, None)


def _as_given(
    call: Call, paths: Sequence[str], given: dict[int, np.ndarray], reference: Call | None
) -> Compared:
    """The verdicts where a function of float32 inputs is another one."""
    if reference is not None:
        reference = reference._replace(in_float32=None)
    return differences(call._replace(in_float32=None), paths, given, reference)


def _is_same(spread: Spread) -> bool:
    """Whether the distance to the truth is of the size of rounding."""
    return not spread.beyond > _OTHER


class _Function:
    """A reference that is a function: as written, and in float64."""

    def __init__(self, call: Call):
        self._draws = Roundings(call, call.formats, False, "none")
        # Of its own in float64: constants of the source. What float32 rounds is as here.
        self._wide = Wide(call, "constants")

    @functools.cached_property
    def _outputs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [*zip(self._draws.outputs(), self._wide.truth)]

    def is_rounding_of(self, cases: Sequence["_Case"]) -> bool:
        """Whether each output is as far from its truth as rounding takes it."""
        pairs = zip(cases, self._outputs)
        return all(case.is_rounding_of(*made) for case, made in pairs)

    def verdicts(
        self, cases: Sequence["_Case"], statistics: Sequence[Statistics]
    ) -> list[Difference]:
        rounds = zip(cases, self._outputs, self._wide.spreads(statistics))
        return [case.of_function(*made, spread) for case, made, spread in rounds]


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
            draws = Roundings(self._call, formats, False)
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

    def of_array(
        self, array: np.ndarray, grid: np.dtype, lower: Spread | None
    ) -> Difference:
        """The verdict on an array; `lower` is the spread of its low precision, if any."""
        spread = self.as_written if lower is None else self.as_written.joined(lower)
        make = self._maker(array, spread.most[0])
        lost = np.isfinite(array) != np.isfinite(self.truth)
        if lost.any():
            sides = [(array, "the reference"), (self.truth, "the program, in float64,")]
            side, who = next(x for x in sides if not np.isfinite(x[0][lost]).all())
            what = "NaN" if np.isnan(side[lost]).any() else "infinity"
            count = f"{np.count_nonzero(lost)} of {lost.size} elements"
            return make("differs", f"{who} has {what} in {count}")
        off = difference(array, self.truth)
        if self._is_rounded_once(array, off, grid):
            return make("rounding")
        found = self.sizes(off)
        if (worst := self._beyond(found, spread.most)) is not None:
            number, times = worst
            verdict = "differs" if times > _FAR else "undecidable"
            return make(verdict, self._why(number, times), self._shows(verdict))
        if self.sizes.is_exact:
            return make("rounding")
        if bits(grid) <= bits(self.narrow):
            return self._hiding(make("rounding"), spread)
        return self._of_finer(found, spread, make)

    def _of_finer(
        self, found: np.ndarray, spread: Spread, make: Callable[..., Difference]
    ) -> Difference:
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
        return self._hiding(make("rounding"), spread)

    def _hiding(self, made: Difference, spread: Spread) -> Difference:
        """A verdict that rests on rounding as written, with what that would hide."""
        most, least = float(spread.most[0]), float(spread.least[0])
        hidden = self._relative(math.sqrt(max(most**2 - least**2, 0)))
        return dataclasses.replace(made, hidden=hidden, shows_in=str(self.wide))

    def is_rounding_of(self, own: np.ndarray, own_truth: np.ndarray) -> bool:
        """Whether a reference is as far from its truth as rounding takes it."""
        most = self.as_written.most[0]
        return not self.sizes(difference(own, own_truth))[0] > _OTHER * most

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

    def _maker(self, reference: np.ndarray, most: float) -> Callable[..., Difference]:
        off = difference(self.written, reference)
        if self.sizes.is_exact:
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

    def _is_rounded_once(self, array: np.ndarray, off: np.ndarray, grid: np.dtype) -> bool:
        """Whether an array is what wide types give, rounded to its own dtype."""
        if self.sizes.is_exact:
            return not off.any()
        most = self.in_wide.most
        if not np.isfinite(most[:2]).all():
            return False
        info = jnp.finfo(grid)
        with np.errstate(under="ignore", over="ignore"):
            last = np.abs(self.truth) * (float(info.eps) / 2)
            last += np.abs(self.truth) * (_LIBRARY * float(jnp.finfo(self.wide).eps))
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
        if self.sizes.is_exact or (number == 0 and times > _FAR):
            return ""
        name, of = self.sizes.names[number], f"{times:.2g} times what rounding gives"
        text = {
            "whole": f"it is {of}; another algorithm for the same may round as much",
            "largest": f"one element is off by {of}",
            "mean": f"the differences have a mean, {of}",
            "along": f"the differences follow the values, {of}",
            "by value": f"the differences are a function of the values, {of}",
        }
        return text.get(
            name, f"the differences are alike along other axes than {name[5:]}, {of}"
        )

    def _shows(self, verdict: str) -> str | None:
        return str(self.wide) if verdict == "undecidable" else None


def _dtypes(program: Jaxpr) -> set[np.dtype]:
    """The floating dtypes of a program."""
    return {aval.dtype for aval in avals_in(program) if is_inexact(aval)}


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
