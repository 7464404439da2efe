"""Plans of a function: searched, and checked against what they promise."""

import dataclasses
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._autocast.entries import PRODUCTS
from .._autocast.matching import Matcher
from .._autocast.plan import Plan
from .._leaves.arguments import shown
from .._leaves.rows import describe
from .._leaves.types import Args, DType, Function, Kwargs, Leaf, PyTree
from .._numbers.formats import Formats
from .._numbers.subject import Subject, formats_of
from .._program.graph import Graph
from .plan_report import PlanCheck, PlanSearch
from .planning import Candidate, Planning, PlanTrials, candidates_in
from .prepared import Prepared, Show, prepare, running

BUDGET = 300
_NARROW = jnp.dtype("bfloat16"), jnp.dtype("float16")
# Of the lines that lose most.
_WORST = 5


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


def plan_call(
    f: Function,
    args: Args,
    kwargs: Mapping[str, PyTree] | None,
    narrow: DType,
    tolerance: float,
    inputs: PlannedInputs,
    show_status: Show,
) -> PlanSearch:
    """Searches the plan of a call."""
    prepared = plannable(f, args, kwargs, narrow, show_status)
    with running(prepared.traced, prepared.formats):
        return searched(prepared, tolerance, inputs, show_status)


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
    traced = subject.traced()
    formats = formats_of(list(traced.avals), None, narrow)
    if not _has_plan(formats):
        raise TypeError(
            f"audit_precision got narrow={shown(narrow)}. Write narrow=jnp.bfloat16 or "
            "narrow=jnp.float16: a plan has no other."
        )
    with running(traced, formats):
        return prepare(subject, traced, Graph(traced.program), formats, show_status)


def search_if_asked(
    prepared: Prepared, tolerance: float | None, inputs: PlannedInputs, show_status: Show
) -> PlanSearch | None:
    """The plan of a program that was run; None without a tolerance, or in other dtypes."""
    if tolerance is None or not inputs.budget or not _has_plan(prepared.formats):
        return None
    return searched(prepared, tolerance, inputs, show_status)


def _has_plan(formats: Formats) -> bool:
    """Whether there are plans in these dtypes."""
    return formats.narrow in _NARROW and formats.wide == np.float32


def searched(
    prepared: Prepared, tolerance: float, inputs: PlannedInputs, show_status: Show
) -> PlanSearch:
    """Searches the plan of a program that was run."""
    trials, scaled = trials_of(prepared, inputs), prepared.runs.scaled()
    bare = Plan(
        np.dtype(trials.program.formats.narrow),
        loss_scale=None if scaled is None else scaled.scale,
        tolerance=tolerance,
        measured=_measured(prepared.subject.f, trials),
    )
    found = Planning(trials, bare, inputs.budget, show_status).search()
    updates = tuple(prepared.traced.paths[number] for number in trials.updated)
    return dataclasses.replace(found, updates=updates)


def trials_of(prepared: Prepared, inputs: PlannedInputs) -> PlanTrials:
    """What runs a program by plans."""
    also, held_out = (
        [_arrays(prepared, *each) for each in more]
        for more in (inputs.also, inputs.held_out)
    )
    also = [prepared.measures.arrays, *also]
    return PlanTrials(prepared, also, held_out)


def _arrays(prepared: Prepared, args: Args, kwargs: Kwargs) -> list[Leaf]:
    """Other arguments as the arrays of a program."""
    given, first = prepared.subject.other(args, kwargs), prepared.subject.given
    avals = prepared.traced.program.in_avals
    rows = zip(first.paths, given.paths, given.arrays, avals)
    for path, other, array, aval in rows:
        is_same = path == other and jnp.shape(array) == aval.shape
        if not is_same or jnp.asarray(array).dtype != aval.dtype:
            raise TypeError(
                f"audit_precision got other inputs with {other}: {describe(array)}, and "
                f"the arguments have {path}: {describe(aval)}. Give a plan inputs of the "
                "same types and shapes, in the same order."
            )
    return [jnp.asarray(x, v.dtype) for x, v in zip(given.arrays, avals)]


def _measured(f: Any, trials: PlanTrials) -> str:
    """What is measured, for a reader of the plan."""
    while not hasattr(f, "__code__") and hasattr(f, "__wrapped__"):  # of `jax.jit`
        f = f.__wrapped__
    inner = inspect.unwrap(f)
    name = getattr(inner, "__qualname__", type(f).__qualname__).rpartition(".")[2]
    name = name if name.isidentifier() else "f"
    # Functions such as `jax.grad(loss)` bear the name of the one that they call.
    if inner is not f:
        name = f"a function around {name}"
    is_gradient = any(node.is_backward for node in trials.program.block.all_nodes())
    return f"autocast({name}){', with the gradient inside' * is_gradient}"


def check_call(
    f: Function,
    args: Args,
    kwargs: Mapping[str, PyTree] | None,
    path: str | os.PathLike[str],
    tolerance: float | None,
    inputs: PlannedInputs,
    show_status: Show,
) -> PlanCheck:
    """Measures a function by the plan of a file."""
    plan = Plan.load(path)
    prepared = plannable(f, args, kwargs, plan.narrow, show_status)
    with running(prepared.traced, prepared.formats):
        trials = trials_of(prepared, inputs)
        show_status("running it by the plan")
        now = dataclasses.replace(
            plan,
            tolerance=plan.tolerance if tolerance is None else tolerance,
            error=trials.error(plan),
            held_out=trials.held_out(plan),
            share=trials.share(plan),
        )
        found = PlanCheck(os.fspath(path), plan, now, trials.compiled(plan))
        if found.is_within:
            return found
        return dataclasses.replace(found, worst=_worst(trials, plan, show_status))


def _worst(
    trials: PlanTrials, plan: Plan, show_status: Show
) -> tuple[tuple[str, float], ...]:
    """The lines that the plan has narrow, with the error that each causes alone."""
    stacks = {node.number: node.stack for node in trials.program.block.all_nodes()}
    found = list[tuple[str, float]]()

    def is_narrow(candidate: Candidate) -> bool:
        entry = Matcher(plan).entry(stacks[min(candidate.nodes)])
        if entry is not None:
            return entry.dtype == plan.narrow
        return plan.default != PRODUCTS or candidate.work > 0

    for candidate in filter(is_narrow, candidates_in(trials.program)[0]):
        show_status(f"measuring line {len(found) + 1}")
        error = trials.alone(candidate.rounding(trials.program))
        found.append((str(candidate.entry(plan.narrow)), error))
    return tuple(sorted(found, key=lambda each: -each[1])[:_WORST])
