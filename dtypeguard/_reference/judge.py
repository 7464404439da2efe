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
from .._numbers.constants import have_few_digits
from .._numbers.formats import DEVICES, Formats, products_named
from .._numbers.plans import WidthPlan
from .._numbers.primitives import is_inexact
from .._numbers.program import NumericProgram
from .._numbers.run import run
from .._numbers.subject import avals_in
from .._program.aligned import NO_TRACES, SecondTraces
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

    @property
    def in_float32(self) -> "RunCall | None":
        """The function traced with float32 for its narrower inputs.

        None if it has none, or does not trace so.
        """
        wide_program = self.traces.wide.second
        if wide_program is None or wide_program is self.program:
            return None
        shapes = [aval.shape for aval in self.program.out_avals]
        if [aval.shape for aval in wide_program.out_avals] != shapes:
            return None
        arrays = [_widen(array, _SINGLE) for array in self.arrays]
        return RunCall(wide_program, NO_TRACES, arrays)


class Bound(NamedTuple):
    """How far rounding in some precision takes the outputs of a program.

    Attributes:
        dtype: the dtype whose rounding it is.
        outputs: the outputs in this precision.
        most: for each output, the greatest size that a run gave, as a whole and of the
            largest element.
        least: for each, the least sizes.
    """

    dtype: np.dtype
    outputs: list[np.ndarray]
    most: np.ndarray
    least: np.ndarray


