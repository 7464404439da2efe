"""Audits one optimizer: which leaf drifts in an update, and on which line of source."""

import contextlib
import functools
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import tree_util

from .._guard.guard import bare, guard
from .._leaves.arguments import check_arrays, check_extra_args, short
from .._leaves.compat import set_x64
from .._leaves.dtypes import broadcasts, dtype_of, fits, is_weak, is_wide
from .._leaves.functions import is_transformation
from .._leaves.public import public
from .._leaves.rows import ABSENT, by_path, describe
from .constants import Watch
from .drift import Drift
from .lines import Lines, carried_drifts, has, is_castable, is_small, wide_operations
from .origins import Origin
from .report import AuditReport
from .trace_error import reduce_error
from .traced import Refused, Traced, trace


@public
def audit(
    opt: Any,
    params: Any,
    *,
    updates: Any = None,
    extra_args: dict[str, Any] | None = None,
    x64: bool | None = None,
) -> AuditReport:
    """Finds the leaves that change their types in one update, and the lines that do it.

    Nothing is computed and nothing of the size of `params` is allocated: `init` and
    `update` are traced for shapes and dtypes alone.

    Args:
        opt: a gradient transformation or an object with `init` and `update`. It is
            audited as it is: guarded, it should be clean.
        params: arrays or `jax.ShapeDtypeStruct`s.
        updates: the same for the gradients; of the shapes and dtypes of `params` by
            default.
        extra_args: further keyword arguments of `update`. Functions, strings and bools
            among them are handed on as they are, the rest is traced.
        x64: whether `jax_enable_x64` is on; by default as the caller has it.

    Returns:
        An `AuditReport`; print it.

    Raises:
        TypeError: if `opt` has no `init` and `update`, or a leaf of `params` or `updates`
            is no array.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp, optax
        >>> params = {"w": jax.ShapeDtypeStruct((3,), jnp.bfloat16)}
        >>> grads = {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}
        >>> report = dtypeguard.audit(optax.adam(1e-3), params, updates=grads)
        >>> [(drift.path, drift.before, drift.after) for drift in report.drifts][0]
        ("[0].mu['w']", 'bfloat16', 'float32')
    """
    if not is_transformation(opt) or inspect.isclass(opt):
        raise TypeError(
            f"audit got {opt!r}. Give it a gradient transformation (anything with `init` "
            "and `update`, such as optax.adam(1e-3)), not the function that makes it."
        )
    extra_args = {} if extra_args is None else extra_args
    check_extra_args("audit", extra_args)
    if not (x64 is None or isinstance(x64, bool)):
        raise TypeError(f"audit got x64={short(x64)}. Write True, False or None.")
    updates = params if updates is None else updates
    for name, tree in (("params", params), ("updates", updates)):
        check_arrays("audit", name, tree)
    inputs = (params, updates, extra_args)
    few = is_small(params)
    flag = contextlib.nullcontext() if x64 is None else set_x64(x64)
    with flag, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what an update warns of, it says when it runs
        again = functools.partial(trace, opt, *inputs)
        watch = Watch()
        try:
            with watch if few else contextlib.nullcontext():
                traced = again()
        except Refused as refused:
            error = reduce_error(refused.__cause__, *refused.args)
            refusal = _refusal(opt, inputs, error.message)
            return AuditReport(error=error, refusal=refusal, name=name_of(opt))
        lines = Lines(traced, watch if few else None, again)
        of_state = carried_drifts(traced, lines, "state")
        drifts = (*of_state, *_update_drifts(traced, lines, inputs))
        is_blind = not any(map(is_wide, tree_util.tree_leaves(inputs)))
        wide = wide_operations(traced.first, traced.step)
        return AuditReport(
            drifts=drifts,
            wide_operations=tuple(wide) if is_blind else (),
            compilations=2 if any(drift.where == "state" for drift in drifts) else 1,
            refusal=None if all(map(is_castable, drifts)) else _refusal(opt, inputs),
            name=name_of(opt),
        )


def _refusal(opt: Any, inputs: Any, told: str = "") -> str | None:
    """Why a guard does not mend an optimizer; None if it does."""
    if bare(opt) is not opt:
        return ""
    params, updates, extra_args = inputs
    report = audit(guard(opt), params, updates=updates, extra_args=extra_args)
    if report.ok:
        return None
    why = report.headline if report.error is None else report.error.message
    return "" if why == told else why


def _update_drifts(traced: Traced, lines: Lines, inputs: Any) -> Iterator[Drift]:
    """The updates that change the dtype or shape of their param under `p + u`."""
    graph = traced.step
    new_state, new_updates = traced.returned
    params = {path: n for n, path in enumerate(by_path(inputs[0]))}
    gradients = {path: len(params) + n for n, path in enumerate(by_path(inputs[1]))}
    outputs = graph.outputs[len(new_state.arrays) :]
    for path, output in zip(new_updates.paths, outputs):
        update = graph.avals[output]
        if path not in params:
            if path not in gradients:
                yield Drift(path, "structure", ABSENT, describe(update), "updates")
            continue
        param = graph.avals[params[path]]
        gradient = gradients.get(path, params[path])
        leaves = 1 << params[path] | 1 << gradient
        # A batch of gradients, one for each example, may stay one.
        shapes = (param.shape, graph.avals[gradient].shape)
        if not (broadcasts(update.shape, shapes[0]) or update.shape == shapes[1]):
            found = lines.of(output, has("shape", update.shape), leaves)
            types = describe(param), describe(update)
            yield Drift(path, "shape", *types, "updates", **found)
        if not _promotes(param, update):
            continue
        found: dict[str, Origin | None] = {}
        # One that is as wide as its gradient was not promoted.
        if graph.avals[gradient].dtype != update.dtype:
            found = lines.of(output, has("dtype", update.dtype), leaves)
        yield Drift(path, "dtype", str(param.dtype), str(update.dtype), "updates", **found)


def _promotes(param: Any, update: Any) -> bool:
    if dtype_of(param) is None or dtype_of(update) is None or param.dtype == update.dtype:
        return False
    if is_weak(update) and fits(update.dtype, param.dtype):
        return False
    try:
        with jax.numpy_dtype_promotion("standard"):
            return jnp.promote_types(param.dtype, update.dtype) != param.dtype
    except (TypeError, ValueError):  # 8-bit floats promote with nothing: p + u fails
        return True


# An optimizer made by one of these is better called what the user calls it.
_COMBINING = {"chain", "named_chain", "with_extra_args_support"}


def name_of(opt: Any) -> str:
    """What to call an optimizer: by the function that made it, `adam(...)`, or `opt`."""
    init = bare(opt).init
    factory, _, rest = getattr(init, "__qualname__", "").partition(".<locals>")
    if not rest or not factory.isidentifier() or factory in _COMBINING:
        return "opt"
    return f"{factory}(...)"
