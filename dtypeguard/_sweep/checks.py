"""The rules that optimizers and steps with stable types keep, each as a check.

A check raises where a user's program would. Nearly everything is traced and does not run.
"""

import collections
import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, tree_util

from .._audit.audit import audit_optimizer
from .._audit.examine import examine
from .._audit.report import AuditReport, wide_summary
from .._audit.subjects import StepCall
from .._blame.drift import Drift
from .._carry.modules import Contents
from .._carry.split import SplitTree
from .._guard.guard import policy_of
from .._guard.policy import Policy, Unavailable
from .._guard.record import record, restore
from .._guard.strong import strong
from .._leaves.compat import HAS_X64_SCOPE
from .._leaves.dtypes import dtype_of, is_array
from .._leaves.errors import DtypeDriftError
from .._leaves.key_path import KeyPath, by_path, path_text
from .._leaves.leaf_change import tree_changes
from .._leaves.leaf_type import LeafType, traced_type
from .._leaves.types import Leaf, Optimizer, Params, PyTree, State
from .inputs import Configuration, UpdateInputs, ones_like

_T = TypeVar("_T")
CarryStep = Callable[[PyTree], PyTree]  # takes and returns what it carries
Check = Callable[[CarryStep, PyTree], None]  # of a step and its first carry, both traced


class Fault(Exception):
    """A check failed. The message says where and how, in one line.

    Attributes:
        is_of_weak_type: whether a leaf was weakly typed at first, in the same dtype.
    """

    def __init__(self, message: str, *, is_of_weak_type: bool = False):
        super().__init__(message)
        self.is_of_weak_type = is_of_weak_type


class Training(NamedTuple):
    """What a training step carries."""

    params: Params
    state: State


def some_zeros(params: Params) -> Params:
    """Returns params whose every other leaf is zero: `init` may look at values."""
    leaves, treedef = tree_util.tree_flatten(params)
    for i in range(0, len(leaves), 2):
        # NumPy makes the zeros: nothing compiles.
        leaf = leaves[i]
        zeros = np.zeros_like(leaf)
        leaves[i] = jnp.asarray(zeros, leaf.dtype)
    return treedef.unflatten(leaves)


def run_once(step: CarryStep, carry: PyTree) -> None:
    """Runs a step once."""
    step(carry)


def scan(step: CarryStep, carry: PyTree) -> None:
    """Runs a step as the body of a scan."""

    def body(carry, _):
        return step(carry), None

    lax.scan(body, carry, None, length=2)


def cond(step: CarryStep, carry: PyTree) -> None:
    """Runs a step and no step as two branches of a cond."""

    def no_step(carry):
        return carry

    pred = jnp.asarray(True)
    lax.cond(pred, step, no_step, carry)


def while_loop(step: CarryStep, carry: PyTree) -> None:
    """Runs a step as the body of a while_loop."""

    # The body is only traced: its types are what counts, and a turn takes time.
    def goes_on(_):
        return jnp.asarray(False)

    lax.while_loop(goes_on, step, carry)


def compilations(step: CarryStep, carry: PyTree) -> None:
    """Checks that a jitted step compiles once: its carry comes back in its types."""
    jitted_step = jax.jit(step)
    # `eval_shape` of older releases of JAX loses weak types.
    new_carry = jitted_step(carry)
    same_types("", carry, new_carry)


def same_types(name: str, before: PyTree, after: PyTree, where: str = "") -> None:
    """Raises a `Fault` that names the first leaf whose type or shape changed.

    `jit` compiles anew for a type, a shape or another implementation of random keys.
    """
    old_treedef = tree_util.tree_structure(before)
    new_treedef = tree_util.tree_structure(after)
    if old_treedef != new_treedef:
        changes = tree_changes(name, before, after)
        row = changes[0].row()
        path = row.path.lstrip(".")
        change = f"{row.before} -> {row.after}"
        raise Fault(f"another tree, {path}: {change}{where}")
    faults = []
    old_types = _types_by_path(name, before)
    new_types = _types_by_path(name, after)
    for path, old_type in old_types.items():
        new_type = new_types[path]
        if old_type == new_type:
            continue
        is_of_weak_type = False
        if isinstance(new_type, LeafType):
            weak_type = dataclasses.replace(new_type, weak=True)
            is_of_weak_type = old_type == weak_type
        change = f"{old_type} -> {new_type}"
        fault = Fault(f"{path}: {change}{where}", is_of_weak_type=is_of_weak_type)
        faults.append(fault)
    raise_first(faults)


