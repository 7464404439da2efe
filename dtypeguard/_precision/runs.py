"""Runs a program: as written, by plans, in wide types, with lines wide, the loss scaled.

Each makes its own decisions, so their distances are those that a user measures.
"""

import collections
import functools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._costs.work import work_of_stack
from .._leaves.compat import as_function, x64_enabled
from .._leaves.types import Equation, Leaf
from .._numbers import plans
from .._numbers.measure import (
    RAISED_BY_CHECKS,
    Inputs,
    Measures,
    distance,
    size_of,
)
from .._numbers.nodes import Noted
from .._numbers.plans import WIDE, WidthPlan
from .._numbers.primitives import SELECTS, is_inexact
from .._numbers.probes import DECISION, Probes
from .._numbers.program import NumericProgram
from .._program.graph import Graph
from .._program.program import Node
from .._source.origin import Origin
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
_POWERS = (-16, -12, -8, -4, 4, 8, 12, 16, 20, 24)
# Powers that leave nearly the least error are as good: the smallest one is taken.
_NEARLY_LEAST = 1.1
# The exponent of float32, and of bfloat16, which need no scale.
_EXPONENT_OF_FLOAT32 = 127


class WideRun(NamedTuple):
    """A run with some lines wide.

    Attributes:
        lines: their numbers.
        error: of its outputs.
        left: the share of the squared error that it leaves.
        price: the share of the operations of matrix products that it makes wide.
        keeps: whether what the lines make stays wide; else it is cast back after each.
    """

    lines: tuple[int, ...]
    error: float
    left: float
    price: float
    keeps: bool = True


