"""The guard: `init` makes strong types, and `update` gives back those it was given."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util
from jax.core import Tracer

from .._carry.modules import closed, contents, objects, opened, put_contents
from .._carry.split import Snapshot
from .._leaves.arguments import is_transformation, shown
from .._leaves.compat import CAN_COPY, PromotionError, add_x64, x64_enabled
from .._leaves.dtypes import (
    canonical_scalar,
    cast,
    dtype_of,
    is_wide,
    is_wide_scalar,
    narrow,
    native,
    wraps,
)
from .._leaves.errors import DtypeDriftError, first_line, more
from .._leaves.rows import paths
from .._leaves.types import Function, Leaf, Optimizer, Params, PyTree, State, public
from .._source.warn import Attempts, WarnOnce
from .attempts import (
    convert_extra_args,
    keep_extra_args,
    rescue,
    wide_integers,
    without_x64,
)
from .policy import Policy, changes_precision, check_policy, float_dtype
from .precision import check_available, in_precision
from .settle import settle

_P = ParamSpec("_P")
_T = TypeVar("_T")
# On a guarded update: the guarded init, the bare transformation and the policy.
_PARTS = "_dtypeguard"
_NO_PARTS = (None, None, Policy())


class _HasInitAndUpdate(Protocol):
    @property
    def init(self) -> Function: ...
    @property
    def update(self) -> Function: ...


class _Guard(Protocol):
    """`guard` with its policy given: the decorator."""

    @overload
    def __call__(
        self, inner: _HasInitAndUpdate, /
    ) -> optax.GradientTransformationExtraArgs: ...
    @overload
    def __call__(
        self, inner: Callable[_P, Any], /
    ) -> Callable[_P, optax.GradientTransformationExtraArgs]: ...


@overload
def guard(inner: None = None, *, policy: Policy | None = None) -> _Guard: ...
@overload
def guard(
    inner: _HasInitAndUpdate, *, policy: Policy | None = None
) -> optax.GradientTransformationExtraArgs: ...
@overload
def guard(
    inner: Callable[_P, Any], *, policy: Policy | None = None
) -> Callable[_P, optax.GradientTransformationExtraArgs]: ...
@public
def guard(inner: Any = None, *, policy: Policy | None = None) -> Any:
    """Makes an optimizer's `update` return the dtypes it was given.

    Control flow, gradient accumulation, buffer donation and the jit cache need a state
    that keeps its types. Put one guard around the outside of the chain. Its state is the
    inner optimizer's own state, so you can add a guard to a running job or remove it.

    - Every array leaf of the new state has the dtype of the same leaf of the incoming
      state and is strongly typed. Where a gradient is None and the inner update leaves
      None in the state, the incoming leaf is kept. After `init`, no leaf shares its buffer
      with `params` or another leaf, so params and state can be donated.
    - The updates have the dtypes of `params`, or without params those of the incoming
      updates.
    - If no array in `updates`, `state` and `params` is 64-bit, nor `Policy.updates_dtype`,
      the optimizer runs as if `jax_enable_x64` were off (JAX >= 0.7). Callables among the
      extra args run under the caller's flag; 64-bit floats from them and among the extra
      args reach the optimizer in 32 bits. The optimizer still uses 64-bit arrays that it
      holds, such as a schedule's table. If it fails with x64 off, it runs with x64 on, and
      a `DtypeGuardWarning` says so.
    - If the inner update raises a `TypeError`, or JAX's error for dtypes that it does not
      promote, and the floating inputs differ in dtype or are narrower than float32, it
      runs once more in the promoted dtype, at least float32, with a `DtypeGuardWarning`.
      Before JAX 0.7 with x64 on, the promoted dtype is at least float64.

    If the bare optimizer keeps its types and x64 is off, the guarded one compiles to the
    same program and gives the same bits. With x64 on, the bare one may compute scalars in
    float64 where the guarded one computes in float32, so last bits differ.

    An update may change its containers in place: it receives copies of them.

    Args:
        inner: a gradient transformation, any object with `init` and `update` such as
            `optax.MultiSteps`, or a function that returns one of these. Left out, as in
            `@guard(policy=...)`, `guard` returns the decorator. Other methods are not
            carried over. The state is the inner one, so keep the object for its methods:
            `multi = optax.MultiSteps(...)`, `opt = guard(multi)`,
            `multi.has_updated(state)`.
        policy: in which dtypes to compute and to store, what to cast, what to report;
            `Policy()` by default. A guarded transformation keeps its policy unless you
            give another here.

    Returns:
        An `optax.GradientTransformationExtraArgs`, of the type of `inner` if that is a
        subclass without a constructor of its own, such as Optax's `Aggregator`. For a
        function, a function with the same signature that returns one.

    Raises:
        TypeError: if `inner` is none of these.
        DtypeDriftError: from `update`, during tracing, if the tree of the state or a shape
            changes, or if a cast would change the kind of a leaf. Names every such leaf.

    Example:
        >>> import dtypeguard, jax.numpy as jnp, optax
        >>> params = {"w": jnp.ones(3, jnp.bfloat16)}
        >>> grads = {"w": jnp.ones(3, jnp.float32)}
        >>> for opt in (optax.adam(1e-3), dtypeguard.guard(optax.adam(1e-3))):
        ...     _, state = opt.update(grads, opt.init(params), params)
        ...     print(state[0].mu["w"].dtype)
        float32
        bfloat16
    """
    check_policy("guard", policy)
    if inner is None:
        return functools.partial(guard, policy=policy)
    if is_transformation(inner) and not inspect.isclass(inner):
        return _guard_transformation(inner, policy, WarnOnce())
    if callable(inner):
        return _guard_factory(inner, policy)
    raise TypeError(
        f"guard got {inner!r}. Give it a gradient transformation (anything with `init` "
        "and `update`, such as optax.adam(1e-3)) or a function that returns one."
    )


def bare(opt: Optimizer) -> Optimizer:
    """The transformation inside a guarded one; any other as it is."""
    _, inner, _ = getattr(opt.update, _PARTS, _NO_PARTS)
    return opt if inner is None else inner


def policy_of(opt: Optimizer) -> Policy:
    """The policy of a guarded transformation; the default for any other."""
    return getattr(opt.update, _PARTS, _NO_PARTS)[2]


def _guard_factory(factory: Function, policy: Policy | None):
    # One for all that it makes: inject_hyperparams calls its factory in every update.
    warn = WarnOnce()

    @functools.wraps(factory)
    def guarded(*args, **kwargs):
        inner = factory(*args, **kwargs)
        if not is_transformation(inner):
            raise TypeError(
                f"guard was put on {factory!r}, which returned {inner!r}. A guarded "
                "function must return a gradient transformation, such as optax.adam(1e-3). "
                "A step, which takes a carry and returns it, is for dtypeguard.guard_step."
            )
        return _guard_transformation(inner, policy, warn)

    return guarded


def _guard_transformation(
    inner: Optimizer, policy: Policy | None, warn: WarnOnce
) -> optax.GradientTransformationExtraArgs:
    own_init, bare, _ = getattr(inner.update, _PARTS, _NO_PARTS)
    is_wrapped = hasattr(inner.update, "__wrapped__")  # functools.wraps copies attributes
    if bare is not None and own_init is inner.init and not is_wrapped:
        if policy is not None:
            return _guard_transformation(bare, policy, warn)
        if isinstance(inner, optax.GradientTransformationExtraArgs):
            return inner
        return optax.GradientTransformationExtraArgs(inner.init, inner.update)
    policy = Policy() if policy is None else policy
    update_inner = _taking_extra_args(inner)
    # Asking for float64 updates counts as a 64-bit input.
    of_updates = (float_dtype(policy.updates_dtype) or np.dtype("float32")).type(0)

    def init(params):
        given = Snapshot(params)
        # In the scope as well: a Python float in the state is a float32 there.
        first = lambda _: own_arrays(inner.init(given.copy()), given.leaves)
        return without_x64(first, warn, params)

    def run(updates, state, params, extra_args):
        callers_x64 = x64_enabled()
        check_available(policy)
        all_given = Snapshot(updates), Snapshot(state), Snapshot(params)
        own_extra_args = keep_extra_args(extra_args)

        def step(*_):
            given, extra = all_given, own_extra_args
            if callers_x64 and not x64_enabled():
                given = given[0], given[1].map(canonical_scalar), given[2]
                extra = lambda: convert_extra_args(own_extra_args(), narrow, x64=True)
            own = lambda: (*(tree.copy() for tree in given), extra())
            with Attempts() as attempts:
                try:
                    outputs = update_inner(*own())
                except DtypeDriftError:
                    raise
                except (TypeError, PromotionError) as error:
                    attempts.again()
                    rescued = rescue(inner.init, update_inner, own())
                    if rescued is None:
                        raise
                    dtype, outputs = rescued
                    warn(
                        f"update failed and was run in {dtype} instead: {first_line(error)}"
                        + more("guard-an-optimizer")
                    )
                    # The wider dtypes are ours and reported: no drift of the optimizer.
                    return settle(outputs, given, replace(policy, on_drift="cast"), warn)
            return settle(outputs, given, policy, warn)

        arrays = [leaf for leaf in all_given[1].leaves if not is_wide_scalar(leaf)]
        inputs = (updates, arrays, params, wide_integers(extra_args), of_updates)
        return without_x64(step, warn, *inputs)

    def update(updates, state, params=None, **extra_args):
        return run(updates, state, params, extra_args)

    if changes_precision(policy):
        init, update = in_precision(init, run, policy)
    guarded = _type_of(inner)(init, update)
    setattr(guarded.update, _PARTS, (guarded.init, inner, policy))
    return guarded


def _type_of(inner: Optimizer) -> type[optax.GradientTransformationExtraArgs]:
    """The type of the guarded transformation: the inner one's, if two functions make it."""
    own, plain = type(inner), optax.GradientTransformationExtraArgs
    is_own = issubclass(own, plain) and own.__new__ is plain.__new__
    return own if is_own and not getattr(inner, "__dict__", None) else plain


