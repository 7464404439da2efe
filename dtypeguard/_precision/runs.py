"""Runs a program: as written, by plans, in wide types, with lines wide, the loss scaled.

Each makes its own decisions, so their distances are those that a user measures.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._costs.work import work_of_stack
from .._leaves.compat import as_function
from .._leaves.types import Function, Leaf
from .._numbers import plans
from .._numbers.formats import Formats
from .._numbers.lines import Line
from .._numbers.measure import (
    RAISED_BY_CHECKS,
    Inputs,
    Measures,
    distance,
    size_of,
)
from .._numbers.plans import WIDE
from .._numbers.primitives import SELECTS, Noted, is_inexact
from .._numbers.probes import DECISION, Probes, note_decisions
from .._numbers.program import NumericProgram
from .._program.graph import Graph
from .._program.jaxprs import Arrays
from .._program.program import Node
from .._tracebacks.written import Written
from .rows import LineDecision, Scaled, left
from .updates import updated_inputs

# An error above this may be that of an output that rounding alone decides.
_FAR = 0.05
# It does if wide types differ by this part of the error, or of the output. Other outputs
# differ by a thousandth of the error at most: float32 is so much finer than float16.
_LEAST_PART_OF_ERROR = 0.1
# So many units in the last place of the wide dtype change the inputs then.
_FEW_ROUNDINGS = 4
# From this share of outputs on that are lost to 0, it is tried to scale the loss, by these
# powers of two. It has to leave less than half of the squared error.
_LEAST_LOST = 0.001
_LEFT_AT_MOST = 0.5
# A small scale is the least likely to overflow on other inputs: a greater one has to leave
# this part of its error at most.
_POWERS = (4, -4, 8, -8, 12, -12, 16, -16, 20, 24)
_NOTABLY_LESS = 0.9
# The exponent of float32, and of bfloat16, which need no scale.
_EXPONENT_OF_FLOAT32 = 127


class WideRun(NamedTuple):
    """A run with some lines wide; its figures are not numbers if it was not made.

    Attributes:
        lines: their numbers.
        error: of its outputs.
        remaining: the share of the squared error that it leaves.
        price: the share of the operations of matrix products that it makes wide.
        keeps: whether what the lines make stays wide; else it is cast back after each.
        level: the precision of their products, where those of a device are looked at.
    """

    lines: frozenset[int] = frozenset()
    error: float = math.nan
    remaining: float = math.nan
    price: float = math.nan
    keeps: bool = True
    level: str | None = None


class Runs:
    """Runs a program by plans, and compares it with itself in wide types.

    Attributes:
        own: the inputs of the call.
        written: the measured outputs of the call as written.
        by_output: the error of each.
        vanishing: the outputs that rounding alone decides. They do not count, if there are
            others.
        total: the root mean square of the errors that count.
        nothing: the program with no line wide.
        decisions: the lines whose decisions differ, those that differ most first.
        updated: the outputs that are an input with an update, with the numbers of these.
        work: the share of each equation in the operations of matrix products.
    """

    def __init__(self, measures: Measures, graph: Graph):
        self._measures = measures
        self.program = measures.program
        self.written = measures.written
        self._wide = plans.wide(self.program)
        probes = Probes(note_decisions)
        exact = measures.run(self._wide, probes, is_compiled=True)
        self.own = measures.inputs(measures.arrays, exact)
        self.by_output = self.own.errors(self.written)
        self.vanishing = self._find_vanishing()
        # With all of them left out there would be no error to report.
        if len(self.vanishing) < len(exact):
            measures.left_out = self.vanishing
            self.own = measures.inputs(measures.arrays, exact)
        self.total = self.own.off(self.written)
        self.nothing = WideRun(error=self.total, remaining=1.0, price=0.0)
        self.decisions = tuple(
            _changed_decisions(self.program, measures.notes, probes.noted)
        )
        outputs = [graph.outputs[number] for number in measures.outputs]
        self.updated = updated_inputs(graph, outputs)
        self._are_gradients = [_is_gradient(graph, output) for output in outputs]
        # Searches come back to the same lines, and a run is what costs time.
        self._run_wide_once = functools.cache(self._run_wide)
        self.work = work_shares(self.program, lambda node: work_of_stack(node.stack))

    def inputs(self, arrays: Arrays) -> Inputs:
        """Returns other inputs; errors of updated ones are relative to the update.

        Rounded to bfloat16, new params are nearly right, and the update is gone.
        """
        # Plans run compiled as well, so this run may be compiled too.
        exact = self._measures.run(self._wide, arrays=arrays, is_compiled=True)
        inputs = self._measures.inputs(arrays, exact)
        for number, (place, *_) in self.updated.items():
            size = inputs.sizes[number]
            if math.isfinite(size):
                after = exact[number]
                # Without a change there is nothing that an error is relative to.
                inputs.sizes[number] = min(
                    distance(arrays[place].astype(after.dtype), after) or math.inf, size
                )
        return inputs

    def error_of(self, function: Function, inputs: Inputs) -> float:
        """Returns how far off the outputs of a function are; infinity if it raises."""
        self._measures.before_run()
        try:
            # A check in the program may raise as late as its results are read.
            outputs = jax.block_until_ready(function(*inputs.arrays))
        except RAISED_BY_CHECKS:
            return math.inf
        return inputs.off([outputs[number] for number in self._measures.outputs])

    def compiled(self) -> float:
        """Returns the error where XLA may leave out roundings, as it does by default."""
        if self.program.formats.narrow or self.program.formats.products:
            return self.total  # there is no such program
        # The jaxpr itself, as `jax.jit` of the user's function would compile it: no plan,
        # so that XLA is free in all that it may leave out.
        return self.error_of(jax.jit(as_function(self.program.jaxpr)), self.own)

    def _find_vanishing(self) -> list[int]:
        """Returns the outputs that rounding alone decides, on the wide side as well.

        What is 0 but for rounding, and what an optimizer makes of it, is another number for
        inputs that differ by a few roundings. An output that is lost may be as far off as
        written, but wide types agree on it.
        """
        # What is infinite as written is no matter of cancelling.
        far = [
            number
            for number in range(len(self.by_output))
            if _FAR < self.by_output[number] < math.inf
        ]
        if not far:
            return []
        arrays = []
        for array in self.own.arrays:
            arrays.append(_rounded_otherwise(array, self.program.formats))
        try:
            outputs = self._measures.run(self._wide, arrays=arrays, is_compiled=True)
        # Of numbers that were in order, a check may say that they are in none.
        except RAISED_BY_CHECKS:
            return []
        vanishing = []
        for number in far:
            exact = self.own.exact[number]
            # An error above 1 is of an output that is too large, not of a larger part.
            error = min(self.by_output[number], 1) * size_of(exact)
            if distance(outputs[number], exact) > _LEAST_PART_OF_ERROR * error:
                vanishing.append(number)
        return vanishing

    @np.errstate(over="ignore")  # of a cast
    def unmoved(self, number: int) -> float | None:
        """Returns the share of the elements of an update that do not move.

        An element does not that is the input again as written, and another number in wide
        types. None of an output that is no input with an update.
        """
        # On the host, where nothing is compiled.
        after = np.asarray(self.written[number])
        exact = np.asarray(self.own.exact[number])
        shares = []
        for place in self.updated.get(number, ()):
            before = np.asarray(self.own.arrays[place])
            moves = exact != before.astype(exact.dtype)
            stays = after == before.astype(after.dtype)
            # An update that moves nothing in wide types has lost nothing.
            share = np.sum(moves & stays) / max(np.sum(moves), 1)
            shares.append(float(share))
        return max(shares, default=None)

    # With lines wide

    def with_wide(
        self, lines: Iterable[int], level: str | None, keeps: bool = True
    ) -> WideRun:
        """Returns the run with some lines wide, or with their products at a level."""
        # Products of a higher level return float32 as well: there is nothing to cast back.
        return self._run_wide_once(frozenset(lines), level, keeps and level is None)

    def _run_wide(self, lines: frozenset[int], level: str | None, keeps: bool) -> WideRun:
        """Runs the program with some lines wide."""
        plan = plans.wide_lines(self.program, self._with_calls(lines), keeps)
        formats = self.program.formats
        if formats.products is not None:
            formats = formats._replace(mended=level)
        # A gradient comes back in the dtype of its argument. What else is returned may
        # stay wide: a user who computes a line wider gets the wider result.
        error = self._error_returned(
            self._measures.run(plan, formats=formats), narrows_gradients=True
        )
        price = 0.0
        for node in self.program.block.all_nodes():
            if plan.entries[node.number] == WIDE and node.rounds:
                price += self.work[node.number]
        return WideRun(
            lines=lines,
            error=error,
            remaining=left(error, self.total),
            price=price,
            keeps=keeps,
            level=level,
        )

    def _with_calls(self, lines: frozenset[int]) -> frozenset[int]:
        """Returns lines with all that a user's line calls in packages.

        To call a package with wide arrays makes all of its lines wide.
        """
        calls = list(map(_call_of, self.program.lines))
        chosen = {calls[number] for number in lines}
        # A line of the user's own is no call.
        chosen.discard(None)
        return lines.union(number for number, call in enumerate(calls) if call in chosen)

    @functools.cached_property
    def _one_by_one(self) -> Inputs:
        """The inputs with outputs of a run equation by equation, as with lines wide.

        The compiled run adds up in another order, which would be an error of the lines.
        """
        return self.own._replace(exact=self._measures.run(self._wide))

    def _error_returned(self, outputs: Arrays, narrows_gradients: bool) -> float:
        """Returns the error of outputs, gradients or the others as narrow as written."""
        returned = [
            output.astype(written.dtype) if is_gradient == narrows_gradients else output
            for output, written, is_gradient in zip(
                outputs, self.written, self._are_gradients
            )
        ]
        return self._one_by_one.off(returned)

    # With the loss scaled

    @functools.cached_property
    def scaled(self) -> Scaled | None:
        """The loss scale that leaves the least error, if that is less than half."""
        short = [
            dtype
            for dtype in self.program.backward
            if jnp.finfo(dtype).maxexp < _EXPONENT_OF_FLOAT32
        ]
        # The runs of an audit of products round nothing but products.
        if not short or self.program.formats.products is not None:
            return None
        lost = self._lost()
        # Gradients that overflow lose nothing to 0; they show as an infinite error.
        if lost < _LEAST_LOST and math.isfinite(self.total):
            return None
        plan = plans.WideLines(
            self.program, lambda node, has_wide: node.is_backward or has_wide
        ).plan()
        best = Scaled(scale=1.0, error=math.inf, dtype=min(map(str, short)), lost=lost)
        for power in _POWERS:
            scale = 2.0**power
            # Gradients stay wide: divided in their own dtype, they would underflow again.
            error = self._error_returned(
                self._measures.run(plan, scale=scale), narrows_gradients=False
            )
            if error < _NOTABLY_LESS * best.error:
                best = best._replace(scale=scale, error=error)
        if left(best.error, self.total) < _LEFT_AT_MOST:
            return best
        return None

    def _lost(self) -> float:
        """Returns the share of the outputs' numbers that are 0 as written, and not wide."""
        lost = 0
        count = 0
        for written, exact, size in zip(self.written, self.own.exact, self.own.sizes):
            if size < math.inf:
                lost += int(jnp.sum((written == 0) & (exact != 0)))
                count += written.size
        return lost / max(count, 1)


