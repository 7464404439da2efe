"""Every optimizer, bare and guarded, in every configuration of dtypes."""

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

from dtypeguard import guard
from dtypeguard._guard.guard import policy_of
from dtypeguard._guard.policy import dtype_of_update
from dtypeguard._leaves.dtypes import dtype_of
from dtypeguard._leaves.key_path import by_path, path_text
from dtypeguard._leaves.leaf_type import traced_type
from dtypeguard._leaves.types import Function, Optimizer, Params, PyTree, State, Updates
from dtypeguard._sweep import checks
from dtypeguard._sweep.checks import one_line
from dtypeguard._sweep.inputs import (
    CONFIGURATIONS,
    Configuration,
    Entry,
    LeafDTypes,
    UpdateInputs,
)

from . import catalog
from .recipes import NO_EXPLICIT_FLOAT64


class Training(NamedTuple):
    """What a training step carries."""

    params: Params
    state: State


class Skip(Exception):
    """A check does not apply; the message says why."""


class OptimizerSubject:
    """The training step of an optimizer, traced once for each set of argument types."""

    def __init__(self, opt: Optimizer, inputs: UpdateInputs):
        self.opt, self.grads = opt, inputs.updates
        self.carry = Training(inputs.params, opt.init(inputs.params))
        self._arrays, functions = eqx.partition(inputs.extra_args, eqx.is_array)

        def update(arrays, updates, state, params):
            return opt.update(updates, state, params, **eqx.combine(arrays, functions))

        def step(arrays, grads, carry):
            updates, state = self._update(arrays, grads, carry.state, carry.params)
            return Training(optax.apply_updates(carry.params, updates), state)

        # `jit` compiles nothing here. Its cache of traces distinguishes what tracing can
        # distinguish: dtypes, weak types, the x64 flag. These functions are the subject's
        # own, and so are their traces. The step asks for that of the update.
        self._update = jax.jit(update)
        self.step = functools.partial(jax.jit(step), self._arrays, self.grads)

    def update(
        self, updates: Updates, state: State, params: Params = None, **_: Any
    ) -> tuple[Updates, State]:
        """The optimizer's own update, with its extra args."""
        return self._update(self._arrays, updates, state, params)


Check = Callable[[OptimizerSubject], None]


def _of_step(check: checks.Check) -> Check:
    return lambda subject: check(subject.step, subject.carry)


def _keeps_types(subject: OptimizerSubject, update: Function, before: State) -> None:
    """The state keeps its types, and no update widens a param under `p + u`.

    That is Equinox's `apply_updates`. An update fails even if its gradient was as wide, and
    passes if it is narrower.
    """
    params = subject.carry.params
    updates, after = update(subject.grads, before, params)
    checks.same_types("state", before, after)
    named, gradients = by_path(params), by_path(subject.grads)
    asked = functools.partial(dtype_of_update, policy_of(subject.opt).updates_dtype)
    for path, new in by_path(updates).items():
        param, dtype = named[path], dtype_of(new)
        is_asked = dtype == asked(dtype_of(param), dtype_of(gradients.get(path)))
        if dtype_of(param + new) != dtype_of(param) and not is_asked:
            types = f"{traced_type(new)} for a {traced_type(param)} param"
            raise checks.Fault(f"updates{path_text(path)}: {types}")


def multi_steps(subject: OptimizerSubject) -> None:
    """MultiSteps around the optimizer traces and keeps its types."""
    params = subject.carry.params
    if _shapes(params) != _shapes(subject.grads):
        raise Skip("MultiSteps accumulates gradients in the shapes of the params")
    inner = optax.GradientTransformationExtraArgs(subject.opt.init, subject.update)
    outer = optax.MultiSteps(inner, 2)
    _keeps_types(subject, outer.update, outer.init(params))


def _shapes(tree: PyTree) -> tuple[object, list[tuple[int, ...]]]:
    leaves, treedef = tree_util.tree_flatten(tree)
    return treedef, [jnp.shape(leaf) for leaf in leaves]


# These run inside one trace; `init` also needs a state from outside of it.
CHECKS: dict[str, Check] = {
    "eval_shape": lambda subject: _keeps_types(
        subject, subject.update, subject.carry.state
    ),
    "scan": _of_step(checks.scan),
    "cond": _of_step(checks.cond),
    "MultiSteps": multi_steps,
    "compilations": _of_step(checks.compilations),
}


class Outcome(NamedTuple):
    """Why checks of one optimizer, bare or guarded, failed or were skipped, by name."""

    id: str
    where: str
    guarded: bool
    failures: dict[str, str]
    skipped: dict[str, str]


