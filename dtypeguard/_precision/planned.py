"""Plans of a function: searched, and checked against what they promise."""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._autocast.plan import Plan
from .._leaves.arguments import shown
from .._leaves.compat import CAN_AUTOCAST
from .._leaves.rows import describe
from .._leaves.types import Args, DType, Function, Kwargs, Leaf, PyTree
from .._numbers.formats import Formats
from .._numbers.subject import Subject, Traced, formats_of
from .._program.graph import Graph
from .candidates import candidates_in
from .plan_check import PlanCheck
from .plan_search import PlanSearch
from .planning import Planning
from .prepared import Prepared, prepare, running
from .trials import PlanTrials

BUDGET = 300
Show = Callable[[str], None]


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
    """More arguments by position, beside the same ones by name.

    Raises:
        TypeError: if one is no tuple.
    """
    for name, given in (("also", also), ("held_out", held_out)):
        if not isinstance(given, (list, tuple)) or not all(
            type(each) is tuple for each in given
        ):
            raise TypeError(
                f"{owner} got {name}={shown(given)}. Write a list of tuples of arguments, "
                f"such as {name}=[(params, other_batch)]."
            )
    named = lambda x: [(args, dict(kwargs or {})) for args in x]
    return PlannedInputs(named(also), named(held_out), budget)


def has_plan(formats: Formats) -> bool:
    """Whether there are plans in these dtypes, in this release of JAX."""
    return CAN_AUTOCAST and formats.narrow in _NARROW and formats.wide == np.float32


_NARROW = jnp.dtype("bfloat16"), jnp.dtype("float16")


def search(
    subject: Subject,
    traced: Traced,
    prepared: Prepared,
    graph: Graph,
    tolerance: float,
    inputs: PlannedInputs,
    loss_scale: float | None,
    show_status: Show,
) -> PlanSearch:
    """Searches the plan of a program that was run.

    Raises:
        TypeError: if other inputs are of other types than the arguments.
    """
    trials = _trials(subject, traced, prepared, graph, inputs)
    narrow = prepared.measures.program.formats.narrow
    assert narrow is not None
    bare = Plan(
        narrow,
        loss_scale=loss_scale,
        tolerance=tolerance,
        measured=_measured(subject.f, trials),
    )
    found = Planning(trials, bare, show_status).search()
    updates = tuple(traced.paths[number] for number in trials.updated)
    return dataclasses.replace(found, updates=updates)


def search_if_asked(
    subject: Subject,
    traced: Traced,
    prepared: Prepared,
    graph: Graph,
    tolerance: float | None,
    inputs: PlannedInputs,
    *options: Any,
) -> PlanSearch | None:
    """The same, or None for an audit without a tolerance, or in dtypes without plans."""
    formats = prepared.measures.program.formats
    if tolerance is None or not inputs.budget or not has_plan(formats):
        return None
    return search(subject, traced, prepared, graph, tolerance, inputs, *options)


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
    subject, traced, formats, graph = _traced(f, args, kwargs, narrow, show_status)
    with running(traced, formats):
        prepared = prepare(f, subject, traced, formats, show_status)
        scaled = prepared.runs.scaled()
        scale = None if scaled is None else scaled.scale
        parts = subject, traced, prepared, graph, tolerance, inputs, scale
        return search(*parts, show_status)


def check_call(
    f: Function,
    args: Args,
    kwargs: Mapping[str, PyTree] | None,
    path: str | os.PathLike[str],
    tolerance: float | None,
    inputs: PlannedInputs,
    show_status: Show,
) -> PlanCheck:
    """Measures a function by the plan of a file.

    Raises:
        ValueError: if the file is no plan, or an entry matches nothing in the function.
    """
    plan = Plan.load(path)
    subject, traced, formats, graph = _traced(f, args, kwargs, plan.narrow, show_status)
    with running(traced, formats):
        prepared = prepare(f, subject, traced, formats, show_status)
        trials = _trials(subject, traced, prepared, graph, inputs)
        show_status("running it by the plan")
        error, held_out = trials.error(plan), trials.held_out(plan)
        bound = plan.tolerance if tolerance is None else tolerance
        found = PlanCheck(
            path=os.fspath(path),
            plan=plan,
            tolerance=float("nan") if bound is None else bound,
            error=error,
            held_out=held_out,
            compiled=trials.compiled(plan),
            share=1 - trials.cost(plan).wide,
        )
        if not found.is_within:
            worst = _worst(trials, plan, show_status)
            found = dataclasses.replace(found, worst=worst)
        return found


def _worst(
    trials: PlanTrials, plan: Plan, show_status: Show
) -> tuple[tuple[str, float], ...]:
    """The lines that the plan has narrow, with the error that each causes alone."""
    found = list[tuple[str, float]]()
    for candidate in candidates_in(trials.program)[0]:
        if trials.has_narrow(plan, candidate):
            show_status(f"measuring line {len(found) + 1}")
            name = str(candidate.entry(plan.narrow))
            found.append((name, trials.alone(candidate)))
    return tuple(sorted(found, key=lambda each: -each[1])[:_WORST])


_WORST = 5


def _traced(
    f: Function,
    args: Args,
    kwargs: Mapping[str, PyTree] | None,
    narrow: DType,
    show_status: Show,
) -> tuple[Subject, Traced, Formats, Graph]:
    if not CAN_AUTOCAST:
        raise NotImplementedError(
            f"Plans need JAX 0.7.2 or later, and this is {jax.__version__}: write "
            "pip install -U jax."
        )
    subject = Subject(f, args, kwargs, None)
    subject.check_values("a plan", "measure")
    show_status("tracing")
    traced = subject.traced()
    formats = formats_of(list(traced.avals), None, narrow)
    if not has_plan(formats):
        raise TypeError(
            f"audit_precision got narrow={shown(narrow)}. Write narrow=jnp.bfloat16 or "
            "narrow=jnp.float16: a plan has no other."
        )
    return subject, traced, formats, Graph(traced.program)


def _trials(
    subject: Subject,
    traced: Traced,
    prepared: Prepared,
    graph: Graph,
    inputs: PlannedInputs,
) -> PlanTrials:
    given = functools.partial(_arrays, subject, traced)
    return PlanTrials(
        prepared.measures,
        graph,
        [prepared.measures.arrays, *map(given, inputs.also)],
        [*map(given, inputs.held_out)],
        prepared.left_out,
        inputs.budget,
    )


def _arrays(subject: Subject, traced: Traced, arguments: tuple[Args, Kwargs]) -> list[Leaf]:
    """Other arguments as the arrays of a program."""
    given = subject.other(*arguments)
    avals = traced.program.in_avals
    first = zip(subject.given.paths, given.paths, given.arrays, avals)
    for path, other, array, aval in first:
        is_same = path == other and jnp.shape(array) == aval.shape
        if not is_same or jnp.asarray(array).dtype != aval.dtype:
            raise TypeError(
                f"audit_precision got other inputs with {other}: {describe(array)}, and "
                f"the arguments have {path}: {describe(aval)}. Give a plan inputs of the "
                "same types and shapes, in the same order."
            )
    return [jnp.asarray(x, v.dtype) for x, v in zip(given.arrays, avals)]


def _measured(f: Function, trials: PlanTrials) -> str:
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
