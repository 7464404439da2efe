"""The rules that optimizers and steps with stable types keep, each as a check.

Most are checks of the sweep. A rule is broken if its check raises anything.
"""

import copy
import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._audit.audit import audit_optimizer
from .._audit.report import AuditReport
from .._carry.call import Call, SplitTree
from .._carry.carry import Carry
from .._carry.modules import Contents
from .._carry.split import changed_constants
from .._guard.guard import policy_of
from .._guard.policy import Policy, Unavailable
from .._guard.record import record, restore
from .._guard.strong import strong
from .._leaves.arguments import shown
from .._leaves.compat import HAS_X64_SCOPE
from .._leaves.dtypes import cast, dtype_of, is_array, is_weak, promoted_weakly
from .._leaves.rows import by_path, tree_rows
from .._leaves.types import Leaf, Optimizer, Step
from . import checks
from .checks import (
    CheckedCall,
    Fault,
    OptimizerSubject,
    Skip,
    Training,
    failures_of,
    same_types,
)
from .inputs import Configuration, UpdateInputs, ones_like


class Trial:
    """An optimizer with its inputs, in one configuration."""

    def __init__(self, opt: Optimizer, inputs: UpdateInputs):
        self.opt = opt
        self.inputs = inputs

    @functools.cached_property
    def report(self) -> AuditReport:
        """Its audit."""
        params, updates, extra_args = self.inputs
        return audit_optimizer(self.opt, params, updates=updates, extra_args=extra_args)

    @property
    def buffers(self) -> tuple[dict[str, Leaf], Iterable[Leaf]]:
        """What a jitted step donates, by path, and what it only reads."""
        params = tree_util.tree_map(jnp.copy, self.inputs.params)
        return by_path(Training(params, self.opt.init(params))), ()

    def trace(self, check: Callable[[OptimizerSubject], None]) -> None:
        """Runs a check while the optimizer is traced."""
        run = lambda inputs: check(OptimizerSubject(self.opt, inputs))
        eqx.filter_eval_shape(run, self.inputs)

    @property
    def is_refused(self) -> bool:
        """Whether a guard's policy does not go with these flags and dtypes."""
        try:
            if policy_of(self.opt) != Policy():
                self.trace(lambda subject: subject.step(subject.carry))
        except Exception as error:
            return isinstance(error, Unavailable)
        return False


class StepTrial:
    """A step with the arguments of its first call."""

    def __init__(
        self, step: Step, carry: Carry, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ):
        self._call = Call(step, carry, args, kwargs)
        self.names = self._call.names
        self.carried = self._by_path(self._call.carried)
        self.constants: list[str] = []

    @property
    def buffers(self) -> tuple[dict[str, Leaf], Iterable[Leaf]]:
        """What a jitted step donates, by path, and what it only reads."""
        return dict(self.carried.values), self._call.rest.arrays

    def with_strong_carry(self) -> "StepTrial":
        """The same trial with a strongly typed first carry that shares no buffer."""
        trial = copy.copy(self)
        trial.carried = strong(tree_util.tree_map(ones_like, self.carried))
        return trial

    def trace(self, check: Callable[[CheckedCall], None]) -> None:
        """Runs a check while the step is traced."""

        def run(carried, others):
            check(CheckedCall(lambda carried: self._run(carried, others), carried))

        jax.eval_shape(run, self.carried, self._call.rest.arrays)

    def _run(self, carried: Contents, others: Sequence[Leaf]) -> Contents:
        left = iter(carried.values.values())
        arrays = [[next(left) for _ in tree.arrays] for tree in self._call.carried]
        before, after = self._call.carried, self._call.run(arrays, others)
        triples = [*zip(self._call.names, before, after)]
        self.constants = [
            f"{name}{path}: {shown(old)} -> {shown(new)}, a constant of the program"
            for name, *trees in triples
            for path, old, new in changed_constants(*trees)
        ]
        made = self._by_path(after)
        of_other_tree = (
            f"{row.path}: {row.before} -> {row.after}"
            for name, old, new in triples
            if old.treedef != new.treedef
            for row in tree_rows(name, old.tree, new.tree, "")
        )
        return Contents(None, made.values, next(of_other_tree, None))

    def _by_path(self, trees: Sequence[SplitTree]) -> Contents:
        leaves = {
            f".{label}{path}": leaf
            for label, tree in zip(self._call.names, trees)
            for path, leaf in zip(tree.paths, tree.arrays)
        }
        return Contents(None, leaves)


def _init(trial: Trial) -> None:
    eager = trial.opt.init(checks.some_zeros(trial.inputs.params))
    trial.trace(lambda subject: checks.init(eager, subject.carry.state))


