"""Runs a program with some lines rounding: the errors and the shares of its lines."""

import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._program.jaxprs import Arrays
from . import plans
from .arrays import distance, part_along, size_of
from .host import ON_HOST
from .integers import Watched
from .plans import WIDE, WidthPlan
from .primitives import Noted, Results, is_inexact, is_key, measured
from .probes import Probes
from .program import NumericProgram
from .run import run

# A line that causes less than this part of the error alone has no share.
_LEAST_ALONE = 0.02
# Programs of no more equations run one by one as fast as XLA compiles them. So do those
# that repeat theirs: it compiles so many of a program as soon as one by itself.
_FEW_EQUATIONS = 200
_EQUATIONS_COMPILED_AT_ONCE = 10
# What a check in a program raises: JAX's error has no public name before JAX 0.5. That of
# `eqx.error_if` leaves a jitted function as a ValueError once a call of the function has
# gone well (JAX 0.10 and 0.12).
RAISED_BY_CHECKS = (RuntimeError, ValueError)
# So many lines that follow each other are first measured together.
_LINES_IN_GROUP = 8
# Is told of a line that is measured next.
_ShowStatus = Callable[[int], None]
# What an error that is not finite counts as beside others.
LARGEST_ERROR = 1e6


class Inputs(NamedTuple):
    """Inputs that a program runs on.

    Attributes:
        arrays: the arrays.
        exact: the measured outputs for them in wide types.
        sizes: what the error of each is relative to; infinity where it does not count.
    """

    arrays: Arrays
    exact: Results
    sizes: list[float]

    def errors(self, outputs: Arrays) -> list[float]:
        """Returns how far off outputs are, relative to their sizes."""
        errors = []
        for output, exact, size in zip(outputs, self.exact, self.sizes):
            off = distance(output, exact)
            errors.append(off / size)
        return errors

    def off(self, outputs: Arrays) -> float:
        """Returns how far off outputs are: the root mean square over those that count."""
        errors = np.array(self.errors(outputs))
        counted = errors[np.isfinite(self.sizes)]
        mean_square = np.mean(counted**2)
        return math.sqrt(mean_square)


