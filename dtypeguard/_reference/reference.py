"""Whether rounding explains how a reference differs from a program."""

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits
from .._leaves.rows import percent
from .._numbers.formats import Formats
from .._numbers.primitives import is_inexact
from .._numbers.products import DEVICES, products_named
from .._numbers.subject import avals_in
from .difference import Difference
from .rounding import (
    EXPLAINS,
    FAR,
    Beyond,
    Rounding,
    RunCall,
    difference,
    excess,
    numeric,
    run_of,
    size_of,
)

# Of two functions in float64, what numbers of the source leave in outputs that are small
# beside others.
_SMALL = 1e-3
_SINGLE, _DOUBLE = np.dtype("float32"), np.dtype("float64")
_BFLOAT16, _FLOAT16 = jnp.dtype("bfloat16"), np.dtype("float16")
# An H100 computes as an A100 does; neither rounds small products, but by request.
_DEVICES = "tpu", "a100", "tensorfloat32"


class Judge:
    """A program, and how far rounding takes its outputs."""

    def __init__(self, call: RunCall, paths: list[str], formats: Formats):
        self._call, self._paths, self._formats = call, paths, formats
        self._exact = [not is_inexact(x) for x in call.program.out_avals]
        self._narrow = _narrowest(call, formats)
        self._wide = _SINGLE if bits(self._narrow) < 32 else _DOUBLE
        self._roundings: dict[Formats, Rounding] = {}
        self._run_wide = run_of(call.in_float32 or call)

    @functools.cached_property
    def truth(self) -> list[np.ndarray]:
        """The outputs in float64."""
        return self._run_wide()

    @property
    def written(self) -> Rounding:
        """How far rounding takes the program as it is."""
        return self._rounding(self._formats)

    def _rounding(self, formats: Formats) -> Rounding:
        if formats not in self._roundings:
            is_own, has_products = formats == self._formats, bool(formats.products)
            is_single = formats.narrow == _SINGLE
            call = (self._call.in_float32 if is_single else None) or self._call
            run = run_of(self._call if is_own else call, formats)
            dtype = _BFLOAT16 if has_products else formats.narrow or self._narrow
            beside = self._run_wide, self.truth, self._exact
            made = Rounding(call, run, *beside, dtype, moves=not has_products)
            self._roundings[formats] = made
        return self._roundings[formats]

    def is_another_in_float32(self) -> bool:
        """Whether the function takes other steps for inputs in float32."""
        return self._call.in_float32 is not None and self.written.is_far

    def of_array(self, n: int, given: np.ndarray) -> Difference:
        """The verdict on the reference of an output."""
        truth, array, grid = self.truth[n], numeric(given), _grid(given)
        lost = np.isfinite(array) != np.isfinite(truth)
        if lost.any():
            return self._made(n, array, np.inf, _lost(array, truth, lost))
        off, best = difference(array, truth), Beyond()
        size, most = size_of(off, self._exact[n]), EXPLAINS * self.written.most[n]
        for formats in self._precisions(grid):
            best = min(best, self._rounding(formats).beyond(n, off, grid))
            if best.times <= EXPLAINS:
                is_own = formats == self._formats and not self._exact[n]
                hidden = math.sqrt(max(most**2 - size**2, 0)) if is_own else 0.0
                hidden = self._relative(n, hidden)
                return self._made(n, array, best.times, hidden=hidden)
        why = ""
        if best.is_small:
            single = self._rounding(Formats(self._formats.wide, _SINGLE)).most[n]
            why = self._apart(n, size, single)
        elif best.is_largest:
            why = f"one element is off by {best.times:.2g} times what rounding gives"
        elif best.times <= FAR:
            why = (
                f"it is {best.times:.2g} times what rounding gives; another algorithm for "
                "the same may round as much"
            )
        elif device := self._device_of(n, off, grid):
            why = (
                f"the products of {DEVICES.get(device, device)} would explain it: if that "
                f'computed the reference, give matmul_precision="{device}"'
            )
        return self._made(n, array, best.times, why)

    def _device_of(self, n: int, off: np.ndarray, grid: np.dtype) -> str | None:
        """The device whose products would explain a difference."""
        for device in () if self._formats.products else _DEVICES:
            there = Formats(_SINGLE, is_own=True, products=products_named(device))
            if self._rounding(there).beyond(n, off, grid).times <= EXPLAINS:
                return device
        return None

    def of_function(self, n: int, other: "Judge") -> Difference:
        """The verdict on another function, which runs in float64 as well."""
        off, own = difference(other.truth[n], self.truth[n]), self.written.most[n]
        size, most = size_of(off, self._exact[n]), own
        if not self._exact[n]:
            units = [float(jnp.finfo(x).eps) for x in (_SINGLE, self._narrow)]
            source = max(self.written.source[n], _SMALL * max(self.written.source))
            most = max(own * min(1.0, units[0] / units[1]), source)
        times = excess(size, most)
        is_hidden = times > EXPLAINS and size <= EXPLAINS * own
        why = self._apart(n, size, most) if is_hidden else ""
        return self._made(n, other.written.made[n], times, why)

    def _precisions(self, grid: np.dtype) -> list[Formats]:
        """Those in which a reference may have been computed, the program's own first."""
        is_low, known = bits(self._narrow) < 32, dict.fromkeys([self._formats])
        for dtype, is_known in ((_SINGLE, is_low), (grid, bits(grid) <= 32)):
            if is_known and dtype != self._narrow:
                known[Formats(self._formats.wide, dtype)] = None
        return [*known]

    # What is said

    def _relative(self, n: int, size: float, *beside: np.ndarray) -> float:
        """A root mean square beside that of an array or of an output; a share as it is."""
        if self._exact[n]:
            return size
        finite = (np.where(np.isfinite(x), x, 0.0) for x in (*beside, self.truth[n]))
        return size / next(filter(None, map(size_of, finite)), 1.0)

    def _apart(self, n: int, size: float, single: float) -> str:
        """What tells in float64, and does not as written."""
        most = EXPLAINS * single, EXPLAINS * self.written.most[n]
        off, wide, own = (percent(self._relative(n, x)) for x in (size, *most))
        return (
            f"in float64 they are {off} apart, where rounding in float32 explains {wide} "
            f"and in {self._narrow} {own}"
        )

    def _made(
        self, n: int, reference: np.ndarray, times: float, reason="", hidden=0.0
    ) -> Difference:
        """The verdict, with the figures of the output as written."""
        verdict = "differs" if times > FAR else "undecidable"
        verdict = "rounding" if times <= EXPLAINS else verdict
        shows = verdict == "undecidable" or hidden or reason.startswith("in float64")
        made, place = self.written.made[n], dict[str, Any]()
        off = np.abs(difference(made, reference))
        error = size_of(off, self._exact[n])
        if error:
            at = np.unravel_index(np.argmax(np.nan_to_num(off, nan=np.inf)), off.shape)
            place = {"at": tuple(map(int, at)), "program": float(made[at])}
            place["reference"] = float(reference[at])
        return Difference(
            self._paths[n],
            self._relative(n, error, reference) if math.isfinite(error) else math.inf,
            self._relative(n, EXPLAINS * self.written.most[n], reference),
            verdict,
            reason,
            str(self._wide) if shows else None,
            hidden,
            **place,
        )


