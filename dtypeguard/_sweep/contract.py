"""The rules that an optimizer with stable types keeps, each as a check.

Most are those of the sweep. A rule is broken if its check raises anything.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util

from .._audit.audit import audit
from .._audit.report import AuditReport
from .._guard.record import record, restore
from .._leaves.compat import HAS_X64_SCOPE
from .._leaves.dtypes import dtype_of
from . import checks
from .checks import Fault, Skip, Subject, same_types
from .entry import Inputs, split
from .sweep import Configuration, one_line


class Trial:
    """One optimizer with its inputs, in one configuration."""

    def __init__(self, opt: Any, inputs: Inputs):
        self.opt = opt
        self.inputs = inputs
        self.arrays, self.others = split(inputs.extra_args)

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


class Broken(NamedTuple):
    """A rule that an optimizer breaks, where, and how."""

    rule: str
    configuration: Configuration
    reason: str


def _traced(check: Callable[[Subject], None]) -> Callable[[Trial], None]:
    def rule(trial: Trial) -> None:
        def run(params, updates, arrays):
            check(Subject(trial.opt, Inputs(params, updates, arrays | trial.others)))

        jax.eval_shape(run, trial.inputs.params, trial.inputs.updates, trial.arrays)

    return rule


def _init(trial: Trial) -> None:
    eager = trial.opt.init(checks.some_zeros(trial.inputs.params))
    _traced(lambda subject: checks.init(eager, subject.state))(trial)


def _while_loop(subject: Subject) -> None:
    def body(carry):
        number, params, state = carry
        return (number + jnp.ones((), jnp.int32), *subject.step(params, state))

    start = (jnp.zeros((), jnp.int32), subject.params, subject.state)
    lax.while_loop(lambda carry: carry[0] < 2, body, start)


def _donation(trial: Trial) -> None:
    params = tree_util.tree_map(jnp.copy, trial.inputs.params)
    leaves = tree_util.tree_leaves((params, trial.opt.init(params)))
    buffers = [x.unsafe_buffer_pointer() for x in leaves if isinstance(x, jax.Array)]
    if len(set(buffers)) < len(buffers):
        raise Fault("init gives two leaves one buffer, or one that belongs to params")


def _checkpoint(trial: Trial) -> None:
    params, updates, extra_args = trial.inputs
    state = trial.opt.init(params)
    leaves, structure = tree_util.tree_flatten(state)
    unsaved = [leaf for leaf in leaves if dtype_of(leaf) is None]
    if any(not hasattr(leaf, "dtype") for leaf in unsaved):
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
    if any(map(callable, trial.others.values())):
        raise Skip("what a function of the caller's computes is its own matter")
    if trial.report.wide_operations:
        raise Fault(trial.report.wide_summary)


RULES: dict[str, Callable[[Trial], None]] = {
    "init": _init,
    "state_types": lambda trial: trial.fault("state"),
    "update_types": lambda trial: trial.fault("updates"),
    "scan": _traced(checks.scan),
    "cond": _traced(checks.cond),
    "while_loop": _traced(_while_loop),
    "accumulation": _traced(checks.multi_steps),
    "one_compilation": _traced(checks.compilations),
    "donation": _donation,
    "checkpoint": _checkpoint,
    "blind_to_x64": _blind_to_x64,
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