class Runs:
    """Runs a program by plans, and compares it with itself in wide types.

    Attributes:
        own: the inputs of the call.
        written: the measured outputs of the call as written.
        by_output: the error of each.
        total: the root mean square of these.
        decisions: the lines whose decisions differ, those that differ most first.
        updated: the outputs that are an input with an update, with the numbers of these.
        products: those of a device, which are beside float32 ones; None in other audits.
        level: the precision of the products of wide lines there.
    """

    def __init__(self, measures: Measures, graph: Graph):
        self._measures = measures
        self.program = measures.program
        self.written = measures.written
        self.products = self.program.formats.products
        self.level = None if self.products is None else self.products.levels[0]
        self._wide = plans.wide(self.program)
        wide_decisions: Noted = {}
        exact = measures.run(self._wide, Probes(wide_decisions), is_compiled=True)
        # An output of zeros has no norm that an error could be relative to.
        sizes = [size_of(array) or 1.0 for array in exact]
        self.own = Inputs(measures.arrays, exact, sizes)
        self.leave_out(())
        self.decisions = _changed_decisions(
            self.program, measures.decisions, wide_decisions
        )
        # Integers are no params, so none of them is an update.
        floats = [value for value in graph.outputs if is_inexact(graph.avals[value])]
        self.updated = updated_inputs(graph, floats)
        self._are_gradients: list[bool] = []
        for number in measures.outputs:
            self._are_gradients.append(_is_gradient(graph, graph.outputs[number]))
        self._wide_runs: dict[object, WideRun] = {}
        nodes = self.program.block.all_nodes()
        self._work = sum(work_of_stack(node.stack) for node in nodes)

    def leave_out(self, numbers: Collection[int]) -> None:
        """Counts no error of these outputs from now on."""
        for number in numbers:
            # The number stays, since plans and reports count outputs by their places.
            self.own.sizes[number] = math.inf
        self.by_output = self.own.errors(self.written)
        self.total = self.own.off(self.written)

    @functools.cached_property
    def _one_by_one(self) -> Inputs:
        """The inputs with outputs of a run equation by equation, as with lines wide.

        The compiled run adds up in another order, which would be an error of the lines.
        """
        return self.own._replace(exact=self._measures.run(self._wide))

    def inputs(self, arrays: Sequence[Leaf]) -> Inputs:
        """Returns other inputs; errors of updated ones are relative to the update.

        Rounded to bfloat16, new params are nearly right, and the update is gone.
        """
        # Plans run compiled as well, so this run may be compiled too.
        exact = self._measures.run(self._wide, arrays=arrays, is_compiled=True)
        sizes: list[float] = []
        for number, array in enumerate(exact):
            size = size_of(array) or 1.0
            if number in self.updated:
                before = arrays[self.updated[number][0]].astype(array.dtype)
                size = min(distance(before, array) or math.inf, size)
            if math.isinf(self.own.sizes[number]):  # it does not count
                size = math.inf
            sizes.append(size)
        return Inputs(list(arrays), exact, sizes)

    def is_repeatable(self) -> bool:
        """Returns whether the program returns the same again."""
        outputs = self._measures.run(self._wide, is_compiled=True)
        for again, exact in zip(outputs, self.own.exact):
            if not jnp.array_equal(again, exact, equal_nan=True):
                return False
        return True

    def error_of(self, function: Callable[..., Sequence[Leaf]], inputs: Inputs) -> float:
        """Returns how far off the outputs of a function are; infinity if it raises."""
        try:
            # A check in the program may raise as late as its results are read.
            outputs = jax.block_until_ready(function(*inputs.arrays))
        except RAISED_BY_CHECKS:
            return math.inf
        return inputs.off([outputs[n] for n in self._measures.outputs])

    def flipped(self, rounding: float) -> float:
        """Returns the share of the squared error that other decisions cause.

        Negative if they undo what rounding causes.

        Args:
            rounding: the error without other decisions.
        """
        if not self.decisions or not self.total or math.isinf(max(self.total, rounding)):
            return 0.0
        return 1 - (rounding / self.total) ** 2

    def compiled(self) -> float:
        """Returns the error where XLA may leave out roundings, as it does by default."""
        if self.program.formats.narrow or self.products:  # there is no such program
            return self.total
        # The jaxpr itself, as `jax.jit` of the user's function would compile it: no plan,
        # so that XLA is free in all that it may leave out.
        function = jax.jit(as_function(self.program.jaxpr))
        return self.error_of(function, self.own)

    def vanishing(self) -> list[int]:
        """Returns the outputs that rounding alone decides, on the wide side as well.

        What is 0 but for rounding, and what an optimizer makes of it, is another number for
        inputs that differ by a few roundings. An output that is lost may be as far off as
        written, but wide types agree on it.
        """
        # What is infinite as written is no matter of cancelling.
        far = [n for n, error in enumerate(self.by_output) if _FAR < error < math.inf]
        if not far:
            return []
        outputs = self._exact_otherwise()
        vanishing: list[int] = []
        for number in far:
            output = outputs[number]
            exact = self.own.exact[number].astype(output.dtype)
            size = min(size_of(output), size_of(exact))
            part = _LEAST_PART_OF_ERROR * min(self.by_output[number], 1)
            if distance(output, exact) > part * size:
                vanishing.append(number)
        return vanishing

    def _exact_otherwise(self) -> list[Leaf]:
        """Returns the outputs in wide types, of inputs that differ by a few roundings."""
        formats = self.program.formats
        part = _FEW_ROUNDINGS * float(jnp.finfo(formats.wide).eps)
        arrays: list[Leaf] = []
        for array in self.own.arrays:
            changed = _rounded_otherwise(array, part)
            arrays.append(changed.astype(array.dtype) if formats.is_own else changed)
        return self._measures.run(self._wide, arrays=arrays, is_compiled=True)

    def unmoved(self) -> dict[int, float]:
        """Returns the share of the elements of each update that do not move, by output.

        An element does not that is the input again as written, and another number in wide
        types.
        """
        shares: dict[int, float] = {}
        for number, places in self.updated.items():
            after = self.written[number]
            exact = self.own.exact[number]
            for place in places:
                before = self.own.arrays[place]
                moves = exact != jnp.asarray(before, exact.dtype)
                stays = moves & (after == jnp.asarray(before, after.dtype))
                # An update that moves nothing in wide types has lost nothing.
                share = float(jnp.sum(stays) / jnp.maximum(jnp.sum(moves), 1))
                shares[number] = max(share, shares.get(number, 0.0))
        return shares

    # With lines wide

    @property
    def nothing(self) -> WideRun:
        """The program with no line wide."""
        return WideRun((), self.total, left(self.total, self.total), 0.0)

    def with_wide(self, lines: Iterable[int], keeps: bool) -> WideRun:
        """Returns the run with some lines wide."""
        numbers = tuple(lines)
        # Products of a higher level return float32 as well: there is nothing to cast back.
        keeps = keeps and self.level is None
        chosen = self._with_calls(numbers)
        key = (chosen, keeps, self.level)
        # Searches come back to the same lines, and a run is what costs time.
        if key not in self._wide_runs:
            self._wide_runs[key] = self._run_wide(chosen, keeps)
        return self._wide_runs[key]._replace(lines=numbers)

    def _with_calls(self, lines: Sequence[int]) -> frozenset[int]:
        """Returns lines with all that a user's line calls in packages.

        To call a package with wide arrays makes all of its lines wide.
        """
        callers: dict[int, str] = {}
        for number, line in enumerate(self.program.lines):
            if line.origin is not None and line.origin.called_from:
                callers[number] = line.origin.users.place
        chosen = {callers[number] for number in lines if number in callers}
        called = [number for number, caller in callers.items() if caller in chosen]
        return frozenset(lines).union(called)

    def _run_wide(self, lines: frozenset[int], keeps: bool) -> WideRun:
        plan = plans.wide_lines(self.program, lines, keeps)
        formats = None
        if self.products and self.level:
            products = self.products._replace(mended=self.level)
            formats = self.program.formats._replace(products=products)
        # A gradient comes back in the dtype of its argument. What else is returned may
        # stay wide: a user who computes a line wider gets the wider result.
        outputs = self._measures.run(plan, formats=formats)
        error = self._error_returned(outputs, narrows_gradients=True)
        # Without products nothing has a price.
        price = self._widened_work(plan) / (self._work or 1.0)
        return WideRun((), error, left(error, self.total), price, keeps)

    def _error_returned(self, outputs: Sequence[Leaf], narrows_gradients: bool) -> float:
        """Returns the error of outputs, gradients or the others as narrow as written."""
        returned: list[Leaf] = []
        for output, written, is_gradient in zip(outputs, self.written, self._are_gradients):
            if is_gradient == narrows_gradients:
                output = output.astype(written.dtype)
            returned.append(output)
        return self._one_by_one.off(returned)

    def _widened_work(self, plan: WidthPlan) -> float:
        """Returns the operations of the products that a plan makes wide."""
        work = 0.0
        for node in self.program.block.all_nodes():
            if plan.entries[node.number] == WIDE and self._is_widened(node.eqn):
                work += work_of_stack(node.stack)
        return work

    def _is_widened(self, eqn: Equation) -> bool:
        """Returns whether a product is computed wider where its line is wide."""
        if self.products is not None:
            return self.products.rounds(eqn)
        formats = self.program.formats
        return any(formats.rounds(var.aval.dtype) for var in eqn.invars[:2])

    # With the loss scaled

    def scaled(self) -> Scaled | None:
        """Returns the loss scale that leaves the least error, if that is less than half."""
        dtype = self._short_dtype()
        if dtype is None:
            return None
        lost = self._lost()
        # Gradients that overflow lose nothing to 0; they show as an infinite error.
        if lost < _LEAST_LOST and math.isfinite(self.total):
            return None
        plan = plans.WideLines(self.program, _is_wide_behind_loss).plan()
        errors: dict[int, float] = {}
        for power in _POWERS:
            outputs = self._measures.run(plan, scale=np.float32(2.0**power))
            # Gradients stay wide: divided in their own dtype, they would underflow again.
            errors[power] = self._error_returned(outputs, narrows_gradients=False)
        most = _NEARLY_LEAST * min(errors.values())
        good = [power for power, error in errors.items() if error <= most]
        if not good:  # none is finite
            return None
        # A small scale is the least likely to overflow on other inputs.
        power = min(good, key=abs)
        error = errors[power]
        if left(error, self.total) >= _LEFT_AT_MOST:
            return None
        return Scaled(2.0**power, error, dtype, lost)

    def _short_dtype(self) -> str | None:
        """Returns a dtype of a backward pass whose range is smaller than float32's."""
        if self.products:
            return None
        short: list[str] = []
        for dtype in self.program.backward:
            if jnp.finfo(dtype).maxexp < _EXPONENT_OF_FLOAT32:
                short.append(str(dtype))
        return min(short, default=None)

    def _lost(self) -> float:
        """Returns the share of the outputs' numbers that are 0 as written, and not wide."""
        if not self._measures.are_floats:
            return 0.0
        lost = 0
        count = 0
        for written, exact, size in zip(self.written, self.own.exact, self.own.sizes):
            if size < math.inf:
                lost += int(jnp.sum((written == 0) & (exact != 0)))
                count += written.size
        if not count:
            return 0.0
        return lost / count


