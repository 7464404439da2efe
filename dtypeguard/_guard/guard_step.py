"""The guard of any step: its carry comes back in the types with which it came in."""

import copy
import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

import jax

from .._carry.carry import carry_of
from .._leaves.compat import x64_enabled
from .._leaves.types import Args, Function, Kwargs, PyTree, Step, public
from .._source.warn import WarnOnce
from .policy import Policy, check_policy
from .second_attempt import ERRORS_OF_TYPES
from .stable_carry import StableCarry
from .step_call import GuardedCall, StepGuard

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
        options = {"carry": carry, "returned": returned, "policy": policy}
        return functools.partial(guard_step, **options)
    if isinstance(step, (classmethod, staticmethod)):
        function = step.__func__
        return type(step)(_guard_function(function, carry, returned, policy))
    return _guard_function(step, carry, returned, policy)


# By function: what `guard_step` returned for it, by its options. None of these holds the
# function, so that an entry goes with it.
_RETURNED: weakref.WeakKeyDictionary[Step, list[Step]] = weakref.WeakKeyDictionary()


def _guard_function(step: Step, carry: _CarryOption, returned: Any, policy: Policy) -> Step:
    """Returns the guarded step of a function, which is made once.

    JAX's cache of traces goes by function: a loop that guards its body anew in each
    iteration would compile in each.
    """
    options = (carry, returned, policy)
    guarded_steps = []
    if _is_copied(step):
        guarded_steps = _RETURNED.setdefault(step, [])
    result = _GuardedStep(step, *options)  # which refuses False, though it equals 0
    for earlier in [step, *guarded_steps]:
        guarded = _guarded_step_of(earlier)
        if guarded is not None and guarded.options == options:
            return earlier
    if isinstance(step, types.FunctionType) and _is_of_a_class(step):
        result = _as_method(result)
    guarded_steps.append(result)
    return result


def _is_copied(step: Step) -> bool:
    """Returns whether a guarded step holds a copy of a step, and not the step itself."""
    return isinstance(step, types.FunctionType) or type(step) is functools.partial


# Of a guarded method: the guarded step behind it.
_STEP = "_dtypeguard_step"


def _guarded_step_of(step: Step) -> "_GuardedStep | None":
    """Returns the guarded step that a callable is or stands for, if any."""
    if isinstance(step, _GuardedStep):
        return step
    guarded: _GuardedStep | None = getattr(step, _STEP, None)
    # functools.wraps copies the attribute to functions that stand for something else.
    if guarded is not None and getattr(step, "__wrapped__", None) is guarded.step:
        return guarded
    return None


def _is_of_a_class(function: types.FunctionType) -> bool:
    """Whether a function was defined in the body of a class."""
    scope = function.__qualname__.rpartition(".")[0]
    owner = scope.rpartition(".")[2]
    return owner not in ("", "<locals>")


def _as_method(guarded: "_GuardedStep") -> Step:
    """Returns a guarded method as a function with the attributes of the original.

    The metaclasses of Haiku and Flax look for functions among the members of a class, and
    for the attributes that other decorators left on them.
    """

    @functools.wraps(guarded.step)
    def method(*args, **kwargs):
        return guarded(*args, **kwargs)

    setattr(method, _STEP, guarded)
    return method


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


class _GuardedStep:
    """A step that keeps the types of its carry; equal to another with the same parts."""

    def __init__(self, step: Step, carry: _CarryOption, returned: Any, policy: Policy):
        self._original = weakref.ref(step) if _is_copied(step) else lambda: step
        self.step = _copy_of_step(step)
        self.options = (carry, returned, policy)
        carry_of_step = carry_of("guard_step", self.step, carry, returned)
        self._guard = StepGuard(self.step, carry_of_step, policy, WarnOnce())
        self._stable_carry: StableCarry | None = None  # of the last call that had one
        functools.update_wrapper(self, self.step, updated=())
        vars(self).pop("__wrapped__")  # see __getattr__
        self.__name__ = carry_of_step.step
        self.__isabstractmethod__ = getattr(step, "__isabstractmethod__", False)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":
            # The very function as long as there is one: `inspect.unwrap` returns it, and
            # `pickle` finds no copy by its name.
            return self._original() or self.step
        raise AttributeError(
            f"A guarded step has no attribute {name!r}. Those of jax.jit(f) are of "
            "jax.jit(guard_step(f)), not of guard_step(jax.jit(f))."
        )

    def __call__(self, /, *args: PyTree, **kwargs: PyTree) -> PyTree:
        stable_carry = self._stable_carry
        types_before = None
        # Without jit, a step could change the caller's containers.
        if stable_carry is not None and not jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import
            types_before = stable_carry.types_in_call(args, kwargs)
        if stable_carry is None or types_before is None:
            return self._call_guarded(args, kwargs)
        try:
            result = self.step(*args, **kwargs)
        except ERRORS_OF_TYPES:
            if not x64_enabled():
                raise
            return self._call_guarded(args, kwargs)  # which may run it with x64 off
        if stable_carry.is_kept(types_before, result):
            return result
        call = GuardedCall(self._guard, args, kwargs)
        return call.settle(result)

    def _call_guarded(self, args: Args, kwargs: Kwargs) -> PyTree:
        call = GuardedCall(self._guard, args, kwargs)
        result = call.run()
        if call.stable_carry is not None:
            self._stable_carry = call.stable_carry
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Step:
        is_bound = isinstance(self.step, types.MethodType)
        if instance is None or is_bound or not hasattr(type(self.step), "__get__"):
            return self
        # A bound method of an Equinox module is a tree: filter_jit traces its arrays.
        # Equinox 0.13 makes one of any method, 0.11 only of a function.
        eqx = sys.modules.get("equinox")  # not imported for those who have no module
        if eqx is not None and isinstance(instance, eqx.Module):
            return eqx.Partial(self, instance)
        return types.MethodType(self, instance)

    def __eq__(self, value: object) -> bool:
        if not isinstance(value, _GuardedStep):
            return False
        return self.step == value.step and self.options == value.options

    def __hash__(self) -> int:
        try:
            return hash((self.step, self.options))
        except TypeError:  # a module with arrays
            return id(self.step)

    def __reduce__(self) -> tuple[Function, tuple[Any, ...]]:
        arguments = (self.__wrapped__, *self.options)
        return _guard_function, arguments

    def __repr__(self) -> str:
        return f"<guard_step of {self.__wrapped__!r}>"


def _copy_of_step(step: Step) -> Step:
    """Returns a copy of a function or a partial function; any other step as it is.

    A guarded step lives as long as its function. If it held the function, both would stay
    for good, with all that the function closes over.
    """
    if type(step) is functools.partial:
        return copy.copy(step)
    if not isinstance(step, types.FunctionType):
        return step
    # `copy.copy` returns a function itself.
    code = step.__code__
    copied = types.FunctionType(code, step.__globals__, closure=step.__closure__)
    names = (*functools.WRAPPER_ASSIGNMENTS, "__defaults__", "__kwdefaults__")
    functools.update_wrapper(copied, step, names)
    # `update_wrapper` sets `__wrapped__`, which a copy has from the original alone.
    copied.__dict__ = dict(vars(step))
    return copied
