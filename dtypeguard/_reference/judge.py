"""Whether rounding explains how a reference differs from a program.

The program runs as written, in other dtypes and in float64, on its inputs and on some that
are rounded otherwise. Those runs give the bound: as far as they take an output, rounding
explains a difference. A difference is measured as a whole, and in its largest element.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._leaves.compat import set_x64, x64_enabled
from .._leaves.dtypes import bits, kind
from .._leaves.table import percent
from .._leaves.types import DType, Jaxpr, Leaf
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

# Up to so many times the bound, rounding explains a difference; beyond `_DIFFERS_FROM`
# times it is another computation.
_EXPLAINS = 2.0
_DIFFERS_FROM = 2.5
# A difference of less than this part of what a program or a device rounds is not of it.
_LEAST_SHARE = 0.5
_PERTURBED_RUNS = 6
# Numbers of the source, and sums in another order, round by so many units in the last place
# of float32; in float64, of that.
_SOURCE_UNITS = 4.0
# Two functions in float64 may differ in a small output by this part of their bound in the
# largest one, beside which it may be noise.
_SMALL_OUTPUT = 1e-3
# One in eight numbers moves up, and as many down: the variance is that of half a unit.
_STEPS = np.array([-1.0, 0, 0, 0, 0, 0, 0, 1])
_TPU_DTYPE = jnp.dtype("bfloat16")
_SINGLE = np.dtype("float32")
_DOUBLE = np.dtype("float64")
_GRID_DTYPES = (_TPU_DTYPE, np.dtype("float16"), _SINGLE)
# An H100 computes as an A100 does; neither rounds small products, but by request.
_JUDGED_DEVICES = ("tpu", "a100", "tensorfloat32")
IN_FLOAT64 = Formats(_DOUBLE)


class RunCall(NamedTuple):
    """A traced function and its arguments.

    Attributes:
        program: its closed jaxpr.
        traces: the jaxpr beside other traces.
        arrays: the arguments.
    """

    program: Jaxpr
    traces: SecondTraces
    arrays: Sequence[Leaf]


class Bound(NamedTuple):
    """How far rounding in some precision takes the outputs of a program.

    Attributes:
        dtype: the dtype whose rounding it is.
        outputs: the outputs in this precision.
        most: for each output, the greatest size that a run gave, as a whole and of the
            largest element.
        least: for each, the least size as a whole.
        source: for each, the size that rounded numbers of the source give.
    """

    dtype: np.dtype
    outputs: list[np.ndarray]
    most: np.ndarray
    least: np.ndarray
    source: np.ndarray


# Runs a program on some inputs, or on those of the call.
_RunFunction = Callable[..., list[np.ndarray]]


class Judge:
    """Judges references of a program by how far rounding takes its outputs.

    Args:
        call: the program.
        paths: of its outputs.
        formats: the dtypes in which it computes.
        retrace: traces the program with float32 inputs; None if it does not trace so.
    """

    def __init__(
        self,
        call: RunCall,
        paths: Sequence[str],
        formats: Formats,
        retrace: Callable[[], RunCall | None] | None = None,
    ):
        self.call = call
        self._paths = paths
        self._formats = formats
        self._retrace = retrace
        self._is_exact = [not is_inexact(aval) for aval in call.program.out_avals]
        self._narrow = _narrowest_dtype(call, formats)
        self._bounds: dict[Formats, Bound] = {}
        self._run_wide = _runner(call)

    @functools.cached_property
    def truth(self) -> list[np.ndarray]:
        """The outputs in float64."""
        return self._run_wide()

    @functools.cached_property
    def _in_float32(self) -> "Judge | None":
        """The judge of the function traced in float32, if the program is narrower."""
        if self._retrace is None or bits(self._narrow) >= 32:
            return None
        call = self._retrace()
        return None if call is None else Judge(call, self._paths, IN_FLOAT64)

    @property
    def written(self) -> Bound:
        """How far rounding takes the program as it is."""
        return self._bound(self._formats)

    def _bound(self, formats: Formats) -> Bound:
        if formats not in self._bounds:
            self._bounds[formats] = self._measure_bound(formats)
        return self._bounds[formats]

    def _measure_bound(self, formats: Formats) -> Bound:
        """Runs the program in some dtypes and in float64, on inputs rounded otherwise."""
        is_device = formats.products is not None
        dtype = _TPU_DTYPE if is_device else formats.narrow or self._narrow
        arrays = self.call.arrays
        if bits(dtype) > bits(self._narrow):  # to be at most so wide changes nothing
            run_narrow = _runner(self.call, Formats(dtype))
            arrays = [widen(x, dtype) for x in arrays]
        else:
            run_narrow = _runner(self.call, formats, plans.written)
        eps = float(jnp.finfo(dtype).eps)
        outputs = run_narrow()
        # Each run on inputs of its own is one more sample of what rounding gives.
        sizes = [self._sizes(outputs, self.truth)]
        for seed in range(_PERTURBED_RUNS):
            perturbed = _perturb(arrays, eps, seed)
            wide_outputs = self._run_wide(perturbed)
            sizes.append(self._sizes(run_narrow(perturbed), wide_outputs))
            if not is_device:  # a device rounds products, and not its inputs
                sizes.append(self._sizes(wide_outputs, self.truth))
        unit = _SOURCE_UNITS * min(eps, float(jnp.finfo(_SINGLE).eps))
        moved: list[np.ndarray] = []
        for output, is_exact in zip(self.truth, self._is_exact):
            moved.append(output if is_exact else output * (1 + unit))
        source = self._sizes(moved, self.truth)
        most = np.max([*sizes, source], axis=0)
        least = np.min(sizes, axis=0)[:, 0]
        return Bound(dtype, outputs, most, least, source[:, 0])

    def _sizes(
        self, outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Returns how far outputs are apart, a row for each."""
        rows: list[np.ndarray] = []
        for n, is_exact in enumerate(self._is_exact):
            off = _subtract(outputs[n], expected[n])
            rows.append(_sizes_of_difference(off, is_exact))
        return np.array(rows).reshape(-1, 2)

    # Verdicts

    def judge_array(self, n: int, reference: np.ndarray) -> Difference:
        """Returns the verdict on the reference of an output."""
        array = _as_float64(reference)
        # An infinity or a NaN on one side alone is further off than any bound.
        if (np.isfinite(array) != np.isfinite(self.truth[n])).any():
            return self._difference(n, array, math.inf)
        off = _subtract(array, self.truth[n])
        grid = _narrowest_holding(array)
        ratio = math.inf
        for formats in self._precisions(grid):
            bound = self._bound(formats)
            # Whoever computes in 16 bits is off by more than that: this precision explains
            # nothing.
            if bits(grid) >= 32 and self._is_below(bound, n, off):
                ratio = min(ratio, _DIFFERS_FROM)
                continue
            ratio = min(ratio, self._ratio(bound, n, off))
            if ratio <= _EXPLAINS:
                may_hide = formats == self._formats and not self._is_exact[n]
                return self._difference(n, array, ratio, may_hide=may_hide)
        if self._is_rounding_in_float32(n, reference):
            return self._difference(n, array, 0.0)
        return self._difference(n, array, ratio)

    def _is_rounding_in_float32(self, n: int, reference: np.ndarray) -> bool:
        """Returns whether rounding explains a reference of the function in float32."""
        single = self._in_float32
        if single is None:
            return False
        # The function may take another way there: then it says nothing of this program.
        off = _subtract(single.truth[n], self.truth[n])
        if self._ratio(self.written, n, off) > _EXPLAINS:
            return False
        return single.judge_array(n, reference).verdict == "rounding"

    def judge_function(self, n: int, reference: "Judge") -> Difference:
        """Returns the verdict on another function, which runs in float64 as well."""
        off = _subtract(reference.truth[n], self.truth[n])
        size = self._whole_size(n, off)
        own_bound = float(self.written.most[n, 0])
        bound = own_bound
        if not self._is_exact[n]:
            # In proportion, what rounding to float32 would give.
            eps_ratio = jnp.finfo(_SINGLE).eps / jnp.finfo(self._narrow).eps
            source = self.written.source
            smallest = max(source[n], _SMALL_OUTPUT * max(source))
            bound = max(own_bound * min(1.0, float(eps_ratio)), smallest)
        ratio = _ratio_of(size, bound)
        reason = ""
        is_hidden = ratio > _EXPLAINS and size <= _EXPLAINS * own_bound
        if is_hidden:
            apart = percent(self._relative(n, size))
            explained = percent(self._relative(n, _EXPLAINS * bound))
            reason = (
                f"in float64 they are {apart} apart, where rounding in float32 explains "
                f"{explained}"
            )
        output = reference.written.outputs[n]
        return self._difference(n, output, ratio, reason, may_hide=is_hidden)

    def explain_by_device(self, n: int, reference: np.ndarray) -> str:
        """Returns a sentence on the device whose products explain a reference, or ""."""
        if self._formats.products is not None:
            return ""
        off = _subtract(_as_float64(reference), self.truth[n])
        for device in _JUDGED_DEVICES:
            formats = Formats(_SINGLE, is_own=True, products=products_named(device))
            bound = self._bound(formats)
            is_below = self._is_below(bound, n, off)
            if not is_below and self._ratio(bound, n, off) <= _EXPLAINS:
                return (
                    f"the products of {DEVICES.get(device, device)} would explain it: if "
                    f'that computed the reference, give matmul_precision="{device}"'
                )
        return ""

    def _precisions(self, grid: np.dtype) -> list[Formats]:
        """Returns those in which a reference may be computed, the program's own first."""
        # A reference of a bfloat16 model is often computed in float32, on another machine.
        precisions = [self._formats]
        dtypes: list[np.dtype] = []
        if bits(self._narrow) < 32:
            dtypes.append(_SINGLE)
        if bits(grid) <= 32:
            dtypes.append(grid)
        for dtype in dtypes:
            formats = Formats(self._formats.wide, dtype)
            if dtype != self._narrow and formats not in precisions:
                precisions.append(formats)
        return precisions

    def _ratio(self, bound: Bound, n: int, off: np.ndarray) -> float:
        """Returns how many times the bound a difference is, or its largest element."""
        most = bound.most[n]
        if self._is_exact[n]:  # a share of few elements varies by chance
            most = most + (most / max(off.size, 1)) ** 0.5
        overall, largest = _sizes_of_difference(off, self._is_exact[n])
        overall_ratio = _ratio_of(overall, most[0])
        return max(overall_ratio, _ratio_of(largest, most[1]))

    def _is_below(self, bound: Bound, n: int, off: np.ndarray) -> bool:
        """Returns whether a difference is less than rounding to 16 bits gives at least."""
        if bits(bound.dtype) >= 32 or self._is_exact[n]:
            return False
        return self._whole_size(n, off) < _LEAST_SHARE * bound.least[n]

    # Figures

    def _whole_size(self, n: int, off: np.ndarray) -> float:
        return float(_sizes_of_difference(off, self._is_exact[n])[0])

    def _relative(self, n: int, size: float, *references: np.ndarray) -> float:
        """Returns a size beside that of a reference, or of the output; a share as it is."""
        if self._is_exact[n]:
            return size
        # Nothing is relative to an output of zeros.
        for array in (*references, self.truth[n]):
            norm = self._whole_size(n, np.where(np.isfinite(array), array, 0.0))
            if norm:
                return size / norm
        return size

    def _difference(
        self,
        n: int,
        reference: np.ndarray,
        ratio: float,
        reason: str = "",
        may_hide: bool = False,
    ) -> Difference:
        """Returns the verdict of a ratio, with the figures of the output as written."""
        verdict = "differs"
        if ratio <= _EXPLAINS:
            verdict = "rounding"
        elif ratio <= _DIFFERS_FROM:
            verdict = "undecidable"
        shows_in = None
        if verdict == "undecidable" or may_hide:
            shows_in = "float32" if bits(self._narrow) < 32 else "float64"
        # Whatever dtype told, a reader has the program as written.
        explained = _EXPLAINS * self.written.most[n, 0]
        output = self.written.outputs[n]
        off = np.abs(_subtract(output, reference))
        error = self._whole_size(n, off)
        relative_error = math.inf
        if math.isfinite(error):
            relative_error = self._relative(n, error, reference)
        difference = Difference(
            output=self._paths[n],
            error=relative_error,
            rounding=self._relative(n, explained, reference),
            verdict=verdict,
            reason=reason,
            shows_in=shows_in,
        )
        if not error:
            return difference
        largest = np.argmax(np.nan_to_num(off, nan=np.inf))
        at = tuple(map(int, np.unravel_index(largest, off.shape)))
        return difference._replace(
            at=at, program=float(output[at]), reference=float(reference[at])
        )


