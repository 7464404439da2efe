"""The rules that optimizers and steps with stable types keep, each as a check.

A check raises where a user's program would. Nearly everything is traced and does not run.
"""

import contextlib
import copy
import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, tree_util

from .._audit.audit import audit_optimizer
from .._audit.report import AuditReport
from .._carry.call import Call
from .._carry.carry import Carry
from .._carry.modules import Contents
from .._carry.split import SplitTree, changed_constants
from .._guard.guard import policy_of
from .._guard.policy import Policy, Unavailable
from .._guard.record import record, restore
from .._guard.strong import strong
from .._leaves.arguments import shown
from .._leaves.compat import HAS_X64_SCOPE
from .._leaves.dtypes import dtype_of, is_array, is_weak
from .._leaves.key_path import by_path, path_text
from .._leaves.leaf_change import tree_changes
from .._leaves.leaf_type import describe, traced_type
from .._leaves.types import Leaf, Optimizer, Params, PyTree, State, Step
from .inputs import Configuration, UpdateInputs, ones_like

_T = TypeVar("_T")
_Step = Callable[[PyTree], PyTree]  # takes and returns what it carries
# Leaves by path, and others that must not be the same, with the name of these.
_Buffers = tuple[Mapping[str, Leaf], str, Sequence[Leaf]]
Check = Callable[[_Step, PyTree], None]  # of a step and its first carry, both traced


class Fault(Exception):
    """A check failed; the message says where and how, in one line."""


class Training(NamedTuple):
    """What a training step carries."""

    params: Params
    state: State


def some_zeros(params: Params) -> Params:
    """Params whose every other leaf is zero: an `init` that runs may look at values."""
    leaves, treedef = tree_util.tree_flatten(params)
    leaves[::2] = [jnp.asarray(np.zeros_like(leaf), leaf.dtype) for leaf in leaves[::2]]
    return tree_util.tree_unflatten(treedef, leaves)


def scan(step: _Step, carry: PyTree) -> None:
    """A step is the body of a scan. `optax.apply_updates` casts to the params' dtypes."""
    lax.scan(lambda carry, _: (step(carry), None), carry, None, length=2)


def cond(step: _Step, carry: PyTree) -> None:
    """A step and no step are two branches of a cond."""
    lax.cond(jnp.asarray(True), step, lambda carry: carry, carry)


def while_loop(step: _Step, carry: PyTree) -> None:
    """A step is the body of a while_loop."""
    lax.while_loop(lambda _: jnp.asarray(False), step, carry)


def compilations(step: _Step, carry: PyTree) -> None:
    """The carry keeps its types in one jitted step, which else compiles more than once."""
    # `eval_shape` of older releases of JAX loses weak types.
    same_types("", carry, jax.jit(step)(carry))


def failures_of(checks: Mapping[str, Callable[[_T], None]], subject: _T) -> dict[str, str]:
    """Why checks fail on a subject, by name."""
    failures = {}
    for name, check in checks.items():
        try:
            check(subject)
        except Exception as error:
            failures[name] = one_line(error)
    return failures


def one_line(error: Exception) -> str:
    """The first line of an error and the first leaf that it names."""
    if isinstance(error, Fault):
        return str(error)
    first, *others = [line.strip() for line in str(error).strip().splitlines()] or [""]
    leaf = next((line for line in others if " has type " in line or "->" in line), "")
    return f"{type(error).__name__}: {first} {leaf.removeprefix('* ')}".strip()


def same_types(name: str, before: PyTree, after: PyTree, where: str = "") -> None:
    """Raises a `Fault` that names the first leaf whose type or shape changed.

    `jit` compiles anew for a type, a shape or another implementation of random keys.
    """
    if tree_util.tree_structure(before) != tree_util.tree_structure(after):
        raise _another_tree(name, before, after)
    raise_first(
        f"{path_text(path).lstrip('.')}: {_told(old, new)} -> {_told(new, old)}{where}"
        for (path, old), new in zip(by_path(before, name).items(), by_path(after).values())
        if _type(old) != _type(new) or jnp.shape(old) != jnp.shape(new)
    )


def _another_tree(name: str, before: PyTree, after: PyTree) -> Fault:
    row = tree_changes(name, before, after)[0].row()
    return Fault(f"another tree, {row.path.lstrip('.')}: {row.before} -> {row.after}")


def _type(leaf: Leaf) -> str:
    found = traced_type(leaf)
    return type(leaf).__name__ if found is None else found.without_shape


def _told(leaf: Leaf, other: Leaf) -> str:
    """The type of a leaf, with its shape if that of the other differs."""
    return _type(leaf) if jnp.shape(leaf) == jnp.shape(other) else describe(leaf)


