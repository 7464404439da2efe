"""The rules that optimizers and steps with stable types keep, each as a check.

Most are those of the sweep. A rule is broken if its check raises anything.
"""

import copy
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._audit.audit import audit
from .._audit.report import AuditReport
from .._carry.call import Call, SplitTree
from .._carry.carry import Carry
from .._guard.record import record, restore
from .._guard.strong import strong
from .._leaves.compat import HAS_X64_SCOPE
from .._leaves.dtypes import cast, dtype_of, is_array, is_weak, promoted_weakly
from .._leaves.modules import Contents
from .._leaves.types import Leaf, Optimizer, PyTree, Step
from . import checks
from .checks import Fault, Skip, Subject, same_types
from .entry import Inputs
from .sweep import Configuration, one_line


class Trial:
    """One optimizer with its inputs, in one configuration."""

    def __init__(self, opt: Optimizer, inputs: Inputs):
        self.opt = opt
        self.inputs = inputs

    @functools.cached_property
    def report(self) -> AuditReport:
        """Its audit."""
        params, updates, extra_args = self.inputs
        return audit(self.opt, params, updates=updates, extra_args=extra_args)

    def fault(self, where: str) -> None:
        """Raises what the audit found in the state or in the updates."""
        pairs = zip(self.report.drifts, self.report.lines())
        lines = [line for drift, line in pairs if drift.where == where]
        if self.report.error is not None:
            lines = [": ".join(line.strip(" :") for line in self.report.lines())]
        if lines:
            more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
            raise Fault(lines[0] + more)

    def trace(self, check: Callable[[Subject], None]) -> None:
        """Runs a check on the optimizer while it is traced."""
        run = lambda inputs: check(Subject(self.opt, inputs))
        eqx.filter_eval_shape(run, self.inputs)


class StepTrial:
    """A step with the arguments of its first call.

    Attributes:
        names: what each carry is called.
        carried: the array leaves of its first carry, by path: what a loop carries.
        others: the array leaves of its other arguments. Python numbers are none.

    Args:
        step: the step.
        carry: which of its arguments come back.
        args: its arguments.
        kwargs: those by name.
    """

    def __init__(
        self, step: Step, carry: Carry, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ):
        self._call = Call(step, carry, args, kwargs)
        self.names = self._call.names
        self.carried = self._by_path(self._call.carried)
        self.others = self._call.rest.arrays

    def begun_strongly(self) -> "StepTrial":
        """The same with a strongly typed first carry, each leaf an array of its own."""
        begun = copy.copy(self)
        begun.carried = strong(tree_util.tree_map(_as_array, self.carried))
        return begun

    def trace(self, check: Callable[[Step, Contents], Any]) -> None:
        """Runs a check on the step while it is traced."""

        def run(carried, others):
            check(lambda carried: self._run(carried, others), carried)

        jax.eval_shape(run, self.carried, self.others)

    def _run(self, carried: Contents, others: Sequence[Leaf]) -> Contents:
        left = iter(carried.values.values())
        given = [[next(left) for _ in tree.arrays] for tree in self._call.carried]
        return self._by_path(self._call.run(given, others))

    def _by_path(self, trees: Sequence[SplitTree]) -> Contents:
        leaves = {
            f".{label}{path}": leaf
            for label, each in zip(self._call.names, trees)
            for path, leaf in zip(each.paths, each.arrays)
        }
        return Contents(None, leaves)


def _as_array(leaf: Leaf) -> Leaf:
    is_struct = isinstance(leaf, jax.ShapeDtypeStruct)
    return jnp.ones(leaf.shape, leaf.dtype) if is_struct else leaf


class Broken(NamedTuple):
    """A rule that an optimizer breaks, where, and how."""

    rule: str
    configuration: Configuration
    reason: str


class BrokenRule(NamedTuple):
    """A rule that a step breaks, and how."""

    rule: str
    reason: str


def _init(trial: Trial) -> None:
    eager = trial.opt.init(checks.some_zeros(trial.inputs.params))
    trial.trace(lambda subject: checks.init(eager, subject.carry.state))


def _init_is_donated(trial: Trial) -> None:
    params = tree_util.tree_map(jnp.copy, trial.inputs.params)
    leaves = tree_util.tree_leaves((params, trial.opt.init(params)))
    if shared := _shared([("", leaf) for leaf in leaves]):
        del shared
        raise Fault("init gives two leaves one buffer, or one that belongs to params")


def _carry_is_donated(trial: StepTrial) -> None:
    carried = [(path.lstrip("."), leaf) for path, leaf in trial.carried.values.items()]
    if shared := _shared(carried, [("another argument", leaf) for leaf in trial.others]):
        raise Fault(f"{shared[0]} and {shared[1]} are one buffer")


def _shared(
    donated: Iterable[tuple[str, Leaf]], others: Iterable[tuple[str, Leaf]] = ()
) -> tuple[str, str] | None:
    """The names of two leaves that have one buffer, of which one at least is donated."""
    owners: dict[int, str] = {}
    for is_donated, pairs in ((True, donated), (False, others)):
        for name, leaf in pairs:
            pointer = _pointer(leaf)
            if pointer in owners and (is_donated or owners[pointer] != name):
                return owners[pointer], name
            if pointer is not None:
                owners[pointer] = name
    return None


