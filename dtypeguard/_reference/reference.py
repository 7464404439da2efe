"""Whether rounding explains how a reference differs from a program."""

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits
from .._leaves.rows import percent
from .._paired.primitives import is_inexact
from .._paired.products import products_named
from .._paired.subject import avals_in
from .._paired.values import Formats
from .difference import Difference
from .rounding import Rounding, difference
from .runs import Call, numeric, run_of

# Up to so many times what some runs gave, rounding explains it; from so many on it is
# another computation.
_EXPLAINS, _FAR = 2.5, 5.0
# A difference of less than this part of what rounding gave is not of it.
_LEAST = 0.5
# A program so many times as far off as rounded inputs take it is another one in float32.
_OTHER = 8.0
# Between two functions in float64: numbers of the source that float32 may have rounded, and
# what is left of these in outputs that are small beside others.
_SAME, _SMALL = 8 * 2.0**-24, 1e-3
_SINGLE, _BF16 = np.dtype("float32"), jnp.dtype("bfloat16")
_DEVICES = {"tpu": "a TPU", "a100": "an A100"}


class Judge:
    """A program, and how far rounding takes its outputs.

    Args:
        call: the program and its inputs.
        paths: of all its outputs.
        formats: the dtypes of the audit.
    """

    def __init__(self, call: Call, paths: list[str], formats: Formats):
        self._call, self._paths, self._formats = call, paths, formats
        self._exact = [not is_inexact(x) for x in call.program.out_avals]
        self._narrow = _narrowest(call, formats)
        self._wide = _SINGLE if bits(self._narrow) < 32 else np.dtype("float64")
        self._roundings: dict[Formats, Rounding] = {}
        self._run, self._run_wide = run_of(call, formats), run_of(call.in_float32 or call)

    @functools.cached_property
    def truth(self) -> list[np.ndarray]:
        """The outputs in float64."""
        return self._run_wide()

    @property
    def written(self) -> Rounding:
        """How far rounding takes the program as it is."""
        return self._rounding(self._formats)

    def is_another_in_float32(self) -> bool:
        """Whether the function takes other steps for inputs in float32."""
        return self._call.in_float32 is not None and self.written.is_far(_OTHER)

    def of_array(self, n: int, given: np.ndarray) -> Difference:
        """The verdict on the reference of an output."""
        truth, array, grid = self.truth[n], numeric(given), _grid(given)
        lost = np.isfinite(array) != np.isfinite(truth)
        if lost.any():
            return self._made(n, array, "differs", _lost(array, truth, lost))
        off = difference(array, truth)
        size = float(np.sqrt(np.mean(off**2))) if off.size else 0.0
        own = self.written.most[n]["whole"]
        is_finer = bits(self._narrow) < min(32, bits(grid)) and not self._exact[n]
        is_small = is_finer and size < _LEAST * own
        tried = [self._formats]
        tried += [Formats(self._wide, _SINGLE)] * (bits(self._narrow) < 32)
        tried += [Formats(_SINGLE, grid)] * (bits(grid) < 32 and grid != self._narrow)
        times, why = math.inf, ""
        for formats in tried:
            found, name = self._rounding(formats).beyond(n, off, grid)
            if found <= _EXPLAINS and not (is_small and formats is self._formats):
                most = math.sqrt(max((_EXPLAINS * own) ** 2 - size**2, 0))
                hidden = self._relative(n, most) * (formats is self._formats)
                return self._made(n, array, "rounding", hidden=hidden)
            if found < times:
                times, why = found, _why(name, found)
        if is_small:
            single = _EXPLAINS * self._rounding(tried[1]).most[n]["whole"]
            why = _SMALL_IN.format(
                *(percent(self._relative(n, x)) for x in (size, single, _EXPLAINS * own)),
                narrow=self._narrow,
            )
        if is_small or times <= _FAR:
            return self._made(n, array, "undecidable", why, self._wide)
        for device, name in _DEVICES.items() if self._has_products else ():
            if self._on(device).beyond(n, off, grid)[0] <= _EXPLAINS:
                why = _DEVICE.format(name=name, device=device)
                break
        return self._made(n, array, "differs", why)

    def of_function(self, n: int, other: "Judge") -> Difference:
        """The verdict on another function, which runs in float64 as well."""
        truth, array = self.truth[n], other.written.made[n]
        size = lambda x: float(np.sqrt(np.mean(x**2))) if x.size else 0.0
        most = _EXPLAINS * self.written.most[n]["whole"]
        off = difference(other.truth[n], truth)
        if self._exact[n]:
            found = float(np.mean(off != 0))
        else:
            found = size(off)
            largest = max(size(x) for x, exact in zip(self.truth, self._exact) if not exact)
            units = [float(jnp.finfo(x).eps) for x in (_SINGLE, self._narrow)]
            most *= min(1, units[0] / units[1])
            most = max(most, _SAME * max(size(truth), _SMALL * largest))
        if found <= most:
            return self._made(n, array, "rounding")
        why = (
            f"in float64 they are {percent(self._relative(n, found))} apart, where rounding "
            f"in float32 explains {percent(self._relative(n, most))}"
        )
        verdict = "differs" if found > 2 * most else "undecidable"
        return self._made(n, array, verdict, why, self._wide)

    def _rounding(self, formats: Formats) -> Rounding:
        if formats not in self._roundings:
            call, dtype = self._call, formats.narrow or self._narrow
            if formats.products is not None:
                dtype = _BF16
            if formats.narrow == _SINGLE:
                call = call.in_float32 or call
            is_own = formats == self._formats
            self._roundings[formats] = Rounding(
                call,
                self._run if is_own else run_of(call, formats),
                self._run_wide,
                self.truth,
                self._exact,
                dtype,
                formats.products is None,
            )
        return self._roundings[formats]

    def _on(self, device: str) -> Rounding:
        products = products_named(device)
        return self._rounding(Formats(_SINGLE, is_own=True, products=products))

    @functools.cached_property
    def _has_products(self) -> bool:
        """Whether a device may have rounded products that are not rounded here."""
        return self._formats.products is None

    def _relative(self, n: int, size: float) -> float:
        """A root mean square beside that of an output."""
        truth = self.truth[n]
        return float(size * truth.size**0.5 / (np.linalg.norm(truth) or 1.0))

    def _made(
        self, n: int, reference: np.ndarray, verdict: str, reason: str = "", shows_in=None, hidden: float = 0.0
    ) -> Difference:
        """A verdict with the figures of the output as written."""
        made, most = self.written.made[n], _EXPLAINS * self.written.most[n]["whole"]
        off = np.abs(difference(made, reference))
        error, finite = float(np.mean(off != 0)) if off.size else 0.0, reference[np.isfinite(reference)]
        if not self._exact[n]:
            size = float(np.linalg.norm(finite) or np.linalg.norm(self.truth[n]) or 1.0)
            error, most = float(np.linalg.norm(off)) / size, most * off.size**0.5 / size
        place: dict[str, Any] = {}
        if error:
            at = np.unravel_index(np.argmax(np.nan_to_num(off, nan=np.inf)), off.shape)
            place = {"at": tuple(map(int, at)), "program": float(made[at])}
            place["reference"] = float(reference[at])
        return Difference(
            self._paths[n],
            error if math.isfinite(error) else math.inf,
            most,
            verdict,
            reason,
            str(self._wide) if shows_in is not None or hidden else None,
            hidden,
            **place,
        )


