"""Audits an optimizer or a step: which leaves drift, and on which line of source."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, overload

from .._carry.carry import Call, carry_of
from .._carry.split import SplitTree
from .._guard.guard import bare, guard, policy_of
from .._guard.guard_step import guard_step
from .._guard.policy import asks_wide
from .._leaves.arguments import check_arrays, check_names, is_transformation
from .._leaves.compat import check_release
from .._leaves.dtypes import is_wide
from .._leaves.groups import parameter
from .._leaves.rows import dtype_text, lost
from .._leaves.types import (
    Args,
    DType,
    ExtraArgs,
    Key,
    Kwargs,
    Optimizer,
    Params,
    PyTree,
    Step,
    Updates,
    public,
)
from .._lines.drift import Drift
from .._program.trace import Program, TraceFailed, trace
from .examine import Advice, check_x64, examine, left, refused
from .report import AuditReport, TraceError

Which = int | str | tuple[int | str, ...]
Returned = Key | tuple[Key, ...] | None


@overload
def audit(
    opt: Optimizer,
    /,
    params: Params,
    *,
    updates: Updates | None = None,
    extra_args: ExtraArgs | None = None,
    x64: bool | None = None,
) -> AuditReport: ...
@overload
def audit(
    step: Step,
    /,
    *args: PyTree,
    carry: Which = 0,
    returned: Returned = None,
    kwargs: Mapping[str, PyTree] | None = None,
    x64: bool | None = None,
) -> AuditReport: ...
@public
def audit(
    target: Optimizer | Step, /, *args: PyTree, x64: bool | None = None, **options: Any
) -> AuditReport:
    """Finds the leaves that change their types in one update or one step, and the lines.

    A state or a carry has to come back in the types that came in. If it does not,
    `lax.scan` raises and a jitted step compiles twice; JAX names the leaf but not the line.
    The audit traces for shapes and dtypes alone: it computes nothing, and allocates nothing
    of the size of its arguments.

    Args:
        target: a gradient transformation or an object with `init` and `update`; or a step,
            a function that takes its carry and returns it. A guarded one should be clean.
        *args: of an optimizer its `params`, by position or name: arrays or
            `jax.ShapeDtypeStruct`s. Of a step its arguments, with such leaves. Functions,
            strings and the like stay as they are, and so do Python numbers outside the
            carry.
        **options: those below, which an optimizer or a step has.
        updates: of an optimizer: the gradients, likewise; by default with the shapes and
            dtypes of `params`.
        extra_args: of an optimizer: further keyword arguments of `update`. Functions,
            strings and bools among them stay as they are; the rest is traced.
        carry: of a step: the argument that comes back, by position or name, or a tuple of
            them.
        returned: of a step: the item of the result that it comes back as, or a tuple of as
            many; by default as in [`dtypeguard.guard_step`][].
        kwargs: of a step: its arguments by name.
        x64: whether `jax_enable_x64` is on; by default the caller's setting.

    Returns:
        An `AuditReport`; print it. Of a step, a drift's `path` begins with the name of the
        parameter. For a leaf that was weakly typed at first, the line that made it has run
        before the audit: its `origin` is known where that is recorded, as under
        `dtypeguard run`.

    Raises:
        TypeError: if the target is neither, a leaf of `params` or `updates` is no array, or
            the step does not return its carry.
        ValueError: if the step has no such argument.
        NotImplementedError: before JAX 0.8.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp, optax
        >>> params = {"w": jax.ShapeDtypeStruct((3,), jnp.bfloat16)}
        >>> grads = {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}
        >>> report = dtypeguard.audit(optax.adam(1e-3), params, updates=grads)
        >>> [(drift.path, drift.before, drift.after) for drift in report.drifts][0]
        ("[0].mu['w']", 'bfloat16', 'float32')
        >>> def step(mean, x):
        ...     return 0.9 * mean + 0.1 * x, None
        >>> dtypeguard.audit(step, params["w"], grads["w"]).drifts[0].path
        'mean'
    """
    check_release("audit")
    if is_transformation(target) and not inspect.isclass(target):
        return audit_optimizer(target, *args, x64=x64, **options)
    made = getattr(target, "__annotations__", {}).get("return", "")
    if not callable(target) or inspect.isclass(target) or "Transformation" in str(made):
        raise TypeError(
            f"audit got {target!r}. Give it a gradient transformation (anything with "
            "`init` and `update`, such as optax.adam(1e-3)), not the function that makes "
            "it; or a step, a function that takes its carry and returns it."
        )
    return audit_step(target, *args, x64=x64, **options)


def audit_optimizer(
    opt: Optimizer,
    params: Params,
    *,
    updates: Updates | None = None,
    extra_args: ExtraArgs | None = None,
    x64: bool | None = None,
) -> AuditReport:
    """What `audit` is for an optimizer, on any release of JAX."""
    extra_args = {} if extra_args is None else extra_args
    check_names("audit", "extra_args", extra_args)
    check_x64("audit", x64)
    updates = params if updates is None else updates
    for name, tree in (("params", params), ("updates", updates)):
        check_arrays("audit", name, tree)
    return examine(_Update(opt, params, updates, extra_args), x64)


class _Update(NamedTuple):
    """An optimizer's `update`: a step that carries the state that `init` makes."""

    opt: Optimizer
    params: Params
    updates: Updates
    extra_args: ExtraArgs

    kind = "optimizer"

    @property
    def name(self) -> str:
        return name_of(self.opt)

    def trace(self) -> Program:
        """Traces `init`, and `update` on its state: weak types stay weak."""
        extra = SplitTree(self.extra_args, static={bool})  # may choose what is traced

        def step(state, updates, params, /, **extra_args):
            new_updates, new_state = self.opt.update(updates, state, params, **extra_args)
            return new_state, new_updates

        def make(params, updates, extra_arrays):
            try:
                state = self.opt.init(params)
            except Exception as error:
                raise TraceFailed("init") from error
            carry = carry_of("audit", step, 0, 0).called("")
            args, kwargs = (state, updates, params), extra.merged(extra_arrays)
            return Call(step, carry, args, kwargs, static={bool}, in_place=False)

        inputs = self.params, self.updates, extra.arrays
        program = trace(make, inputs, is_optimizer=True)
        policy = policy_of(self.opt)
        state = [leaf for parts in program.carried for leaf in parts.arrays]
        stores_wide = policy.state_dtype is not None and any(map(is_wide, state))
        is_wide_asked = asks_wide(policy) or stores_wide
        return program._replace(updates_dtype=policy.updates_dtype, asks_wide=is_wide_asked)

    def advice(self, drifts: tuple[Drift, ...], error: TraceError | None) -> Advice:
        """A guard, if it fixes the optimizer."""
        if error is None and all(each.is_castable for each in drifts):
            return {}
        still = left(self._replace(opt=guard(self.opt)).trace)
        return {} if still == () else refused(still, "optimizer")