def work_shares(
    program: NumericProgram, work_of: Callable[[Node], float]
) -> dict[int, float]:
    """Returns the share of each equation in the work; 0 where there is nothing."""
    work = {node.number: work_of(node) for node in program.block.all_nodes()}
    total = sum(work.values()) or 1.0
    return {number: part / total for number, part in work.items()}


def _rounded_otherwise(array: Leaf, formats: Formats) -> Leaf:
    """Returns an array in wide types, a few roundings added to each number or taken."""
    if not is_inexact(array):
        return array
    wide = jnp.asarray(array, formats.widened(array.dtype))
    part = _FEW_ROUNDINGS * float(jnp.finfo(formats.wide).eps)
    # In no order that a sum or a difference of neighbours would undo.
    parts = np.random.default_rng(0).choice((-part, part), wide.shape)
    return wide * (1 + parts).astype(wide.dtype)


def _call_of(line: Line) -> str | None:
    """Returns the user's line that calls a line of a package; None of the user's own."""
    if line.origin is None or not line.origin.called_from:
        return None
    return line.origin.users.place


def _is_gradient(graph: Graph, value: int) -> bool:
    """Returns whether the backward pass of a gradient makes a value."""
    for source in graph.origins(value):
        node = graph.made_by.get(source)
        if node is not None and node.is_backward:
            return True
    return False


def _changed_decisions(
    program: NumericProgram, written: Noted, wide: Noted
) -> Iterator[LineDecision]:
    """Yields the lines whose decisions differ, and loops that turn more or less often."""
    flipped = Counter()
    count = Counter()
    for node in program.block.all_nodes():
        # A value by which others are chosen decides nothing itself.
        if node.name in SELECTS:
            continue
        decision = written.get((node.number, DECISION))
        wide_decision = wide.get((node.number, DECISION))
        if decision is None or wide_decision is None:
            continue
        # In other turns of a loop.
        if decision.shape != wide_decision.shape:
            continue
        origin = Written(node.stack).origin
        flipped[origin] += int(
            jnp.sum(decision.astype(wide_decision.dtype) != wide_decision)
        )
        count[origin] += decision.size
    for origin, number in flipped.most_common():
        if number:
            yield LineDecision(origin=origin, flipped=number, count=count[origin])