class Judge:
    """Judges references of a program by how far rounding takes its outputs.

    Args:
        call: the program.
        paths: of its outputs.
        formats: the dtypes in which it computes.
    """

    def __init__(self, call: RunCall, paths: Sequence[str], formats: Formats):
        self.call = call
        self._paths = paths
        self._formats = formats
        self._is_exact = [not is_inexact(aval) for aval in call.program.out_avals]
        self._narrow = _narrowest_dtype(call, formats)
        self._bound = functools.cache(self._measure_bound)
        self._run_wide = _runner(call)

    @functools.cached_property
    def truth(self) -> list[np.ndarray]:
        """The outputs in float64."""
        return self._run_wide()

    @functools.cached_property
    def _norms(self) -> np.ndarray:
        """The sizes of the outputs in float64; 0 of exact ones."""
        norms: list[np.ndarray] = []
        for output, is_exact in zip(self.truth, self._is_exact):
            norms.append(np.zeros(2) if is_exact else _sizes_of_difference(_finite(output)))
        return np.array(norms)

    @functools.cached_property
    def _in_float32(self) -> "Judge | None":
        """The judge of the function traced in float32, if the program is narrower."""
        call = self.call.in_float32
        if call is None or bits(self._narrow) >= 32:
            return None
        return Judge(call, self._paths, IN_FLOAT64)

    @property
    def written(self) -> Bound:
        """How far rounding takes the program as it is."""
        return self._bound(self._formats)

    def _measure_bound(self, formats: Formats) -> Bound:
        """Runs the program in some dtypes and in float64, on inputs rounded otherwise."""
        is_device = formats.products is not None
        dtype = _TPU_DTYPE if is_device else formats.narrow or self._narrow
        arrays = self.call.arrays
        run_narrow = _runner(self.call, formats, plans.written)
        if bits(dtype) > bits(self._narrow):  # to be at most so wide changes nothing
            run_narrow = _runner(self.call, Formats(dtype))
            arrays = [_widen(x, dtype) for x in arrays]
        outputs = run_narrow()
        # Each run on inputs of its own is one more sample of what rounding gives.
        sizes = [self._sizes(outputs, self.truth)]
        for seed in range(_PERTURBED_RUNS):
            perturbed = _perturb(arrays, _eps(dtype), seed)
            wide_outputs = self._run_wide(perturbed)
            sizes.append(self._sizes(run_narrow(perturbed), wide_outputs))
            if not is_device:  # a device rounds products, and not its inputs
                sizes.append(self._sizes(wide_outputs, self.truth))
        most = np.max([*sizes, self._sizes_of_source(dtype)], axis=0)
        return Bound(dtype, outputs, most, np.min(sizes, axis=0))

    def _sizes(
        self, outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Returns how far outputs are apart, a row for each."""
        rows: list[np.ndarray] = []
        for output, array, is_exact in zip(outputs, expected, self._is_exact):
            rows.append(_sizes_of_difference(_subtract(output, array), is_exact))
        return np.array(rows)

    def _sizes_of_source(self, dtype: np.dtype) -> np.ndarray:
        """Returns how far numbers of the source, in a dtype, take each output."""
        return _SOURCE_UNITS * min(_eps(dtype), _eps(_SINGLE)) * self._norms

    # Verdicts

    def judge_array(self, n: int, reference: np.ndarray) -> Difference:
        """Returns the verdict on the reference of an output."""
        array = _as_float64(reference)
        lowest_ratio = math.inf
        for formats in self._precisions(array):
            ratio = self._ratio(self._bound(formats), n, array)
            if ratio <= _EXPLAINS:
                may_hide = formats == self._formats and not self._is_exact[n]
                return self._difference(n, array, ratio, may_hide=may_hide)
            lowest_ratio = min(lowest_ratio, ratio)
        if self._is_rounding_in_float32(n, reference):
            lowest_ratio = 0.0
        return self._difference(n, array, lowest_ratio)

    def _is_rounding_in_float32(self, n: int, reference: np.ndarray) -> bool:
        """Returns whether rounding explains a reference of the function in float32."""
        single = self._in_float32
        if single is None:
            return False
        # The function may take another way there: then it says nothing of this program.
        if self._distance(n, single.truth[n]) > _EXPLAINS * self.written.most[n, 0]:
            return False
        return single.judge_array(n, reference).verdict == "rounding"

    def judge_function(self, n: int, reference: "Judge") -> Difference:
        """Returns the verdict on another function, which runs in float64 as well."""
        size = self._distance(n, reference.truth[n])
        own_bound = self.written.most[n, 0]
        bound = own_bound
        if not self._is_exact[n]:
            # In proportion, what rounding to float32 would give.
            in_float32 = min(1.0, _eps(_SINGLE) / _eps(self._narrow)) * own_bound
            source = self._sizes_of_source(self._narrow)[:, 0]
            bound = max(in_float32, source[n], _SMALL_OUTPUT * max(source))
        ratio = _ratio_of(size, bound)
        reason = ""
        is_hidden = bool(ratio > _EXPLAINS and size <= _EXPLAINS * own_bound)
        if is_hidden:
            apart = percent(self._relative(n, size, self.truth[n]))
            explained = percent(self._relative(n, _EXPLAINS * bound, self.truth[n]))
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
        for device in _JUDGED_DEVICES:
            formats = Formats(_SINGLE, is_own=True, products=products_named(device))
            ratio = self._ratio(self._bound(formats), n, _as_float64(reference))
            if ratio <= _EXPLAINS:
                return (
                    f"the products of {DEVICES.get(device, device)} would explain it: if "
                    f'that computed the reference, give matmul_precision="{device}"'
                )
        return ""

    def _precisions(self, reference: np.ndarray) -> list[Formats]:
        """Returns those in which a reference may be computed, the program's own first."""
        dtypes = [_narrowest_holding(reference)]
        # A reference of a bfloat16 model is often computed in float32, on another machine.
        if bits(self._narrow) < 32:
            dtypes.append(_SINGLE)
        precisions = [self._formats]
        for dtype in dtypes:
            formats = Formats(self._formats.wide, dtype)
            if dtype not in (_DOUBLE, self._narrow) and formats not in precisions:
                precisions.append(formats)
        return precisions

    def _ratio(self, bound: Bound, n: int, reference: np.ndarray) -> float:
        """Returns how many times the bound a difference is, or its largest element."""
        most = bound.most[n]
        if self._is_exact[n]:  # a share of few elements varies by chance
            most = most + (most / max(reference.size, 1)) ** 0.5
        off = _subtract(reference, self.truth[n])
        overall, largest = _sizes_of_difference(off, self._is_exact[n])
        # Whoever computes in 16 bits is off by more than that: they explain nothing.
        is_below = overall < _LEAST_SHARE * bound.least[n, 0] and not self._is_exact[n]
        if is_below and bits(bound.dtype) < 32 <= bits(_narrowest_holding(reference)):
            return _DIFFERS_FROM
        return max(_ratio_of(overall, most[0]), _ratio_of(largest, most[1]))

    # Figures

    def _distance(self, n: int, array: np.ndarray) -> float:
        """Returns how far an array is from an output in float64, as a whole."""
        off = _subtract(array, self.truth[n])
        return _sizes_of_difference(off, self._is_exact[n])[0]

    def _relative(self, n: int, size: float, reference: np.ndarray) -> float:
        """Returns a size beside that of a reference, or of the output; a share as it is."""
        if self._is_exact[n]:
            return float(size)
        norm = _sizes_of_difference(_finite(reference))[0] or self._norms[n, 0]
        # Nothing is relative to an output of zeros.
        return float(size / (norm or 1.0))

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
        output = self.written.outputs[n]
        off = np.abs(_subtract(output, reference))
        error = _sizes_of_difference(off, self._is_exact[n])[0]
        difference = Difference(
            output=self._paths[n],
            error=self._relative(n, error, reference),
            rounding=self._relative(n, _EXPLAINS * self.written.most[n, 0], reference),
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
) -> Callable[..., list[np.ndarray]]:
    """Returns what runs a program in some dtypes, by default on the inputs of the call."""
    # JAX has no float64 without the flag, and a program traced with it runs with it.
    is_x64 = x64_enabled() or formats.wide == _DOUBLE
    program = NumericProgram(call.program, formats, call.traces, is_judged=True)
    plan = plan_of(program)

    def run_on(arrays: Sequence[Leaf] = call.arrays) -> list[np.ndarray]:
        with set_x64(is_x64):
            inputs = [jnp.asarray(x, x.dtype) for x in arrays]
            return [_as_float64(x) for x in run(program, plan, inputs)]

    return run_on


def _widen(array: Leaf, dtype: DType) -> Leaf:
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
    # What a source has with few digits, and an integer, was not rounded.
    stays = have_few_digits(numbers) | (numbers == np.round(numbers))
    steps = np.where(stays, 0.0, random.choice(_STEPS, numbers.shape))
    moved = numbers * (1 + eps * steps)
    return moved.view(wide.dtype).reshape(array.shape).astype(array.dtype)


def _as_float64(array: Leaf) -> np.ndarray:
    """Returns an array in float64, a complex one with an axis more; none of random keys."""
    family = kind(getattr(array, "dtype", None))
    if family is None:
        return np.zeros(0)
    array = np.asarray(array)
    if family == "complex":
        array = np.stack([array.real, array.imag], -1)
    return array.astype(np.float64)


def _sizes_of_difference(off: np.ndarray, is_exact: bool = False) -> np.ndarray:
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


def _finite(array: np.ndarray) -> np.ndarray:
    """Returns an array with 0 for what is not finite."""
    return np.where(np.isfinite(array), array, 0.0)


def _eps(dtype: np.dtype) -> float:
    return float(jnp.finfo(dtype).eps)


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