def in_order(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The outcomes by optimizer, each in the order of the configurations."""
    places = [configuration.where for configuration in CONFIGURATIONS]
    return sorted(outcomes, key=lambda x: (x.id, places.index(x.where), x.guarded))


def examine(entry: Entry, configuration: Configuration, guarded: bool) -> Outcome:
    """Checks one optimizer in one configuration: runs `init` and traces the rest."""
    failures: dict[str, str] = {}
    skipped: dict[str, str] = {}
    outcome = Outcome(entry.id, configuration.where, guarded, failures, skipped)
    name, allows = entry.id.partition("[")[0], configuration.explicit == "allow"
    if allows and name in NO_EXPLICIT_FLOAT64:
        skipped["explicit float64"] = NO_EXPLICIT_FLOAT64[name]
        return outcome

    def run_checks(inputs: UpdateInputs) -> None:
        chosen = dict(CHECKS)
        if allows:  # optax.MultiSteps makes zeros by eval_shape: a float32 there
            del chosen["MultiSteps"]
        if error:
            failures["init"] = error
        else:
            chosen["init"] = lambda subject: checks.same_types(
                "state", first, subject.carry.state
            )
        try:
            subject = OptimizerSubject(_made(entry, guarded), inputs)
        except Exception as traced:
            failures.update(dict.fromkeys(("init", *CHECKS), f"init: {one_line(traced)}"))
            return
        for name, raised in checks.failures_of(chosen, lambda: subject).items():
            where = skipped if isinstance(raised, Skip) else failures
            where[name] = str(raised) if isinstance(raised, Skip) else one_line(raised)

    with configuration.flags(), warnings.catch_warnings(action="ignore"):
        inputs = _inputs(entry, configuration)
        about = configuration.params, configuration.x64, configuration.explicit
        first, error = _first_state(entry, guarded, *about)
        # As `eqx.filter_eval_shape`, in half the time.
        arrays, functions = eqx.partition(inputs, eqx.is_array)
        jax.eval_shape(lambda arrays: run_checks(eqx.combine(arrays, functions)), arrays)
    return outcome


def _made(entry: Entry, guarded: bool) -> Optimizer:
    return guard(entry.build()) if guarded else entry.build()


@functools.cache
def _first_state(
    entry: Entry, guarded: bool, params: LeafDTypes, x64: bool, explicit: str
) -> tuple[State, str]:
    """What `init` returns, or no state and its error in one line.

    It runs under these flags, once for the configurations that differ in grads.
    """
    del x64, explicit  # which are on, and tell one run from another
    try:
        zeros = checks.some_zeros(entry.inputs(params, params).params)
        return _made(entry, guarded).init(zeros), ""
    except Exception as error:
        return None, one_line(error)


@functools.lru_cache(maxsize=1)
def _inputs(entry: Entry, configuration: Configuration) -> UpdateInputs:
    """The inputs of an entry: for the bare optimizer, and the guarded one comes next."""
    return entry.inputs(configuration.params, configuration.grads)


def sweep(chosen: Sequence[Entry], jobs: int, bare: bool = True) -> list[Outcome]:
    """The outcomes of each entry in each configuration, guarded and maybe bare.

    The jobs are processes, which build the entries of the catalogue anew from their ids; 1
    stays in this process, where an entry need not be in the catalogue.
    """
    if jobs == 1:
        return in_order(_share(chosen, bare))
    shares = [[(x.id, x.extra_names) for x in chosen[i::jobs]] for i in range(jobs)]
    spawn = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(jobs, spawn, _prepare_worker) as pool:
        share = functools.partial(_share_of_ids, bare=bare)
        return in_order(itertools.chain(*pool.map(share, shares)))


def _share(chosen: Sequence[Entry], bare: bool) -> list[Outcome]:
    kinds = (False, True) if bare else (True,)
    # What JAX traced under other flags it does not use again.
    return [examine(x, c, kind) for c in CONFIGURATIONS for x in chosen for kind in kinds]


def _share_of_ids(ids: Sequence[tuple[str, tuple[str, ...]]], bare: bool) -> list[Outcome]:
    entries = [catalog.by_id()[entry_id] for entry_id, _ in ids]
    for entry, (_, extra_names) in zip(entries, ids):
        vars(entry)["extra_names"] = extra_names  # which took trials to find
    return _share(entries, bare)


def _prepare_worker() -> None:
    # Nothing is computed, and every worker would reserve a share of its memory.
    jax.config.update("jax_platforms", "cpu")
    # What `init` compiles runs once, and only its types count.
    jax.config.update("jax_disable_most_optimizations", True)
    gc.disable()  # traces leave millions of objects behind, nearly all of which stay