def _taking_extra_args(inner: Optimizer) -> Function:
    """The inner update as a function of four arguments, without extra args it cannot take.

    `optax.with_extra_args_support` goes by type and drops what `optax.MultiSteps` takes.
    """
    parameters = inspect.signature(inner.update).parameters
    names = frozenset(parameters)  # which hashes, see WarnOnce
    kinds = [p.kind for p in parameters.values()]
    takes_all = inspect.Parameter.VAR_KEYWORD in kinds
    by_position = (
        inspect.Parameter.VAR_POSITIONAL in kinds
        or sum(kind in _POSITIONAL for kind in kinds) > 2
    )

    def update(updates, state, params, extra_args):
        if not by_position:  # (updates, state), maybe with params by keyword alone
            extra_args = extra_args | {"params": params}
        if not takes_all:
            extra_args = {k: v for k, v in extra_args.items() if k in names}
        return inner.update(updates, state, *([params] * by_position), **extra_args)

    return update


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@public
def strong(tree: _T) -> _T:
    """Makes a first carry of strongly typed arrays, each with its own buffer.

    A step's first carry that holds `0.0`, or a weakly typed array from some package's
    reset, has other types than the second one, and a jitted step compiles twice. An array
    that is two leaves, such as params that are also their own first average, cannot be
    donated. `init` of a guarded optimizer solves both for its state; `strong` does so for
    any carry.

    Args:
        tree: the first carry. `None`, functions, dtypes, strings and JAX references stay,
            and so do the Python numbers of an Equinox module, which are constants to
            Equinox.

    Returns:
        The tree with each Python or NumPy number and each array as a strongly typed JAX
        array, in the dtype that it has or that JAX gives it. All are copies: you can still
        use `tree` after donating them. A `jax.ShapeDtypeStruct` stays one, strongly typed.
        A Flax NNX object, such as a module, stays the same object and holds such arrays
        from then on.

    Raises:
        OverflowError: if an integer does not fit the integers that JAX has under the
            current x64 flag.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp
        >>> params = {"w": jnp.ones(3, jnp.bfloat16)}
        >>> params, average, count = dtypeguard.strong((params, params, 0))
        >>> count.dtype, count.weak_type
        (dtype('int32'), False)
    """
    for path, node in objects(tree).items():
        put_contents(node, _strong(contents(node), path).values)
    return opened(_strong(closed(tree)))