def _types_by_path(name: str, tree: PyTree) -> dict[str, LeafType | str]:
    """Returns the types of leaves as `jit` sees them, or the classes of no arrays."""
    types = {}
    for path, leaf in by_path(tree, name).items():
        text = path_text(path).lstrip(".")
        class_name = type(leaf).__name__
        types[text] = traced_type(leaf) or class_name
    return types


def raise_first(faults: Sequence[Fault]) -> None:
    """Raises the first of some faults with their number, if there are any."""
    if not faults:
        return
    # One line is enough: most often one cause changes many leaves.
    first = faults[0]
    if len(faults) > 1:
        num_more = len(faults) - 1
        message = f"{first} (and {num_more} more)"
        first.args = (message,)
    raise first


def one_line(error: Exception) -> str:
    """Returns the first line of an error and the first leaf that it names."""
    if isinstance(error, Fault):
        return str(error)
    lines = str(error).strip().splitlines()
    class_name = type(error).__name__
    first_line = "".join(lines[:1])
    text = f"{class_name}: {first_line}"
    if isinstance(error, DtypeDriftError) and error.rows:
        row = error.rows[0]
        change = f"{row.before} -> {row.after}"
        text += f" {row.path}  {change}  {row.remedy}"
        return text.strip()
    for line in lines[1:]:
        # How JAX names a leaf of a carry or of a branch.
        if " has type " in line:
            leaf = line.strip().removeprefix("* ")
            return f"{text} {leaf}"
    return text.strip()


class Trial:
    """An optimizer with its inputs, in one configuration."""

    def __init__(self, opt: Optimizer, inputs: UpdateInputs):
        self.opt = opt
        self.inputs = inputs

    @functools.cached_property
    def report(self) -> AuditReport:
        """The audit of the optimizer."""
        return audit_optimizer(
            self.opt,
            self.inputs.params,
            updates=self.inputs.updates,
            extra_args=self.inputs.extra_args,
            has_advice=False,
        )

    def buffers(self) -> list[tuple[str, Leaf]]:
        """Returns params and the first state, and what each first state has in common."""
        carry = self._first_leaves()
        next_carry = self._first_leaves()
        buffers = []
        for path, leaf in carry.items():
            name = path_text(path)
            buffers.append((name, leaf))
            # The optimizer holds it, and it would be gone once the state is donated.
            if leaf is next_carry.get(path):
                buffers.append(("another first state", leaf))
        return buffers

    def _first_leaves(self) -> dict[KeyPath, Leaf]:
        # A state may hold the params themselves.
        params = tree_util.tree_map(jnp.copy, self.inputs.params)
        state = self.opt.init(params)
        carry = Training(params, state)
        return by_path(carry)

    def trace(self, check: Check) -> None:
        """Runs a check while a training step is traced."""

        def run(inputs):
            params, updates, extra_args = inputs

            def step(carry):
                params, state = carry
                new, state = self.opt.update(updates, state, params, **extra_args)
                # It casts to the params' dtypes.
                new_params = optax.apply_updates(params, new)
                return Training(new_params, state)

            state = self.opt.init(params)
            carry = Training(params, state)
            check(step, carry)

        eqx.filter_eval_shape(run, self.inputs)


class StepTrial:
    """A step with the arguments of its first call."""

    def __init__(self, call: StepCall):
        self._step_call = call
        self._call = call.call()
        self.names = self._call.names
        self.carried = self._by_path(self._call.carried)
        # As for the audit, which begins with these types.
        if call.types is not None:
            first_carry = tree_util.tree_map(ones_like, self.carried)
            self.carried = strong(first_carry)

    @functools.cached_property
    def report(self) -> AuditReport:
        """The audit of the step."""
        return examine(self._step_call, x64=None, has_advice=False)

    def buffers(self) -> list[tuple[str, Leaf]]:
        """Returns the carry, and the arguments that the step only reads."""
        buffers = list(self.carried.values.items())
        for leaf in self._call.rest.arrays:
            buffers.append(("another argument", leaf))
        return buffers

    def with_strong_carry(self) -> "StepTrial":
        """Returns the trial with a strongly typed first carry that shares no buffer."""
        strong_call = dataclasses.replace(self._step_call, types={})
        return StepTrial(strong_call)

    def trace(self, check: Check) -> None:
        """Runs a check while the step is traced."""
        # Loops would see the arrays alone.
        faults = _drift_faults(self, _is_of_structure)
        raise_first(faults)

        def run(carried, other_arrays):
            def step(carried):
                return self._run(carried, other_arrays)

            check(step, carried)

        jax.eval_shape(run, self.carried, self._call.rest.arrays)

    def _run(self, carry: Contents, other_arrays: Sequence[Leaf]) -> Contents:
        # The order of `_by_path`: JAX keeps that of `Contents`.
        remaining = iter(carry.values.values())
        arrays = []
        for parts in self._call.carried:
            num_arrays = len(parts.arrays)
            arrays_of_tree = list(itertools.islice(remaining, num_arrays))
            arrays.append(arrays_of_tree)
        results = self._call.run(arrays, other_arrays)
        return self._by_path(results.carried)

    def _by_path(self, trees: Sequence[SplitTree]) -> Contents:
        leaves = {}
        for name, parts in zip(self._call.names, trees):
            # The dot sets the name apart where JAX prints the path of a carry.
            for path, leaf in zip(parts.paths, parts.arrays):
                leaves[f".{name}{path}"] = leaf
        return Contents(None, leaves)