_SMALL_IN = (
    "in float64 the program is {} from the reference, where rounding in float32 explains "
    "{} and in {narrow} {}"
)
_DEVICE = (
    'the products of {name} would explain it: give matmul_precision="{device}" if the '
    "reference was computed there"
)
_REASONS = {
    "whole": "it is {}; another algorithm for the same may round as much",
    "largest": "one element is off by {}",
    "mean": "the differences have a mean, {}",
    "values": "the differences follow the values, {}",
    "by size": "the differences follow the sizes of the values, {}",
    "by sign": "the differences are a function of the values, {}",
    "by square": "the differences are a function of the values, {}",
}


def _why(name: str, times: float) -> str:
    if name == "whole" and times > _FAR:
        return ""  # the figures say it
    text = _REASONS.get(name, f"the differences are alike along {name}, {{}}")
    return text.format(f"{times:.2g} times what rounding gives")


def _lost(array: np.ndarray, truth: np.ndarray, lost: np.ndarray) -> str:
    """Which of the two is not finite where the other is."""
    sides = [(array, "the reference"), (truth, "the program, in float64,")]
    side, who = next(x for x in sides if not np.isfinite(x[0][lost]).all())
    what = "NaN" if np.isnan(side[lost]).any() else "infinity"
    return f"{who} has {what} in {np.count_nonzero(lost)} of {lost.size} elements"


def _narrowest(call: Call, formats: Formats) -> np.dtype:
    """The narrowest floating dtype in which a program computes."""
    dtypes = {aval.dtype for aval in avals_in(call.program) if is_inexact(aval)}
    dtypes |= {formats.narrow} - {None}
    found = min(dtypes, key=lambda dtype: (bits(dtype), str(dtype)))
    return np.dtype({64: "float64", 32: "float32"}.get(bits(found), found))


def _grid(array: np.ndarray) -> np.dtype:
    """The narrowest dtype that has all numbers of an array."""
    numbers = numeric(array)
    for name in ("bfloat16", "float16", "float32"):
        with np.errstate(over="ignore"):
            back = numbers.astype(jnp.dtype(name)).astype(np.float64)
        if np.array_equal(back, numbers, equal_nan=True):
            return jnp.dtype(name)
    return np.dtype("float64")
