"""Audits an optimizer or a step: which leaves drift, and on which line of source."""

import inspect
import typing
from collections.abc import Mapping
from typing import Any, overload

import optax

from .._guard.guard import bare
from .._leaves.arguments import check_arrays, checked_names, is_transformation
from .._leaves.compat import check_release
from .._leaves.types import ExtraArgs, Optimizer, Params, PyTree, Step, Updates, public
from .examine import check_x64, examine
from .report import AuditReport
from .subjects import CarriedArguments, OptimizerUpdate, ReturnedItems, StepCall


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
    carry: CarriedArguments = 0,
    returned: ReturnedItems = None,
    kwargs: Mapping[str, PyTree] | None = None,
    x64: bool | None = None,
) -> AuditReport: ...
@public
def audit(
    target: Optimizer | Step, /, *args: PyTree, x64: bool | None = None, **options: Any
) -> AuditReport:
    """Finds the leaves that change types in one update or step, and the lines of source.

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
    # A class of optimizers has the functions, but is none.
    if is_transformation(target) and not inspect.isclass(target):
        return audit_optimizer(target, *args, x64=x64, **options)
    if not callable(target) or inspect.isclass(target) or _makes_optimizer(target):
        raise TypeError(
            f"audit got {target!r}. Give it a gradient transformation (anything with "
            "`init` and `update`, such as optax.adam(1e-3)), not the function that makes "
            "it; or a step, a function that takes its carry and returns it."
        )
    return audit_step(target, *args, x64=x64, **options)


def _makes_optimizer(function: Step) -> bool:
    """Returns whether a function says that it returns a transformation."""
    try:
        returned = typing.get_type_hints(function).get("return")
    except Exception:  # a name that only type checkers know
        return False
    return inspect.isclass(returned) and issubclass(returned, optax.GradientTransformation)


def audit_optimizer(
    opt: Optimizer,
    params: Params,
    *,
    updates: Updates | None = None,
    extra_args: ExtraArgs | None = None,
    x64: bool | None = None,
) -> AuditReport:
    """Audits an optimizer, on any release of JAX."""
    if updates is None:
        updates = params
    extra_args = checked_names("audit", "extra_args", extra_args)
    check_x64("audit", x64)
    check_arrays("audit", "params", params)
    check_arrays("audit", "updates", updates)
    return examine(OptimizerUpdate(opt, params, updates, extra_args, name_of(opt)), x64)


# For an optimizer that one of these made, the user's own name is better.
_COMBINING = {"chain", "named_chain", "with_extra_args_support"}


def name_of(opt: Optimizer) -> str:
    """Returns the function that made an optimizer, as `adam(...)`, or `opt`."""
    # Python's name of a nested function begins with that of the function around it.
    qualified_name = getattr(bare(opt).init, "__qualname__", "")
    factory, _, rest = qualified_name.partition(".<locals>")
    if not rest or not factory.isidentifier() or factory in _COMBINING:
        return "opt"
    return f"{factory}(...)"


def audit_step(
    step: Step,
    /,
    *args: PyTree,
    carry: CarriedArguments = 0,
    returned: ReturnedItems = None,
    kwargs: Mapping[str, PyTree] | None = None,
    x64: bool | None = None,
) -> AuditReport:
    """Audits a step."""
    kwargs = checked_names("audit", "kwargs", kwargs)
    check_x64("audit", x64)
    return examine(StepCall(step, args, kwargs, carry, returned), x64)
