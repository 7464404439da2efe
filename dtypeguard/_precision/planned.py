"""Programs that are run by plans: their inputs, and what each plan gives."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._autocast.decide import by_plan
from .._autocast.emit import Emitter
from .._autocast.plan import Plan
from .._leaves.arguments import shown
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
from .prepared import Prepared, Show, first_bad_line, prepare, running
from .runs import work_shares

BUDGET = 300
_NARROW_BITS = 16
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
    """Returns more arguments by position, beside the same ones by name.

    Raises:
        TypeError: if they are no list of tuples.
    """
    for option, calls in (("also", also), ("held_out", held_out)):
        is_list = isinstance(calls, (list, tuple))
        if not is_list or {type(call) for call in calls} - {tuple}:
            raise TypeError(
                f"{owner} got {option}={shown(calls)}. Write a list of tuples of "
                f"arguments, such as {option}=[(params, other_batch)]."
            )
    by_name = dict(kwargs or {})
    return PlannedInputs(
        also=[(args, by_name) for args in also],
        held_out=[(args, by_name) for args in held_out],
        budget=budget,
    )


def has_plan(formats: Formats) -> bool:
    """Returns whether there are plans in these dtypes."""
    # `autocast` casts between these alone.
    return formats.narrow in _NARROW_DTYPES and formats.wide == np.float32


@contextlib.contextmanager
def plannable(
    f: Function,
    args: Args,
    kwargs: Mapping[str, PyTree] | None,
    narrow: DType,
    show_status: Show,
) -> Iterator[Prepared]:
    """Runs a call as if all of it were narrow; more runs are made within."""
    subject = Subject(f, args, kwargs, None)
    subject.check_values("a plan", "measure")
    show_status("tracing")
    traced = subject.traced(is_planned=True)
    formats = formats_of(list(traced.avals), None, narrow)
    # Before the runs: they take long, and would be for nothing.
    if not has_plan(formats):
        raise TypeError(
            f"audit_precision got narrow={shown(narrow)}. Write narrow=jnp.bfloat16 or "
            "narrow=jnp.float16: a plan has no other."
        )
    with running(traced, formats):
        graph = Graph(traced.program)
        prepared = prepare(subject, traced, graph, formats, show_status)
        first_bad_line(prepared)
        yield prepared


class Trials:
    """Runs of a program by plans.

    Attributes:
        program: the program.
        searched: the inputs that a search runs it on.
        held_out: those that a search does not see.
        updated: the paths of the outputs of which the error is that of an update.
        has_products: whether there are products in it.
        work: the share of each equation in the multiply-adds, or in all that rounds if
            there are no products.
    """

    def __init__(self, prepared: Prepared, inputs: PlannedInputs):
        self._prepared = prepared
        runs = prepared.runs
        self.program = runs.program
        self.searched = [runs.inputs(prepared.measures.arrays)]
        for call in inputs.also:
            self.searched.append(self._inputs(call))
        self.held_out = []
        for call in inputs.held_out:
            self.held_out.append(self._inputs(call))
        self.updated = []
        for number in runs.updated:
            path = prepared.traced.paths[number]
            self.updated.append(path or "the output")
        self.has_products = any(runs.work.values())
        self.work = runs.work
        if not self.has_products:
            self.work = work_shares(self.program, lambda node: float(node.rounds))

    def _inputs(self, call: tuple[Args, Kwargs]) -> Inputs:
        """Returns other arguments as inputs of the program."""
        args, kwargs = call
        arguments = self._prepared.subject.given
        tree = self._prepared.subject.other(args, kwargs)
        arrays = []
        for path, tree_path, leaf, aval in zip(
            arguments.paths, tree.paths, tree.arrays, self.program.jaxpr.in_avals
        ):
            array = jnp.asarray(leaf)
            types = (path, aval.shape, aval.dtype)
            # Of other types, it would be another program, with other lines that lose.
            if (tree_path, array.shape, array.dtype) != types:
                raise TypeError(
                    f"audit_precision got other inputs with {tree_path}: "
                    f"{type_or_class(leaf)}, and the arguments have {path}: "
                    f"{type_or_class(aval)}. Give a plan inputs of the same types and "
                    "shapes, in the same order."
                )
            arrays.append(array)
        return self._prepared.runs.inputs(arrays)

    def error(self, function: Callable[..., Sequence[Leaf]], inputs: list[Inputs]) -> float:
        """Returns the greatest error of what computes the program, on some inputs.

        The greatest, not the mean: a plan has to be right for all of them.
        """
        errors = []
        for example in inputs:
            self._prepared.measures.before_run()
            error = self._prepared.runs.error_of(function, example)
            errors.append(error)
        return max(errors)

    def measured(self, plan: Plan) -> Plan:
        """Returns a plan with the figures of what `autocast` makes, as XLA compiles it.

        With a loss scale, which is no part of the program, it runs equation by equation.
        """
        widths = by_plan(self.program, plan)
        if plan.loss_scale is None:
            traces = self._prepared.traced.traces
            emit = Emitter(plan).emit_as_returned
            function = jax.jit(functools.partial(emit, self.program.jaxpr, traces))
        else:
            # Without a narrow dtype, since the plan says which equations are narrow.
            formats = Formats(self.program.formats.wide)

            def function(*arrays: Leaf) -> Sequence[Leaf]:
                return run(
                    self.program, widths, arrays, formats=formats, scale=plan.loss_scale
                )

        share = 0.0
        for node in self.program.block.all_nodes():
            if is_narrow(node, widths):
                share += self.work[node.number]
        held_out = None
        if self.held_out:
            held_out = self.error(function, self.held_out)
        error = self.error(function, self.searched)
        return dataclasses.replace(plan, error=error, held_out=held_out, share=share)

    @property
    def name(self) -> str:
        """What is measured, for a reader of the plan."""
        f = self._prepared.subject.f
        # A callable object has no name of its own.
        class_name = type(f).__name__
        name = getattr(f, "__name__", class_name)
        if self.program.backward:
            return f"autocast({name}), with the gradient inside"
        return f"autocast({name})"


def is_narrow(node: Node, widths: WidthPlan) -> bool:
    """Returns whether an equation computes in 16 bits, by the plan or as written."""
    entry = int(widths.entries[node.number])
    computes = widths.computes(entry)
    if computes is not None:
        return bits(computes.dtype) <= _NARROW_BITS
    # An equation that the plan leaves as written computes in its widest operand.
    widest = 0
    for var in node.eqn.invars:
        dtype = getattr(var.aval, "dtype", None)
        widest = max(widest, bits(dtype))
    return widest <= _NARROW_BITS
