"""Plans of a function: searched, and checked against what they promise."""

import contextlib
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._autocast.plan import Plan
from .._leaves.arguments import shown
from .._leaves.rows import columns, describe, percent
from .._leaves.types import Args, DType, Function, Kwargs, Leaf, PyTree
from .._numbers.formats import Formats
from .._numbers.subject import Subject, Traced, formats_of
from .._program.graph import Graph
from .candidates import candidates_in
from .planning import Planning, PlanSearch, is_within
from .prepared import Prepared, prepare, running
from .trials import PlanTrials

BUDGET = 300
Show = Callable[[str], None]
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


@dataclasses.dataclass(frozen=True)
class PlanCheck:
    """What a program by a plan was measured to be.

    Attributes:
        path: of the plan.
        plan: the plan.
        tolerance: the error that is allowed; not a number if the plan has none.
        error: how far the program by the plan is off.
        held_out: the same on inputs that are held out.
        compiled: the error as XLA compiles the program here; None with a loss scale.
        share: the part of the multiply-adds that is narrow.
        worst: the narrow lines that cause most alone, with that error; none if within.
    """

    path: str
    plan: Plan
    tolerance: float
    error: float
    held_out: float | None
    compiled: float | None
    share: float
    worst: tuple[tuple[str, float], ...] = ()

    @property
    def is_within(self) -> bool:
        """Whether it is within the tolerance; without one, whether it is finite."""
        return self._holds(self.compiled)

    def _holds(self, compiled: float | None) -> bool:
        bound = self.tolerance if self.tolerance == self.tolerance else 1e30
        plan = dataclasses.replace(self.plan, error=self.error, held_out=self.held_out)
        return is_within(plan, compiled, bound)

    @property
    def headline(self) -> str:
        """How it went."""
        within = "within" if self.is_within else "not within"
        off = f"{percent(max(self.error, self.held_out or 0.0))} off"
        if self._holds(None) and not self.is_within:
            off += f" ({percent(self.compiled or 0.0)} as XLA compiles it here)"
        return f"{self.path}: {off}, {within} {percent(self.tolerance)}."

    def __str__(self) -> str:
        shown = lambda x: "" if x is None else percent(x)
        plan = self.plan
        rows = [
            ("", "now", "in the plan"),
            ("off", shown(self.error), shown(plan.error)),
            ("off, as compiled", shown(self.compiled), ""),
            ("off, held out", shown(self.held_out), shown(plan.held_out)),
            (f"multiply-adds in {plan.narrow}", shown(self.share), shown(plan.share)),
        ]
        lines = [self.headline, *columns([row for row in rows if any(row[1:])])]
        if self.worst:
            worst = columns([(percent(x), name) for name, x in self.worst])
            lines += [f"Of what is {plan.narrow}, these lines lose most alone:"]
            lines += [*(f"  {x}" for x in worst)]
            lines.append("Search a plan anew, or give one of them an entry.")
        return "\n".join(lines)

    @property
    def data(self) -> dict[str, Any]:
        """All of it, for JSON."""
        fields = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        del fields["plan"]
        return {**fields, "ok": self.is_within}


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


class PlannedProgram(NamedTuple):
    """A program that was run, for which there are plans."""

    subject: Subject
    traced: Traced
    prepared: Prepared
    graph: Graph

    def running(self) -> contextlib.AbstractContextManager[None]:
        """The flags under which it runs."""
        return running(self.traced, self.prepared.measures.program.formats)

    def trials(self, inputs: PlannedInputs) -> PlanTrials:
        """What runs it by plans."""
        given = functools.partial(_arrays, self.subject, self.traced)
        measures = self.prepared.measures
        also = [measures.arrays, *map(given, inputs.also)]
        held_out = [*map(given, inputs.held_out)]
        left_out = self.prepared.left_out
        return PlanTrials(measures, self.graph, also, held_out, left_out, inputs.budget)

    def search(
        self, tolerance: float, inputs: PlannedInputs, show_status: Show
    ) -> PlanSearch:
        """Searches its plan."""
        trials, scaled = self.trials(inputs), self.prepared.runs.scaled()
        bare = Plan(
            np.dtype(trials.program.formats.narrow),
            loss_scale=None if scaled is None else scaled.scale,
            tolerance=tolerance,
            measured=_measured(self.subject.f, trials),
        )
        found = Planning(trials, bare, show_status).search()
        updates = tuple(self.traced.paths[number] for number in trials.updated)
        return dataclasses.replace(found, updates=updates)


def search_if_asked(
    subject: Subject,
    traced: Traced,
    prepared: Prepared,
    graph: Graph,
    tolerance: float | None,
    inputs: PlannedInputs,
    show_status: Show,
) -> PlanSearch | None:
    """The plan of a program that was run; None for an audit without a tolerance.

    None as well in dtypes without plans.
    """
    formats = prepared.measures.program.formats
    if tolerance is None or not inputs.budget or not _has_plan(formats):
        return None
    program = PlannedProgram(subject, traced, prepared, graph)
    return program.search(tolerance, inputs, show_status)


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
    program = plannable(f, args, kwargs, narrow, show_status)
    with program.running():
        return program.search(tolerance, inputs, show_status)


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

    program = plannable(f, args, kwargs, plan.narrow, show_status)
    with program.running():
        trials = program.trials(inputs)
        show_status("running it by the plan")
        bound = plan.tolerance if tolerance is None else tolerance
        found = PlanCheck(
            path=os.fspath(path),
            plan=plan,
            tolerance=float("nan") if bound is None else bound,
            error=trials.error(plan),
            held_out=trials.held_out(plan),
            compiled=trials.compiled(plan),
            share=trials.share(plan),
        )
        if found.is_within:
            return found
        return dataclasses.replace(found, worst=_worst(trials, plan, show_status))


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


def plannable(
    f: Function,
    args: Args,
    kwargs: Mapping[str, PyTree] | None,
    narrow: DType,
    show_status: Show,
) -> PlannedProgram:
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
    graph = Graph(traced.program)
    with running(traced, formats):
        prepared = prepare(f, subject, traced, formats, show_status)
    return PlannedProgram(subject, traced, prepared, graph)


def _has_plan(formats: Formats) -> bool:
    """Whether there are plans in these dtypes."""
    return formats.narrow in _NARROW and formats.wide == np.float32


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