def _pointer(leaf: Leaf) -> int | None:
    """Where the buffer of an array is; None for what has none to give away."""
    if not isinstance(leaf, jax.Array) or not leaf.size or not leaf.is_fully_addressable:
        return None
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    data = jax.random.key_data(leaf) if is_key else leaf
    return data.addressable_data(0).unsafe_buffer_pointer()


def _checkpoint(trial: Trial) -> None:
    params, updates, extra_args = trial.inputs
    state = trial.opt.init(params)
    leaves, structure = tree_util.tree_flatten(state)
    unsaved = [leaf for leaf in leaves if dtype_of(leaf) is None]
    if not all(map(is_array, unsaved)):
        raise Fault(f"the state holds {unsaved[0]!r}, which is no array")
    if unsaved:
        raise Skip("PRNG keys are saved in ways of their own")
    loaded = tree_util.tree_unflatten(structure, [np.asarray(leaf) for leaf in leaves])
    restored = restore(loaded, record(trial.opt, params))
    same_types("state", state, restored)
    step = functools.partial(trial.opt.update, updates, restored, params, **extra_args)
    jax.eval_shape(step)


def _blind_to_x64(trial: Trial) -> None:
    if not HAS_X64_SCOPE:
        raise Skip("the guard cannot hide the flag before JAX 0.7")
    if any(map(callable, trial.inputs.extra_args.values())):
        raise Skip("what a function of the caller's computes is its own matter")
    if trial.report.wide_operations:
        raise Fault(trial.report.wide_summary)


def _types(step: Step, carried: Contents) -> None:
    """The types of one step. What begins weakly may come back as JAX promotes it."""
    after = step(carried)
    _same_leaves(carried, after)
    expected = {
        path: _expected(x, after.values[path]) for path, x in carried.values.items()
    }
    same_types("", Contents(None, expected), after)


def _expected(before: Leaf, after: Leaf) -> Leaf:
    if not is_weak(before) or dtype_of(before) is None or dtype_of(after) is None:
        return before
    if is_weak(after) and dtype_of(after) == dtype_of(before):
        return before
    return cast(before, promoted_weakly(before, after))


def _one_compilation(step: Step, carried: Contents) -> None:
    after = step(carried)
    _same_leaves(carried, after)
    same_types("", carried, after)


def _same_leaves(before: Contents, after: Contents) -> None:
    if [*before.values] != [*after.values]:
        other = sorted({*before.values} ^ {*after.values})
        names = ", ".join(path.lstrip(".") for path in other)
        raise Fault(f"only in one of what came in and went out: {names}")


# The rules that an optimizer shares with any step: it carries params and a state.
_OF_ANY_STEP: dict[str, Callable[[Step, PyTree], None]] = {
    "scan": checks.scan,
    "cond": checks.cond,
    "while_loop": checks.while_loop,
}


def _of_subject(check: Callable[[Step, PyTree], None]) -> Callable[[Trial], None]:
    on_subject = lambda subject: check(subject.step, subject.carry)
    return lambda trial: trial.trace(on_subject)


def _of_step(check: Callable[[Step, Contents], None]) -> Callable[[StepTrial], None]:
    return lambda trial: trial.trace(check)


RULES: dict[str, Callable[[Trial], None]] = {
    "init": _init,
    "state_types": lambda trial: trial.fault("state"),
    "update_types": lambda trial: trial.fault("updates"),
    **{name: _of_subject(check) for name, check in _OF_ANY_STEP.items()},
    "accumulation": lambda trial: trial.trace(checks.multi_steps),
    "one_compilation": _of_subject(checks.compilations),
    "donation": _init_is_donated,
    "checkpoint": _checkpoint,
    "blind_to_x64": _blind_to_x64,
}

STEP_RULES: dict[str, Callable[[StepTrial], None]] = {
    "types": _of_step(_types),
    **{name: _of_step(check) for name, check in _OF_ANY_STEP.items()},
    "one_compilation": _of_step(_one_compilation),
    "donation": _carry_is_donated,
}


def broken(
    make: Callable[[], Any],
    inputs: Callable[[Configuration], Inputs],
    rules: Any,
    configurations: Any,
) -> Iterator[Broken]:
    """The rules that an optimizer breaks, each in every configuration where it does.

    Args:
        make: makes the optimizer; called under the flags of the configuration.
        inputs: makes what it is fed, likewise.
        rules: names of `RULES`.
        configurations: of the sweep.
    """
    for configuration in configurations:
        with configuration.flags(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = Trial(make(), inputs(configuration))
            for rule in rules:
                try:
                    RULES[rule](trial)
                except Skip:
                    continue
                except Exception as error:
                    yield Broken(rule, configuration, one_line(error))


def broken_rules(trial: StepTrial, rules: Iterable[str]) -> Iterator[BrokenRule]:
    """The rules that a step breaks; "traces" alone where it raises by itself."""
    try:
        trial.trace(lambda step, carried: step(carried))
    except Exception as error:
        yield BrokenRule("traces", one_line(error))
        return
    for rule in rules:
        try:
            STEP_RULES[rule](trial)
        except Exception as error:
            yield BrokenRule(rule, one_line(error))
