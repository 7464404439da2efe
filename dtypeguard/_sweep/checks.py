"""The rules that optimizers and steps with stable types keep, each as a check.

A check raises where a user's program would. Nearly everything is traced and does not run.
"""

import collections
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, tree_util

from .._audit.examine import examine
from .._audit.report import AuditReport, wide_summary
from .._audit.subjects import AuditSubject, OptimizerUpdate, StepCall
from .._blame.drift import Where, changes_of_structure
from .._carry.modules import Contents
from .._carry.split import SplitTree
from .._guard.policy import Unavailable
from .._guard.record import record, restore
from .._guard.strong import strong
from .._leaves.compat import HAS_X64_SCOPE
from .._leaves.dtypes import dtype_of, is_array
from .._leaves.errors import DtypeDriftError
from .._leaves.key_path import key_paths
from .._leaves.leaf_change import LeafChange, tree_changes
from .._leaves.leaf_type import traced_type
from .._leaves.quiet import warnings_ignored
from .._leaves.types import Leaf, Optimizer, Params, PyTree
from .inputs import Configuration, Entry, UpdateInputs, ones_like

_T = TypeVar("_T")
CarryStep = Callable[[PyTree], PyTree]  # takes and returns what it carries
Check = Callable[[CarryStep, PyTree], None]  # of a step and its first carry, both traced


class Fault(Exception):
    """A check failed. The message says where and how, in one line."""


def some_zeros(params: Params) -> Params:
    """Returns zeros for params: an `init` that looks at values sees them in a run alone."""
    return tree_util.tree_map(jnp.zeros_like, params)


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

    lax.cond(jnp.asarray(True), step, no_step, carry)


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


def same_types(name: str, before: PyTree, after: PyTree) -> None:
    """Raises a `Fault` that names the first leaf whose type or shape changed.

    `jit` compiles anew for a type, a shape or another implementation of random keys.
    """
    if tree_util.tree_structure(before) != tree_util.tree_structure(after):
        raise_first_change(tree_changes(name, before, after))
    changes = []
    paths = key_paths(before, name)
    old_types = map(traced_type, tree_util.tree_leaves(before))
    new_types = map(traced_type, tree_util.tree_leaves(after))
    for path, old_type, new_type in zip(paths, old_types, new_types):
        if old_type != new_type:
            changes.append(LeafChange(path, old_type, new_type))
    raise_first_change(changes)


def raise_first_change(changes: Sequence[LeafChange]) -> None:
    """Raises the first of some changes with its remedy, if there are any."""
    faults = []
    for change in changes:
        row = change.row()
        # A path of no name begins with a dot.
        path = row.path.lstrip(".")
        fault = f"{path}: {row.before} -> {row.after}"
        if row.remedy:
            fault += f"  {row.remedy}"
        faults.append(fault)
    raise_first(faults)


def raise_first(faults: Sequence[str]) -> None:
    """Raises the first of some faults with their number, if there are any."""
    # One line is enough: most often one cause changes many leaves.
    if not faults:
        return
    first = faults[0]
    num_more = len(faults) - 1
    if num_more > 0:
        first += f" (and {num_more} more)"
    raise Fault(first)


def one_line(error: Exception) -> str:
    """Returns the first line of an error and the first leaf that it names."""
    text = str(error)
    if not isinstance(error, Fault):
        text = f"{type(error).__name__}: {text}"
    first_line, *lines = text.strip().splitlines()
    is_ours = isinstance(error, (DtypeDriftError, Fault))
    for line in lines:
        # JAX names a leaf of a carry or of a branch so; a guard in its second line, which a
        # `Fault` may hold.
        if is_ours or " has type " in line:
            leaf = line.strip("* ")
            return f"{first_line} {leaf}"
    return first_line


