"""What an optimizer is checked with: dtypes and flags, params, gradients, extra args."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._leaves.arguments import parameters
from .._leaves.compat import HAS_EXPLICIT_X64, set_explicit_x64, set_x64
from .._leaves.dtypes import dtype_of, kind
from .._leaves.quiet import warnings_ignored
from .._leaves.types import DType, Leaf, Optimizer, Params, PyTree, Updates

# One dtype for all floating leaves, or several that they take in turn.
LeafDTypes = DType | tuple[DType, ...]


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Dtypes and the x64 flag."""

    name: str
    params: LeafDTypes
    grads: LeafDTypes
    x64: bool
    explicit: str = "warn"

    @property
    def where(self) -> str:
        """The configuration in a message, such as `bf16, x64 off`."""
        if self.x64:
            return f"{self.name}, x64 on"
        return f"{self.name}, x64 off"

    @contextlib.contextmanager
    def flags(self) -> Iterator[None]:
        """A context with both flags, and JAX's standard promotion, which Optax needs."""
        with (
            set_x64(self.x64),
            set_explicit_x64(self.explicit),
            jax.numpy_dtype_promotion("standard"),
        ):
            yield


# Params, and gradients that are wider or narrower: averaged in float32, or sent in 16 bits.
_MIXED = (jnp.bfloat16, jnp.float32)
_DTYPES_WITHOUT_X64 = (
    ("bf16", jnp.bfloat16, jnp.bfloat16),
    ("f16", jnp.float16, jnp.float16),
    ("f32", jnp.float32, jnp.float32),
    ("mixed", _MIXED, _MIXED),
    ("bf16/f32", jnp.bfloat16, jnp.float32),
    ("f32/bf16", jnp.float32, jnp.bfloat16),
)
_DTYPES_WITH_X64 = (
    ("f64", jnp.float64, jnp.float64),
    ("f64/f32", jnp.float64, jnp.float32),
    ("f32/f64", jnp.float32, jnp.float64),
)
# With x64 off, "allow" makes float64 arrays and "error" refuses them: the dtypes that this
# affects.
_EXPLICIT = (
    Configuration("f64 allow", jnp.float64, jnp.float64, False, "allow"),
    Configuration("f32/f64 allow", jnp.float32, jnp.float64, False, "allow"),
    Configuration("bf16/f32 error", jnp.bfloat16, jnp.float32, False, "error"),
)
CONFIGURATIONS = (
    *(Configuration(*dtypes, x64=False) for dtypes in _DTYPES_WITHOUT_X64),
    *(_EXPLICIT if HAS_EXPLICIT_X64 else ()),
    *(
        Configuration(*dtypes, x64=True)
        for dtypes in (*_DTYPES_WITHOUT_X64, *_DTYPES_WITH_X64)
    ),
)
# With x64 on and off a configuration has one name.
CONFIGURATION_NAMES = tuple({x.name: x for x in CONFIGURATIONS})


class UpdateInputs(NamedTuple):
    """What one update takes: `opt.update(updates, state, params, **extra_args)`."""

    params: Params
    updates: Updates
    extra_args: dict[str, Any]


def quadratic_loss(params: Params) -> jax.Array:
    """Returns a loss whose gradients are the params, in their promoted dtype."""
    total = 0.0
    for leaf in tree_util.tree_leaves(params):
        # An integer has no gradient, and would promote the loss.
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            squares = leaf**2
            total += jnp.sum(squares)
    total = jnp.asarray(total)
    return total / 2


