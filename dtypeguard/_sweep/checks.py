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
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax, tree_util

from .._guard.strong import as_arrays, own_buffers
from .._leaves.dtypes import dtype_of
from .._leaves.rows import type_name
from .._leaves.types import Leaf, Optimizer, Params, PyTree, State, Step, Updates
from .entry import Inputs


class Skip(Exception):
    """A check does not apply; says why."""


class Fault(Exception):
    """A check failed; says where and how, in one line."""


class Training(NamedTuple):
    """What a training step carries."""

    params: Params
    state: State


class Subject:
    """One optimizer under test, traced once for each set of argument types.

    Args:
        opt: the transformation, bare or guarded.
        inputs: what it is fed. The arrays in it are tracers; functions are not.
    """

    def __init__(self, opt: Optimizer, inputs: Inputs):
        self.grads, self.extra_args = inputs.updates, inputs.extra_args
        self.init = opt.init
        self.carry = Training(inputs.params, opt.init(inputs.params))
        static = eqx.filter(inputs.extra_args, eqx.is_array, inverse=True)

        def update(updates, state, params, arrays):
            return opt.update(updates, state, params, **eqx.combine(arrays, static))

        def step(updates, carry, arrays):
            updates, state = update(updates, carry.state, carry.params, arrays)
            return Training(optax.apply_updates(carry.params, updates), state)

        # Nothing is compiled in here, `jit` is for its cache of traces: it tells apart
        # what tracing can tell apart, dtypes, weak types and the x64 flag among it. The
        # functions are the subject's own, and their traces end with it.
        self._update = jax.jit(update)
        self._step = jax.jit(step)

    def update(self, updates, state, params=None, **extra_args: Any):
        """The optimizer's own update."""
        return self._update(updates, state, params, eqx.filter(extra_args, eqx.is_array))

    def step(self, carry: Training) -> Training:
        """One training step, with the gradients and the extra args of the inputs."""
        arrays = eqx.filter(self.extra_args, eqx.is_array)
        return self._step(self.grads, carry, arrays)


def init(eager: Any, traced: Any) -> None:
    """A first state is one whether its `init` ran, of `some_zeros`, or was traced."""
    _same("state", eager, traced, _type_and_shape, " where init is traced")


def some_zeros(params: Params) -> Any:
    """Params with every other leaf zero: an `init` may look, unless it is traced."""
    leaves, treedef = tree_util.tree_flatten(params)
    leaves[::2] = map(jnp.zeros_like, leaves[::2])
    return tree_util.tree_unflatten(treedef, leaves)


def eval_shape(subject: Subject) -> None:
    """The state keeps its types, and no update widens a param under `p + u`."""
    params, before = subject.carry
    updates, state = subject.update(subject.grads, before, params, **subject.extra_args)
    same_types("state", before, state)
    _no_promotion(params, updates)


def scan(step: Step, carry: PyTree) -> None:
    """A step is the body of a scan."""
    lax.scan(lambda carry, _: (step(carry), None), carry, None, length=2)


def cond(step: Step, carry: PyTree) -> None:
    """A step and no step are two branches of a cond."""
    lax.cond(jnp.asarray(True), step, lambda carry: carry, carry)


def while_loop(step: Step, carry: PyTree) -> None:
    """A step is the body of a while_loop."""
    lax.while_loop(lambda _: jnp.asarray(False), step, carry)


def compilations(step: Step, carry: PyTree) -> None:
    """The types of the carry are the same again after one jitted step."""
    same_types("", carry, step(carry))


def multi_steps(subject: Subject) -> None:
    """MultiSteps around the optimizer traces and keeps its types."""
    if not _same_shapes(subject.carry.params, subject.grads):
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
    _no_promotion(subject.carry.params, updates)


class _Idle:
    """Keeps its updates and its state, which has the strongly typed state of a subject."""

    def __init__(self, subject: Subject):
        leaves = tree_util.tree_leaves
        self.init = lambda params: own_buffers(
            as_arrays(subject.init(params)), leaves(params)
        )

    def update(
        self, updates: Updates, state: State, params: Params = None, **extra_args: Any
    ):
        """What came in."""
        del params, extra_args
        return updates, state


def _through_multi_steps(opt: Optimizer, subject: Subject) -> tuple[Any, Any, Any]:
    inner = optax.GradientTransformationExtraArgs(opt.init, opt.update)
    outer = optax.MultiSteps(inner, 2)
    before = outer.init(subject.carry.params)
    updates, after = outer.update(
        subject.grads, before, subject.carry.params, **subject.extra_args
    )
    return before, updates, after


# Those of a subject alone; `init` compares with a state from outside its trace.
CHECKS: dict[str, Callable[[Subject], None]] = {
    "eval_shape": eval_shape,
    "scan": lambda subject: scan(subject.step, subject.carry),
    "cond": lambda subject: cond(subject.step, subject.carry),
    "MultiSteps": multi_steps,
    "compilations": lambda subject: compilations(subject.step, subject.carry),
}
NAMES = ("init", *CHECKS)


def same_types(name: str, before: Any, after: Any) -> None:
    """Raises a `Fault` that names the first leaf whose type is not what it was."""
    _same(name, before, after, type_name)


def _same(
    name: str, before: Any, after: Any, type_of: Callable[[Leaf], Any], where: str = ""
) -> None:
    _raise_first(
        f"{(name + path).lstrip('.')}: {type_of(old)} -> {type_of(new)}{where}"
        for path, old, new in _pairs(name, before, after)
        if type_of(old) != type_of(new)
    )


def _type_and_shape(leaf: Leaf) -> str:
    told = type_name(leaf) or getattr(leaf, "dtype", type(leaf).__name__)
    return f"{told} of shape {jnp.shape(leaf)}"


def _no_promotion(params: Params, updates: Updates) -> None:
    _raise_first(
        f"updates{path}: {type_name(update)} for a {type_name(param)} param"
        for path, param, update in _pairs("updates", params, updates)
        if dtype_of(param + update) != dtype_of(param)
    )


def _pairs(name: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    leaves, structure = tree_util.tree_flatten_with_path(before)
    new_leaves, new_structure = tree_util.tree_flatten(after)
    if structure != new_structure:
        name = f"{name}: " if name else ""
        raise Fault(f"{name}another tree, {len(leaves)} -> {len(new_leaves)} leaves")
    for (path, old), new in zip(leaves, new_leaves):
        yield tree_util.keystr(path), old, new


def _raise_first(faults: Iterable[str]) -> None:
    first, *others = [*faults, ""]
    if first:
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        raise Fault(first + more)


def _same_shapes(params: Params, grads: Updates) -> bool:
    if tree_util.tree_structure(params) != tree_util.tree_structure(grads):
        return False
    pairs = zip(tree_util.tree_leaves(params), tree_util.tree_leaves(grads))
    return all(jnp.shape(param) == jnp.shape(grad) for param, grad in pairs)
