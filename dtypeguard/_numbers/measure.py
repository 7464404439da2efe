"""What a program says of its lines of source: errors and shares."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.types import Leaf
from . import plans
from .integers import watched
from .nodes import Noted
from .plans import WIDE, WidthPlan
from .primitives import is_inexact, is_key, measured
from .probes import Probes
from .program import NumericProgram
from .run import run

# A number on a line is named if it causes at least this part of the error of the line.
_LEAST_PART = 0.01
# A line that causes less than this part of the error alone has no share.
_LEAST_ALONE = 0.02
# Of more lines than these, so many that follow each other are first measured together.
_FEW_LINES, _TOGETHER = 24, 8


class Inputs(NamedTuple):
    """Inputs that a program runs on.

    Attributes:
        arrays: the arrays.
        exact: the measured outputs for them in wide types.
        sizes: what the error of each is relative to; infinity where it does not count.
    """

    arrays: list[Leaf]
    exact: list[Leaf]
    sizes: list[float]

    def errors(self, made: Sequence[Leaf]) -> list[float]:
        """How far off outputs are, relative to their sizes."""
        triples = zip(made, self.exact, self.sizes)
        errors = [distance(x.astype(e.dtype), e) / size for x, e, size in triples]
        return [error if math.isfinite(error) else math.inf for error in errors]

    def off(self, made: Sequence[Leaf]) -> float:
        """How far off outputs are: the root mean square over those that count."""
        pairs = zip(self.errors(made), self.sizes)
        known = [error for error, size in pairs if size < math.inf]
        return float(np.sqrt(np.mean(np.square(known)))) if known else 0.0


class Measures:
    """What the lines of a program add to its error, with its decisions as written.

    Attributes:
        program: the program.
        lines: how many lines of source round.
        outputs: the places of the outputs that are measured: the floating ones, if there
            are any. Ints and bools are off by the share of those that differ.
        written: these outputs as written.
        raises: whether the program raised in a narrow dtype; what it gives counts as NaN.
        decisions: what it decides as written, by the number of the equation.
        watched: the equations of which more is noted there, and `notes` what that is.
        given: those that other runs follow; None if it returns ints and bools alone, or
            if wide types are finite only without, as a logarithm of a negative number.
        own: its inputs, and these outputs in wide types with these decisions; ints, and
            bools, with others.
        total: the root mean square of the errors of these outputs as written.
    """

    def __init__(self, program: NumericProgram, arrays: Sequence[Leaf]):
        self.program, self.arrays = program, [*arrays]
        self.lines = len(program.lines)
        avals = program.jaxpr.out_avals
        self.outputs = measured(avals)
        self.are_floats = any(map(is_inexact, avals))
        self.raises = False
        self.decisions, self.notes = Noted(), Noted()
        self.watched = watched(program)
        probes = Probes(self.decisions, watched=self.watched, watched_notes=self.notes)
        self._all_written = self._run_all(plans.written(program), probes)
        self.written = [self._all_written[n] for n in self.outputs]
        loses = {n: self.notes.get((n, "loses")) for n in self.watched.narrowings}
        self._lossless = [n for n, x in loses.items() if x is not None and not x.any()]
        follows = self.are_floats and not self.raises
        self.given = self.decisions if follows else None
        exact = self._outputs(())
        if follows and not all(jnp.isfinite(x).all() for x in exact):
            given, self.given = self.given, None
            pairs = [*zip(self._outputs(()), exact)]
            if any((jnp.isfinite(x) & ~jnp.isfinite(y)).any() for x, y in pairs):
                exact = [x for x, _ in pairs]
            else:
                self.given = given
        self.own = Inputs(self.arrays, exact, [size_of(x) or 1.0 for x in exact])
        self.leave_out(())

    def run(
        self,
        plan: WidthPlan,
        probes: Probes | None = None,
        arrays: Sequence[Leaf] | None = None,
        **options: Any,
    ) -> list[Leaf]:
        """The measured outputs of a run; NaN where the plan has a program raise."""
        made = self._run_all(plan, probes, arrays, **options)
        return [made[n] for n in self.outputs]

    def _run_all(
        self,
        plan: WidthPlan,
        probes: Probes | None = None,
        arrays: Sequence[Leaf] | None = None,
        **options: Any,
    ) -> list[Leaf]:
        arrays = self.arrays if arrays is None else arrays
        try:
            return run(self.program, plan, arrays, probes, **options)
        except jax.errors.JaxRuntimeError:
            # A check, such as `eqx.error_if`: only all of it wide has to run.
            if self.program.formats.narrow is None or bool((plan.entries == WIDE).all()):
                raise
            self.raises = True
            nan = lambda v: np.nan if is_inexact(v) else 0
            avals = self.program.jaxpr.out_avals
            return [jnp.full(v.shape, nan(v), v.dtype) for v in avals]

    def depends_on(self, number: int) -> bool:
        """Whether an output depends on the numbers that do not fit at an equation."""
        loops = [x.number for x in self.program.block.all_nodes() if x.rule == "while"]
        turns = {n: self.decisions[n] for n in loops if n in self.decisions}
        probes = Probes(given=turns, changed=number)
        try:
            made = run(self.program, plans.written(self.program), self.arrays, probes)
        except jax.errors.JaxRuntimeError:  # a check in the program
            return True
        pairs = zip(map(_data, made), map(_data, self._all_written))
        return not all(np.array_equal(x, y, equal_nan=is_inexact(x)) for x, y in pairs)

    def leave_out(self, numbers: Sequence[int]) -> None:
        """Counts no error of these outputs from now on."""
        for number in numbers:
            self.own.sizes[number] = math.inf
        self.total = self.own.off(self.written)
        self._errors = {frozenset(range(self.lines)): self.total}
        self._bounds = dict[int, float]()

    def is_repeatable(self) -> bool:
        """Whether the program returns the same again."""
        again = zip(self._outputs(()), self.own.exact)
        return all(bool(jnp.array_equal(x, y, equal_nan=True)) for x, y in again)

    def error(self, rounding: Iterable[int]) -> float:
        """The error of the program if these lines round and the others are wide."""
        key = frozenset(rounding)
        if key not in self._errors:
            self._errors[key] = self.own.off(self._outputs(key))
        return self._errors[key]

    def shares(self, show_status: Callable[[int], None] = lambda _: None) -> list[float]:
        """The share of each line in the squared error.

        It is the part of the error along the whole that comes as this line rounds as well,
        where the lines before it round, and those after it are wide: leaving out an early
        line would change what all later ones add. So the shares add up to 1. A line that
        causes next to nothing alone has none. Where the error is not finite, they are as
        the squares of what lines cause alone.
        """
        if self.total and self.lines > _FEW_LINES:
            for first in range(0, self.lines, _TOGETHER):
                group = range(first, min(first + _TOGETHER, self.lines))
                error = self.error(group)
                if error <= _LEAST_ALONE * self.total:
                    self._bounds |= dict.fromkeys(group, error)
        alone = []
        for number in range(self.lines if self.total else 0):
            show_status(number)
            alone.append(self.about(number))
        if not np.isfinite([self.total, *alone]).all():
            worst = max((x for x in alone if np.isfinite(x)), default=1.0) or 1.0
            squares = [min(x / worst, 1e3) ** 2 for x in alone]
            return [x / (sum(squares) or 1.0) for x in squares]
        parts, shares = {0: 0.0, self.lines: 1.0}, [0.0] * len(alone)

        def part(first: int) -> float:
            """The part of the error that the lines before one cause together."""
            if first not in parts:
                parts[first] = self._along(self._outputs(range(first)))
            return parts[first]

        for number, error in enumerate(alone):
            if error > _LEAST_ALONE * self.total:
                show_status(number)
                shares[number] = part(number + 1) - part(number)
            else:
                parts[number + 1] = parts[number]
        return shares

    def _along(self, made: Sequence[Leaf]) -> float:
        """How far outputs are off along the error, as a part of it."""
        # In units of the error, whose square may be too small for a number.
        power = 1 if self.are_floats else 0.5  # of counts
        units = [(size * self.total) ** power for size in self.own.sizes]
        along = map(_along, made, self.own.exact, self.written, units)
        return math.fsum(along) / sum(size < math.inf for size in self.own.sizes)

    def alone(self, number: int) -> float:
        """The error if only this line rounds."""
        return self.error([number])

    def about(self, number: int) -> float:
        """As `alone`, or a bound of that if it is next to nothing."""
        return self._bounds[number] if number in self._bounds else self.alone(number)

    def constant(self, number: int) -> float | None:
        """The number on a line whose rounding alone causes the most error.

        None if that is less than a hundredth of what the line causes alone.
        """
        program, errors = self.program, dict[float, float]()
        for meant in program.lines[number].constants:
            plan = plans.constant(program, number, meant)
            errors[meant] = self.own.off(self.run(plan, Probes(given=self.given)))
        most = max(errors, key=errors.__getitem__, default=None)
        is_much = most is not None and errors[most] >= _LEAST_PART * self.alone(number)
        return most if is_much else None

    def _outputs(self, rounding: Iterable[int]) -> list[Leaf]:
        plan = plans.rounding(self.program, {*rounding}, self._lossless)
        return self.run(plan, Probes(given=self.given))


def _data(array: Leaf) -> np.ndarray:
    return np.asarray(jax.random.key_data(array) if is_key(array) else array)


# So many numbers are compared at a time. They are on the host, where nothing is compiled.
_PIECE = 2**20


def size_of(x: Leaf) -> float:
    """The norm of what is finite; of ints and bools their number."""
    if not is_inexact(x):
        return float(x.size)
    return math.hypot(*(_norm(np.where(np.isfinite(x), x, 0)) for (x,) in _pieces(x)))


def distance(x: Leaf, exact: Leaf) -> float:
    """The norm of the difference; infinity where one is not finite.

    Of ints and bools, how many differ.
    """
    if not is_inexact(x):
        return float(jnp.sum(x != exact))
    found = [_off(*pair) for pair in _pieces(x, exact)]
    is_known = all(np.isfinite(off).all() for off in found)
    return math.hypot(*map(_norm, found)) if is_known else math.inf


def _along(made: Leaf, exact: Leaf, written: Leaf, unit: float) -> float:
    """How far an output is off along its error, in squares of a unit."""
    total = 0.0
    for x, true, other in _pieces(made, exact, written):
        product = np.conj(_off(other, true) / unit) * (_off(x, true) / unit)
        total += float(np.sum(product.real))
    return total


def _pieces(*arrays: Leaf) -> Iterator[list[np.ndarray]]:
    """Pieces of arrays of one shape; floats have 64 bits a number."""
    flat = [np.asarray(x).reshape(-1) for x in arrays]
    double = lambda x: x.astype(np.promote_types(x.dtype, np.float64))
    for first in range(0, flat[0].size, _PIECE):
        pieces = [x[first : first + _PIECE] for x in flat]
        with np.errstate(all="ignore"):
            yield [double(x) if is_inexact(x) else x for x in pieces]


def _norm(x: np.ndarray) -> float:
    """The norm, which overflows no earlier than the numbers."""
    sizes = np.abs(x)
    largest = float(np.max(sizes, initial=0))
    # NumPy's own norm asks BLAS, whose threads wait for each other.
    return largest * math.sqrt(np.sum(np.square(sizes / largest))) if largest else 0.0


def _off(x: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The difference, where the same infinity makes none."""
    if not is_inexact(x):
        return (x != exact).astype(np.float64)
    is_same = (x == exact) | (np.isnan(x) & np.isnan(exact))
    return np.where(is_same, 0, x - exact)