def _runner(
    call: RunCall,
    formats: Formats = IN_FLOAT64,
    plan_of: Callable[[NumericProgram], WidthPlan] = plans.wide,
) -> _RunFunction:
    """Returns a function that runs a program in some dtypes."""
    # JAX has no float64 without the flag, and a program traced with it runs with it.
    is_x64 = x64_enabled() or formats.wide == _DOUBLE
    program = NumericProgram(call.program, formats, call.traces, is_judged=True)
    plan = plan_of(program)

    def run_on(arrays: Sequence[Leaf] = call.arrays) -> list[np.ndarray]:
        with set_x64(is_x64):
            inputs = [jnp.asarray(x, x.dtype) for x in arrays]
            return [_as_float64(x) for x in run(program, plan, inputs)]

    return run_on


def widen(array: Leaf, dtype: DType) -> Leaf:
    """Returns a float array in a dtype, if its own is narrower."""
    if kind(array.dtype) == "float" and bits(array.dtype) < bits(dtype):
        return array.astype(dtype)
    return array


def _perturb(arrays: Sequence[Leaf], eps: float, seed: int) -> list[Leaf]:
    """Moves some numbers of the inputs by a unit in the last place, up or down."""
    # With a fixed seed a verdict is the same each time.
    random = np.random.default_rng(seed)
    return [_perturb_array(x, eps, random) if is_inexact(x) else x for x in arrays]