def _strong(tree: PyTree, path: str = "") -> PyTree:
    remedy = "turn on jax_enable_x64, or start from a smaller number"
    return own_arrays(tree, tree_util.tree_leaves(tree), f"strong: tree{path}", remedy)


def own_arrays(
    state: State,
    params: Params,
    where: str = "state",
    remedy: str = "turn on jax_enable_x64, or have init return a smaller number",
) -> State:
    """Makes a first state of strongly typed arrays, each with its own buffer.

    Nothing says who else holds an array (a table of rates, a param), so each is copied, one
    after another; an array that nobody else holds is freed meanwhile.
    """
    seen = {id(leaf) for leaf in tree_util.tree_leaves(params)}
    snapshot = Snapshot(state)
    leaves = snapshot.leaves
    del state

    def own(i, leaf):
        if isinstance(leaf, jax.ShapeDtypeStruct):  # of strong, for what is only traced
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        dtype = dtype_of(leaf)
        if dtype is None and not isinstance(leaf, jax.Array):
            return leaf
        if not hasattr(leaf, "weak_type") and wraps(leaf, dtype):
            raise OverflowError(
                f"{where}{paths(snapshot.copy())[i]} is {shown(leaf)}, which does not fit "
                f"into {dtype}: {remedy}."
            )
        if isinstance(leaf, (np.ndarray, np.generic)):
            return jnp.array(native(leaf), dtype, copy=True)
        with add_x64(is_wide(leaf)):  # what the optimizer holds stays as it is
            made = leaf if dtype is None else cast(leaf, dtype)
            if made is leaf and (id(leaf) in seen or not isinstance(leaf, Tracer)):
                made = _copied(leaf)
        seen.add(id(leaf))
        return made

    for i in range(len(leaves)):
        leaves[i] = leaves[i] if i in snapshot.constants else own(i, leaves[i])
    return snapshot.copy()


def _copied(leaf: Leaf) -> Leaf:
    is_here = not isinstance(leaf, Tracer) and leaf.is_fully_addressable
    if is_here and CAN_COPY:  # where it is, and nothing compiles
        copy = jax.device_put(leaf, may_alias=False)
    else:
        copy = jnp.array(leaf, copy=True)
    if isinstance(copy, Tracer) or copy.sharding == leaf.sharding:
        return copy
    # The copy of a host array is on the device, that of an array of keys on one of them.
    return jax.device_put(copy, leaf.sharding)