class StepTrial:
    """A step with the arguments of its first call, and its audit."""

    def __init__(self, step_call: StepCall):
        self._subject: AuditSubject = step_call
        self._call = step_call.call()
        self.names = self._call.names
        self.other_arrays = self._call.rest.arrays
        self.carried = self._by_path(self._call.carried)
        # As for the audit, which begins with these types.
        if step_call.is_strong:
            self.carried = strong(tree_util.tree_map(ones_like, self.carried))

    @functools.cached_property
    def report(self) -> AuditReport:
        """The audit."""
        return examine(self._subject, x64=None, has_advice=False)

    def buffers(self) -> list[tuple[str, Leaf]]:
        """Returns the carry, and the arguments that the step only reads."""
        buffers = list(self.carried.values.items())
        for leaf in self.other_arrays:
            buffers.append(("another argument", leaf))
        return buffers

    def trace(self, check: Check) -> None:
        """Runs a check while the step is traced."""

        def run(carried, other_arrays):
            def step(carried):
                return self._run(carried, other_arrays)

            check(step, carried)

        jax.eval_shape(run, self.carried, self.other_arrays)

    def _run(self, carry: Contents, other_arrays: Sequence[Leaf]) -> Contents:
        # The order of `_by_path`: JAX keeps that of `Contents`.
        leaves = carry.values.values()
        treedef = tree_util.tree_structure(self._call.arrays)
        arrays = treedef.unflatten(leaves)
        results = self._call.run(arrays, other_arrays)
        # Loops would see the arrays alone.
        carries = zip(self.names, self._call.carried, results.carried)
        for name, before, after in carries:
            raise_first_change(changes_of_structure(name, before, after))
        return self._by_path(results.carried)

    def _by_path(self, trees: Sequence[SplitTree]) -> Contents:
        leaves = {}
        for name, parts in zip(self._call.names, trees):
            # The dot sets the name apart where JAX prints the path of a carry.
            for path, leaf in zip(parts.paths, parts.arrays):
                leaves[f".{name}{path}"] = leaf
        return Contents(None, leaves)


class OptimizerTrial(StepTrial):
    """An optimizer in a training step, which carries the params and the state."""

    def __init__(self, opt: Optimizer, inputs: UpdateInputs):
        def train(params, state, updates, extra_args):
            new_updates, state = opt.update(updates, state, params, **extra_args)
            # It casts to the params' dtypes.
            new_params = optax.apply_updates(params, new_updates)
            return new_params, state

        # A state may hold the params themselves.
        params = tree_util.tree_map(jnp.copy, inputs.params)
        state = opt.init(params)
        args = (params, state, inputs.updates, inputs.extra_args)
        step_call = StepCall(train, args, {}, carry=(0, 1), returned=None)
        super().__init__(step_call)
        self._subject = OptimizerUpdate(opt, *inputs, name="opt")
        self.opt = opt
        self.inputs = inputs

    def buffers(self) -> list[tuple[str, Leaf]]:
        """Returns params, first state and arguments, and another first state."""
        buffers = super().buffers()
        # An array that the optimizer holds would be gone once the state is donated.
        state = self.opt.init(self.inputs.params)
        for leaf in tree_util.tree_leaves(state):
            buffers.append(("another first state", leaf))
        return buffers


StepRule = Callable[[StepTrial], None]
OptimizerRule = Callable[[OptimizerTrial], None]


def _keeps_types(where: Where) -> StepRule:
    """Returns a rule against what an audit finds in the state, the updates or a carry."""

    def check(trial: StepTrial) -> None:
        report = trial.report
        if report.error is not None:
            raise Fault(report.error.message)
        changes = []
        for drift, change in zip(report.drifts, report.changes()):
            if drift.where != where:
                continue
            # Loops take leaves that begin weakly, and each loop has a rule of its own.
            if where == "carry" and drift.was_weak:
                continue
            changes.append(change)
        raise_first_change(changes)

    return check


def _traces(check: Check) -> StepRule:
    def rule(trial: StepTrial) -> None:
        trial.trace(check)

    return rule


def _init(trial: OptimizerTrial) -> None:
    """Checks that `init` gives the same first state in a run and in a trace.

    It is traced under `jit`, in `cond`, and for the target of a checkpoint.
    """
    params = some_zeros(trial.inputs.params)
    state = trial.opt.init(params)

    def check(params):
        new_state = trial.opt.init(params)
        same_types("state", state, new_state)

    jax.eval_shape(check, params)


def _one_compilation(trial: StepTrial) -> None:
    trial.trace(compilations)
    # `equinox.filter_jit` compiles for each value of a leaf that is no array.
    raise_first(list(map(str, trial.report.changed_constants)))


def _donation(trial: StepTrial) -> None:
    """Checks that no buffer is donated twice, nor used after it was donated."""
    name_of_pointer = {}
    for path, leaf in trial.buffers():
        pointer = _pointer(leaf)
        name = path.lstrip(".")
        first_name = name_of_pointer.setdefault(pointer, name)
        if pointer is not None and first_name != name:
            raise Fault(f"{first_name} and {name} are one buffer")


