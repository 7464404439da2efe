"""Plain runs of a program: as written, in wide types, and with some lines wide.

Each makes its own decisions, so their distances are those that a user measures.
"""

import collections
import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._costs.work import operations, repetitions
from .._leaves.public import public
from .._leaves.types import Jaxpr, Leaf
from .._lines.equations import (
    Chain,
    calls_of,
    cast_of_ours,
    is_backward,
    is_explicit,
    is_following,
)
from .._paired.measure import Measures, compiled, distance, size_of
from .._paired.plain import IsWide, Plain
from .._paired.primitives import is_inexact
from .._paired.values import Formats
from .._program.graph import Stack, jaxprs_in, open_jaxpr
from .._source.origin import Origin


@public
@dataclasses.dataclass(frozen=True)
class LineDecision:
    """A line that decides by floating numbers, and decides otherwise in wide types.

    Attributes:
        origin: the line; None if no line outside JAX leads to it.
        flipped: how many of its decisions are others in wide types.
        count: how many it makes: a mask of 32,768 elements is as many.
    """

    origin: Origin | None
    flipped: int
    count: int


class WideLines(NamedTuple):
    """A plain run with some lines wide.

    Attributes:
        error: that of its outputs.
        left: the share of the squared error as written that it leaves.
        price: the share of the operations of matrix products that it makes wide.
    """

    error: float
    left: float
    price: float


