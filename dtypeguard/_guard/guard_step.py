"""The guard of any step: its carry comes back in the types with which it came in."""

import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from .._carry.carry import carry_of
from .._leaves.arguments import copy_of
from .._leaves.types import Function, PyTree, Step, public
from .._source.warn import WarnOnce
from .policy import Policy, check_policy
from .step_call import OVER_TYPES, GuardedCall, Repeat, repeat_of

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Carry = int | str | tuple[int | str, ...]


@overload
def guard_step(
    step: None = None,
    *,
    carry: _Carry = 0,
    returned: Any = None,
    policy: Policy | None = None,
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...
@overload
def guard_step(
    step: Callable[_P, _T],
    *,
    carry: _Carry = 0,
    returned: Any = None,
    policy: Policy | None = None,
) -> Callable[_P, _T]: ...
@public
def guard_step(
    step: Step | None = None,
    *,
    carry: _Carry = 0,
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
    policy = _checked(policy)
    if step is None:
        options = {"carry": carry, "returned": returned, "policy": policy}
        return functools.partial(guard_step, **options)
    if isinstance(step, (classmethod, staticmethod)):
        return type(step)(_guarded(step.__func__, carry, returned, policy))
    return _guarded(step, carry, returned, policy)


def _guarded(step: Step, carry: _Carry, returned: Any, policy: Policy) -> Step:
    """The guarded step of a function, made once and kept on the function.

    JAX's cache of traces goes by function: a loop that guards its body anew in each
    iteration would compile in each.
    """
    known = _known(step)
    if known is not None and known.options == (carry, returned, policy):
        return step
    is_function = isinstance(step, types.FunctionType)
    if not is_function and type(step) is not functools.partial:
        return _GuardedStep(step, carry, returned, policy)
    kept = vars(step).get(_STEPS)
    if kept is None or kept.owner() is not step:  # functools.wraps copies attributes
        kept = vars(step)[_STEPS] = _Kept(weakref.ref(step))
    made = _GuardedStep(step, carry, returned, policy, kept.token)
    if made not in kept.steps:
        is_method = is_function and _is_of_a_class(step)
        kept.steps[made] = _as_method(made) if is_method else made
    return kept.steps[made]


# Attributes: on a function, its guarded steps; on a guarded method, the step behind it.
_STEPS, _STEP = "_dtypeguard_steps", "_dtypeguard_step"


def _known(step: Step) -> "_GuardedStep | None":
    """The guarded step behind a function or an object, if it is one."""
    if isinstance(step, _GuardedStep):
        return step
    guarded = getattr(step, _STEP, None)  # which functools.wraps copies
    is_own = guarded is not None and getattr(step, "__wrapped__", None) is guarded.copy
    return guarded if is_own else None


def _is_of_a_class(function: types.FunctionType) -> bool:
    """Whether a function was defined in the body of a class."""
    around = function.__qualname__.rpartition(".")[0]
    return bool(around) and not around.endswith("<locals>")


def _as_method(guarded: "_GuardedStep") -> Step:
    """A guarded method as a function with the attributes of the original.

    The metaclasses of Haiku and Flax look for functions among the members of a class, and
    for the attributes that other decorators left on them.
    """

    @functools.wraps(guarded.copy)
    def method(*args: PyTree, **kwargs: PyTree) -> PyTree:
        return guarded(*args, **kwargs)

    setattr(method, _STEP, guarded)
    return method


class _Kept:
    """The guarded steps of a function. Pickling the function leaves them behind."""

    def __init__(self, owner: Callable[[], object] = lambda: None):
        self.owner = owner
        self.token = object()  # stands for the function in the guarded steps
        self.steps: dict[_GuardedStep, Step] = {}

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Kept, ()


def _checked(policy: Policy | None) -> Policy:
    check_policy("guard_step", policy)
    policy = policy or Policy()
    allowed = Policy(casting=policy.casting, on_drift=policy.on_drift)
    if policy != allowed:
        raise ValueError(
            f"guard_step got policy={policy}. A step computes in the precision that it is "
            f"written in. Write policy={allowed}, and give the rest to "
            "dtypeguard.guard(optimizer, policy=...) inside the step."
        )
    return policy


class _GuardedStep:
    """A step that keeps the types of its carry; equal to another with the same parts.

    A function keeps its guarded steps, so they hold a copy of it, for when nothing else
    holds the function: no cycle of references delays the end of what it closes over.
    """

    def __init__(
        self, step: Step, carry: _Carry, returned: Any, policy: Policy, token: object = None
    ):
        self.copy, self._token = step, token
        self._original: Callable[[], Step | None] = lambda: None
        if isinstance(step, types.FunctionType):
            self.copy, self._original = copy_of(step, without=_STEPS), weakref.ref(step)
        elif isinstance(step, functools.partial) and token is not None:
            self.copy = functools.partial(step.func, *step.args, **step.keywords)
            vars(self.copy).update({k: v for k, v in vars(step).items() if k != _STEPS})
            self._original = weakref.ref(step)
        step = self.copy
        self.options = (carry, returned, policy)
        self.carry = carry_of("guard_step", step, carry, returned)
        self.policy = policy
        self.warn_once = WarnOnce()
        self.is_jitted = callable(getattr(step, "eval_shape", None))
        self._repeat: Repeat | None = None  # the last call in which nothing was cast
        functools.update_wrapper(self, step, updated=())
        vars(self).pop("__wrapped__")  # see __getattr__
        self.__name__ = self.carry.step
        self.__isabstractmethod__ = getattr(step, "__isabstractmethod__", False)

    @property
    def step(self) -> Step:
        """The step inside: the function itself as long as there is one."""
        return self._original() or self.copy

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # the very function, to `inspect.unwrap`
            return self.step
        raise AttributeError(
            f"A guarded step has no attribute {name!r}. Those of jax.jit(f) are of "
            "jax.jit(guard_step(f)), not of guard_step(jax.jit(f))."
        )

    def __call__(self, /, *args: PyTree, **kwargs: PyTree) -> PyTree:
        repeat = self._repeat
        avals = None if repeat is None else repeat.carry_of(args, kwargs)
        if repeat is None or avals is None:
            call = GuardedCall(self, args, kwargs)
            result = call.run()
            if call.is_as_bare:
                like = repeat_of(self.step, call.carry, args, kwargs, result)
                self._repeat = like or repeat
            return result
        try:
            result = self.copy(*args, **kwargs)
        except OVER_TYPES as error:
            call = GuardedCall(self, args, kwargs)
            done, result = call.again(error)
            if not done:
                raise
            return result
        if repeat.is_kept(avals, result):
            return result
        return GuardedCall(self, args, kwargs).settled(result)

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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _GuardedStep) and self._parts == other._parts

    def __hash__(self) -> int:
        try:
            return hash(self._parts)
        except TypeError:  # a module with arrays
            return id(self.copy)

    @property
    def _parts(self) -> tuple[Any, ...]:
        return (self.copy if self._token is None else self._token), self.options

    def __reduce__(self) -> tuple[Function, tuple[Any, ...]]:
        return _guarded, (self.step, *self.options)

    def __repr__(self) -> str:
        return f"<guard_step of {self.step!r}>"
