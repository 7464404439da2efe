"""One optimizer of the catalogue: how to build it and what to feed it."""

import dataclasses
import functools
import inspect
import operator
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util
from jax.core import Tracer

from .._leaves.compat import set_x64
from .._leaves.dtypes import dtype_of, kind
from .._leaves.types import DType, Leaf, Optimizer, Params, PyTree, Updates
from .recipes import Recipe

DTypes = DType | tuple[DType, ...]


class SweepInputs(NamedTuple):
    """What one update takes: `opt.update(updates, state, params, **extra_args)`."""

    params: Params
    updates: Updates
    extra_args: dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One way to call one factory."""

    id: str
    make: Callable[[], Optimizer]
    recipe: Recipe = dataclasses.field(default_factory=Recipe)

    @property
    def name(self) -> str:
        """Its name in Optax, without the variant."""
        return self.id.partition("[")[0]

    def build(self) -> Optimizer:
        """Makes the transformation, under the x64 flag that it will run under."""
        with warnings.catch_warnings():
            # Optax announces renamings, which do not matter here.
            warnings.simplefilter("ignore", DeprecationWarning)
            return self.make()

    def loss(self, params: Params) -> jax.Array:
        """The loss whose gradients `inputs` makes, in the promoted dtype of the params.

        Of NumPy arrays, NumPy computes it: nothing compiles.
        """
        leaves = tree_util.tree_leaves(params)
        leaves = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        dtype = functools.reduce(jnp.promote_types, [leaf.dtype for leaf in leaves])
        errors = [leaf - 1 for leaf in leaves]
        squares = [(error * error).sum().astype(dtype) for error in errors]
        return functools.reduce(operator.add, squares) / 2

    def inputs(self, params: DTypes, grads: DTypes) -> SweepInputs:
        """Small arrays for one update."""
        return self._inputs(params, grads, self.extra_names)

    def feed(
        self, params: DTypes, grads: DTypes, extra_args: dict[str, Any] | None = None
    ) -> SweepInputs:
        """Like `inputs`, with the caller's extra args, or none if no trial succeeds."""
        if extra_args is not None:
            return self._inputs(params, grads, ())._replace(extra_args=extra_args)
        try:
            return self.inputs(params, grads)
        except Exception:
            return self._inputs(params, grads, ())

    @functools.cached_property
    def extra_names(self) -> tuple[str, ...]:
        """The names of the extra args in `inputs`.

        The signature of a chain does not show what it needs. Only a run does: in the
        plainest dtypes, first without extra args, last with all that it takes.
        """
        errors: list[Exception] = []
        # Optax relies on standard promotion, whatever the caller chose.
        with set_x64(False), jax.numpy_dtype_promotion("standard"):
            opt = self.build()
            parameters = inspect.signature(opt.update).parameters
            takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
            for names in (*_USUAL_EXTRA_ARGS, tuple(_EXTRA_ARGS)):
                taken = tuple(n for n in names if takes_all or n in parameters)
                try:
                    _run_abstractly(opt, self._inputs(jnp.float32, jnp.float32, taken))
                    return taken
                except Exception as error:
                    errors.append(error)
        raise errors[0]

    def _inputs(self, params: DTypes, grads: DTypes, names: tuple[str, ...]) -> SweepInputs:
        arrays = in_turn(self.recipe.params, params)
        updates = in_turn(self.recipe.grads(self.recipe.params), grads)
        extra_args = {name: _EXTRA_ARGS[name](self, arrays, updates) for name in names}
        return SweepInputs(arrays, updates, extra_args)


def in_turn(tree: PyTree, dtypes: DTypes) -> PyTree:
    """A tree of JAX arrays whose floating leaves take the dtypes in turn.

    A `jax.ShapeDtypeStruct` becomes an array of ones.
    """
    choices = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    leaves, structure = tree_util.tree_flatten(tree)

    def array(number: int, leaf: Leaf) -> Leaf:
        leaf = ones_like(leaf)
        if kind(dtype_of(leaf)) != "float":
            return leaf
        dtype = choices[number % len(choices)]
        # NumPy casts its own arrays: nothing compiles.
        cast = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf).astype(dtype)
        return jnp.asarray(cast, dtype)

    return tree_util.tree_unflatten(structure, map(array, range(len(leaves)), leaves))


def ones_like(leaf: Leaf) -> Leaf:
    """An array for a `jax.ShapeDtypeStruct`; any other leaf as it is."""
    is_struct = isinstance(leaf, jax.ShapeDtypeStruct)
    return jnp.ones(leaf.shape, leaf.dtype) if is_struct else leaf


def _run_abstractly(opt: Optimizer, inputs: SweepInputs) -> None:
    def run(params, updates, extra_args):
        opt.update(updates, opt.init(params), params, **extra_args)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eqx.filter_eval_shape(run, *inputs)


def _value(entry: Entry, params: Params) -> jax.Array:
    leaves = tree_util.tree_leaves(params)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return entry.loss(params)
    value = np.asarray(entry.loss(tree_util.tree_map(np.asarray, params)))
    return jnp.asarray(value, value.dtype)


def _gradient_function(
    entry: Entry, params: Params, updates: Updates
) -> Callable[[Params, jax.Array], Updates]:
    def grad_fn(params, step):
        del step
        grads = jax.grad(entry.loss)(params)
        return tree_util.tree_map(lambda g, like: g.astype(like.dtype), grads, updates)

    return grad_fn


# The extra args that optimizers need together.
_USUAL_EXTRA_ARGS = (
    (),
    ("value",),
    ("loss",),
    ("value", "grad", "value_fn"),
    ("obj_fn",),
    ("grad_fn",),
    ("sum_sq_diff_grads", "sample_size"),
)

# The extra args of Optax's own optimizers, by name: each a function of the entry, the
# params and the gradients.
_EXTRA_ARGS: dict[str, Callable[[Entry, Params, Updates], object]] = {
    "value": lambda entry, params, updates: _value(entry, params),
    "grad": lambda entry, params, updates: updates,
    "value_fn": lambda entry, params, updates: entry.loss,
    "obj_fn": lambda entry, params, updates: entry.loss,
    "loss": lambda entry, params, updates: _value(entry, params),
    "grad_fn": _gradient_function,
    "sum_sq_diff_grads": lambda entry, params, updates: updates,
    "sample_size": lambda entry, params, updates: jnp.asarray(8, jnp.int32),
}