class Runs:
    """A program as written and in wide types.

    Attributes:
        by_output: the error of each floating output, relative to its norm in wide types.
        total: the root mean square of these.
        compiled: the same where XLA may leave out roundings, as it does by default.
        once: the same if the wide outputs are rounded once to the dtypes as written.
        written: the floating outputs as written.
        exact: those in wide types.
        flipped: the share of the squared error that other decisions cause; negative if
            they undo what rounding causes.
        decisions: the lines whose decisions differ, those that differ most first.
        turns_differ: whether a loop turns another number of times.

    Args:
        program: a closed jaxpr.
        measures: of the program with a wide value beside each.
        arrays: its inputs.
        left_out: the outputs that do not count.
    """

    def __init__(
        self,
        program: Jaxpr,
        measures: Measures,
        arrays: Sequence[Leaf],
        left_out: Collection[int] = (),
    ):
        self._program, self._paired, self._arrays = program, measures.paired, [*arrays]
        self._as_given: list[Leaf] | None = None
        self.written, plain, choices = self._run(False)
        self.exact, wide, others = self._run(True)
        self._sizes = [size_of(x) or 1.0 for x in self.exact]
        for number in left_out:
            self._sizes[number] = math.inf
        self.by_output = self._distances(self.written)
        self.total = self._mean(self.by_output)
        self.compiled = self._mean(self._distances(self._run(False, is_strict=False)[0]))
        rounded = [e.astype(x.dtype) for x, e in zip(self.written, self.exact)]
        self.once = self._mean(self._distances(rounded))
        self.turns_differ, self.decisions = _compared(plain, choices, others)
        self.flipped = 0.0
        if self.decisions and math.isfinite(self.total) and math.isfinite(measures.total):
            self.flipped = 1 - (measures.total / self.total) ** 2 if self.total else 0.0
        self._work = self._widened_work(wide, is_any=True) or 1.0
        inside = open_jaxpr(program)
        floats = [var for var in inside.outvars if is_inexact(var.aval)]
        self._are_gradients = [_is_backward(inside, var) for var in floats]

    def with_wide(self, lines: Iterable[int], keeps: bool) -> WideLines:
        """The program with some lines wide.

        Args:
            lines: their numbers.
            keeps: whether what they make stays wide, and so what is made of it, up to an
                explicit cast; otherwise it is cast back where another line uses it.
        """
        chosen, met = frozenset(lines), set[Chain]()

        def is_wide(stack: Stack, has_wide: bool) -> bool:
            if self._paired.number_of(stack) in chosen:
                return True
            if not keeps or cast_of_ours(stack) is not None:
                return False
            is_conversion = stack and stack[0].primitive.name == "convert_element_type"
            return self._stays_wide(stack, has_wide, met) if is_conversion else has_wide

        made, plain, _ = self._run(is_wide)
        # A gradient comes back in the dtype of its argument.
        made = [
            x.astype(w.dtype) if g else x
            for x, w, g in zip(made, self.written, self._are_gradients)
        ]
        error = self._mean(self._distances(made))
        return WideLines(error, self.left(error), self._widened_work(plain) / self._work)

    def left(self, error: float) -> float:
        """The share of the squared error that an error is."""
        if not (self.total and math.isfinite(error)):
            return 1.0 if self.total else 0.0
        return 0.0 if math.isinf(self.total) else (error / self.total) ** 2

    def harm(self, equations: Collection[tuple[int, ...]], narrow: np.dtype) -> float:
        """The error that it adds to the outputs as written if some equations are narrow.

        Args:
            equations: the identities of each, and of those around it.
            narrow: the dtype that they get.
        """
        own = self._paired.formats._replace(narrow=narrow, is_own=True)
        run = lambda is_wide: self._run(is_wide, formats=own)[0]
        given = self._paired.formats.narrow is None
        if self._as_given is None:
            self._as_given = self.written if given else run(True)
        made = run(lambda stack, _: tuple(map(id, stack)) not in equations)
        pairs = zip(made, self._as_given, self._sizes)
        errors = [
            distance(x, e) / (size_of(e) or 1.0) if size < math.inf else 0.0
            for x, e, size in pairs
        ]
        return self._mean([e if math.isfinite(e) else math.inf for e in errors])

    def _stays_wide(self, stack: Stack, has_wide: bool, met: set[Chain]) -> bool:
        """Whether the result of a conversion is wide, where what lines make stays so.

        Args:
            stack: of the conversion.
            has_wide: whether its operand is.
            met: the calls of forward conversions whose operands are: there, a gradient has
                the dtype of that operand.
        """
        formats, dtype = self._paired.formats, stack[0].outvars[0].aval.dtype
        is_narrow = formats.widened(dtype) != formats.written(dtype)
        if is_narrow and is_backward(stack):
            return calls_of(stack) in met
        if has_wide:
            met.add(calls_of(stack))
        is_asked = is_narrow and is_explicit(stack) and not is_following(stack)
        return has_wide and not is_asked

    def _run(
        self,
        is_wide: IsWide | bool,
        is_strict: bool = True,
        formats: Formats | None = None,
    ) -> tuple[list[Leaf], Plain, list[Leaf]]:
        formats, numbers = formats or self._paired.formats, self._paired.numbers
        plain = Plain(self._program, formats, numbers, is_wide, is_strict)
        run = compiled(jax.jit(plain.run).lower(self._arrays))
        made, choices = run(self._arrays)
        avals = self._program.out_avals
        return [x for x, aval in zip(made, avals) if is_inexact(aval)], plain, choices

    def _distances(self, made: Sequence[Leaf]) -> list[float]:
        pairs = zip(made, self.exact, self._sizes)
        errors = [distance(x.astype(e.dtype), e) / size for x, e, size in pairs]
        return [error if math.isfinite(error) else math.inf for error in errors]

    def _mean(self, errors: Sequence[float]) -> float:
        known = [e for e, size in zip(errors, self._sizes) if size < math.inf]
        return float(np.sqrt(np.mean(np.square(known)))) if known else 0.0

    def _widened_work(self, plain: Plain, is_any: bool = False) -> float:
        """The operations of the products that a run has made wide, or of all of them."""
        formats = self._paired.formats
        is_narrow = lambda var: (
            formats.widened(var.aval.dtype) != formats.written(var.aval.dtype)
        )
        return sum(
            operations(stack[0]) * repetitions(stack)
            for stack in plain.widened.values()
            if is_any or any(map(is_narrow, stack[0].invars[:2]))
        )


def _is_backward(jaxpr: Jaxpr, var: Leaf) -> bool:
    """Whether the backward pass of a gradient makes a result."""
    for eqn in jaxpr.eqns:
        if var in eqn.outvars:
            inner = [open_jaxpr(x) for x in jaxprs_in(eqn.params)]
            if len(inner) == 1 and len(inner[0].outvars) == len(eqn.outvars):
                return _is_backward(inner[0], inner[0].outvars[eqn.outvars.index(var)])
            return is_backward((eqn,))
    return False


def _compared(
    plain: Plain, choices: Sequence[Leaf], others: Sequence[Leaf]
) -> tuple[bool, tuple[LineDecision, ...]]:
    """Whether turns of loops differ, and the lines whose decisions do."""
    flipped, counts = collections.Counter[Origin | None](), collections.Counter()
    turns_differ = False
    for decision, choice, other in zip(plain.decisions, choices, others):
        differ = int(jnp.sum(choice.astype(other.dtype) != other))
        if decision.is_turn:
            turns_differ |= differ > 0
            continue
        flipped[decision.origin] += differ
        counts[decision.origin] += choice.size
    lines = (LineDecision(x, n, counts[x]) for x, n in flipped.most_common() if n)
    return turns_differ, tuple(lines)
