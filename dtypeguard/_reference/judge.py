"""Whether rounding explains how a reference differs from a program.

The program runs as written, in other dtypes and in float64, on its inputs and on some that
are rounded otherwise. Those runs give the bound: as far as they take an output, rounding
explains a difference. A difference is measured as a whole, and in its largest element.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._leaves.compat import set_x64, x64_enabled
from .._leaves.dtypes import bits
from .._leaves.table import percent
from .._leaves.types import Aval, DType, Leaf
from .._numbers import plans
from .._numbers.annotation import have_few_digits
from .._numbers.arrays import in_float64, norm_of, subtract
from .._numbers.formats import DEVICES, Formats
from .._numbers.plans import WidthPlan
from .._numbers.primitives import Results, is_inexact
from .._numbers.program import NumericProgram
from .._numbers.run import run
from .._numbers.subject import Traced
from .._program.jaxprs import Arrays, value_kind
from .difference import Difference

# Up to so many times the bound, rounding explains a difference; beyond `_DIFFERS_FROM`
# times it is another computation.
_EXPLAINS = 2.0
_DIFFERS_FROM = 2.5
# A difference of less than this part of what a program or a device rounds is not of it.
_LEAST_SHARE = 0.5
# On the inputs, and on six others.
_RUNS = 7
# Numbers of the source, and sums in another order, round by so many units in the last place
# of float32; in float64, of that.
_SOURCE_UNITS = 4.0
# One in eight numbers moves up, and as many down: the variance is that of half a unit.
_STEPS = (-1.0, 0, 0, 0, 0, 0, 0, 1)
_TPU_DTYPE = jnp.dtype("bfloat16")
_SINGLE_DTYPE = np.dtype("float32")
_DOUBLE_DTYPE = np.dtype("float64")
_HALF_DTYPE = np.dtype("float16")
_GRID_DTYPES = (_TPU_DTYPE, _HALF_DTYPE, _SINGLE_DTYPE)
# An H100 computes as an A100 does; neither rounds small products, but by request.
_JUDGED_DEVICES = ("tpu", "a100", "tensorfloat32")
IN_FLOAT64 = Formats(_DOUBLE_DTYPE)


class Bound(NamedTuple):
    """How far rounding in some precision takes the outputs of a program.

    Attributes:
        dtype: the dtype whose rounding it is.
        most: for each output, the greatest size that a run gave, as a whole and of the
            largest element.
        least: for each, the least sizes.
    """

    dtype: np.dtype
    most: np.ndarray
    least: np.ndarray

    def explains(self, n: int) -> float:
        """Returns up to which size rounding explains a difference in an output."""
        overall, _ = self.most[n]
        return _EXPLAINS * overall


class Judge:
    """Judges references of a program by how far rounding takes its outputs.

    Attributes:
        arrays: the arguments of the program.
        outputs: the outputs as written.
        truth: the outputs in float64.

    Args:
        traced: the program.
        arrays: its arguments.
        formats: the dtypes in which it computes.
    """

    def __init__(self, traced: Traced, arrays: Arrays, formats: Formats):
        self.arrays = arrays
        self._traced = traced
        self._formats = formats
        self._narrow = _narrowest_dtype(traced.avals, formats)
        self._is_short = bits(self._narrow) < 32
        self._shows_in = "float64"
        if self._is_short:
            self._shows_in = "float32"
        # Whatever was compiled for some dtypes is used again.
        self._runner = functools.cache(self._runner_of)
        self._bound = functools.cache(self._measure_bound)
        self._run_wide = self._runner(IN_FLOAT64, plans.wide)
        self.outputs = self._runner(formats)(arrays)
        self.truth = self._run_wide(arrays)

    def numeric(self, formats: Formats) -> NumericProgram:
        """Returns the program in some dtypes."""
        traced = self._traced
        return NumericProgram(traced.program, formats, traced.traces, is_judged=True)

    # What rounding gives

    def _runner_of(
        self,
        formats: Formats,
        plan_of: Callable[[NumericProgram], WidthPlan] = plans.written,
    ) -> Callable[[Arrays], Results]:
        """Returns what runs the program in some dtypes."""
        # JAX has no float64 without the flag, and a program traced with it runs with it.
        is_x64 = x64_enabled() or formats.wide == _DOUBLE_DTYPE
        program = self.numeric(formats)
        plan = plan_of(program)

        def run_on(arrays):
            with set_x64(is_x64):
                outputs = run(program, plan, arrays)
                return list(map(_as_numbers, outputs))

        return run_on

    @property
    def _written(self) -> Bound:
        """How far rounding takes the program as it is."""
        return self._bound(self._formats)

    def _bound_in(self, dtype: np.dtype) -> Bound:
        """Returns how far rounding takes the program where it computes in a dtype."""
        formats = Formats(self._formats.wide, dtype)
        return self._bound(formats)

    def _measure_bound(self, formats: Formats) -> Bound:
        """Runs the program in some dtypes and in float64, on inputs rounded otherwise."""
        is_device = formats.products is not None
        dtype = formats.narrow or self._narrow
        # A device rounds nothing of the source.
        samples = [self._sizes_of_source(dtype)]
        if is_device:
            dtype = _TPU_DTYPE
        run_narrow = self._runner(formats)
        if bits(dtype) > bits(self._narrow):  # to be at most so wide changes nothing
            all_in_dtype = Formats(dtype)
            run_narrow = self._runner(all_in_dtype, plans.wide)
        # Each run on inputs of its own is one more sample of what rounding gives.
        rounded = []
        for seed in range(_RUNS):
            arrays = self.arrays
            if seed > 0:
                arrays = _perturb(arrays, dtype, seed)
            wide_outputs = self._run_wide(arrays)
            sizes = _sizes(run_narrow(arrays), wide_outputs)
            rounded.append(sizes)
            if not is_device:  # it rounds products, and not its inputs
                sizes = _sizes(self.truth, wide_outputs)
                samples.append(sizes)
        samples.extend(rounded)
        most = np.max(samples, axis=0)
        least = np.min(rounded, axis=0)
        return Bound(dtype, most, least)

    def _sizes_of_source(self, dtype: np.dtype) -> np.ndarray:
        """Returns how far numbers of the source, in a dtype, take each output."""
        eps = min(_eps(dtype), _eps(_SINGLE_DTYPE))
        moved = []
        for output in self.truth:
            # Integers have no digits to lose.
            if is_inexact(output):
                output = output * (1 + _SOURCE_UNITS * eps)
            moved.append(output)
        return _sizes(self.truth, moved)

    # Verdicts

    def judge_array(self, n: int, reference: np.ndarray) -> Difference:
        """Returns the verdict on a reference of an output, by its number."""
        array = _as_numbers(reference)
        ratio = self._ratio(self._written, n, array)
        # The rounding of the program itself may hide as much.
        is_hidden = ratio <= _EXPLAINS and is_inexact(self.truth[n])
        dtypes = {_narrowest_holding(array)}
        # A reference of a bfloat16 model is often computed in float32, on another machine.
        if self._is_short:
            dtypes.add(_SINGLE_DTYPE)
        for dtype in dtypes - {self._narrow, _DOUBLE_DTYPE}:
            if ratio > _EXPLAINS:
                bound = self._bound_in(dtype)
                ratio_in_dtype = self._ratio(bound, n, array)
                ratio = min(ratio, ratio_in_dtype)
        output = self.outputs[n]
        difference = self._difference(n, output, array, ratio)
        if is_hidden:
            return difference._replace(shows_in=self._shows_in)
        if difference.verdict == "differs":
            reason = self._reason_of_device(n, array)
            return difference._replace(reason=reason)
        return difference

    def judge_function(self, n: int, reference: "Judge") -> tuple[Difference, float]:
        """Returns the verdict on another function, and how far it is off in float64."""
        bound = self._written
        if self._is_short:
            bound = self._bound_in(_SINGLE_DTYPE)
        truth = reference.truth[n]
        own_truth = self.truth[n]
        distance, _ = _size(own_truth, truth)
        apart = self._relative(n, distance, own_truth)
        ratio = self._ratio(bound, n, truth)
        output = self.outputs[n]
        other_output = reference.outputs[n]
        difference = self._difference(n, output, other_output, ratio)
        explains = bound.explains(n)
        # Where the program itself rounds as much, its own figures do not tell.
        is_hidden = explains < distance <= self._written.explains(n)
        if is_hidden and difference.verdict != "rounding":
            explained = self._relative(n, explains, own_truth)
            reason = (
                f"in float64 they are {percent(apart)} apart, where rounding in float32 "
                f"explains {percent(explained)}"
            )
            difference = difference._replace(reason=reason, shows_in=self._shows_in)
        return difference, apart

    def _reason_of_device(self, n: int, array: np.ndarray) -> str:
        """Returns a sentence on a device whose products explain a reference; or ""."""
        if self._formats.products is not None:
            return ""
        for device in _JUDGED_DEVICES:
            formats = Formats(_SINGLE_DTYPE, products=device)
            bound = self._bound(formats)
            if self._ratio(bound, n, array) <= _EXPLAINS:
                name = DEVICES.get(device, device)
                return (
                    f"the products of {name} would explain it: if that computed the "
                    f'reference, give matmul_precision="{device}"'
                )
        return ""

    @np.errstate(all="ignore")
    def _ratio(self, bound: Bound, n: int, array: np.ndarray) -> float:
        """Returns how many times the bound a difference is, or its largest element."""
        size = _size(self.truth[n], array)
        overall, _ = size
        least, _ = _LEAST_SHARE * bound.least[n]
        # Whoever computes in 16 bits is off by more than that: they explain nothing.
        own_dtype = _narrowest_holding(array)
        is_wider = bits(bound.dtype) < 32 <= bits(own_dtype)
        if overall < least and is_wider:
            return _DIFFERS_FROM
        ratios = size / bound.most[n]
        # 0 is within a bound of 0, and infinity within one of infinity: that is no number,
        # which `fmax` leaves out.
        ratio = np.fmax.reduce(ratios, initial=0.0)
        return float(ratio)

    # Figures

    def _relative(self, n: int, size: float, reference: np.ndarray) -> float:
        """Returns a size beside that of a reference, or of the output if that is zeros.

        Of integers it is a share of them.
        """
        output = self.truth[n]
        if not is_inexact(output):  # the mean of squares that are 0 or 1
            return float(size**2)
        # Nothing is relative to zeros.
        norm = _norm(reference) or _norm(output) or 1.0
        return float(size / norm)

    def _difference(
        self, n: int, output: np.ndarray, reference: np.ndarray, ratio: float
    ) -> Difference:
        """Returns the verdict of a ratio, with the figures of the output as written."""
        verdict = "differs"
        shows_in = None
        if ratio <= _EXPLAINS:
            verdict = "rounding"
        elif ratio <= _DIFFERS_FROM:
            verdict = "undecidable"
            shows_in = self._shows_in
        error, _ = _size(output, reference)
        explained = self._written.explains(n)
        difference = Difference(
            output=self._traced.outputs[n],
            error=self._relative(n, error, reference),
            rounding=self._relative(n, explained, reference),
            verdict=verdict,
            shows_in=shows_in,
        )
        if not error:
            return difference
        off = subtract(output, reference)
        sizes = abs(off)
        largest = np.argmax(sizes)
        indices = np.unravel_index(largest, sizes.shape)
        at = tuple(map(int, indices))
        return difference._replace(
            at=at,
            program=float(output[at]),
            reference=float(reference[at]),
        )


def _perturb(arrays: Arrays, dtype: DType, seed: int) -> Results:
    """Moves some numbers of the inputs by a unit in the last place, up or down."""
    # With a fixed seed a verdict is the same each time.
    random = np.random.default_rng(seed)
    eps = _eps(dtype)
    perturbed: Results = []
    for array in arrays:
        if not is_inexact(array):
            perturbed.append(array)
            continue
        wide = in_float64(array)
        numbers = wide.ravel().view(float)
        steps = random.choice(_STEPS, numbers.shape)
        # What a source has with few digits, and an integer, was not rounded.
        is_exact = have_few_digits(numbers)
        is_exact |= numbers == np.round(numbers)
        steps[is_exact] = 0.0
        factors = 1 + eps * steps
        moved = numbers * factors
        moved = moved.view(wide.dtype)
        moved = moved.reshape(array.shape)
        # In a narrower dtype it would be rounded back.
        moved_dtype = max(array.dtype, dtype, key=bits)
        moved = moved.astype(moved_dtype)
        perturbed.append(moved)
    return perturbed


def _as_numbers(array: Leaf) -> np.ndarray:
    """Returns floats in float64, complex ones with an axis more; none of random keys."""
    if value_kind(array) is None:
        return np.zeros(0)
    if not is_inexact(array):
        return np.asarray(array)
    numbers = in_float64(array)
    if np.iscomplexobj(numbers):
        numbers = numbers[..., np.newaxis]
        return numbers.view(float)
    return numbers


def _sizes(outputs: Arrays, expected: Arrays) -> np.ndarray:
    """Returns how far outputs are apart, a row for each."""
    rows = map(_size, outputs, expected)
    return np.array(list(rows))


@np.errstate(all="ignore")
def _size(array: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Returns the root mean square of a difference, and its largest element."""
    if not array.size:
        return np.zeros(2)
    # Integers that are not equal are 1 apart.
    off = subtract(array, expected)
    overall = norm_of(off) / math.sqrt(off.size)
    largest = np.max(abs(off))
    sizes = [overall, largest]
    return np.nan_to_num(sizes, nan=np.inf, posinf=np.inf)