def _perturb_array(array: Leaf, eps: float, random: np.random.Generator) -> Leaf:
    is_complex = kind(array.dtype) == "complex"
    wide = np.asarray(array).astype(np.complex128 if is_complex else np.float64)
    numbers = wide.ravel().view(np.float64)
    limit = float(jnp.finfo(array.dtype).max)
    # What a source has with few digits, and an integer, was not rounded.
    digits = np.ldexp(np.frexp(numbers)[0], FEW_DIGITS)
    stays = (digits == np.round(digits)) | (numbers == np.round(numbers))
    with np.errstate(over="ignore"):
        steps = numbers * eps * random.choice(_STEPS, numbers.shape)
        moved = np.clip(numbers + np.clip(steps, -limit, limit), -limit, limit)
    perturbed = np.where(stays, numbers, moved)
    return perturbed.view(wide.dtype).reshape(array.shape).astype(array.dtype)


def _as_float64(array: Leaf) -> np.ndarray:
    """Returns an array in float64, a complex one with an axis more; none of random keys."""
    family = kind(getattr(array, "dtype", None))
    if family is None:
        return np.zeros(0)
    array = np.asarray(array)
    if family == "complex":
        array = np.stack([array.real, array.imag], -1)
    return array.astype(np.float64)


def _sizes_of_difference(off: np.ndarray, is_exact: bool) -> np.ndarray:
    """Returns the size of a difference as a whole, and of its largest element.

    A root mean square; of exact numbers, the share that is not 0.
    """
    if is_exact or not off.size:
        share = np.count_nonzero(off) / max(off.size, 1)
        return np.array([share, 0.0])
    with np.errstate(over="ignore", invalid="ignore"):
        overall = np.sqrt(np.mean(off**2))
        largest = np.max(np.abs(off))
    return np.nan_to_num([overall, largest], nan=np.inf, posinf=np.inf)


