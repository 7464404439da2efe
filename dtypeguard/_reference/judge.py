"""Whether rounding explains how a reference differs from a program.

The program runs as written, in other dtypes and in float64, on its inputs and on some that
are rounded otherwise. A difference is measured as a whole, and in its largest element.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.compat import set_x64
from .._leaves.dtypes import bits, kind
from .._leaves.table import percent
from .._leaves.types import Jaxpr, Leaf
from .._numbers import plans
from .._numbers.constants import FEW_DIGITS
from .._numbers.formats import DEVICES, Formats, products_named
from .._numbers.plans import WidthPlan
from .._numbers.primitives import is_inexact
from .._numbers.program import NumericProgram
from .._numbers.run import run
from .._numbers.subject import avals_in
from .._program.aligned import SecondTraces
from .difference import Difference

# Up to so many times what some runs gave, rounding explains it; from so many on it is
# another computation.
_EXPLAINS, _FAR = 2.0, 2.5
# A difference of less than this part of what a program or a device rounds is not of it.
_LEAST_PART_LEFT = 0.5
# On so many other inputs a program rounds anew.
_DRAWS = 6
# Numbers of the source, and sums in another order, round by so many units in the last place
# of float32; in float64, of that. Of two functions in float64, they leave this part of the
# most that they leave in an output in others, which may be small beside it.
_UNITS, _SMALL = 4.0, 1e-3
# One in eight moves up, and as many down: the variance is that of half a unit.
_STEPS = np.array([-1.0, 0, 0, 0, 0, 0, 0, 1])
_BFLOAT16, _FLOAT16 = jnp.dtype("bfloat16"), np.dtype("float16")
_SINGLE, _DOUBLE = np.dtype("float32"), np.dtype("float64")
# An H100 computes as an A100 does; neither rounds small products, but by request.
_JUDGED_DEVICES = "tpu", "a100", "tensorfloat32"
WIDE = Formats(_DOUBLE)


class RunCall(NamedTuple):
    """A traced function, beside its other trace, and what it is called with."""

    program: Jaxpr  # closed
    traces: SecondTraces
    arrays: Sequence[Leaf]


class Rounding(NamedTuple):
    """How far rounding in some precision takes the outputs of a program.

    Attributes:
        dtype: whose rounding it is.
        made: the outputs in this precision.
        most: for each output, the greatest sizes of what rounding gave.
        least: for each, the least size as a whole.
        source: for each, the size of what rounded numbers of the source give.
    """

    dtype: np.dtype
    made: list[np.ndarray]
    most: np.ndarray
    least: np.ndarray
    source: np.ndarray


class Judge:
    """A program, and how far rounding takes its outputs."""

    def __init__(
        self,
        call: RunCall,
        paths: list[str],
        formats: Formats,
        in_single: Callable[[], RunCall | None] = lambda: None,
    ):
        self.call, self._paths, self._formats = call, paths, formats
        self._in_single = in_single
        self._exact = [not is_inexact(x) for x in call.program.out_avals]
        self._narrow = _narrowest(call, formats)
        self._roundings: dict[Formats, Rounding] = {}
        self._run_wide = _run_of(call)

    @functools.cached_property
    def truth(self) -> list[np.ndarray]:
        """The outputs in float64."""
        return self._run_wide()

    @functools.cached_property
    def _single(self) -> "Judge | None":
        """The judge of the function traced in float32, if the program is narrower."""
        call = self._in_single() if bits(self._narrow) < 32 else None
        return call and Judge(call, self._paths, WIDE)

    @property
    def written(self) -> Rounding:
        """How far rounding takes the program as it is."""
        return self._rounding(self._formats)

    def _rounding(self, formats: Formats) -> Rounding:
        if formats not in self._roundings:
            self._roundings[formats] = self._rounded(formats)
        return self._roundings[formats]

    def _rounded(self, formats: Formats) -> Rounding:
        has_products, given = formats.products is not None, self.call.arrays
        dtype = _BFLOAT16 if has_products else formats.narrow or self._narrow
        made_of = _run_of(self.call, formats, plans.written)
        if bits(dtype) > bits(self._narrow):  # to be at most so wide changes nothing
            made_of = _run_of(self.call, Formats(dtype))
            given = [as_wide(x, dtype) for x in given]
        made, eps = made_of(), float(jnp.finfo(dtype).eps)
        drawn, moves = [self._sizes(made, self.truth)], []
        for seed in range(_DRAWS):
            arrays = _moved(given, eps, seed)
            there = self._run_wide(arrays)
            drawn.append(self._sizes(made_of(arrays), there))
            moves.append(self._sizes(there, self.truth))
        # A device rounds products, and not what they are given.
        drawn += [] if has_products else moves
        unit = _UNITS * min(eps, float(jnp.finfo(_SINGLE).eps))
        other = [x if e else x * (1 + unit) for x, e in zip(self.truth, self._exact)]
        source = self._sizes(other, self.truth)
        most, least = np.max([*drawn, source], 0), np.min(drawn, 0)[:, 0]
        return Rounding(dtype, made, most, least, source[:, 0])

    def _sizes(self, made: list[np.ndarray], beside: list[np.ndarray]) -> np.ndarray:
        pairs = zip(map(_difference_of_arrays, made, beside), self._exact)
        return np.array([_sizes_of(*each) for each in pairs]).reshape(-1, 2)

    def of_array(self, n: int, given: np.ndarray) -> Difference:
        """The verdict on the reference of an output."""
        truth, array, grid = self.truth[n], _numeric(given), _grid(given)
        if (np.isfinite(array) != np.isfinite(truth)).any():
            return self._made(n, array, np.inf)
        off, best = _difference_of_arrays(array, truth), math.inf
        for formats in self._precisions(grid):
            rounding = self._rounding(formats)
            if bits(grid) >= 32 and self._is_small(rounding, n, off):
                best = min(best, _FAR)
                continue
            best = min(best, self._beyond(rounding, n, off))
            if best <= _EXPLAINS:
                hides = formats == self._formats and not self._exact[n]
                return self._made(n, array, best, hides=hides)
        if (single := self._single) is not None:  # unless it takes another way there
            apart = self._beyond(
                self.written, n, _difference_of_arrays(single.truth[n], truth)
            )
            if apart <= _EXPLAINS and single.of_array(n, given).verdict == "rounding":
                return self._made(n, array, 0.0)
        why = ""
        if best > _FAR and (device := self._device_of(n, off)):
            why = (
                f"the products of {DEVICES.get(device, device)} would explain it: if that "
                f'computed the reference, give matmul_precision="{device}"'
            )
        return self._made(n, array, best, why)

    def of_function(self, n: int, other: "Judge") -> Difference:
        """The verdict on another function, which runs in float64 as well."""
        off, own = (
            _difference_of_arrays(other.truth[n], self.truth[n]),
            self.written.most[n, 0],
        )
        size, most = self._size(n, off), own
        if not self._exact[n]:
            units = [float(jnp.finfo(x).eps) for x in (_SINGLE, self._narrow)]
            source = max(self.written.source[n], _SMALL * max(self.written.source))
            most = max(own * min(1.0, units[0] / units[1]), source)
        times = _excess(size, most)
        is_hidden = times > _EXPLAINS and size <= _EXPLAINS * own
        why = self._apart(n, size, most) if is_hidden else ""
        return self._made(n, other.written.made[n], times, why)

    def _beyond(self, rounding: Rounding, n: int, off: np.ndarray) -> float:
        """How many times what rounding gave a difference is, or its largest element."""
        is_exact, most = self._exact[n], rounding.most[n]
        if is_exact:  # of a share of few elements
            most = most + (most / max(off.size, 1)) ** 0.5
        return max(map(_excess, _sizes_of(off, is_exact), most))

    def _is_small(self, rounding: Rounding, n: int, off: np.ndarray) -> bool:
        """Whether a difference is less than what rounding to 16 bits gives at least."""
        is_narrow = bits(rounding.dtype) < 32 and not self._exact[n]
        return is_narrow and self._size(n, off) < _LEAST_PART_LEFT * rounding.least[n]

    def _device_of(self, n: int, off: np.ndarray) -> str | None:
        """The device whose products would explain a difference."""
        for device in () if self._formats.products else _JUDGED_DEVICES:
            there = Formats(_SINGLE, is_own=True, products=products_named(device))
            rounding = self._rounding(there)
            is_small = self._is_small(rounding, n, off)
            if not is_small and self._beyond(rounding, n, off) <= _EXPLAINS:
                return device
        return None

    def _precisions(self, grid: np.dtype) -> list[Formats]:
        """Those in which a reference may have been computed, the program's own first."""
        is_low, known = bits(self._narrow) < 32, dict.fromkeys([self._formats])
        for dtype, is_known in ((_SINGLE, is_low), (grid, bits(grid) <= 32)):
            if is_known and dtype != self._narrow:
                known[Formats(self._formats.wide, dtype)] = None
        return [*known]

    # What is said

    def _size(self, n: int, off: np.ndarray) -> float:
        return float(_sizes_of(off, self._exact[n])[0])

    def _relative(self, n: int, size: float, *beside: np.ndarray) -> float:
        """A root mean square beside that of an array or of an output; a share as it is."""
        if self._exact[n]:
            return size
        finite = (np.where(np.isfinite(x), x, 0.0) for x in (*beside, self.truth[n]))
        return size / next(filter(None, (self._size(n, x) for x in finite)), 1.0)

    def _apart(self, n: int, size: float, single: float) -> str:
        """What tells in float64, and does not as written."""
        off, most = (percent(self._relative(n, x)) for x in (size, _EXPLAINS * single))
        return f"in float64 they are {off} apart, where rounding in float32 explains {most}"

    def _made(
        self, n: int, reference: np.ndarray, times: float, reason="", hides=False
    ) -> Difference:
        """The verdict, with the figures of the output as written."""
        verdict = "differs" if times > _FAR else "undecidable"
        verdict = "rounding" if times <= _EXPLAINS else verdict
        shows = verdict == "undecidable" or hides or reason.startswith("in float64")
        wide = _SINGLE if bits(self._narrow) < 32 else _DOUBLE
        made, place = self.written.made[n], dict[str, Any]()
        off = np.abs(_difference_of_arrays(made, reference))
        error = self._size(n, off)
        if error:
            at = np.unravel_index(np.argmax(np.nan_to_num(off, nan=np.inf)), off.shape)
            place = {"at": tuple(map(int, at)), "program": float(made[at])}
            place["reference"] = float(reference[at])
        return Difference(
            self._paths[n],
            self._relative(n, error, reference) if math.isfinite(error) else math.inf,
            self._relative(n, _EXPLAINS * self.written.most[n, 0], reference),
            verdict,
            reason,
            str(wide) if shows else None,
            **place,
        )