class Measures:
    """What the lines of a program add to its error, with its decisions as written.

    Attributes:
        program: the program.
        lines: how many lines of source round.
        outputs: the places of the outputs that are measured: the floating ones, if there
            are any. Ints and bools are off by the share of those that differ.
        written: these outputs as written.
        raises: whether the program raised in a narrow dtype; what it gives counts as NaN.
        shares: the share of each line in the squared error, as far as it was measured.
        notes: what is noted as written: decisions, and what `Watched` says.
        given: those whose decisions other runs follow; none if it returns ints and bools
            alone, or if wide types are finite only without, as a logarithm of a negative
            number.
        left_out: the outputs whose errors do not count.
    """

    def __init__(self, program: NumericProgram, arrays: Arrays):
        self.program = program
        self.arrays = list(arrays)
        self.lines = len(program.lines)
        avals = program.jaxpr.out_avals
        self.outputs = measured(avals)
        self.are_floats = any(map(is_inexact, avals))
        self.raises = False
        watched = Watched(program)
        probes = Probes(watched.notes)
        self.notes = probes.noted
        plan = plans.written(program)
        self._all_written = self._run_all(plan, probes, is_compiled=True)
        self.written = []
        for number in self.outputs:
            self.written.append(self._all_written[number])
        for node in program.block.all_nodes():
            loses = self.notes.get((node.number, "loses"), True)
            # No line is to blame for a conversion of numbers that fit.
            if not np.any(loses):
                node.rounds = False
        self.given = Noted()
        self.left_out: Sequence[int] = ()
        self.shares: dict[int, float] = {}
        self._alone: dict[int, float] = {}
        self._part_of_first = functools.cache(self._measure_part)

    def before_run(self) -> None:
        """Is called before each run equation by equation; another one may stop it."""

    @functools.cached_property
    def own(self) -> Inputs:
        """Its inputs, and its outputs in wide types with these decisions."""
        return self.inputs(self.arrays, self._exact)

    def inputs(self, arrays: Arrays, exact: Results) -> Inputs:
        """Returns inputs with the measured outputs for them in wide types."""
        # An output of zeros has no norm that an error could be relative to.
        sizes = []
        for array in exact:
            size = size_of(array)
            sizes.append(size or 1.0)
        for number in self.left_out:
            sizes[number] = math.inf
        return Inputs(arrays, exact, sizes)

    @functools.cached_property
    def total(self) -> float:
        """The root mean square of the errors of these outputs as written."""
        return self.own.off(self.written)

    @functools.cached_property
    def _exact(self) -> Results:
        """The outputs in wide types; sets which decisions runs follow."""
        # Errors of a line are compared at the same decisions: one flipped comparison would
        # hide all roundings.
        if self.are_floats and not self.raises:
            self.given = self.notes
        exact = self._outputs(())
        if all(np.isfinite(array).all() for array in exact):
            return exact
        given = self.given
        self.given = Noted()
        undecided = self._outputs(())
        for array, exact_array in zip(undecided, exact):
            # Wide numbers may not fit decisions that were made on rounded ones.
            if np.any(np.isfinite(array) > np.isfinite(exact_array)):
                return undecided
        # A mask is infinite without them as well.
        self.given = given
        return exact

    def run(
        self,
        plan: WidthPlan,
        probes: Probes | None = None,
        **options: Any,
    ) -> Results:
        """Returns the measured outputs of a run; NaN where the plan has it raise."""
        outputs = self._run_all(plan, probes, **options)
        return [outputs[number] for number in self.outputs]

    def _run_all(
        self,
        plan: WidthPlan,
        probes: Probes | None,
        arrays: Arrays | None = None,
        is_compiled: bool = False,
        **options: Any,
    ) -> Results:
        if arrays is None:
            arrays = self.arrays
        program = self.program
        try:
            is_compiled &= self._is_compiled_sooner
            if not is_compiled:
                self.before_run()
            return run(program, plan, arrays, probes, is_compiled=is_compiled, **options)
        except RAISED_BY_CHECKS:
            # Only all of it wide has to run.
            if program.formats.narrow is None:
                raise
            if np.all(plan.entries == WIDE):
                raise
            # It counts as lost, and the report says so.
            self.raises = True
            avals = program.jaxpr.out_avals
            return [np.full(aval.shape, np.nan) for aval in avals]

    @functools.cached_property
    def _is_compiled_sooner(self) -> bool:
        """Whether XLA compiles the program sooner than its different equations."""
        size = self.program.size
        if size <= _FEW_EQUATIONS:
            return False
        different = set()
        for node in self.program.block.all_nodes():
            if node.name not in ON_HOST:
                types = [var.aval for var in node.eqn.invars]
                different.add((node.name, *types))
        return len(different) * _EQUATIONS_COMPILED_AT_ONCE > size

    def depends_on(self, number: int) -> bool:
        """Returns whether an output depends on the numbers that do not fit somewhere.

        Args:
            number: of the equation with the numbers that do not fit.
        """
        plan = plans.written(self.program)
        # Loops turn as often as before, or the other numbers may have no end.
        probes = Probes(followed=self.notes, changed=number)
        try:
            outputs = run(self.program, plan, self.arrays, probes)
        except RAISED_BY_CHECKS:  # a check in the program
            return True
        for output, written in zip(outputs, self._all_written):
            # A key leads to the outputs that are drawn with it, if there are any.
            if is_key(output):
                continue
            if distance(output, written):
                return True
        return False

    def _error(self, rounding: range) -> float:
        """Returns the error if these lines round and the others are wide."""
        if len(rounding) == self.lines:
            return self.total
        outputs = self._outputs(rounding)
        return self.own.off(outputs)

    def alone(self, number: int) -> float:
        """Returns the error if only this line rounds, or a bound of next to nothing."""
        if number not in self._alone:
            lines = range(number, number + 1)
            self._alone[number] = self._error(lines)
        return self._alone[number]

    def measure_alone(self, show_status: _ShowStatus) -> None:
        """Measures the error of each line alone, the most important ones first.

        Some that follow each other are measured together first: where these cause next to
        nothing, so does each.
        """
        numbers = range(self.lines)
        groups = []
        for first in numbers[::_LINES_IN_GROUP]:
            group = numbers[first : first + _LINES_IN_GROUP]
            groups.append((self._error(group), group))
        for error, group in sorted(groups, key=lambda pair: pair[0], reverse=True):
            for number in group:
                if error < self._least:
                    self._alone[number] = error
                else:
                    show_status(number)
                    self.alone(number)

    @property
    def _least(self) -> float:
        """What a line causes alone, at most, whose share is next to nothing."""
        # Of an error of 0 no line has a share.
        return _LEAST_ALONE * self.total or math.inf

    def measure_shares(self, show_status: _ShowStatus) -> None:
        """Measures the share of each line, the most important ones first.

        It is the part of the error along the whole that comes as this line rounds as well,
        where the lines before it round, and those after it are wide: leaving out an early
        line would change what all later ones add. So the shares add up to 1. A line that
        causes next to nothing alone has none. Where the error is not finite, they are as
        the squares of what lines cause alone, and known once all lines are measured.
        """
        reached = sorted(self._alone)
        errors = list(map(self.alone, reached))
        if not np.isfinite([self.total, *errors]).all():
            # A line to come may cause all of it, and these next to nothing.
            if len(reached) == self.lines:
                bounded = np.minimum(errors, LARGEST_ERROR)
                squares = bounded**2
                shares = squares / (squares.sum() or 1.0)
                self.shares = dict(zip(reached, shares.tolist()))
            return
        small = set()
        for number in reached:
            if self.alone(number) <= self._least:
                self.shares[number] = 0.0
                small.add(number)
        large = set(reached) - small
        for number in sorted(large, key=self.alone, reverse=True):
            show_status(number)
            # Lines that cause next to nothing go with the line after them.
            before = set(range(number)) - small
            count = max(before, default=-1) + 1
            part = self._part_of_first(number + 1)
            self.shares[number] = part - self._part_of_first(count)

    def _measure_part(self, count: int) -> float:
        """Returns the part of the error that the first lines cause together."""
        if count in (0, self.lines):
            return float(count > 0)
        outputs = self._outputs(range(count))
        along = self._along(outputs)
        return along / self._along(self.written)

    def _along(self, outputs: Arrays) -> float:
        """Returns how far off outputs are along the error, in squares of their sizes."""
        parts = []
        for number, size in enumerate(self.own.sizes):
            exact = self.own.exact[number]
            part = part_along(outputs[number], exact, self.written[number], size)
            parts.append(part)
        return math.fsum(parts)

    def _outputs(self, rounding: Collection[int]) -> Results:
        """Returns the measured outputs where some lines round."""
        plan = plans.rounding(self.program, rounding)
        return self.run(plan, Probes(followed=self.given))