def _audited(where: str) -> Callable[[Trial], None]:
    """A rule against what the audit finds in the state or in the updates."""

    def check(trial: Trial) -> None:
        report = trial.report
        if report.error is not None:
            raise Fault(": ".join(line.strip(" :") for line in report.lines()))
        pairs = zip(report.drifts, report.lines())
        checks.raise_first(line for drift, line in pairs if drift.where == where)

    return check


def _donation(trial: Trial | StepTrial) -> None:
    """No array is donated twice, nor one that the optimizer has for its next `init`."""
    donated, others = trial.buffers
    if isinstance(trial, Trial):
        again, _ = trial.buffers
        checks.raise_first(
            f"{path.lstrip('.')} is one array in two first states: init keeps it"
            for path, leaf in donated.items()
            if isinstance(leaf, jax.Array) and leaf is again.get(path)
        )
    named = [(path.lstrip("."), leaf) for path, leaf in donated.items()]
    owners: dict[int | None, str] = {}
    for name, leaf in (*named, *(("another argument", leaf) for leaf in others)):
        pointer = _pointer(leaf)
        if pointer is not None and (owner := owners.setdefault(pointer, name)) != name:
            raise Fault(f"{owner} and {name} are one buffer")


def _pointer(leaf: Leaf) -> int | None:
    """The address of an array's buffer; None for a leaf that has none to donate."""
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
        raise Fault(f"the state holds {unsaved[0]!r}, which is not an array")
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
        raise Skip("a function of the caller's runs under the caller's flag")
    if trial.report.wide_operations:
        raise Fault(trial.report.wide_summary)


def _types(subject: CheckedCall) -> None:
    """A carry keeps its types; a leaf that begins weakly may promote, as in JAX loops."""
    before, after = subject.carry, subject.step(subject.carry)
    values = {
        path: _promoted(leaf, after.values.get(path, leaf))
        for path, leaf in before.values.items()
    }
    same_types("", Contents(None, values, before.structure), after)


def _step_compiles_once(trial: StepTrial) -> None:
    trial.trace(checks.compilations)
    checks.raise_first(trial.constants)


def _promoted(before: Leaf, after: Leaf) -> Leaf:
    if not is_weak(before) or dtype_of(before) is None or dtype_of(after) is None:
        return before
    if is_weak(after) and dtype_of(after) == dtype_of(before):
        return before
    return cast(before, promoted_weakly(before, after))


_Rule = Callable[[Any], None]  # of a `Trial` or of a `StepTrial`


def _traced(check: Callable[[Any], None]) -> _Rule:
    return lambda trial: trial.trace(check)


RULES: dict[str, _Rule] = {
    "init": _init,
    "state_types": _audited("state"),
    "update_types": _audited("updates"),
    "scan": _traced(checks.scan),
    "cond": _traced(checks.cond),
    "while_loop": _traced(checks.while_loop),
    "one_compilation": _traced(checks.compilations),
    "donation": _donation,
    "checkpoint": _checkpoint,
    "blind_to_x64": _blind_to_x64,
}
# An optimizer is a step that carries params and a state.
_OF_ANY_STEP = "scan", "cond", "while_loop", "one_compilation", "donation"
STEP_RULES = {"types": _traced(_types)} | {name: RULES[name] for name in _OF_ANY_STEP}
STEP_RULES["one_compilation"] = _step_compiles_once


def broken(
    make: Callable[[], Optimizer],
    inputs: Callable[[Configuration], UpdateInputs],
    rules: Iterable[str],
    configurations: Iterable[Configuration],
) -> dict[str, list[tuple[Configuration, str]]]:
    """The rules that an optimizer breaks, each with where and how."""
    chosen = {rule: RULES[rule] for rule in rules}
    refused: dict[str, list[tuple[Configuration, str]]] = {}
    found: dict[str, list[tuple[Configuration, str]]] = {}
    runs = False
    for configuration in configurations:
        with configuration.flags(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = Trial(make(), inputs(configuration))
            is_refused = trial.is_refused
            failures, _ = failures_of(chosen, trial)
        runs |= not is_refused
        for rule, reason in failures.items():
            where = refused if is_refused else found
            where.setdefault(rule, []).append((configuration, reason))
    return found if runs else refused


def broken_by_step(trial: StepTrial, rules: Iterable[str]) -> dict[str, str]:
    """The rules that a step breaks, each with how; "traces" alone if the step raises."""
    runs = _traced(lambda subject: subject.step(subject.carry))
    raised, _ = failures_of({"traces": runs}, trial)
    return raised or failures_of({rule: STEP_RULES[rule] for rule in rules}, trial)[0]