# Runs a program on some inputs, or on those of the call.
_RunFunction = Callable[..., list[np.ndarray]]


def _run_of(
    call: RunCall,
    formats: Formats = WIDE,
    plan_of: Callable[[NumericProgram], WidthPlan] = plans.wide,
) -> _RunFunction:
    """What runs a program: in some dtypes, or all of it in wide ones."""
    is_double = formats.wide == _DOUBLE
    is_on: bool = is_double or jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]: of JAX
    program = NumericProgram(call.program, formats, call.traces, is_judged=True)
    plan = plan_of(program)

    def made_of(arrays: Sequence[Leaf] = call.arrays) -> list[np.ndarray]:
        with set_x64(is_on):
            given = [jnp.asarray(x, x.dtype) for x in arrays]
            return [*map(_numeric, run(program, plan, given))]

    return made_of


def as_wide(array: Leaf, dtype: np.dtype) -> Leaf:
    """A float array in a dtype, if its own is narrower."""
    is_narrower = kind(array.dtype) == "float" and bits(array.dtype) < bits(dtype)
    return array.astype(dtype) if is_narrower else array


def _moved(arrays: Sequence[Leaf], eps: float, seed: int) -> list[Leaf]:
    """Inputs some of whose numbers are a unit in the last place larger or smaller."""
    random = np.random.default_rng(seed)

    def one(x: Leaf) -> Leaf:
        if not is_inexact(x):
            return x
        dtype = np.complex128 if kind(x.dtype) == "complex" else np.float64
        flat = np.asarray(x).astype(dtype).ravel().view(np.float64)
        most = float(jnp.finfo(x.dtype).max)
        digits = np.ldexp(np.frexp(flat)[0], FEW_DIGITS)
        stays = (digits == np.round(digits)) | (flat == np.round(flat))
        with np.errstate(over="ignore"):
            steps = np.clip(flat * eps * random.choice(_STEPS, flat.shape), -most, most)
            other = np.where(stays, flat, np.clip(flat + steps, -most, most))
        return other.view(dtype).reshape(x.shape).astype(x.dtype)

    return [*map(one, arrays)]