def _norm(array: np.ndarray) -> float:
    """Returns the root mean square of the finite numbers."""
    zeros = np.zeros_like(array)
    finite_array = np.nan_to_num(array, posinf=0.0, neginf=0.0)
    norm, _ = _size(finite_array, zeros)
    return norm


def _eps(dtype: np.dtype) -> float:
    return float(jnp.finfo(dtype).eps)


def _narrowest_dtype(avals: Iterable[Aval], formats: Formats) -> np.dtype:
    """Returns the narrowest floating dtype in which a program computes."""
    if formats.products is not None:
        return _TPU_DTYPE
    dtypes = [formats.narrow or _DOUBLE_DTYPE]
    for aval in avals:
        if is_inexact(aval):
            # Of a complex number, that of its parts.
            info = jnp.finfo(aval.dtype)
            dtypes.append(info.dtype)
    # Of bfloat16 and float16, that with the coarser steps.
    return max(dtypes, key=_eps)


@np.errstate(over="ignore")
def _narrowest_holding(numbers: np.ndarray) -> np.dtype:
    """Returns the narrowest dtype that holds all numbers of an array."""
    for dtype in _GRID_DTYPES:
        rounded = numbers.astype(dtype).astype(float)
        if np.array_equal(rounded, numbers, equal_nan=True):
            return dtype
    return _DOUBLE_DTYPE
