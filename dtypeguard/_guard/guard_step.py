"""The guard of any step: what it carries comes back in the types that it came in."""

import functools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax
from jax import tree_util
from jax.core import Tracer

from .._carry.carry import carry_of
from .._carry.snapshot import Snapshot
from .._leaves.compat import HAS_X64_SCOPE, PromotionError, set_x64, x64_enabled
from .._leaves.dtypes import cast, dtype_of, is_weak, is_wide, narrow_scalar
from .._leaves.errors import DtypeDriftError, WarnOnce
from .._leaves.files import is_users
from .._leaves.modules import closed, objects, opened
from .._leaves.public import public
from .._leaves.types import Args, Kwargs, Leaf, PyTree, Step
from .policy import Policy, check_policy
from .settle import Output, Settled, report_drift, settle_carried, settle_held
from .x64 import wide_input

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
    """Makes a step give back the types of what it carries.

    A step is what a loop calls: it takes params, an optimizer's state, an average, a
    counter, an environment, and returns the next ones. One line in it that promotes, and
    `lax.scan` refuses its carry, or the jitted step compiles twice.

    - Every array leaf of what comes back has the dtype that it came in with, and is
      strongly typed. The other results are left alone.
    - A leaf that comes in weakly typed, such as a Python number, has not chosen its type:
      it comes back in the type to which a loop of JAX would promote it. Outside of a trace
      such leaves are made strongly typed for `guard_step(jax.jit(step))`, which then
      compiles once.
    - The Python numbers of an Equinox module are constants and stay as they are.
    - The modules, optimizers and metrics of Flax NNX among the arguments are changed in
      place: each Variable that they hold keeps its dtype. They need not be returned.
    - Casts stay within a kind, as those of [`dtypeguard.guard`][] do.
    - The step runs under the caller's flags. If it raises over types with x64 on, and no
      input is 64-bit, it runs once more with x64 off, with a `DtypeGuardWarning` (JAX >=
      0.7). A Python number does not count as 64-bit, and then has 32 bits if it has to.

    A step that keeps its types already compiles to the same program. `jit` may stand
    inside or outside.

    Args:
        step: a function, a method, or anything else that can be called. Left out, as in
            `@guard_step(carry="state")`, `guard_step` returns the decorator.
        carry: the argument that comes back, by position or name, or a tuple of them.
            Positions are counted without a first parameter called `self` or `cls`, unless
            there is no other.
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


def _guarded(step: Step, carry: _Carry, returned: Any, policy: Policy) -> Step:
    """The guarded step of a function, made once for it and kept where the function is.

    JAX forgets what it traced with the function that it traced: a loop that guards its
    body anew in each turn would compile in each.
    """
    known = _known(step)
    if known is not None and known.parts[1:] == (carry, returned, policy):
        return step
    made = _GuardedStep(step, carry, returned, policy)
    if not isinstance(step, types.FunctionType):
        return made
    kept = vars(step).get(_STEPS)
    if kept is None or kept.owner is not step:  # that of another: functools.wraps copies it
        kept = vars(step)[_STEPS] = _Kept(step)
    if made not in kept.steps:
        kept.steps[made] = _as_method(made) if _is_of_a_class(step) else made
    return kept.steps[made]


# On a function: what was made of it. On what was made of a method: the step behind it.
_STEPS, _STEP = "_dtypeguard_steps", "_dtypeguard_step"


def _known(step: Step) -> "_GuardedStep | None":
    """The guarded step behind a function or an object, if it is one."""
    if isinstance(step, _GuardedStep):
        return step
    function, guarded = getattr(step, _STEP, (None, None))
    return guarded if function is step else None  # functools.wraps copies attributes


def _is_of_a_class(function: types.FunctionType) -> bool:
    """Whether a function was defined in the body of a class."""
    around = function.__qualname__.rpartition(".")[0]
    return bool(around) and not around.endswith("<locals>")


def _as_method(guarded: "_GuardedStep") -> Step:
    """A guarded method as a function, with the attributes of the one that it was.

    The metaclasses of Haiku and Flax look for functions among the members of a class, and
    at what other decorators have left on them.
    """

    @functools.wraps(guarded.step)
    def method(*args: PyTree, **kwargs: PyTree) -> PyTree:
        return guarded(*args, **kwargs)

    setattr(method, _STEP, (method, guarded))
    return method


class _Kept:
    """What was made of a function, which stays behind where that is pickled."""

    def __init__(self, owner: Step | None = None):
        self.owner = owner
        self.steps: dict[_GuardedStep, Step] = {}

    def __reduce__(self) -> tuple[type, tuple[()]]:
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
    """A step that keeps the types of its carry; equal to another of the same parts.

    Attributes:
        step: what is guarded.
        parts: all that it was made of.
        carry: which arguments come back, as which results.
        policy: what is cast and said.
        warn_once: issues a warning, once for each message.
        is_jitted: whether the step is what `jax.jit` returned.
    """

    def __init__(self, step: Step, carry: _Carry, returned: Any, policy: Policy):
        self.step = step
        self.parts = (step, carry, returned, policy)
        self.carry = carry_of("guard_step", step, carry, returned)
        self.policy = policy
        self.warn_once = WarnOnce()
        self.is_jitted = callable(getattr(step, "eval_shape", None))
        functools.update_wrapper(self, step, updated=())
        self.__name__ = self.carry.step
        self.__isabstractmethod__ = getattr(step, "__isabstractmethod__", False)

    def __call__(self, /, *args: PyTree, **kwargs: PyTree) -> PyTree:
        return _Call(self, args, kwargs).run()

    def __get__(self, instance: object, owner: type | None = None) -> Step:
        is_bound = isinstance(self.step, types.MethodType)
        if instance is None or is_bound or not hasattr(type(self.step), "__get__"):
            return self
        # A module's method is a tree, for filter_jit to find the arrays in.
        eqx = sys.modules.get("equinox")  # not imported for those who have no module
        if eqx is not None and isinstance(instance, eqx.Module):
            return eqx.Partial(self, instance)
        return types.MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _GuardedStep) and self.parts == other.parts

    def __hash__(self) -> int:
        try:
            return hash(self.parts)
        except TypeError:  # a module with arrays
            return id(self.step)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return _GuardedStep, self.parts  # said anew there, and what is kept made anew

    def __repr__(self) -> str:
        return f"<guard_step of {self.step!r}>"


_Arguments = tuple[Args, Kwargs]
_OVER_TYPES = (TypeError, PromotionError)


class _Call:
    """One call of a guarded step.

    Attributes:
        guarded: the step.
        args: what it was called with by position.
        kwargs: what it was called with by name.
        carried: what it carries, as it came in: the step may change its containers.
        held: what the objects held before that the step may change in place.
    """

    def __init__(self, guarded: _GuardedStep, args: Args, kwargs: Kwargs):
        self.guarded = guarded
        self.args = args
        self.kwargs = kwargs
        values = guarded.carry.take(args, kwargs)
        self.carried = [Snapshot(closed(value)) for value in values]
        self.held = guarded.carry.held(args, kwargs)

    def run(self) -> PyTree:
        """What the step returns, with its carry settled."""
        try:
            return self._run()
        except BaseException:
            for held in self.held:
                held.restore_types()
            raise

    def _run(self) -> PyTree:
        """One attempt, and where it raises over types maybe another."""
        if self.guarded.is_jitted and self._begins_weakly():
            try:
                return self._attempt(*self._strongly_typed())
            except DtypeDriftError:
                raise
            except _OVER_TYPES:  # with strict promotion a weak number alone promotes
                pass
        try:
            return self._attempt(self.args, self.kwargs)
        except DtypeDriftError:
            raise
        except _OVER_TYPES as error:
            if not (HAS_X64_SCOPE and x64_enabled()):
                raise
            wide = wide_input(self._inputs())
            if wide:
                error.add_note(
                    f"{self.guarded.carry.step} ran with jax_enable_x64 on because {wide} "
                    "is 64-bit; without 64-bit inputs dtypeguard retries with x64 off."
                )
                raise
            done, result = self._without_x64()
            if not done:
                raise
            reason = str(error).strip().partition("\n")[0]
            self.guarded.warn_once(
                f"{self.guarded.carry.step} failed with x64 on and was run with it off: "
                f"{reason}"
            )
            return result

    def _begins_weakly(self) -> bool:
        """Whether the caller gives a number or an array of weak type to be carried."""
        return any(
            _is_weak_and_known(leaf) for each in self.carried for leaf in each.data()
        )

    def _strongly_typed(self) -> _Arguments:
        """The arguments, with leaves strongly typed that come back so in the same dtype.

        For these a jitted step then compiles once. What comes back weakly typed stays: the
        step promotes it as it does bare. What an outer trace has typed stays as well, since
        `lax.scan` finds the type of a weak leaf by itself.
        """
        step: Any = self.guarded.step
        shapes = step.eval_shape(*self.args, **self.kwargs)
        found = self.guarded.carry.find(shapes, self._values(), in_place=bool(self.held))
        carried = list(self.carried)
        for number, tree in zip(found.carried, found.values):
            leaves, treedef = tree_util.tree_flatten(closed(tree))
            if treedef == carried[number].treedef:
                carried[number] = carried[number].map(_typed_like, leaves)
        return self._with(carried)

    def _values(self) -> list[PyTree]:
        return [opened(each.copy()) for each in self.carried]

    def _with(self, carried: Sequence[Snapshot]) -> _Arguments:
        values = tuple(opened(each.copy()) for each in carried)
        return self.guarded.carry.put(self.args, self.kwargs, values)

    def _without_x64(self) -> tuple[bool, PyTree]:
        """Whether an attempt with x64 off works, and what it returns.

        A Python number that an outer `jit` has traced with x64 on still has 64 bits. In the
        carry it gets 32. Elsewhere only if the step fails otherwise, since it promotes as
        an array does then.
        """
        for narrow_others in (False, True):
            self._restore()
            try:
                with set_x64(False):
                    return True, self._attempt(*self._narrower(narrow_others))
            except Exception:  # whatever it is, the first error tells the user more
                continue
        return False, None

    def _narrower(self, narrow_others: bool) -> _Arguments:
        narrow = lambda leaf: _strong(leaf) if is_weak(leaf) and is_wide(leaf) else leaf
        for held in self.held:
            held.put(tree_util.tree_map(narrow, held.before))
        args, kwargs = self._with([each.map(narrow) for each in self.carried])
        if not narrow_others:
            return args, kwargs
        carry = self.guarded.carry
        none = (None,) * len(self.carried)
        others = Snapshot(closed(carry.put(self.args, self.kwargs, none)))
        others, named = opened(others.map(narrow_scalar).copy())
        return carry.put(others, named, carry.take(args, kwargs))

    def _inputs(self) -> Iterator[tuple[str, PyTree]]:
        """All that the step was given, by name."""
        yield from zip(self.guarded.carry.labels, (each.copy() for each in self.carried))
        yield from ((held.label, held.before) for held in self.held)
        leaves = tree_util.tree_leaves(closed((self.args, self.kwargs)))
        yield from (("an argument", leaf) for leaf in leaves)

    def _restore(self) -> None:
        for held in self.held:
            held.restore()

    def _attempt(self, args: Args, kwargs: Kwargs) -> PyTree:
        result = self.guarded.step(*args, **kwargs)
        try:
            return self._settled(result)
        except TypeError as error:  # all of them ours
            carry = self.guarded.carry
            if not (carry.is_default and "return it in shape" in str(error)):
                raise
            hint = (
                f"\nA guard takes the first argument, {carry.labels[0]}, for the carry. To "
                f"name another: {carry.owner}(..., carry=NAME)."
            )
            raise type(error)(f"{error}{hint}") from None

    def _settled(self, result: PyTree) -> PyTree:
        carry, policy = self.guarded.carry, self.guarded.policy
        found = carry.find(result, self._values(), in_place=bool(self.held))
        parts = [self._part(label) for label in carry.labels]
        settled = [settle_held(self._part(x.label), x, x.node, policy) for x in self.held]
        new = []
        for number, tree in zip(found.carried, found.values):
            part, given = parts[number], self.carried[number]
            new.append(settle_carried(part, closed(tree), given, policy))
            settled += self._settled_in_place(tree, carry.labels[number])
        report_drift([*settled, *new], parts[0], policy, self.guarded.warn_once)
        return found.put([opened(each.tree) for each in new])

    def _settled_in_place(self, tree: PyTree, label: str) -> Iterator[Settled]:
        """Settles what is returned in place of an object that came in."""
        before = {held.label: held for held in self.held}
        for path, node in objects(tree).items():
            held = before.get(label + path)
            if held is not None and held.node is not node:
                yield settle_held(self._part(held.label), held, node, self.guarded.policy)

    def _part(self, label: str) -> Output:
        carry = self.guarded.carry
        return Output(label, carry.step, carry.owner, starts_weak=not self._is_fixed)

    @functools.cached_property
    def _is_fixed(self) -> bool:
        """Whether the step is the body of a loop of Equinox's.

        These do not trace their body again where a leaf that begins weakly comes back in
        another type, as those of JAX do.
        """
        loops = sys.modules.get("equinox.internal")
        if loops is None:
            return False
        codes = {getattr(loops, name).__code__ for name in ("while_loop", "scan")}
        frame, users = sys._getframe(), 0
        while frame.f_back is not None and users < 2:  # a lambda may be around the step
            frame = frame.f_back
            if frame.f_code in codes:
                return True
            is_equinox = frame.f_globals.get("__name__", "").startswith("equinox.")
            users += is_users(frame.f_code.co_filename) and not is_equinox
        return False


def _typed_like(leaf: Leaf, returned: Leaf) -> Leaf:
    """A weak leaf as what comes back for it, if that has its dtype and is not weak."""
    is_same = dtype_of(leaf) == dtype_of(returned) and not is_weak(returned)
    return _strong(leaf) if is_same and _is_weak_and_known(leaf) else leaf


def _is_weak_and_known(leaf: Leaf) -> bool:
    # A Python bool is as strongly typed as an array, and modules branch on theirs.
    return is_weak(leaf) and not isinstance(leaf, (bool, Tracer))


def _strong(leaf: Leaf) -> Leaf:
    # One that was traced with x64 on may be 64-bit where it is off.
    return cast(leaf, jax.dtypes.canonicalize_dtype(dtype_of(leaf)))