def _numeric(array: Leaf) -> np.ndarray:
    """An array in float64; complex numbers have an axis more. Empty for random keys."""
    dtype = getattr(array, "dtype", None)
    if kind(dtype) is None:
        return np.zeros(0)
    array = np.asarray(array)
    if kind(dtype) == "complex":
        array = np.stack([array.real, array.imag], -1)
    return array.astype(np.float64)


def _sizes_of(off: np.ndarray, is_exact: bool) -> np.ndarray:
    """The size of a difference as a whole, and of its largest element.

    A root mean square; of what is exact, the share that is not 0.
    """
    if is_exact or not off.size:
        return np.array([np.count_nonzero(off) / max(off.size, 1), 0.0])
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.array([np.sqrt(np.mean(off**2)), np.max(np.abs(off))])
    return np.nan_to_num(found, nan=np.inf, posinf=np.inf)


def _difference_of_arrays(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The difference; 0 where both are the same infinity, or both not a number."""
    with np.errstate(invalid="ignore"):
        is_same = (x == y) | (np.isnan(x) & np.isnan(y))
        return np.where(is_same, 0.0, x - y)


def _excess(size: float, most: float) -> float:
    """How many times as great a size is; 0 if it is not greater."""
    if size <= most:
        return 0.0
    return float(size / most) if most else math.inf


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
    numbers = _numeric(array)
    known = _BFLOAT16, _FLOAT16, _SINGLE
    made = lambda dtype: numbers.astype(dtype).astype(np.float64)
    is_of = lambda dtype: np.array_equal(made(dtype), numbers, equal_nan=True)
    with np.errstate(over="ignore"):
        return next(filter(is_of, known), _DOUBLE)
