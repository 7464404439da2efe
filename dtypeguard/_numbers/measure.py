"""What a program says of its lines of source: errors and shares."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits
from .._leaves.norm import scaled_norm
from .._leaves.types import Leaf
from . import plans
from .plans import Plan
from .primitives import is_inexact, measured
from .probes import Kept
from .program import Program
from .run import Noted, Probes, run

# A number on a line is named if it causes at least this part of the error of the line.
_LEAST_PART = 0.01
# A line that causes less than this part of the error alone has no share.
_LEAST_ALONE = 0.02


class Measures:
    """What the lines of a program add to its error, with its decisions as written.

    Attributes:
        program: the program.
        arrays: its inputs.
        lines: how many lines of source round.
        outputs: the places of the outputs that are measured: the floating ones, if there
            are any. Ints and bools are off by the share of those that differ.
        written: these outputs as written.
        decisions: what it decides as written, by the number of the equation.
        exact: these outputs in wide types with these decisions; ints, and bools, with
            others.
        by_output: the error of each of them as written, relative to its norm.
        total: the root mean square of these.

    Args:
        program: the program.
        arrays: its inputs.
    """

    def __init__(self, program: Program, arrays: Sequence[Leaf]):
        self.program, self.arrays = program, list(arrays)
        self.lines = len(program.lines)
        avals = program.jaxpr.out_avals
        self.outputs = measured(avals)
        self.are_floats = any(map(is_inexact, avals))
        self.decisions: Noted = Kept()
        self.written = self.run(plans.written(program), Probes(decisions=self.decisions))
        self.exact = self._outputs(())
        self._norms = [size_of(x) or 1.0 for x in self.exact]
        self.leave_out(())

    def run(
        self,
        plan: Plan,
        probes: Probes | None = None,
        arrays: Sequence[Leaf] | None = None,
        **options: Any,
    ) -> list[Leaf]:
        """The outputs of a run by a plan."""
        arrays = self.arrays if arrays is None else arrays
        made = run(self.program, plan, arrays, probes, **options)
        return [made[n] for n in self.outputs]

    def leave_out(self, numbers: Sequence[int]) -> None:
        """Counts no error of these outputs from now on."""
        for number in numbers:
            self._norms[number] = math.inf
        self.by_output = self._distances(self.written)
        self.total = self._mean(self.by_output)
        self._errors = {frozenset(range(self.lines)): self.total}

    def is_repeatable(self) -> bool:
        """Whether the program returns the same again."""
        again = zip(self._outputs(()), self.exact)
        return all(bool(jnp.array_equal(x, y, equal_nan=True)) for x, y in again)

    def error(self, rounding: Iterable[int]) -> float:
        """The error of the program if these lines round and the others are wide."""
        key = frozenset(rounding)
        if key not in self._errors:
            self._errors[key] = self._mean(self._distances(self._outputs(key)))
        return self._errors[key]

    def shares(self, show_status: Callable[[int], None] = lambda _: None) -> list[float]:
        """The share of each line in the squared error.

        It is the part of the error along the whole that comes as this line rounds as well,
        where the lines before it round, and those after it are wide. So the shares add up
        to 1. After other roundings a line rounds otherwise: leaving out an early line would
        change what all later ones add, and give it their shares as well. A line that causes
        next to nothing alone has none.

        Where the error is not finite, they are as the squares of what lines cause alone.

        Args:
            show_status: called with the number of each line.
        """
        alone = []
        for number in range(self.lines if self.total else 0):
            show_status(number)
            alone.append(self.alone(number))
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
                shares[number] = part(number + 1) - part(number)
            else:
                parts[number + 1] = parts[number]
        return shares

    def _along(self, made: Sequence[Leaf]) -> float:
        """How far outputs are off along the error, as a part of it."""
        # In units of the error, whose square may be too small for a number.
        power = 1 if self.are_floats else 0.5  # of counts
        units = [(norm * self.total) ** power for norm in self._norms]
        along = [*map(_along, made, self.exact, self.written, units)]
        return float(np.sum([float(x) for x in along])) / self._counted

    @property
    def _counted(self) -> int:
        """How many outputs count."""
        return sum(norm < math.inf for norm in self._norms)

    def alone(self, number: int) -> float:
        """The error if only this line rounds."""
        return self.error([number])

    def backward(self, number: int) -> float:
        """The share of what a line causes alone that its backward pass does, squared."""
        if not self.program.lines[number].is_backward:
            return 0.0
        plan = plans.rounding(self.program, [number], is_backward=True)
        error, whole = self._error_of(plan), self.alone(number)
        is_known = math.isfinite(error) and math.isfinite(whole) and whole > 0
        return min((error / whole) ** 2, 1.0) if is_known else math.nan

    def constant(self, number: int) -> float | None:
        """The number on a line whose rounding alone causes the most error.

        None if that is less than a hundredth of what the line causes alone.
        """
        program = self.program
        mine = [meant for line, meant in program.constants if line == number]
        errors = {x: self._error_of(plans.constant(program, number, x)) for x in mine}
        most = max(errors, key=errors.__getitem__, default=None)
        is_much = most is not None and errors[most] >= _LEAST_PART * self.alone(number)
        return most if is_much else None

    def _outputs(self, rounding: Iterable[int]) -> list[Leaf]:
        return self._following(plans.rounding(self.program, {*rounding}))

    def _following(self, plan: Plan) -> list[Leaf]:
        """The outputs of a plan with the decisions as written, unless they are these."""
        return self.run(plan, Probes(given=self.decisions if self.are_floats else None))

    def _error_of(self, plan: Plan) -> float:
        return self._mean(self._distances(self._following(plan)))

    def _distances(self, made: Sequence[Leaf]) -> list[float]:
        pairs = zip(made, self.exact, self._norms)
        found = [distance(x, e) / norm for x, e, norm in pairs]
        return [error if np.isfinite(error) else np.inf for error in found]

    def _mean(self, errors: Sequence[float]) -> float:
        """The root mean square of the errors of the outputs that count."""
        known = [e for e, norm in zip(errors, self._norms) if norm < math.inf]
        return float(np.sqrt(np.mean(np.square(known)))) if known else 0.0


@jax.jit
def _norm(x: Leaf) -> tuple[jax.Array, jax.Array]:
    """The norm of what is finite, as two factors."""
    x = _at_least_single(x)
    return scaled_norm(jnp.abs(jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x))))


@jax.jit
def _distance(x: Leaf, exact: Leaf) -> tuple[jax.Array, jax.Array]:
    off = _off(x, exact)
    scale, root = _norm(off)
    return scale, jnp.where(jnp.isfinite(off).all(), root, jnp.inf)


def size_of(x: Leaf) -> float:
    """The norm of what is finite; of ints and bools their number."""
    return float(x.size) if not is_inexact(x) else _product(_norm(x))


def distance(x: Leaf, exact: Leaf) -> float:
    """The norm of the difference; infinity where one is not finite.

    Of ints and bools, how many differ.
    """
    if not is_inexact(x):
        return float(jnp.sum(x != exact))
    return _product(_distance(x, exact))


def _product(factors: tuple[jax.Array, jax.Array]) -> float:
    """As a Python float: in float32 the norm of large outputs overflows."""
    scale, root = map(float, factors)
    return scale * root


@jax.jit
def _along(made: Leaf, exact: Leaf, written: Leaf, unit: float) -> Leaf:
    """How far an output is off along its error, in squares of a unit."""
    off = _off(made, exact) / unit
    return jnp.sum(jnp.real(jnp.conj(_off(written, exact) / unit) * off))


def _off(x: Leaf, exact: Leaf) -> Leaf:
    """The difference, where the same infinity makes none."""
    if not is_inexact(x):
        return (x != exact).astype(np.float32)
    x, exact = _at_least_single(x), _at_least_single(exact)
    x = x.astype(np.promote_types(x.dtype, exact.dtype))  # under strict promotion as well
    exact = exact.astype(x.dtype)
    is_same = (x == exact) | (jnp.isnan(x) & jnp.isnan(exact))
    return jnp.where(is_same, jnp.zeros_like(x), x - exact)


def _at_least_single(x: Leaf) -> Leaf:
    return x.astype(np.float32) if bits(x.dtype) < 32 else x