def raise_first(faults: Iterable[str]) -> None:
    """Raises a `Fault` with the first of some faults and their number, if there are any."""
    if found := [*faults]:
        raise Fault(found[0] + f" (and {len(found) - 1} more)" * (len(found) > 1))


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
    def buffers(self) -> _Buffers:
        """What a jitted step donates, and what of it the next `init` gives as well."""
        copies = [tree_util.tree_map(jnp.copy, self.inputs.params) for _ in range(2)]
        first, again = (by_path(Training(x, self.opt.init(x))) for x in copies)
        kept = [leaf for path, leaf in first.items() if leaf is again.get(path)]
        buffers = {path_text(path): leaf for path, leaf in first.items()}
        return buffers, "another first state", kept

    def trace(self, check: Check) -> None:
        """Runs a check while a training step is traced."""

        def run(inputs):
            params, updates, extra_args = inputs

            def step(carry):
                params, state = carry
                new, state = self.opt.update(updates, state, params, **extra_args)
                return Training(optax.apply_updates(params, new), state)

            check(step, Training(params, self.opt.init(params)))

        eqx.filter_eval_shape(run, self.inputs)

    @property
    def is_refused(self) -> bool:
        """Whether a guard's policy does not go with these flags and dtypes."""
        try:
            if policy_of(self.opt) != Policy():
                self.trace(_runs)
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
    def buffers(self) -> _Buffers:
        """What a jitted step donates, and what it only reads."""
        return self.carried.values, "another argument", self._call.rest.arrays

    def with_strong_carry(self) -> "StepTrial":
        """The same trial with a strongly typed first carry that shares no buffer."""
        trial = copy.copy(self)
        trial.carried = strong(tree_util.tree_map(ones_like, self.carried))
        return trial

    def trace(self, check: Check) -> None:
        """Runs a check while the step is traced."""

        def run(carried, others):
            check(lambda carried: self._run(carried, others), carried)

        jax.eval_shape(run, self.carried, self._call.rest.arrays)

    def _run(self, carried: Contents, others: Sequence[Leaf]) -> Contents:
        left = iter(carried.values.values())
        arrays = [[next(left) for _ in tree.arrays] for tree in self._call.carried]
        before, after = self._call.carried, self._call.run(arrays, others).carried
        triples = [*zip(self.names, before, after)]
        for name, old, new in triples:  # other trees may have the same paths
            if old.treedef != new.treedef:
                raise _another_tree(name, old.tree, new.tree)
        self.constants = [
            f"{name}{path}: {shown(old)} -> {shown(new)}, a constant of the program"
            for name, *trees in triples
            for path, old, new in changed_constants(*trees)
        ]
        return self._by_path(after)

    def _by_path(self, trees: Sequence[SplitTree]) -> Contents:
        leaves = {
            f".{label}{path}": leaf
            for label, tree in zip(self._call.names, trees)
            for path, leaf in zip(tree.paths, tree.arrays)
        }
        return Contents(None, leaves)


def _runs(step: _Step, carry: PyTree) -> None:
    with contextlib.suppress(Fault):  # of another tree, which other checks find
        step(carry)


def _init(trial: Trial) -> None:
    """The first state is the same if `init` runs, on `some_zeros`, and if it is traced.

    It is traced under `jit`, in `cond`, and for the target of a checkpoint.
    """
    eager, where = trial.opt.init(some_zeros(trial.inputs.params)), " where init is traced"
    trial.trace(lambda _, carry: same_types("state", eager, carry.state, where))


def _audited(where: str) -> Callable[[Trial], None]:
    """A rule against what the audit finds in the state or in the updates."""

    def check(trial: Trial) -> None:
        report = trial.report
        if report.error is not None:
            raise Fault(": ".join(line.strip(" :") for line in report.lines()))
        pairs = zip(report.drifts, report.lines())
        raise_first(line for drift, line in pairs if drift.where == where)

    return check


def _donation(trial: Trial | StepTrial) -> None:
    """No array is donated twice, nor one that the optimizer has for its next `init`."""
    donated, other, leaves = trial.buffers
    owners: dict[int | None, str] = {}
    for path, leaf in (*donated.items(), *((other, leaf) for leaf in leaves)):
        name, pointer = path.lstrip("."), _pointer(leaf)
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
        return  # random keys are saved in ways of their own
    loaded = tree_util.tree_unflatten(structure, [np.asarray(leaf) for leaf in leaves])
    restored = restore(loaded, record(trial.opt, params))
    same_types("state", state, restored)
    eqx.filter_eval_shape(trial.opt.update, updates, restored, params, **extra_args)


def _blind_to_x64(trial: Trial) -> None:
    # A function of the caller's runs under the caller's flag.
    has_functions = any(map(callable, trial.inputs.extra_args.values()))
    if HAS_X64_SCOPE and not has_functions and trial.report.wide_operations:
        raise Fault(trial.report.summaries[0])


def _types(step: _Step, carry: Contents) -> None:
    """A carry keeps its types; leaves that begin weakly are left to the loops."""
    after = step(carry)
    values = {
        path: after.values.get(path, leaf) if is_weak(leaf) else leaf
        for path, leaf in carry.values.items()
    }
    same_types("", Contents(None, values), after)


def _step_compiles_once(trial: StepTrial) -> None:
    trial.trace(compilations)
    raise_first(trial.constants)


_Rule = Callable[[Any], None]  # of a `Trial` or of a `StepTrial`


def _traced(check: Check) -> _Rule:
    return lambda trial: trial.trace(check)


RULES: dict[str, _Rule] = {
    "init": _init,
    "state_types": _audited("state"),
    "update_types": _audited("updates"),
    "scan": _traced(scan),
    "cond": _traced(cond),
    "while_loop": _traced(while_loop),
    "one_compilation": _traced(compilations),
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
    found, refused, runs = {}, {}, False
    for configuration in configurations:
        with configuration.flags(), warnings.catch_warnings(action="ignore"):
            trial = Trial(make(), inputs(configuration))
            where = refused if trial.is_refused else found
            failures = failures_of(chosen, trial)
        runs |= where is found
        for rule, reason in failures.items():
            where.setdefault(rule, []).append((configuration, reason))
    return found if runs else refused


def broken_by_step(trial: StepTrial, rules: Iterable[str]) -> dict[str, str]:
    """The rules that a step breaks, each with how; "traces" alone if the step raises."""
    chosen = {rule: STEP_RULES[rule] for rule in rules}
    return failures_of({"traces": _traced(_runs)}, trial) or failures_of(chosen, trial)