# No two elements of a leaf are equal, and none is 0.
_TWELVE_VALUES = np.linspace(0.1, 1, 12)
PARAMS = {
    "w": _TWELVE_VALUES.reshape(4, 3),
    "b": _TWELVE_VALUES[:3],
}


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """An optimizer to be made, with its inputs.

    Attributes:
        id: what to call it.
        make: makes it.
        params: its params; by default a matrix and a vector.
        updates: its gradients; by default the params.
        extra_args: of an update; by default those of Optax that it needs.
    """

    id: str
    make: Callable[[], Optimizer]
    params: Params = None
    updates: Updates = None
    extra_args: dict[str, Any] | None = None

    def build(self) -> Optimizer:
        """Makes the transformation, under the x64 flag that it will run under."""
        # Optax announces renamings.
        with warnings_ignored():
            return self.make()

    def inputs(self, params: LeafDTypes, grads: LeafDTypes) -> UpdateInputs:
        """Returns small arrays for one update, in dtypes of params and gradients."""
        names = ()
        if self.extra_args is None:
            names = self.extra_names
        return self._inputs(params, grads, names)

    @functools.cached_property
    def extra_names(self) -> tuple[str, ...]:
        """The names of the extra args that it needs; none if no names help.

        The signature of a chain does not show what it needs. Only a run does: in the
        plainest dtypes, without extra args, with each of them, with all that it takes.
        """
        with (
            set_x64(False),
            # Optax relies on standard promotion, whatever the caller chose.
            jax.numpy_dtype_promotion("standard"),
            warnings_ignored(),
        ):
            opt = self.make()

            def run(params, updates, extra_args):
                state = opt.init(params)
                return opt.update(updates, state, params, **extra_args)

            parameter_names = parameters(opt.update)
            by_signature = [name for name in _EXTRA_ARGS if name in parameter_names]
            names_to_try = (*_NAMES_TO_TRY, tuple(by_signature), tuple(_EXTRA_ARGS))
            for names in names_to_try:
                with contextlib.suppress(Exception):  # the checks raise it
                    inputs = self._inputs(jnp.float32, jnp.float32, names)
                    eqx.filter_eval_shape(run, *inputs)
                    return names
        return ()

    def _inputs(
        self, params: LeafDTypes, grads: LeafDTypes, names: tuple[str, ...]
    ) -> UpdateInputs:
        param_tree = self.params
        if param_tree is None:
            param_tree = PARAMS
        update_tree = self.updates
        if update_tree is None:
            update_tree = param_tree
        arrays = in_turn(param_tree, params)
        updates = in_turn(update_tree, grads)
        if self.extra_args is not None:
            return UpdateInputs(arrays, updates, self.extra_args)
        extra_args = {}
        for name in names:
            make_value = _EXTRA_ARGS[name]
            extra_args[name] = make_value(arrays, updates)
        return UpdateInputs(arrays, updates, extra_args)


def in_turn(tree: PyTree, dtypes: LeafDTypes) -> PyTree:
    """Returns a tree of JAX arrays whose floating leaves take the dtypes in turn.

    A `jax.ShapeDtypeStruct` becomes an array of ones.
    """
    if not isinstance(dtypes, tuple):
        dtypes = (dtypes,)
    leaves, treedef = tree_util.tree_flatten(tree)
    arrays = []
    # One dtype for each leaf, over and over.
    for leaf, dtype in zip(leaves, itertools.cycle(dtypes)):
        array = ones_like(leaf)
        if kind(dtype_of(array)) == "float":
            array = jnp.asarray(array, dtype)
        arrays.append(array)
    return treedef.unflatten(arrays)


def ones_like(leaf: Leaf) -> Leaf:
    """Returns an array for a `jax.ShapeDtypeStruct`; any other leaf as it is."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jnp.ones(leaf.shape, leaf.dtype)
    return leaf


def _value(params: Params, _: Updates) -> jax.Array:
    loss = jax.eval_shape(quadratic_loss, params)
    return jnp.asarray(1, loss.dtype)


def _loss_function(params: Params, updates: Updates) -> Callable[[Params], jax.Array]:
    return quadratic_loss


def _same_updates(params: Params, updates: Updates) -> Updates:
    return updates


def _sample_size(params: Params, updates: Updates) -> jax.Array:
    return jnp.asarray(8, jnp.int32)


def _gradient_function(_: Params, updates: Updates) -> Callable[..., Updates]:
    def gradients(params, step):
        grads = jax.grad(quadratic_loss)(params)
        # In the dtypes of a configuration, which need not be those of the params.
        return tree_util.tree_map(as_update, grads, updates)

    def as_update(grad, update):
        return grad.astype(update.dtype)

    return gradients


# Those of Optax's own optimizers, each made of the params and the gradients.
_EXTRA_ARGS: dict[str, Callable[[Params, Updates], object]] = {
    "value": _value,
    "grad": _same_updates,
    "value_fn": _loss_function,
    "obj_fn": _loss_function,
    "loss": _value,
    "grad_fn": _gradient_function,
    "sum_sq_diff_grads": _same_updates,
    "sample_size": _sample_size,
}
_NAMES_TO_TRY = (
    (),
    *((name,) for name in _EXTRA_ARGS),
    # Names that optimizers need together: L-BFGS, and adaptive batch sizes.
    ("value", "grad", "value_fn"),
    ("sum_sq_diff_grads", "sample_size"),
)