def _pointer(leaf: Leaf) -> int | None:
    """Returns the address of an array's buffer; None for a leaf without one to donate."""
    if not isinstance(leaf, jax.Array):
        return None
    if leaf.size == 0 or not leaf.is_fully_addressable:
        return None
    # A key has no buffer of its own; its bits are a leaf like others.
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        leaf = jax.random.key_data(leaf)
    return leaf.addressable_data(0).unsafe_buffer_pointer()


def _checkpoint(trial: OptimizerTrial) -> None:
    """Checks that a saved state loads, and an update accepts the loaded state."""
    params, updates, extra_args = trial.inputs
    state = trial.opt.init(params)
    for leaf in tree_util.tree_leaves(state):
        if dtype_of(leaf) is not None:
            continue
        if not is_array(leaf):
            raise Fault(f"the state holds {leaf!r}, which is not an array")
        # Random keys are saved in ways of their own.
        return
    # As most savers give it back, in arrays of NumPy.
    loaded = tree_util.tree_map(np.asarray, state)
    layout = record(trial.opt, params)
    restored = restore(loaded, layout)
    same_types("state", state, restored)
    args = (updates, restored, params)
    eqx.filter_eval_shape(trial.opt.update, *args, **extra_args)


def _blind_to_x64(trial: OptimizerTrial) -> None:
    if not HAS_X64_SCOPE:
        return
    # A function of the caller's runs under the caller's flag.
    extra_args = trial.inputs.extra_args
    if any(map(callable, extra_args.values())):
        return
    summary = wide_summary(trial.report.wide_operations)
    if summary:
        raise Fault(summary)


# An optimizer is a step that carries params and a state.
_RULES_OF_ANY_STEP: dict[str, StepRule] = {
    "scan": _traces(scan),
    "cond": _traces(cond),
    "while_loop": _traces(while_loop),
    "one_compilation": _one_compilation,
    "donation": _donation,
}
RULES: dict[str, OptimizerRule] = {
    "init": _init,
    "state_types": _keeps_types("state"),
    "update_types": _keeps_types("updates"),
    **_RULES_OF_ANY_STEP,
    "checkpoint": _checkpoint,
    "blind_to_x64": _blind_to_x64,
}
STEP_RULES: dict[str, StepRule] = {
    "types": _keeps_types("carry"),
    **_RULES_OF_ANY_STEP,
}


_RULE_OF_TRACING = {"traces": _traces(run_once)}


def failures_of(
    checks: Mapping[str, Callable[[_T], None]], make_subject: Callable[[], _T]
) -> dict[str, Exception]:
    """Returns the errors of the checks that fail on a subject, by name."""
    failures = {}
    for name, check in checks.items():
        try:
            check(make_subject())
        except Exception as error:
            failures[name] = error
    return failures


def broken(
    entry: Entry,
    rules: Iterable[str],
    configurations: Iterable[Configuration],
    wrap: Callable[[Optimizer], Optimizer] | None = None,
) -> dict[str, list[tuple[Configuration, Exception]]]:
    """Returns the rules that an optimizer breaks, each with where and how."""
    checks = {rule: RULES[rule] for rule in rules}
    accepted = []
    refused = []
    for configuration in configurations:
        with configuration.flags(), warnings_ignored():
            # Under the flags: some optimizers make arrays as soon as they are built.
            opt = entry.make()
            if wrap is not None:
                opt = wrap(opt)
            inputs = entry.inputs(configuration.params, configuration.grads)
            trial = functools.cache(functools.partial(OptimizerTrial, opt, inputs))
            errors = failures_of(checks, trial)
            error = None
            if errors:
                error = failures_of(_RULE_OF_TRACING, trial).get("traces")
        # A guard's policy does not go with these flags and dtypes.
        group = refused if isinstance(error, Unavailable) else accepted
        group.append((configuration, errors))
    failures = collections.defaultdict(list)
    # A policy that goes with no configuration breaks the rules.
    for configuration, errors in accepted or refused:
        for rule, error in errors.items():
            failures[rule].append((configuration, error))
    return failures


def broken_by_step(trial: StepTrial, rules: Iterable[str]) -> dict[str, Exception]:
    """Returns the rules that a step breaks with how; "traces" alone if the step raises."""
    failures = failures_of(_RULE_OF_TRACING, lambda: trial)
    # Another tree breaks the rules for loops.
    if failures and not isinstance(failures["traces"], Fault):
        return failures
    checks = {rule: STEP_RULES[rule] for rule in rules}
    return failures_of(checks, lambda: trial)
