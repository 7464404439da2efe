"""An optimizer and a step as subjects of an audit: their traces and their remedies.

`examine.py` tries each remedy on abstract values before a report says it, the guard with a
policy and "a guard does not fix this" included.
"""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp

from .._blame.drift import Drift
from .._carry.call import Call
from .._carry.carry import Carry, carry_of
from .._carry.split import SplitTree
from .._guard.guard import guard, policy_of
from .._guard.guard_step import guard_step
from .._guard.policy import Policy, asks_float64
from .._leaves.key_path import tree_name
from .._leaves.types import (
    Args,
    ExtraArgs,
    Key,
    Kwargs,
    Optimizer,
    Params,
    Step,
    Updates,
)
from .._program.trace import Program, TraceFailed, trace
from .report import SubjectKind

CarriedArguments = int | str | tuple[int | str, ...]
ReturnedItems = Key | tuple[Key, ...] | None


@dataclasses.dataclass(frozen=True)
class OptimizerUpdate:
    """An optimizer's `update`: a step that carries the state that `init` makes."""

    opt: Optimizer
    params: Params
    updates: Updates
    extra_args: ExtraArgs
    name: str
    kind: SubjectKind = "optimizer"

    def trace(self) -> Program:
        """Traces `init`, and `update` on its state: weak types stay weak."""
        # A bool may choose what is traced.
        extra = SplitTree(self.extra_args, static={bool})

        def step(state, updates, params, /, **extra_args):
            new_updates, new_state = self.opt.update(updates, state, params, **extra_args)
            return new_state, new_updates

        def make_call(params, updates, extra_arrays):
            try:
                state = self.opt.init(params)
            except Exception as error:
                raise TraceFailed("init") from error
            # Paths of a state begin with no name.
            carry = carry_of("audit", step, 0, 0).with_label("")
            args = (state, updates, params)
            kwargs = extra.merged(extra_arrays)
            return Call(step, carry, args, kwargs, static={bool}, in_place=False)

        inputs = (self.params, self.updates, extra.arrays)
        program = trace(make_call, inputs, is_optimizer=True)
        policy = policy_of(self.opt)
        return program._replace(
            updates_dtype=policy.updates_dtype,
            asks_float64=asks_float64(policy),
        )

    def guarded(self, policy: Policy | None = None) -> "OptimizerUpdate":
        """Returns the update of the guarded optimizer."""
        return dataclasses.replace(self, opt=guard(self.opt, policy=policy))

    def remedies(self, drifts: Sequence[Drift]) -> list["AuditRemedy"]:
        """Returns a guard, and a guard that computes in float32."""
        del drifts
        remedies = []
        for policy in policies_to_try(self.opt):
            sentence = ""
            if policy is not None:
                sentence = (
                    f"Wrap the optimizer: {guard_code(self.name, policy)}. It then "
                    "computes in float32, and keeps its state so."
                )
            remedies.append(AuditRemedy(sentence, self.guarded(policy)))
        return remedies


def policies_to_try(opt: Optimizer) -> list[Policy | None]:
    """Returns the policies of a guard that may fix an optimizer, in the order to try them.

    A guard does not run an `init` that fails once more, nor an update whose two dtypes
    promote with nothing. To compute in float32 from the start helps both.
    """
    policy = policy_of(opt)
    if policy.compute_dtype is not None:
        return [None]
    return [None, dataclasses.replace(policy, compute_dtype=jnp.float32)]


def guard_code(name: str, policy: Policy | None) -> str:
    """Returns how to write a guard with a policy of `policies_to_try`."""
    if policy is None:
        return f"dtypeguard.guard({name})"
    code = "dtypeguard.Policy(compute_dtype=jnp.float32)"
    # A policy of the caller's own may have no short text.
    if policy != Policy(compute_dtype=jnp.float32):
        code = "dataclasses.replace(policy, compute_dtype=jnp.float32)"
    return f"dtypeguard.guard({name}, policy={code})"


@dataclasses.dataclass(frozen=True)
class StepCall:
    """A step and its arguments."""

    step: Step
    args: Args
    kwargs: Kwargs
    carry: CarriedArguments
    returned: ReturnedItems
    owner: str = "audit"  # the public function that asks
    is_strong: bool = False  # whether the first carry is given strong types
    kind: SubjectKind = "step"

    @property
    def name(self) -> str:
        """The name of the step in messages."""
        return self._resolved_carry().step

    def call(self) -> Call:
        """Returns the call of the step."""
        return Call(self.step, self._resolved_carry(), self.args, self.kwargs)

    def with_strong_carry(self) -> "StepCall":
        """Returns the call with a strongly typed first carry that shares no buffer."""
        return dataclasses.replace(self, is_strong=True)

    def _resolved_carry(self) -> Carry:
        return carry_of(self.owner, self.step, self.carry, self.returned)

    def trace(self) -> Program:
        """Traces the call."""
        return trace(self.call, is_strong=self.is_strong)

    def guarded(self) -> "StepCall":
        """Returns the call of the guarded step."""
        guarded_step = guard_step(self.step, carry=self.carry, returned=self.returned)
        return dataclasses.replace(self, step=guarded_step)

    def remedies(self, drifts: Sequence[Drift]) -> list["AuditRemedy"]:
        """Returns a strongly typed first carry, a guard, and both."""
        guarded = self.guarded()
        wrap = f"Wrap the step: {guard_step_code(self.name, self.carry, self.returned)}."
        weak_drifts = [drift for drift in drifts if drift.was_weak]
        weak_carries = sorted({tree_name(drift.keys) for drift in weak_drifts})
        carries = ", ".join(f"dtypeguard.strong({name})" for name in weak_carries)
        begin = f"Begin with a strongly typed carry: {carries}."
        remedies = []
        # The least change comes first: a first carry that is at fault needs no guard.
        if weak_drifts and len(weak_drifts) == len(drifts):
            remedies.append(AuditRemedy(begin, self.with_strong_carry()))
        remedies.append(AuditRemedy(wrap, guarded))
        # A guard leaves a weak leaf that keeps its dtype as it is.
        if weak_drifts:
            remedies.append(AuditRemedy(f"{wrap} {begin}", guarded.with_strong_carry()))
        return remedies


AuditSubject = OptimizerUpdate | StepCall


@dataclasses.dataclass(frozen=True)
class AuditRemedy:
    """A sentence that says how to fix a subject, and the subject after it."""

    sentence: str
    subject: AuditSubject


def guard_step_code(name: str, carry: CarriedArguments, returned: ReturnedItems) -> str:
    """Returns how to write the guard of a step."""
    options = name
    if carry != 0:
        options += f", carry={carry!r}"
    if returned is not None:
        options += f", returned={returned!r}"
    return f"dtypeguard.guard_step({options})"