def _lost(array: np.ndarray, truth: np.ndarray, lost: np.ndarray) -> str:
    """Which of the two is not finite where the other is."""
    sides = [(array, "the reference"), (truth, "the program, in float64,")]
    side, who = next(x for x in sides if not np.isfinite(x[0][lost]).all())
    what = "NaN" if np.isnan(side[lost]).any() else "infinity"
    return f"{who} has {what} in {np.count_nonzero(lost)} of {lost.size} elements"


def _narrowest(call: RunCall, formats: Formats) -> np.dtype:
    """The narrowest floating dtype in which a program computes."""
    if formats.products is not None:
        return _BFLOAT16
    dtypes = {aval.dtype for aval in avals_in(call.program) if is_inexact(aval)}
    dtypes |= {formats.narrow} - {None}
    found = min(dtypes, key=lambda dtype: (bits(dtype), str(dtype)))
    return {64: _DOUBLE, 32: _SINGLE}.get(bits(found), found)


def _grid(array: np.ndarray) -> np.dtype:
    """The narrowest dtype that has all numbers of an array."""
    numbers = numeric(array)
    for dtype in (_BFLOAT16, _FLOAT16, _SINGLE):
        with np.errstate(over="ignore"):
            back = numbers.astype(dtype).astype(np.float64)
        if np.array_equal(back, numbers, equal_nan=True):
            return dtype
    return _DOUBLE