def _is_wide_behind_loss(node: Node, has_wide: bool) -> bool:
    return node.is_backward or has_wide


def _rounded_otherwise(array: Leaf, part: float) -> Leaf:
    """Returns a wide float array, with a part of each number added or taken away."""
    if not is_inexact(array):
        return array
    widest = np.float64 if x64_enabled() else np.float32
    wide = jnp.asarray(array, np.promote_types(array.dtype, widest))
    # In no order that a sum or a difference of neighbours would undo.
    signs = np.where(np.arange(wide.size).reshape(wide.shape) % 3, 1, -1)
    return wide * (1 + signs * part)


def _is_gradient(graph: Graph, value: int) -> bool:
    """Returns whether the backward pass of a gradient makes a value."""
    for source in graph.origins(value):
        equation = graph.made_by.get(source)
        if equation is not None and Written(equation.stack).is_backward:
            return True
    return False


def _changed_decisions(
    program: NumericProgram, written: Noted, wide: Noted
) -> tuple[LineDecision, ...]:
    """Returns the lines whose decisions differ, and loops that turn more or less often."""
    flipped: collections.Counter[Origin | None] = collections.Counter()
    counts: collections.Counter[Origin | None] = collections.Counter()
    for node in program.block.all_nodes():
        key = (node.number, DECISION)
        if key not in written or key not in wide:
            continue
        decision = written[key]
        wide_decision = wide[key]
        # In other turns of a loop; or a value by which others are chosen.
        if decision.shape != wide_decision.shape or node.name in SELECTS:
            continue
        origin = Written(node.stack).origin
        differs = decision.astype(wide_decision.dtype) != wide_decision
        flipped[origin] += int(jnp.sum(differs))
        counts[origin] += decision.size
    rows: list[LineDecision] = []
    for origin, count in flipped.most_common():
        if count:
            rows.append(LineDecision(origin, count, counts[origin]))
    return tuple(rows)
