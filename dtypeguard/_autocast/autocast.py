"""A function that computes by a plan, and keeps its signature and its types."""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, overload

import jax.numpy as jnp

from .._leaves.arguments import shown
from .._leaves.compat import check_release
from .._leaves.types import DType, Function, public
from .calls import WholeCall
from .emit import Emitter
from .matching import PlanUse
from .plan import NARROW, PRODUCTS, FilePath, Plan, PlanError, entries_of

_P = ParamSpec("_P")
_T = TypeVar("_T")
_AnyPlan = Plan | Mapping[str, str] | FilePath | DType


@overload
def autocast(
    f: None = None, plan: _AnyPlan = None, *, dtype: DType = None
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...
@overload
def autocast(
    f: Callable[_P, _T], plan: _AnyPlan = None, *, dtype: DType = None
) -> Callable[_P, _T]: ...
@public
def autocast(
    f: Function | None = None, plan: _AnyPlan = None, *, dtype: DType = None
) -> Any:
    """Computes a function in the dtypes of a plan.

    A plan says which work is narrow, and which functions and expressions of the source
    compute in another dtype. `autocast(f, jnp.bfloat16)` is the plan without a measurement:
    matrix products and convolutions are narrow, and all else is as written. The function
    keeps its signature, takes what it took, and returns its results in the dtypes in which
    it returned them before, so it stands in the body of a loop.

    - A product rounds its operands. Its gradients are added up in the dtypes of the
      operands: those of a float32 weight in float32, over devices too.
    - What the source asks for stays: an explicit cast to a wider dtype, the `precision` of
      a product, integers, random draws, the operands of callbacks and of Pallas kernels.
      The attribute `kept` lists the lines that stay as written for such a reason, once the
      function was called. So does a line with a constant that the narrow dtype makes
      infinite or 0.
    - The program keeps its form: `jit`, `jax.checkpoint` with its policy, loops, branches,
      `shard_map`, rules of derivatives, shardings, named scopes and lines of source. Where
      nothing is in another dtype, it compiles to the same HLO.
    - It is traced like a function under `jax.jit`: Python branches on values of arrays
      raise. Flax NNX objects among its arguments change in place as they did.

    Args:
        f: any function of arrays: a loss, a step, a model. Without it, as in
            `@autocast(dtype=jnp.bfloat16)`, `autocast` returns the decorator.
        plan: a plan, the path of one, or a narrow dtype. A dict of functions with their
            dtypes, `{"model.py:route": "float32"}`, is the plan in bfloat16 but for these.
        dtype: the same as a narrow dtype in place of a plan.

    Returns:
        A function with the same signature.

    Raises:
        TypeError: if `f` is no function, or the dtype no narrow floating one.
        ValueError: if the file of the plan does not exist or is damaged. From the function,
            if an entry of the plan matches none of its lines, or it has no product.
        NotImplementedError: if JAX is older than 0.8.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp
        >>> def predict(w, x):
        ...     return jax.nn.softmax(x @ w)
        >>> w, x = jnp.ones((3, 2)), jnp.ones((4, 3))
        >>> fast = dtypeguard.autocast(predict, jnp.bfloat16)
        >>> "bf16[4,2]" in str(jax.make_jaxpr(fast)(w, x)), fast(w, x).dtype
        (True, dtype('float32'))
    """
    checked = _checked_plan(plan, dtype)
    if f is None:
        return functools.partial(autocast, plan=checked)
    # The decorator of a method may stand above that of its kind or below it.
    if isinstance(f, (classmethod, staticmethod)):
        method = f.__func__
        return type(f)(autocast(method, checked))
    if not callable(f) or isinstance(f, type):
        raise TypeError(
            f"autocast got {shown(f)}. Give it a function of arrays first, and then a "
            "plan: autocast(step, jnp.bfloat16)."
        )
    check_release("autocast")
    emitter = Emitter(checked)

    # The attributes of a callable object are its params, and none of this function's.
    @functools.wraps(f, updated=())
    def function(*args, **kwargs):
        call = WholeCall(f, args, kwargs)
        # Each call traces: what the function closes over may have changed.
        jaxpr, traced_result = call.trace()
        traces = call.second_traces(jaxpr)
        results = emitter.emit_as_returned(jaxpr, traces, *call.arrays)
        _check(emitter.use, f)
        return call.finish(traced_result, results)

    vars(function).update(plan=checked, kept=emitter.use.notes)
    return function


def _checked_plan(plan: _AnyPlan, dtype: DType) -> Plan:
    if (plan is None) == (dtype is None):
        arguments = "a plan and a dtype"
        if plan is None:
            arguments = "neither a plan nor a dtype"
        raise TypeError(
            f"autocast got {arguments}. Write one of them: autocast(step, jnp.bfloat16), "
            'or autocast(step, "train.plan").'
        )
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, Mapping):
        entries = tuple(entries_of(plan))
        return Plan(jnp.bfloat16, entries=entries)
    if isinstance(plan, (str, os.PathLike)) and plan not in NARROW:
        return Plan.load(plan)
    narrow: Any = dtype  # which the plan checks
    if dtype is None:
        narrow = plan
    return Plan(narrow)


def _check(use: PlanUse, function: Function) -> None:
    """Checks that a plan says something of a program."""
    use.check()
    plan = use.plan
    if plan.default != PRODUCTS:
        return
    # An entry may make a function narrow that has no product.
    if plan.entries:
        return
    if use.has_product:
        return
    name = getattr(function, "__name__", "the function")
    raise PlanError(
        f"autocast found no product in {name}, so nothing of it is narrow. Give it "
        'the function that multiplies, or a plan with default = "all".'
    )