def _subtract(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the difference; 0 where both are the same infinity, or both not a number."""
    with np.errstate(invalid="ignore"):
        is_same = (x == y) | (np.isnan(x) & np.isnan(y))
        return np.where(is_same, 0.0, x - y)


def _ratio_of(size: float, bound: float) -> float:
    """Returns how many times a bound a size is; 0 within the bound."""
    if size <= bound:
        return 0.0
    if not bound:
        return math.inf
    return float(size / bound)


def _narrowest_dtype(call: RunCall, formats: Formats) -> np.dtype:
    """Returns the narrowest floating dtype in which a program computes."""
    if formats.products is not None:
        return _TPU_DTYPE
    dtypes = {aval.dtype for aval in avals_in(call.program) if is_inexact(aval)}
    if formats.narrow is not None:
        dtypes.add(formats.narrow)
    narrowest = min(dtypes, key=lambda dtype: (bits(dtype), str(dtype)))
    # That of the parts of complex numbers.
    return {64: _DOUBLE, 32: _SINGLE}.get(bits(narrowest), narrowest)


def _narrowest_holding(numbers: np.ndarray) -> np.dtype:
    """Returns the narrowest dtype that holds all numbers of an array."""
    with np.errstate(over="ignore"):
        for dtype in _GRID_DTYPES:
            rounded = numbers.astype(dtype).astype(np.float64)
            if np.array_equal(rounded, numbers, equal_nan=True):
                return dtype
    return _DOUBLE