AnyTrial = Trial | StepTrial
OptimizerRule = Callable[[Trial], None]
StepRule = Callable[[StepTrial], None]
CommonRule = Callable[[AnyTrial], None]


def _is_of_structure(drift: Drift) -> bool:
    return drift.kind == "structure"


def _is_of_state(drift: Drift) -> bool:
    return drift.where == "state"


def _is_of_updates(drift: Drift) -> bool:
    return drift.where == "updates"


def _began_strongly(drift: Drift) -> bool:
    return not drift.was_weak


def _drift_faults(trial: AnyTrial, is_meant: Callable[[Drift], bool]) -> list[Fault]:
    """Returns a fault for each leaf of an audit's drift that a rule means."""
    report = trial.report
    faults = []
    rows = report.rows()
    for drift, row in zip(report.drifts, rows):
        if not is_meant(drift):
            continue
        texts = [text for text in row if text]
        message = "  ".join(texts)
        if drift.where == "carry":
            # An advice says that an audit names the lines of a step.
            change = f"{drift.before} -> {drift.after}"
            message = f"{drift.name}: {change}"
            if drift.kind == "structure":
                message = f"another tree, {message}"
        is_of_weak_type = drift.kind == "weak_type" and drift.was_weak
        fault = Fault(message, is_of_weak_type=is_of_weak_type)
        faults.append(fault)
    return faults


def _keeps_types(is_meant: Callable[[Drift], bool]) -> CommonRule:
    """Returns a rule against what an audit finds."""

    def check(trial: AnyTrial) -> None:
        error = trial.report.error
        if error is not None:
            lines = []
            for line in error.lines():
                lines.append(line.strip(" :"))
            message = ": ".join(lines)
            raise Fault(message)
        faults = _drift_faults(trial, is_meant)
        raise_first(faults)

    return check


def _traces(check: Check) -> CommonRule:
    def rule(trial: AnyTrial) -> None:
        trial.trace(check)

    return rule


def _init(trial: Trial) -> None:
    """Checks that `init` gives the same first state in a run and in a trace.

    It is traced under `jit`, in `cond`, and for the target of a checkpoint.
    """
    # Zeros, where an `init` decides by values: a traced one cannot.
    params = some_zeros(trial.inputs.params)
    state = trial.opt.init(params)

    def check(step, carry):
        del step
        same_types("state", state, carry.state, " where init is traced")

    trial.trace(check)


def _one_compilation(trial: AnyTrial) -> None:
    trial.trace(compilations)
    # `equinox.filter_jit` compiles for each value of a leaf that is no array.
    constants = trial.report.changed_constants
    faults = []
    for constant in constants:
        faults.append(Fault(constant.change))
    raise_first(faults)


def _donation(trial: AnyTrial) -> None:
    """Checks that no buffer is donated twice, nor used after it was donated."""
    names = {}
    for path, leaf in trial.buffers():
        pointer = _pointer(leaf)
        name = path.lstrip(".")
        first_name = names.setdefault(pointer, name)
        if pointer is not None and first_name != name:
            raise Fault(f"{first_name} and {name} are one buffer")


def _pointer(leaf: Leaf) -> int | None:
    """Returns the address of an array's buffer; None for a leaf without one to donate."""
    if not isinstance(leaf, jax.Array) or not leaf.size or not leaf.is_fully_addressable:
        return None
    # A key has no buffer of its own; its bits are a leaf like others.
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        leaf = jax.random.key_data(leaf)
    shard = leaf.addressable_data(0)
    return shard.unsafe_buffer_pointer()


