"""Programs that are run by plans: their inputs, and what each plan gives."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._autocast.decide import by_plan
from .._autocast.emit import narrowed
from .._autocast.plan import Plan
from .._costs.costs import operations, repetitions
from .._leaves.arguments import shown
from .._leaves.compat import as_function
from .._leaves.dtypes import bits
from .._leaves.leaf_type import type_or_class
from .._leaves.types import Args, DType, Function, Kwargs, Leaf, PyTree
from .._numbers.formats import Formats
from .._numbers.measure import Inputs
from .._numbers.plans import WidthPlan
from .._numbers.run import run
from .._numbers.subject import Subject, formats_of
from .._program.graph import Graph
from .._program.program import Node
from .prepared import Prepared, Show, prepare, running

BUDGET = 300
_NARROW_DTYPES = jnp.dtype("bfloat16"), jnp.dtype("float16")


class PlannedInputs(NamedTuple):
    """What a plan is measured on beside the arguments of the function.

    Attributes:
        also: more arguments for the search, which a plan has to be right for as well, by
            position and by name.
        held_out: arguments that the search does not see.
        budget: how many runs the search may make.
    """

    also: Sequence[tuple[Args, Kwargs]] = ()
    held_out: Sequence[tuple[Args, Kwargs]] = ()
    budget: int = BUDGET


ONE_INPUT = PlannedInputs()


def inputs_of(
    owner: str,
    also: Sequence[Args],
    held_out: Sequence[Args],
    kwargs: Mapping[str, PyTree] | None,
    budget: int = BUDGET,
) -> PlannedInputs:
    """More arguments by position, beside the same ones by name."""
    for name, given in (("also", also), ("held_out", held_out)):
        is_list = isinstance(given, (list, tuple))
        if not is_list or not all(type(each) is tuple for each in given):
            raise TypeError(
                f"{owner} got {name}={shown(given)}. Write a list of tuples of arguments, "
                f"such as {name}=[(params, other_batch)]."
            )
    named = lambda x: [(args, dict(kwargs or {})) for args in x]
    return PlannedInputs(named(also), named(held_out), budget)


def has_plan(formats: Formats) -> bool:
    """Whether there are plans in these dtypes."""
    return formats.narrow in _NARROW_DTYPES and formats.wide == np.float32


def plannable(
    f: Function,
    args: Args,
    kwargs: Mapping[str, PyTree] | None,
    narrow: DType,
    show_status: Show,
) -> Prepared:
    """A call, run as if all of it were narrow."""
    subject = Subject(f, args, kwargs, None)
    subject.check_values("a plan", "measure")
    show_status("tracing")
    traced = subject.traced(is_planned=True)
    formats = formats_of(list(traced.avals), None, narrow)
    if not has_plan(formats):
        raise TypeError(
            f"audit_precision got narrow={shown(narrow)}. Write narrow=jnp.bfloat16 or "
            "narrow=jnp.float16: a plan has no other."
        )
    with running(traced, formats):
        return prepare(subject, traced, Graph(traced.program), formats, show_status)


class Trials:
    """Runs of a program by plans.

    Attributes:
        program: the program.
        has_products: whether there are products in it.
        work: the share of each equation in the multiply-adds, or in all that rounds if
            there are no products.
        updated: the paths of the outputs of which the error is that of an update.
        apart: how far the outputs for two inputs are apart; None of one input.
    """

    def __init__(self, prepared: Prepared, inputs: PlannedInputs):
        self._prepared, self._runs = prepared, prepared.runs
        self.program = prepared.measures.program
        first = prepared.measures.arrays
        more = [self._arrays(*each) for each in (*inputs.also, *inputs.held_out)]
        every = [*map(self._runs.inputs, (first, *more))]
        self._given = every[: 1 + len(inputs.also)]
        self._held_out = every[1 + len(inputs.also) :]
        self.updated = [prepared.traced.paths[number] for number in self._runs.updated]
        self.apart = min((every[0].off(x.exact) for x in every[1:]), default=None)
        nodes = [*self.program.block.all_nodes()]
        work = {x.number: operations(x.eqn) * repetitions(x.stack) for x in nodes}
        self.has_products = any(work.values())
        if not self.has_products:
            work = {x.number: float(x.rounds) for x in nodes}
        total = sum(work.values())
        self.work = {number: part / total for number, part in work.items() if part}

    def _arrays(self, args: Args, kwargs: Kwargs) -> list[Leaf]:
        """Other arguments as the arrays of the program."""
        prepared = self._prepared
        given, first = prepared.subject.other(args, kwargs), prepared.subject.given
        avals = prepared.traced.program.in_avals
        rows = zip(first.paths, given.paths, given.arrays, avals)
        for path, other, array, aval in rows:
            is_same = path == other and jnp.shape(array) == aval.shape
            if not is_same or jnp.asarray(array).dtype != aval.dtype:
                raise TypeError(
                    f"audit_precision got other inputs with {other}: "
                    f"{type_or_class(array)}, and the arguments have {path}: "
                    f"{type_or_class(aval)}. Give a plan inputs of the same types and "
                    "shapes, in the same order."
                )
        return [jnp.asarray(x, v.dtype) for x, v in zip(given.arrays, avals)]

    def error(
        self, function: Callable[..., Sequence[Leaf]], inputs: Sequence[Inputs] = ()
    ) -> float:
        """The greatest error of what computes the program, by default in the search."""
        # A check in the program may raise as late as its results are read.
        made = lambda arrays: jax.block_until_ready(function(*arrays))
        error_of, inputs = self._runs.error_of, inputs or self._given
        return max(error_of(lambda x=x: made(x.arrays), x) for x in inputs)

    def eager(self, plan: Plan) -> Callable[..., Sequence[Leaf]]:
        """What runs the program by a plan, equation by equation."""
        widths, formats = by_plan(self.program, plan), Formats(self.program.formats.wide)
        scale = None if plan.loss_scale is None else float(np.float32(plan.loss_scale))
        return lambda *arrays: run(
            self.program, widths, arrays, formats=formats, scale=scale
        )

    def measured(self, plan: Plan) -> Plan:
        """A plan with the figures of the program that `autocast` makes, as XLA compiles it.

        With a loss scale, which is no part of the program, it runs equation by equation.
        """
        if plan.loss_scale is None:
            traces = self._prepared.traced.traces
            emitted = narrowed(self.program.jaxpr, plan, traces)
            function = jax.jit(as_function(emitted))
        else:
            function = self.eager(plan)
        widths, held_out = by_plan(self.program, plan), self._held_out
        nodes = (x for x in self.program.block.all_nodes() if x.number in self.work)
        narrow = (self.work[x.number] for x in nodes if self._is_narrow(x, widths))
        return dataclasses.replace(
            plan,
            error=self.error(function),
            held_out=self.error(function, held_out) if held_out else None,
            share=sum(narrow),
        )

    def narrows(self, node: Node, widths: WidthPlan) -> bool:
        """Whether a plan has an equation compute in 16 bits."""
        computes = widths.computes(int(widths.entries[node.number]))
        return computes is not None and bits(computes.dtype) <= 16

    def _is_narrow(self, node: Node, widths: WidthPlan) -> bool:
        """Whether an equation computes in 16 bits, by the plan or as it is written."""
        if widths.entries[node.number]:
            return self.narrows(node, widths)
        dtypes = [x.aval.dtype for x in node.eqn.invars if hasattr(x.aval, "dtype")]
        return max(map(bits, dtypes), default=0) <= 16

    @property
    def name(self) -> str:
        """What is measured, for a reader of the plan."""
        f: Any = self._prepared.subject.f
        while not hasattr(f, "__code__") and hasattr(f, "__wrapped__"):  # of `jax.jit`
            f = f.__wrapped__
        inner = inspect.unwrap(f)
        name = getattr(inner, "__qualname__", type(f).__qualname__).rpartition(".")[2]
        # Functions such as `jax.grad(loss)` bear the name of the one that they call.
        around = "a function around " * (inner is not f)
        is_gradient = any(node.is_backward for node in self.program.block.all_nodes())
        return f"autocast({around}{name}){', with the gradient inside' * is_gradient}"