# For an optimizer that one of these made, the user's own name is better.
_COMBINING = {"chain", "named_chain", "with_extra_args_support"}


def name_of(opt: Optimizer) -> str:
    """A name for an optimizer: the function that made it, as `adam(...)`, or `opt`."""
    init = bare(opt).init
    factory, _, rest = getattr(init, "__qualname__", "").partition(".<locals>")
    if not rest or not factory.isidentifier() or factory in _COMBINING:
        return "opt"
    return f"{factory}(...)"


def audit_step(
    step: Step,
    /,
    *args: PyTree,
    carry: Which = 0,
    returned: Returned = None,
    kwargs: Mapping[str, PyTree] | None = None,
    x64: bool | None = None,
) -> AuditReport:
    """What `audit` is for a step."""
    kwargs = {} if kwargs is None else kwargs
    check_names("audit", "kwargs", kwargs)
    check_x64("audit", x64)
    name = carry_of("audit", step, carry, returned).step
    return examine(_Step(step, args, kwargs, carry, returned, name), x64)


def guarding(name: str, carry: Which, returned: Returned) -> str:
    """How to write the guard of a step."""
    options = "" if carry == 0 else f", carry={carry!r}"
    options += "" if returned is None else f", returned={returned!r}"
    return f"dtypeguard.guard_step({name}{options})"


class _Step(NamedTuple):
    """A step and its arguments."""

    step: Step
    args: Args
    kwargs: Kwargs
    carry: Which
    returned: Returned
    name: str

    kind = "step"

    def call(self) -> Call:
        """The call to audit."""
        carry = carry_of("audit", self.step, self.carry, self.returned)
        return Call(self.step, carry, self.args, self.kwargs)

    def trace(self, types: Mapping[str, DType] | None = None) -> Program:
        """Traces it; see `trace`."""
        return trace(self.call, types=types)

    def advice(self, drifts: tuple[Drift, ...], error: TraceError | None) -> Advice:
        """A guard, a first carry of other types, or both."""
        if _are_weak(drifts) and left(lambda: self.trace(_types(drifts))) == ():
            return {"remedy": self._begin(drifts)}
        step = guard_step(self.step, carry=self.carry, returned=self.returned)
        guarded = self._replace(step=step)
        wrap = f"Wrap the step: {guarding(self.name, self.carry, self.returned)}."
        # A guard casts such leaves, and leaves what keeps its type as it is.
        is_sure = not error and all(x.is_castable and not x.was_weak for x in drifts)
        still = () if is_sure else left(guarded.trace)
        if still == ():
            return {"remedy": wrap}
        weak = () if isinstance(still, str) else still
        if _are_weak(weak) and left(lambda: guarded.trace(_types(weak))) == ():
            return {"remedy": f"{wrap} {self._begin(weak)}"}
        return refused(still, "step")

    def _begin(self, drifts: Sequence[Drift]) -> str:
        """How the carry has to begin, for these leaves to have their types at once."""
        advice = [
            f"Start {drift.path} as {drift.after}: jnp.asarray(x, "
            f"{dtype_text(drift.after)}){lost(*(aval.dtype for aval in drift.avals))}."
            for drift in drifts
            if drift.kind == "dtype"
        ]
        weak = dict.fromkeys(parameter(x.path) for x in drifts if x.kind == "weak_type")
        if calls := ", ".join(f"dtypeguard.strong({name})" for name in weak):
            advice.append(f"Begin with a strongly typed carry: {calls}.")
        return " ".join(advice)


def _are_weak(drifts: Sequence[Drift]) -> bool:
    return bool(drifts) and all(each.was_weak for each in drifts)


def _types(drifts: Sequence[Drift]) -> dict[str, DType]:
    """The dtypes in which these leaves have to begin, by path."""
    return {each.path: each.avals[1].dtype for each in drifts if each.kind == "dtype"}