def _checkpoint(trial: Trial) -> None:
    """Checks that a saved state loads, and an update accepts the loaded state."""
    params, updates, extra_args = trial.inputs
    state = trial.opt.init(params)
    leaves = tree_util.tree_leaves(state)
    for leaf in leaves:
        if dtype_of(leaf) is None and not is_array(leaf):
            raise Fault(f"the state holds {leaf!r}, which is not an array")
    if any(dtype_of(leaf) is None for leaf in leaves):
        # Random keys are saved in ways of their own.
        return
    # As most savers give it back, in arrays of NumPy.
    loaded = tree_util.tree_map(np.asarray, state)
    layout = record(trial.opt, params)
    restored = restore(loaded, layout)
    same_types("state", state, restored)
    eqx.filter_eval_shape(trial.opt.update, updates, restored, params, **extra_args)


def _blind_to_x64(trial: Trial) -> None:
    if not HAS_X64_SCOPE:
        return
    # A function of the caller's runs under the caller's flag.
    extra_args = trial.inputs.extra_args
    if any(map(callable, extra_args.values())):
        return
    operations = trial.report.wide_operations
    if operations:
        summary = wide_summary(operations)
        raise Fault(summary)


# An optimizer is a step that carries params and a state.
_RULES_OF_ANY_STEP: dict[str, CommonRule] = {
    "scan": _traces(scan),
    "cond": _traces(cond),
    "while_loop": _traces(while_loop),
    "one_compilation": _one_compilation,
    "donation": _donation,
}
RULES: dict[str, OptimizerRule] = {
    "init": _init,
    "state_types": _keeps_types(_is_of_state),
    "update_types": _keeps_types(_is_of_updates),
    **_RULES_OF_ANY_STEP,
    "checkpoint": _checkpoint,
    "blind_to_x64": _blind_to_x64,
}
STEP_RULES: dict[str, StepRule] = {
    # Leaves that begin weakly are left to the loops, of which each has its own rule.
    "types": _keeps_types(_began_strongly),
    **_RULES_OF_ANY_STEP,
}


def failures_of(
    checks: Mapping[str, Callable[[_T], None]], subject: _T
) -> dict[str, Exception]:
    """Returns the errors of the checks that fail on a subject, by name."""
    failures = {}
    for name, check in checks.items():
        try:
            check(subject)
        except Exception as error:
            failures[name] = error
    return failures


def _error_of_trace(trial: AnyTrial) -> Exception | None:
    """Returns the error of a step that does not trace at all."""
    try:
        trial.trace(run_once)
    except Fault:
        # Another tree breaks the rules for loops.
        return None
    except Exception as error:
        return error
    return None


def broken(
    make: Callable[[], Optimizer],
    inputs: Callable[[Configuration], UpdateInputs],
    rules: Iterable[str],
    configurations: Iterable[Configuration],
) -> dict[str, list[tuple[Configuration, Exception]]]:
    """Returns the rules that an optimizer breaks, each with where and how."""
    checks = {}
    for rule in rules:
        checks[rule] = RULES[rule]
    failures = collections.defaultdict(list)
    refusals = collections.defaultdict(list)
    was_accepted = False
    for configuration in configurations:
        with configuration.flags(), warnings.catch_warnings(action="ignore"):
            # Under the flags: some optimizers make arrays as soon as they are built.
            opt = make()
            trial = Trial(opt, inputs(configuration))
            is_refused = _is_refused(trial)
            errors = failures_of(checks, trial)
        places_of_rule = refusals
        if not is_refused:
            was_accepted = True
            places_of_rule = failures
        for rule, error in errors.items():
            places_of_rule[rule].append((configuration, error))
    # A policy that goes with no configuration breaks the rules.
    if was_accepted:
        return failures
    return refusals


def _is_refused(trial: Trial) -> bool:
    """Returns whether a guard's policy does not go with these flags and dtypes."""
    if policy_of(trial.opt) == Policy():
        return False
    error = _error_of_trace(trial)
    return isinstance(error, Unavailable)


def broken_by_step(trial: StepTrial, rules: Iterable[str]) -> dict[str, Exception]:
    """Returns the rules that a step breaks with how; "traces" alone if the step raises."""
    error = _error_of_trace(trial)
    if error is not None:
        return {"traces": error}
    checks = {}
    for rule in rules:
        checks[rule] = STEP_RULES[rule]
    return failures_of(checks, trial)
