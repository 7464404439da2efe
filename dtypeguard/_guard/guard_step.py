"""The guard of any step: what it carries comes back in the types that it came in."""

import functools
import sys
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

import jax

from .._leaves.compat import HAS_X64_SCOPE, PromotionError, set_x64, x64_enabled
from .._leaves.dtypes import cast, dtype_of, is_weak
from .._leaves.errors import DtypeDriftError, Said
from .._leaves.public import public
from .carry import Carry, carry_of
from .given import Given
from .other_carry import other_carry
from .policy import Policy, check_policy
from .scope import wide_input, with_narrower_numbers
from .settle import Part, settle_carried, tell

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
    step: Any = None,
    *,
    carry: _Carry = 0,
    returned: Any = None,
    policy: Policy | None = None,
) -> Any:
    """Makes a step give back the types of what it carries.

    A step is what a loop calls: it takes params, an optimizer's state, an average, a
    counter, an environment, and returns the next ones. One line in it that promotes, and
    `lax.scan` refuses its carry, or the jitted step compiles twice.

    - Every array leaf of what comes back has the dtype that it came in with, and is
      strongly typed. The other results are left alone.
    - What comes in weakly typed, a Python number say, is strongly typed before the step
      sees it, so that `guard_step(jax.jit(step))` compiles once.
    - Casts stay within a kind, as those of [`dtypeguard.guard`][] do.
    - The step runs under the caller's flags. If it raises over types with x64 on, and no
      input is 64-bit, it runs once more with x64 off, and a `DtypeGuardWarning` tells so
      (JAX >= 0.7). A Python number counts as none, and has 32 bits then if it has to.

    A step that keeps its types already compiles to the same program. `jit` may stand
    inside or outside.

    Args:
        step: a function, a method, or anything else that can be called. Left out, as in
            `@guard_step(carry="state")`, `guard_step` returns the decorator.
        carry: the argument that comes back, by position or name, or a tuple of them.
            Positions are counted without a first parameter called `self` or `cls`.
        returned: the item of the result that it comes back as: an int, a key where the
            result is a dict, the name of a field where it has fields; or a tuple of as
            many as `carry` has. By default one carry is the whole result where that has
            its tree, and the first item otherwise, and a tuple of carries is the first
            items in its order. The result keeps its own type.
        policy: `Policy(casting=..., on_drift=...)`: what is cast and what is said.

    Returns:
        A step with the same signature; on a method, a method.

    Raises:
        TypeError: if `step`, `carry` or `policy` is nothing of the kind. By the step, if
            its result has no such item, or the carry is a dataclass that JAX does not know.
        ValueError: if the step has no such argument, `returned` has another length, or
            the policy asks for another precision.
        DtypeDriftError: by the step, while it is traced, if the carry's tree or a shape
            changes or a cast would change a leaf's kind; names every such leaf.

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


def _guarded(step: Any, carry: Any, returned: Any, policy: Policy) -> "_GuardedStep":
    """The guarded step of a function, made once for it and kept where the function is.

    JAX forgets what it traced with the function that it traced: a loop that guards its
    body anew in each turn would compile in each.
    """
    if isinstance(step, _GuardedStep) and step.is_guarded_so(carry, returned, policy):
        return step
    made = _GuardedStep(step, carry, returned, policy)
    if not isinstance(step, types.FunctionType):
        return made
    kept = vars(step).get("_dtypeguard_steps")
    if kept is None or kept.owner is not step:  # that of another: functools.wraps copies it
        kept = vars(step)["_dtypeguard_steps"] = _Kept(step)
    return kept.steps.setdefault(made, made)


class _Kept:
    """The guarded steps of a function, which stay behind where it is pickled."""

    def __init__(self, owner: Any = None):
        self.owner = owner
        self.steps: dict[_GuardedStep, _GuardedStep] = {}

    def __reduce__(self) -> Any:
        return _Kept, ()


def _checked(policy: Policy | None) -> Policy:
    check_policy("guard_step", policy)
    if policy is None:
        return Policy()
    allowed = Policy(casting=policy.casting, on_drift=policy.on_drift)
    if policy != allowed:
        raise ValueError(
            f"guard_step got policy={policy}. A step computes in the precision that it is "
            f"written in. Write policy={allowed}, and give the rest to "
            "dtypeguard.guard(optimizer, policy=...) inside the step."
        )
    return policy


class _GuardedStep:
    """A step that keeps the types of its carry; equal to another of the same parts."""

    def __init__(self, step: Any, carry: Any, returned: Any, policy: Policy):
        self._step = step
        self._parts = (step, carry, returned, policy)
        self._carry = carry_of("guard_step", step, carry, returned)
        self._said = Said()
        functools.update_wrapper(self, step, updated=())
        self.__name__ = self._carry.step
        self.__isabstractmethod__ = getattr(step, "__isabstractmethod__", False)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return _run(self._step, self._carry, self._parts[-1], self._said, args, kwargs)

    def is_guarded_so(self, carry: Any, returned: Any, policy: Policy) -> bool:
        """Whether it was made with these options."""
        return self._parts[1:] == (carry, returned, policy)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        is_bound = isinstance(self._step, types.MethodType)
        if instance is None or is_bound or not hasattr(type(self._step), "__get__"):
            return self
        # A module's method is a tree, for filter_jit to find the arrays in.
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
            return id(self._step)

    def __reduce__(self) -> Any:
        return _GuardedStep, self._parts  # said anew there, and what is kept made anew

    def __repr__(self) -> str:
        return f"<guard_step of {self._step!r}>"


def _run(
    step: Any,
    carry: Carry,
    policy: Policy,
    said: Said,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """One call, and where it raises over types maybe more with x64 off."""
    # Kept: the step may change the containers that it is given.
    given = [Given(value) for value in carry.take(args, kwargs)]
    try:
        return _attempt(step, carry, policy, said, given, args, kwargs)
    except DtypeDriftError:
        raise
    except (TypeError, PromotionError) as error:
        if not (HAS_X64_SCOPE and x64_enabled()):
            raise
        wide = wide_input(carry, given, args, kwargs)
        if wide:
            error.add_note(
                f"{carry.step} ran with jax_enable_x64 on, for it was given {wide}. Given "
                "nothing of 64 bits it would have run once more with the flag off."
            )
            raise
        result = _FAILED
        for given_args in with_narrower_numbers(carry, given, args, kwargs):
            try:
                with set_x64(False):
                    result = _attempt(step, carry, policy, said, given, *given_args)
                break
            except Exception:  # whatever it is, the first error tells the user more
                continue
        if result is _FAILED:
            raise
        reason = str(error).strip().partition("\n")[0]
        said.warn_once(f"{carry.step} failed with x64 on and was run with it off: {reason}")
        return result


_FAILED = object()


def _attempt(
    step: Any,
    carry: Carry,
    policy: Policy,
    said: Said,
    given: list[Given],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    typed = [_strongly_typed(each) for each in given]
    values = tuple(each.own() for each in typed)
    if any(one is not other for one, other in zip(typed, given)):
        # Else the step has the very objects: a module of nnx is changed in place.
        args, kwargs = carry.put(args, kwargs, tuple(each.own() for each in typed))
    result = step(*args, **kwargs)
    try:
        return _settled(carry, policy, said, typed, values, result)
    except TypeError as error:  # all of them ours
        hint = other_carry(carry, step, args, kwargs, result)
        if not hint:
            raise
        raise type(error)(f"{error}{hint}") from None


def _settled(
    carry: Carry,
    policy: Policy,
    said: Said,
    typed: list[Given],
    values: tuple[Any, ...],
    result: Any,
) -> Any:
    found = carry.find(result, values)
    parts = [Part(label, carry.step, carry.owner) for label in carry.labels]
    settled = [
        settle_carried(part, tree, each, policy)
        for part, tree, each in zip(parts, found.values, typed)
    ]
    tell(settled, parts[0], policy, said.warn_once)
    return found.put([each.tree for each in settled])


def _strongly_typed(given: Given) -> Given:
    """With strongly typed leaves; the very same where it has them already."""
    if not any(map(_promotes, given.leaves)):
        return given
    # One that was traced with x64 on may be 64-bit where it is off.
    dtype = lambda leaf: jax.dtypes.canonicalize_dtype(dtype_of(leaf))
    return given.map(lambda leaf: cast(leaf, dtype(leaf)) if _promotes(leaf) else leaf)


def _promotes(leaf: Any) -> bool:
    # A Python bool is as strongly typed as an array, and modules branch on theirs.
    return is_weak(leaf) and not isinstance(leaf, bool)
