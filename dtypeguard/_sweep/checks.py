"""Six ways in which a state that changes its types breaks a training loop.

What counts as a failure is what a user would meet. The types are those of one abstract
evaluation: an optimizer is traced once for each set of argument types, as `jax.jit` keeps
its traces, and every check but the first looks at that trace or runs its own control flow
over it.

- `init`: the first state has another tree, other shapes or types where `init` is traced
  (under `jit`, in `cond`, for a checkpoint's target) than where it is not.
- `eval_shape`: a leaf of the state comes back with another dtype or weak type, or an
  update is so wide that `p + u` (Equinox's `apply_updates`) changes a param's dtype, be
  it because the gradient was as wide. A narrower update is no failure.
- `scan`: `lax.scan` does not take (params, state) as its carry. Params are updated with
  `optax.apply_updates`, which casts to the params' dtypes.
- `cond`: `lax.cond` between a step and none at all does not trace.
- `MultiSteps`: `optax.MultiSteps` around the optimizer does not trace, or does not keep
  its own types.
- `compilations`: a jitted step's argument types are not the same again after one step, so
  that it compiles more than once.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax, tree_util

from .._guard.strong import as_arrays, own_buffers
from .._leaves.dtypes import dtype_of
from .._leaves.rows import type_name
from .entry import Inputs, split


class Skip(Exception):
    """A check does not apply; says why."""


class Fault(Exception):
    """A check failed; says where and how, in one line."""


class Subject:
    """One optimizer under test, traced once for each set of argument types.

    Args:
        opt: the transformation, bare or guarded.
        inputs: what it is fed. The arrays in it are tracers; functions are not.
    """

    def __init__(self, opt: Any, inputs: Inputs):
        self.params, self.grads, self.extra_args = inputs
        self.state = opt.init(self.params)
        self.init = opt.init

        def update(updates, state, params, arrays, others):
            return opt.update(updates, state, params, **arrays, **dict(others))

        def step(updates, state, params, arrays, others):
            updates, state = update(updates, state, params, arrays, others)
            return optax.apply_updates(params, updates), state

        # Nothing is compiled in here, `jit` is for its cache of traces: it tells apart
        # what tracing can tell apart, dtypes, weak types and the x64 flag among it. The
        # functions are the subject's own, and their traces end with it.
        self._update = jax.jit(update, static_argnums=4)
        self._step = jax.jit(step, static_argnums=4)

    def update(self, updates: Any, state: Any, params: Any = None, **extra_args: Any):
        """The optimizer's own update."""
        return self._update(updates, state, params, *_hashable(extra_args))

    def step(self, params: Any, state: Any) -> tuple[Any, Any]:
        """One training step, with the gradients and the extra args of the inputs."""
        return self._step(self.grads, state, params, *_hashable(self.extra_args))


def _hashable(extra_args: dict[str, Any]) -> tuple[dict[str, Any], tuple[Any, ...]]:
    arrays, others = split(extra_args)
    return arrays, tuple(sorted(others.items()))


def init(eager: Any, traced: Any) -> None:
    """A first state is one whether its `init` ran, of `some_zeros`, or was traced."""
    _same("state", eager, traced, _type_and_shape, " where init is traced")


def some_zeros(params: Any) -> Any:
    """Params with every other leaf zero: an `init` may look, unless it is traced."""
    leaves, treedef = tree_util.tree_flatten(params)
    leaves[::2] = map(jnp.zeros_like, leaves[::2])
    return tree_util.tree_unflatten(treedef, leaves)


def eval_shape(subject: Subject) -> None:
    """The state keeps its types, and no update widens a param under `p + u`."""
    updates, state = subject.update(
        subject.grads, subject.state, subject.params, **subject.extra_args
    )
    same_types("state", subject.state, state)
    _no_promotion(subject.params, updates)


def scan(subject: Subject) -> None:
    """(params, state) is a scan carry."""
    lax.scan(
        lambda carry, _: (subject.step(*carry), None),
        (subject.params, subject.state),
        None,
        length=2,
    )


