"""The guard of any step: its carry comes back in the types with which it came in."""

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from .._carry.carry import carry_of
from .._leaves.types import Step, public
from .policy import Policy, check_policy
from .step_call import StepGuard

_P = ParamSpec("_P")
_T = TypeVar("_T")
_CarryOption = int | str | tuple[int | str, ...]


@overload
def guard_step(
    step: None = None,
    *,
    carry: _CarryOption = 0,
    returned: Any = None,
    policy: Policy | None = None,
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...
@overload
def guard_step(
    step: Callable[_P, _T],
    *,
    carry: _CarryOption = 0,
    returned: Any = None,
    policy: Policy | None = None,
) -> Callable[_P, _T]: ...
@public
def guard_step(
    step: Step | None = None,
    *,
    carry: _CarryOption = 0,
    returned: Any = None,
    policy: Policy | None = None,
) -> Any:
    """Makes a step return its carry in the types with which it came in.

    A step is what a loop calls: it takes params, an optimizer's state, an average, a
    counter or an environment, and returns the next one. If one line of it promotes,
    `lax.scan` refuses its carry, or the jitted step compiles twice.

    - Every array leaf of the carry comes back strongly typed in its incoming dtype. The
      other results are left alone.
    - A leaf that comes in weakly typed, such as a Python number, has not chosen its type.
      It comes back in the type to which JAX's loops would promote it. Outside of a trace,
      `guard_step(jax.jit(step))` makes such leaves strongly typed if they come back so, and
      then compiles once.
    - The Python numbers of an Equinox module are constants and stay as they are.
    - A step changes the Flax NNX modules, optimizers and metrics among its arguments in
      place. Each Variable that they hold keeps its dtype, and the step need not return
      them.
    - Casts stay within a kind, like those of [`dtypeguard.guard`][].
    - The step runs under the caller's flags. If it raises over types with x64 on, and no
      input is 64-bit, it runs once more with x64 off, with a `DtypeGuardWarning` (JAX >=
      0.7). A Python number does not count as 64-bit; the second run may give it 32 bits.

    A step that keeps its types compiles to the same program. `jit` may stand inside or
    outside.

    Args:
        step: a function, a method, or any other callable. Without it, as in
            `@guard_step(carry="state")`, `guard_step` returns the decorator.
        carry: the argument that comes back, by position or name, or a tuple of them.
            Positions do not count a first parameter called `self` or `cls`, unless it is
            the only one: `carry="self"` names the object of a method of a tree, such as a
            Flax struct.
        returned: the item of the result that the carry comes back as: an int, a key of a
            dict, or the name of a field; or a tuple with one for each carry. By default,
            one carry is the whole result if that has its tree, and the first item
            otherwise; a tuple of carries is the first items in its order. If such an item
            is cast to another dtype, and the result has another item with the tree and the
            shapes of the carry, a `DtypeGuardWarning` asks which of them it is:
            `returned=0` names the first. The result keeps its own type.
        policy: `Policy(casting=..., on_drift=...)`: what to cast and what to report.

    Returns:
        A step with the same signature; on a method, a method.

    Raises:
        TypeError: if `step` or `policy` has the wrong type. From the step, if its
            result has no such item, or the carry is a dataclass that JAX does not know.
        ValueError: if the step has no such argument, `returned` has another length, or
            the policy asks for another precision.
        DtypeDriftError: from the step, during tracing, if the tree of the carry or a shape
            changes, or if a cast would change the kind of a leaf. Names every such leaf.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp
        >>> def step(average, x):
        ...     return 0.9 * average + 0.1 * x, None
        >>> start, xs = jnp.zeros((), jnp.bfloat16), jnp.ones(3, jnp.float32)
        >>> average, _ = jax.lax.scan(dtypeguard.guard_step(step), start, xs)
        >>> average.dtype
        dtype(bfloat16)
    """
    policy = _check_policy_of_step(policy)
    if step is None:
        return functools.partial(guard_step, carry=carry, returned=returned, policy=policy)
    if isinstance(step, (classmethod, staticmethod)):
        function = step.__func__
        return type(step)(_guard_function(function, carry, returned, policy))
    return _guard_function(step, carry, returned, policy)


_RECORD = "_dtypeguard_step"


@dataclasses.dataclass(frozen=True)
class _Record:
    """A function and the guarded steps that were made of it, after their options."""

    step: Any = None
    guarded: list[tuple[object, Step]] = dataclasses.field(default_factory=list)

    def __reduce__(self) -> tuple[type["_Record"], tuple[()]]:
        # A function that is pickled by value is another one, and was not guarded.
        return _Record, ()


def _guard_function(step: Step, carry: _CarryOption, returned: Any, policy: Policy) -> Step:
    """Returns the guarded step of a function, which is made once for the same options.

    JAX's cache of traces goes by function: a loop that guards its body anew in each
    iteration would compile in each.
    """
    # First of all it refuses False, though that equals 0.
    carry_of_step = carry_of("guard_step", step, carry, returned)
    options = (carry, returned, policy)
    record = getattr(step, _RECORD, _Record())
    # functools.wraps copies attributes to functions that stand for something else.
    if record.step is not step:
        record = _Record(step)
    # No dict: the error about a list of items is that of a call.
    for earlier_options, earlier in record.guarded:
        if earlier_options == options:
            return earlier
    step_guard = StepGuard(step, carry_of_step, policy)

    # A function, and no object that can be called: a method of a class has to be one for
    # the metaclasses of Haiku, Flax and Equinox. They read attributes of functions as well.
    def guarded(*args, **kwargs):
        return step_guard.call(args, kwargs)

    is_function = isinstance(step, types.FunctionType)
    attributes = functools.WRAPPER_UPDATES if is_function else ()
    functools.update_wrapper(guarded, step, updated=attributes)
    guarded.__name__ = carry_of_step.step
    setattr(guarded, _RECORD, _Record(guarded, [(options, guarded)]))
    if is_function or isinstance(step, functools.partial):
        record.guarded.append((options, guarded))
        setattr(step, _RECORD, record)
    return guarded


def _check_policy_of_step(policy: Policy | None) -> Policy:
    check_policy("guard_step", policy)
    if policy is None:
        policy = Policy()
    allowed = Policy(casting=policy.casting, on_drift=policy.on_drift)
    if policy != allowed:
        raise ValueError(
            f"guard_step got policy={policy}. A step computes in the precision that it is "
            f"written in. Write policy={allowed}, and give the rest to "
            "dtypeguard.guard(optimizer, policy=...) inside the step."
        )
    return policy
