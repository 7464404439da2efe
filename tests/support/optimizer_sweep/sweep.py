"""Every optimizer, bare and guarded, in every configuration of dtypes."""

import dataclasses
import functools
import gc
import itertools
import multiprocessing
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import tree_util

from dtypeguard import DtypeGuardWarning, guard
from dtypeguard._guard.guard import policy_of
from dtypeguard._guard.policy import dtype_of_update
from dtypeguard._leaves.dtypes import dtype_of
from dtypeguard._leaves.rows import by_path, type_of
from dtypeguard._leaves.types import Optimizer, Params, PyTree, State, Updates
from dtypeguard._sweep import checks
from dtypeguard._sweep.checks import Training, one_line
from dtypeguard._sweep.inputs import (
    CONFIGURATIONS,
    Configuration,
    DTypes,
    Entry,
    UpdateInputs,
    in_turn,
)

from . import catalog
from .recipes import NO_EXPLICIT_FLOAT64


class Skip(Exception):
    """A check does not apply; the message says why."""


class OptimizerSubject:
    """The training step of an optimizer, traced once for each set of argument types."""

    def __init__(self, opt: Optimizer, inputs: UpdateInputs):
        self.opt = opt
        arrays, functions = eqx.partition(inputs.extra_args, eqx.is_array)

        def update(updates, state, params, arrays):
            return opt.update(updates, state, params, **eqx.combine(arrays, functions))

        def step(updates, carry, arrays):
            updates, state = self._update(updates, carry.state, carry.params, arrays)
            return Training(optax.apply_updates(carry.params, updates), state)

        # `jit` compiles nothing here. Its cache of traces distinguishes what tracing can
        # distinguish: dtypes, weak types, the x64 flag. These functions are the subject's
        # own, and so are their traces. The step asks for that of the update.
        self._update, jitted = jax.jit(update), jax.jit(step)
        self.init = opt.init
        self.grads, self.extra_args = inputs.updates, inputs.extra_args
        self.carry = Training(inputs.params, opt.init(inputs.params))
        self.step = lambda carry: jitted(inputs.updates, carry, arrays)

    def update(
        self, updates: Updates, state: State, params: Params = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        """The optimizer's own update."""
        return self._update(updates, state, params, eqx.filter(extra_args, eqx.is_array))


Check = Callable[[OptimizerSubject], None]


def _of_step(check: checks.Check) -> Check:
    return lambda subject: check(subject.step, subject.carry)


def eval_shape(subject: OptimizerSubject) -> None:
    """The state keeps its types, and no update widens a param under `p + u`.

    That is Equinox's `apply_updates`. An update fails even if its gradient was as wide, and
    passes if it is narrower.
    """
    params, before = subject.carry
    updates, state = subject.update(subject.grads, before, params, **subject.extra_args)
    checks.same_types("state", before, state)
    no_promotion(subject, updates)


def multi_steps(subject: OptimizerSubject) -> None:
    """MultiSteps around the optimizer traces and keeps its types."""
    params = subject.carry.params
    if _shapes(params) != _shapes(subject.grads):
        raise Skip("MultiSteps accumulates gradients in the shapes of the params")

    inner = optax.GradientTransformationExtraArgs(subject.init, subject.update)
    outer = optax.MultiSteps(inner, 2)
    before = outer.init(params)
    updates, after = outer.update(subject.grads, before, params, **subject.extra_args)
    checks.same_types("state", before, after)
    no_promotion(subject, updates)


def no_promotion(subject: OptimizerSubject, updates: Updates) -> None:
    gradients = by_path(subject.grads)
    asked = functools.partial(dtype_of_update, policy_of(subject.opt).updates_dtype)
    params = by_path(subject.carry.params)
    checks.raise_first(
        f"updates{path}: {type_of(update)} for a {type_of(params[path])} param"
        for path, update in by_path(updates).items()
        for param in [params[path]]
        if dtype_of(param + update) != dtype_of(param)
        and dtype_of(update) != asked(dtype_of(param), dtype_of(gradients.get(path)))
    )


def _shapes(tree: PyTree) -> tuple[object, list[tuple[int, ...]]]:
    leaves, treedef = tree_util.tree_flatten(tree)
    return treedef, [jnp.shape(leaf) for leaf in leaves]


# These run inside one trace; `init` also needs a state from outside of it.
CHECKS: dict[str, Check] = {
    "eval_shape": eval_shape,
    "scan": _of_step(checks.scan),
    "cond": _of_step(checks.cond),
    "MultiSteps": multi_steps,
    "compilations": _of_step(checks.compilations),
}
NAMES = ("init", *CHECKS)


def checks_of(configuration: Configuration) -> dict[str, Check]:
    """The checks whose failure is the fault of the optimizer.

    `optax.MultiSteps` makes zeros by `eval_shape`, where an explicit float64 is a float32.
    """
    left_out = ("MultiSteps",) if configuration.explicit == "allow" else ()
    return {name: check for name, check in CHECKS.items() if name not in left_out}


def _of_init(configuration: Configuration) -> tuple[DTypes, bool, str]:
    """What the first state depends on."""
    return configuration.params, configuration.x64, configuration.explicit


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of one optimizer in one configuration, bare or guarded.

    Attributes:
        failures: the reason of each failed check, in one line, by the check's name.
        skipped: the same for checks that do not apply.
        rescues: how many warnings say that a guard ran the update in wider dtypes.
    """

    id: str
    configuration: str
    x64: bool
    guarded: bool
    failures: dict[str, str]
    skipped: dict[str, str]
    rescues: int

    @property
    def where(self) -> str:
        """The configuration, as `Configuration.where` has it."""
        return f"{self.configuration}, x64 {'on' if self.x64 else 'off'}"


def in_order(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The outcomes by optimizer, each in the order of the configurations."""
    places = [(c.name, c.x64) for c in CONFIGURATIONS]
    place = lambda outcome: places.index((outcome.configuration, outcome.x64))
    return sorted(outcomes, key=lambda each: (each.id, place(each), each.guarded))


def examine(entry: Entry, configuration: Configuration, guarded: bool) -> Outcome:
    """Checks one optimizer in one configuration: runs `init` and traces the rest."""
    failures: dict[str, str] = {}
    skipped: dict[str, str] = {}
    about = entry.id, configuration.name, configuration.x64, guarded, failures, skipped
    name = entry.id.partition("[")[0]
    if configuration.explicit == "allow" and name in NO_EXPLICIT_FLOAT64:
        skipped["explicit float64"] = NO_EXPLICIT_FLOAT64[name]
        return Outcome(*about, rescues=0)
    make = _maker(entry, guarded)
    with configuration.flags(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inputs = _inputs(entry, configuration)
        before: dict[str, Check] = {}
        eager = _run_init(entry, guarded, *_of_init(configuration))
        if eager.error:
            failures["init"] = eager.error
        else:
            before["init"] = lambda subject: checks.same_types(
                "state", eager.state, subject.carry.state, " where init is traced"
            )

        def run_checks(inputs: UpdateInputs) -> None:
            try:
                subject = OptimizerSubject(make(), inputs)
            except Exception as error:
                failures.update(dict.fromkeys(NAMES, f"init: {one_line(error)}"))
                return
            failures.update(checks.failures_of(before | checks_of(configuration), subject))
            for name, reason in [*failures.items()]:
                if reason.startswith("Skip: "):
                    skipped[name] = failures.pop(name).removeprefix("Skip: ")

        # As `eqx.filter_eval_shape`, in half the time.
        arrays, functions = eqx.partition(inputs, eqx.is_array)
        jax.eval_shape(lambda arrays: run_checks(eqx.combine(arrays, functions)), arrays)
    return Outcome(*about, eager.rescues + _rescues(caught))


def _maker(entry: Entry, guarded: bool) -> Callable[[], Optimizer]:
    return lambda: guard(entry.build()) if guarded else entry.build()


def _rescues(caught: Iterable[warnings.WarningMessage]) -> int:
    return sum(issubclass(w.category, DtypeGuardWarning) for w in caught)


class _Eager(NamedTuple):
    """What `init` returns when it runs; or its error, in one line, and no state."""

    state: State
    error: str
    rescues: int


@functools.lru_cache(maxsize=2)
def _run_init(
    entry: Entry, guarded: bool, params: DTypes, x64: bool, explicit: str
) -> _Eager:
    """Runs `init`, under these flags; once for the configurations that differ in grads."""
    del x64, explicit  # which are on, and tell one run from another
    state, reason = None, ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            zeros = checks.some_zeros(in_turn(entry.recipe.params, params))
            state = _maker(entry, guarded)().init(zeros)
        except Exception as error:
            reason = one_line(error)
    return _Eager(state, reason, _rescues(caught))


@functools.lru_cache(maxsize=1)
def _inputs(entry: Entry, configuration: Configuration) -> UpdateInputs:
    """The inputs of an entry: for the bare optimizer, and the guarded one comes next."""
    return entry.inputs(configuration.params, configuration.grads)


def sweep(chosen: Sequence[Entry], jobs: int, bare: bool = True) -> list[Outcome]:
    """The outcomes of each entry in each configuration, bare and guarded.

    Args:
        chosen: entries of the catalogue.
        bare: whether bare ones run as well.
        jobs: the number of worker processes, which build the entries anew from their ids;
            1 stays in this process, where an entry need not be in the catalogue.
    """
    if jobs == 1:
        return in_order(_share(chosen, bare))
    shares = [[(x.id, x.extra_names) for x in chosen[i::jobs]] for i in range(jobs)]
    spawn = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(jobs, spawn, _prepare_worker) as pool:
        share = functools.partial(_share_of_ids, bare=bare)
        return in_order(itertools.chain(*pool.map(share, shares)))


def _share(chosen: Sequence[Entry], bare: bool) -> list[Outcome]:
    """Those of one process, one first state and configuration after another.

    What JAX traced under other flags it does not use again.
    """
    alike: dict[object, list[Configuration]] = {}
    for configuration in CONFIGURATIONS:
        alike.setdefault(_of_init(configuration), []).append(configuration)
    tasks = [(entry, c) for some in alike.values() for entry in chosen for c in some]
    kinds = (False, True) if bare else (True,)
    return [examine(entry, c, x) for entry, c in tasks for x in kinds]


def _share_of_ids(ids: Sequence[tuple[str, tuple[str, ...]]], bare: bool) -> list[Outcome]:
    entries = [catalog.find(entry_id) for entry_id, _ in ids]
    for entry, (_, extra_names) in zip(entries, ids):
        vars(entry)["extra_names"] = extra_names  # which took trials to find
    return _share(entries, bare)


def _prepare_worker() -> None:
    # Nothing is computed, and every worker would reserve a share of its memory.
    jax.config.update("jax_platforms", "cpu")
    # What `init` compiles runs once, and only its types count.
    jax.config.update("jax_disable_most_optimizations", True)
    gc.disable()  # traces leave millions of objects behind, nearly all of which stay