def cond(subject: Subject) -> None:
    """A step and no step are two branches of a cond."""
    lax.cond(
        jnp.asarray(True),
        subject.step,
        lambda params, state: (params, state),
        subject.params,
        subject.state,
    )


def multi_steps(subject: Subject) -> None:
    """MultiSteps around the optimizer traces and keeps its types."""
    if not _same_shapes(subject.params, subject.grads):
        raise Skip("MultiSteps accumulates gradients in the shapes of the params")
    try:
        before, updates, after = _through_multi_steps(subject, subject)
    except TypeError:
        # In Optax 0.1.9 its accumulator has the dtypes of the params, and it multiplies
        # bools of the inner state by ints: its own branches differ then, also around an
        # optimizer that changes nothing.
        try:
            _through_multi_steps(_Idle(subject), subject)
        except TypeError:
            raise Skip("MultiSteps itself does not take these dtypes") from None
        raise
    same_types("state", before, after)
    _no_promotion(subject.params, updates)


class _Idle:
    """Keeps its updates and its state, which has the strongly typed state of a subject."""

    def __init__(self, subject: Subject):
        leaves = tree_util.tree_leaves
        self.init = lambda params: own_buffers(
            as_arrays(subject.init(params)), leaves(params)
        )

    def update(self, updates: Any, state: Any, params: Any = None, **extra_args: Any):
        """What came in."""
        del params, extra_args
        return updates, state


def _through_multi_steps(opt: Any, subject: Subject) -> tuple[Any, Any, Any]:
    inner = optax.GradientTransformationExtraArgs(opt.init, opt.update)
    outer = optax.MultiSteps(inner, 2)
    before = outer.init(subject.params)
    updates, after = outer.update(
        subject.grads, before, subject.params, **subject.extra_args
    )
    return before, updates, after


def compilations(subject: Subject) -> None:
    """The types of (params, state) are the same again after one jitted step."""
    params, state = subject.step(subject.params, subject.state)
    same_types("params", subject.params, params)
    same_types("state", subject.state, state)


# Those of a subject alone; `init` compares with a state from outside its trace.
CHECKS: dict[str, Callable[[Subject], None]] = {
    "eval_shape": eval_shape,
    "scan": scan,
    "cond": cond,
    "MultiSteps": multi_steps,
    "compilations": compilations,
}
NAMES = ("init", *CHECKS)


def same_types(name: str, before: Any, after: Any) -> None:
    """Raises a `Fault` that names the first leaf whose type is not what it was."""
    _same(name, before, after, type_name)


def _same(
    name: str, before: Any, after: Any, tell: Callable[[Any], Any], where: str = ""
) -> None:
    _raise_first(
        f"{name}{path}: {tell(old)} -> {tell(new)}{where}"
        for path, old, new in _pairs(name, before, after)
        if tell(old) != tell(new)
    )


def _type_and_shape(leaf: Any) -> str:
    told = type_name(leaf) or getattr(leaf, "dtype", type(leaf).__name__)
    return f"{told} of shape {jnp.shape(leaf)}"


def _no_promotion(params: Any, updates: Any) -> None:
    _raise_first(
        f"updates{path}: {type_name(update)} for a {type_name(param)} param"
        for path, param, update in _pairs("updates", params, updates)
        if dtype_of(param + update) != dtype_of(param)
    )


def _pairs(name: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    leaves, structure = tree_util.tree_flatten_with_path(before)
    new_leaves, new_structure = tree_util.tree_flatten(after)
    if structure != new_structure:
        raise Fault(f"{name}: another tree, {len(leaves)} -> {len(new_leaves)} leaves")
    for (path, old), new in zip(leaves, new_leaves):
        yield tree_util.keystr(path), old, new


def _raise_first(faults: Iterable[str]) -> None:
    first, *others = [*faults, ""]
    if first:
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        raise Fault(first + more)


def _same_shapes(params: Any, grads: Any) -> bool:
    if tree_util.tree_structure(params) != tree_util.tree_structure(grads):
        return False
    pairs = zip(tree_util.tree_leaves(params), tree_util.tree_leaves(grads))
    return all(jnp.shape(param) == jnp.shape(grad) for param, grad in pairs)
