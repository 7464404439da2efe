"""Runs of a program by a plan, against the same in wide types, on several inputs."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._autocast.decide import by_plan
from .._autocast.emit import narrowed
from .._autocast.entries import PRODUCTS
from .._autocast.matching import Matcher
from .._autocast.plan import Plan
from .._costs.work import wide_share
from .._leaves.compat import as_function
from .._leaves.types import Jaxpr, Leaf
from .._numbers import plans
from .._numbers.formats import Formats
from .._numbers.measure import Measures, distance, size_of
from .._numbers.primitives import is_inexact
from .._numbers.run import run
from .._program.graph import Graph
from .candidates import Candidate
from .plain import updated_inputs
from .search import Spent


class Inputs(NamedTuple):
    """Arrays that a program is run on.

    Attributes:
        arrays: its inputs.
        exact: its floating outputs in wide types.
        sizes: what the error of each is relative to; infinity where it does not count.
    """

    arrays: list[Leaf]
    exact: list[Leaf]
    sizes: list[float]


class PlanTrials:
    """Runs of a program by plans.

    The error of an output is relative to its norm; that of an input with an update, such as
    params, to the norm of the update: rounded to bfloat16, new params are nearly right, and
    the update is gone.

    Attributes:
        count: how many runs were made.
        updated: the outputs that are an input with an update, each with that input.
    """

    def __init__(
        self,
        measures: Measures,
        graph: Graph,
        given: Sequence[Sequence[Leaf]],
        held_out: Sequence[Sequence[Leaf]],
        left_out: Sequence[int],
        budget: int,
    ):
        self.measures, self.program = measures, measures.program
        self.count = 0
        self._graph, self._left_out, self._budget = graph, left_out, budget
        self.updated = updated_inputs(graph)
        self._last: tuple[Plan, Jaxpr] | None = None
        nodes = self.program.block.all_nodes()
        self._stacks = {node.number: node.stack for node in nodes}
        self._given = [*map(self._inputs, given)]
        self._held_out = [*map(self._inputs, held_out)]

    def alone(self, candidate: Candidate) -> float:
        """The error if this alone rounds, on the first inputs."""
        self._spend()
        plan = candidate.rounding(self.program)
        return self._error_on(self._given[0], plan)

    def error(self, plan: Plan, is_asked: bool = False) -> float:
        """The greatest error of a plan on the inputs of the search."""
        errors = []
        for inputs in self._given:
            if not is_asked:
                self._spend()
            errors.append(self._error_of(plan, inputs))
        return max(errors)

    def held_out(self, plan: Plan) -> float | None:
        """The greatest error of a plan on what is held out; None if nothing is."""
        errors = [self._error_of(plan, inputs) for inputs in self._held_out]
        return max(errors, default=None)

    def compiled(self, plan: Plan) -> float | None:
        """The error as XLA compiles the program here, which may leave out roundings.

        None with a loss scale, which is no part of the program.
        """
        if plan.loss_scale is not None:
            return None
        jaxpr = self._by_plan(plan)
        function, avals = jax.jit(as_function(jaxpr)), jaxpr.out_avals
        floats = lambda made: [x for x, v in zip(made, avals) if is_inexact(v)]
        errors = []
        for inputs in self._given:
            try:
                made = floats(function(*inputs.arrays))
            except jax.errors.JaxRuntimeError:  # a check in the program, in narrow types
                return math.inf
            errors.append(error_between(made, inputs.exact, inputs.sizes))
        return max(errors)

    def _spend(self) -> None:
        if self.count >= self._budget:
            raise Spent

    def has_narrow(self, plan: Plan, candidate: Candidate) -> bool:
        """Whether a plan has some of a line narrow."""
        entry = Matcher(plan).entry(self._stacks[min(candidate.numbers)])
        if entry is not None:
            return entry.dtype.itemsize < self.program.formats.wide.itemsize
        return plan.default != PRODUCTS or candidate.has_products

    def share(self, plan: Plan) -> float:
        """The share of the multiply-adds that is narrow by a plan."""
        return 1 - wide_share(Graph(self._by_plan(plan)), plan.narrow)

    def _by_plan(self, plan: Plan) -> Jaxpr:
        """The program that `autocast` makes by a plan."""
        if self._last is None or self._last[0] != plan:
            self._last = plan, narrowed(self.program.jaxpr, plan)
        return self._last[1]

    def _error_of(self, plan: Plan, inputs: Inputs) -> float:
        scale = None if plan.loss_scale is None else np.float32(plan.loss_scale)
        formats = Formats(self.program.formats.wide)
        by = by_plan(self.program, plan)
        return self._error_on(inputs, by, formats=formats, scale=scale)

    def _error_on(self, inputs: Inputs, plan: plans.WidthPlan, **options: Any) -> float:
        program = self.program
        try:
            made = run(program, plan, inputs.arrays, **options)
        except jax.errors.JaxRuntimeError:  # a check in the program, in narrow types
            self.count += 1
            return math.inf
        floats = [x for x, v in zip(made, program.jaxpr.out_avals) if is_inexact(v)]
        self.count += 1
        return error_between(floats, inputs.exact, inputs.sizes)

    def _inputs(self, arrays: Sequence[Leaf]) -> Inputs:
        exact = self.measures.run(plans.wide(self.program), arrays=arrays)
        sizes = [size_of(x) or 1.0 for x in exact]
        for number, place in self.updated.items():
            change = distance(arrays[place].astype(exact[number].dtype), exact[number])
            sizes[number] = min(change or math.inf, sizes[number])
        for number in self._left_out:
            sizes[number] = math.inf
        return Inputs([*arrays], exact, sizes)


def error_between(
    made: Sequence[Leaf], exact: Sequence[Leaf], sizes: Sequence[float]
) -> float:
    """The root mean square of the relative errors of outputs."""
    counted = [x for x in zip(made, exact, sizes) if x[2] < math.inf]
    errors = [distance(x.astype(e.dtype), e) / size for x, e, size in counted]
    if not np.isfinite(errors).all():
        return math.inf
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0
