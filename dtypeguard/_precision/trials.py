"""Runs of a program by a plan, against the same in wide types, on several inputs."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._autocast.decide import by_plan
from .._autocast.emit import narrowed
from .._autocast.plan import Plan
from .._costs.work import wide_share
from .._leaves.compat import as_function
from .._leaves.types import Jaxpr, Leaf
from .._numbers import plans
from .._numbers.formats import Formats
from .._numbers.measure import distance, size_of
from .._numbers.plans import WidthPlan
from .._numbers.primitives import is_inexact
from .._numbers.run import run
from .._program.graph import Graph
from .prepared import Prepared
from .runs import errors_of, mean_of
from .search import Spent
from .updates import updated_inputs


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
        prepared: Prepared,
        given: Sequence[Sequence[Leaf]],
        held_out: Sequence[Sequence[Leaf]],
        budget: int,
    ):
        self._prepared, self.program = prepared, prepared.measures.program
        self.count, self._budget = 0, budget
        self.updated = updated_inputs(prepared.graph)
        self._last: tuple[Plan, Jaxpr] | None = None
        self._given = [*map(self._inputs, given)]
        self._held_out = [*map(self._inputs, held_out)]

    def _inputs(self, arrays: Sequence[Leaf]) -> Inputs:
        measures = self._prepared.measures
        exact = measures.run(plans.wide(self.program), arrays=arrays)
        sizes = [size_of(x) or 1.0 for x in exact]
        for number, place in self.updated.items():
            change = distance(arrays[place].astype(exact[number].dtype), exact[number])
            sizes[number] = min(change or math.inf, sizes[number])
        for number in self._prepared.left_out:
            sizes[number] = math.inf
        return Inputs([*arrays], exact, sizes)

    def alone(self, rounding: WidthPlan) -> float:
        """The error where some lines alone round, on the first inputs."""
        self._spend()
        return self._error_on(self._given[0], rounding)

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
        function = jax.jit(as_function(self._by_plan(plan)))
        return max(self._off(lambda x=x: function(*x.arrays), x) for x in self._given)

    def share(self, plan: Plan) -> float:
        """The share of the multiply-adds that is narrow by a plan."""
        return 1 - wide_share(Graph(self._by_plan(plan)), plan.narrow)

    def _by_plan(self, plan: Plan) -> Jaxpr:
        """The program that `autocast` makes by a plan."""
        if self._last is None or self._last[0] != plan:
            self._last = plan, narrowed(self.program.jaxpr, plan)
        return self._last[1]

    def _spend(self) -> None:
        if self.count >= self._budget:
            raise Spent

    def _error_of(self, plan: Plan, inputs: Inputs) -> float:
        scale = None if plan.loss_scale is None else np.float32(plan.loss_scale)
        formats = Formats(self.program.formats.wide)
        by = by_plan(self.program, plan)
        return self._error_on(inputs, by, formats=formats, scale=scale)

    def _error_on(self, inputs: Inputs, plan: WidthPlan, **options: Any) -> float:
        self.count += 1
        return self._off(lambda: run(self.program, plan, inputs.arrays, **options), inputs)

    def _off(self, function: Any, inputs: Inputs) -> float:
        """How far off a run is; infinity if a check in the program raises."""
        try:
            made = function()
        except jax.errors.JaxRuntimeError:
            return math.inf
        outputs = zip(made, self.program.jaxpr.out_avals)
        floats = [x for x, aval in outputs if is_inexact(aval)]
        sizes = inputs.sizes
        return mean_of(errors_of(floats, inputs.exact, sizes), sizes)
