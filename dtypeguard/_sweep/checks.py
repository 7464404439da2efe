"""Ways in which a state that changes its types breaks a training loop.

A check fails where a user's program would. The types are those of one abstract evaluation:
an optimizer is traced once for each set of argument types, as `jax.jit` caches its traces,
and every check but `init` reads that trace or runs its own control flow over it. Such a
check sees nothing but types, so what it says of an update holds for all of these types.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, tree_util

from .._carry.modules import Contents
from .._leaves.rows import paths, type_of
from .._leaves.types import Leaf, Optimizer, Params, PyTree, State, Updates
from .inputs import UpdateInputs

_T = TypeVar("_T")


class Skip(Exception):
    """A check does not apply; the message says why."""


class Fault(Exception):
    """A check failed; the message says where and how, in one line."""


class CheckedCall:
    """A step and its first carry, while they are traced."""

    def __init__(self, step: Callable[[PyTree], PyTree], carry: PyTree):
        self.step = step
        self.carry = carry


class Training(NamedTuple):
    """What a training step carries."""

    params: Params
    state: State


class OptimizerSubject(CheckedCall):
    """The training step of an optimizer, traced once for each set of argument types."""

    def __init__(self, opt: Optimizer, inputs: UpdateInputs):
        self.opt = opt
        arrays, functions = eqx.partition(inputs.extra_args, eqx.is_array)

        def update(updates, state, params, arrays):
            return opt.update(updates, state, params, **eqx.combine(arrays, functions))

        def step(updates, carry, arrays):
            updates, state = self._update(updates, carry.state, carry.params, arrays)
            return Training(optax.apply_updates(carry.params, updates), state)

        # `jit` compiles nothing here. Its cache of traces distinguishes what tracing can
        # distinguish: dtypes, weak types, the x64 flag. These functions are the subject's
        # own, and so are their traces. The step asks for that of the update.
        self._update, jitted = jax.jit(update), jax.jit(step)
        self.init = opt.init
        self.grads, self.extra_args = inputs.updates, inputs.extra_args
        super().__init__(
            lambda carry: jitted(inputs.updates, carry, arrays),
            Training(inputs.params, opt.init(inputs.params)),
        )

    def update(
        self, updates: Updates, state: State, params: Params = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        """The optimizer's own update."""
        return self._update(updates, state, params, eqx.filter(extra_args, eqx.is_array))


Check = Callable[[OptimizerSubject], None]


def init(eager: State, traced: State) -> None:
    """The first state is the same if `init` runs, on `some_zeros`, and if it is traced.

    It is traced under `jit`, in `cond`, and for the target of a checkpoint.
    """
    same_types("state", eager, traced, where=" where init is traced")


def some_zeros(params: Params) -> Params:
    """Params whose every other leaf is zero: an `init` that runs may look at values."""
    leaves, treedef = tree_util.tree_flatten(params)
    leaves[::2] = [jnp.asarray(np.zeros_like(leaf), leaf.dtype) for leaf in leaves[::2]]
    return tree_util.tree_unflatten(treedef, leaves)


def scan(subject: CheckedCall) -> None:
    """A step is the body of a scan. `optax.apply_updates` casts to the params' dtypes."""
    lax.scan(lambda carry, _: (subject.step(carry), None), subject.carry, None, length=2)


def cond(subject: CheckedCall) -> None:
    """A step and no step are two branches of a cond."""
    lax.cond(jnp.asarray(True), subject.step, lambda carry: carry, subject.carry)


def while_loop(subject: CheckedCall) -> None:
    """A step is the body of a while_loop."""
    lax.while_loop(lambda _: jnp.asarray(False), subject.step, subject.carry)


def compilations(subject: CheckedCall) -> None:
    """The carry keeps its types in one jitted step, which else compiles more than once."""
    same_types("", subject.carry, subject.step(subject.carry))


def failures_of(
    checks: Mapping[str, Callable[[_T], None]], subject: _T
) -> tuple[dict[str, str], dict[str, str]]:
    """Why checks fail on a subject, and why others do not apply, by name."""
    failures, skipped = {}, {}
    for name, check in checks.items():
        try:
            check(subject)
        except Skip as reason:
            skipped[name] = str(reason)
        except Exception as error:
            failures[name] = one_line(error)
    return failures, skipped


def one_line(error: Exception) -> str:
    """The first line of an error and the first leaf that it names."""
    if isinstance(error, Fault):
        return str(error)
    first, *others = [line.strip() for line in str(error).strip().splitlines()] or [""]
    leaf = next((line for line in others if " has type " in line or "->" in line), "")
    line = f"{type(error).__name__}: {first} {leaf.removeprefix('* ')}".strip()
    return textwrap.shorten(line, 400, placeholder=" ...")


def same_types(name: str, before: PyTree, after: PyTree, where: str = "") -> None:
    """Raises a `Fault` that names the first leaf whose type or shape changed.

    `jit` compiles anew for a type, a shape or another implementation of random keys.
    """
    raise_first(
        f"{(name + path).lstrip('.')}: {_type_and_shape(old, new)} -> "
        f"{_type_and_shape(new, old)}{where}"
        for path, old, new in _pairs(name, before, after)
        if _type(old) != _type(new) or jnp.shape(old) != jnp.shape(new)
    )


def _type(leaf: Leaf) -> str:
    return str(type_of(leaf) or getattr(leaf, "dtype", type(leaf).__name__))


def _type_and_shape(leaf: Leaf, other: Leaf) -> str:
    """The type of a leaf, with its shape if that of the other differs."""
    is_same = jnp.shape(leaf) == jnp.shape(other)
    return _type(leaf) if is_same else f"{_type(leaf)} of shape {jnp.shape(leaf)}"


def _pairs(name: str, before: PyTree, after: PyTree) -> Iterator[tuple[str, Leaf, Leaf]]:
    old = paths(before)
    if tree_util.tree_structure(before) != tree_util.tree_structure(after):
        new = paths(after)
        label = f"{name}: " if name else ""
        how = after.structure if isinstance(after, Contents) else None
        one_sided = [f"{name}{path}".lstrip(".") for path in sorted({*old} ^ {*new})]
        raise Fault(
            f"{label}another tree, {len(old)} -> {len(new)} leaves"
            + (f"; only one has {', '.join(one_sided[:3])}" if one_sided else "")
            + (f"; {how}" if how and not one_sided else "")
        )
    yield from zip(old, tree_util.tree_leaves(before), tree_util.tree_leaves(after))


def raise_first(faults: Iterable[str]) -> None:
    """Raises a `Fault` with the first of some faults and their number, if there are any."""
    first, *others = [*faults, ""]
    if first:
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        raise Fault(first + more)
