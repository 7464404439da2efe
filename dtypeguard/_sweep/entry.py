"""One optimizer of the catalogue: how to build it and what to feed it."""

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._leaves.compat import set_x64
from .._leaves.types import Optimizer, Params, PyTree, Updates
from .recipes import Recipe


class Inputs(NamedTuple):
    """What one update takes: `opt.update(updates, state, params, **extra_args)`."""

    params: Params
    updates: Updates
    extra_args: dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One way to call one factory.

    Attributes:
        id: where it stands in Optax, and the variant: `optax.adam[mu_dtype=bf16]`.
        make: makes the transformation; see `build`.
        recipe: how its params and gradients look.
    """

    id: str
    make: Callable[[], Any]
    recipe: Recipe = dataclasses.field(default_factory=Recipe)

    @property
    def name(self) -> str:
        """Where it stands in Optax, without the variant."""
        return self.id.partition("[")[0]

    def build(self) -> Any:
        """Makes the transformation; under the x64 flag that it is to run under."""
        with warnings.catch_warnings():
            # Optax announces what it will rename; that is no business of its dtypes.
            warnings.simplefilter("ignore", DeprecationWarning)
            return self.make()

    def loss(self, params: Params) -> jax.Array:
        """The loss whose gradients `inputs` makes, in the promoted dtype of the params."""
        leaves = tree_util.tree_leaves(params)
        dtype = functools.reduce(jnp.promote_types, [leaf.dtype for leaf in leaves])
        squares = [jnp.sum(jnp.square(leaf - 1)).astype(dtype) for leaf in leaves]
        return functools.reduce(jnp.add, squares) / 2

    def inputs(self, params: Params, grads: Updates) -> Inputs:
        """Small arrays for one update, in the given dtypes.

        Args:
            params: the dtype of the params, or a tuple of dtypes that are dealt out over
                the leaves in turn.
            grads: the same for the gradients. 64-bit dtypes need x64 to be on.

        Returns:
            Params, their gradients of `loss`, and the extra args (the value of the loss,
            the loss itself and so on) that the optimizer takes, if it needs any.

        Raises:
            Exception: what the optimizer itself raises, if it runs with no extra args
                that the catalogue knows of, in float32 and with x64 off.
        """
        return self._inputs(params, grads, self.extra_names)

    def feed(self, params: Params, grads: Updates) -> Inputs:
        """As `inputs`, without extra args for an optimizer that does not run with any."""
        try:
            return self.inputs(params, grads)
        except Exception:
            return self._inputs(params, grads, ())

    @functools.cached_property
    def extra_names(self) -> tuple[str, ...]:
        """The names of the extra args in `inputs`.

        What a chain needs cannot be read from its signature, only seen by running it, in
        the plainest dtypes: first without extra args, at last with all that it takes.
        """
        # Optax relies on standard promotion, whatever the caller has set.
        with set_x64(False), jax.numpy_dtype_promotion("standard"):
            opt = self.build()
            parameters = inspect.signature(opt.update).parameters
            takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
            first_error = None
            for names in (*_USUAL_EXTRA_ARGS, tuple(_EXTRA_ARGS)):
                taken = tuple(n for n in names if takes_all or n in parameters)
                try:
                    _run_abstractly(opt, self._inputs(jnp.float32, jnp.float32, taken))
                    return taken
                except Exception as error:
                    first_error = first_error or error
        assert first_error is not None
        raise first_error

    def _inputs(self, params: Params, grads: Updates, names: tuple[str, ...]) -> Inputs:
        values = {
            name: np.sin(np.arange(1.0, 1 + np.prod(shape))).reshape(shape)
            for name, shape in self.recipe.shapes.items()
        }
        slopes = {name: value - 1 for name, value in values.items()}
        plain = _as_arrays(values, params)
        updates = _as_arrays(self.recipe.to_grads(slopes), grads)
        made = {name: _EXTRA_ARGS[name](self, plain, updates) for name in names}
        return Inputs(self.recipe.to_params(plain), updates, made)


def _as_arrays(tree: PyTree, dtypes: Any) -> Any:
    leaves, structure = tree_util.tree_flatten(tree)
    dtypes = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    arrays = [
        jnp.asarray(leaf, dtypes[number % len(dtypes)])
        for number, leaf in enumerate(leaves)
    ]
    return tree_util.tree_unflatten(structure, arrays)


def _run_abstractly(opt: Optimizer, inputs: Inputs) -> None:
    def run(params, updates, extra_args):
        opt.update(updates, opt.init(params), params, **extra_args)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eqx.filter_eval_shape(run, *inputs)


def _gradient_function(
    entry: Entry, params: Params, updates: Updates
) -> Callable[..., Any]:
    def grad_fn(params, step):
        del step
        grads = jax.grad(entry.loss)(params)
        return tree_util.tree_map(lambda g, like: g.astype(like.dtype), grads, updates)

    return grad_fn


# What optimizers ask for together.
_USUAL_EXTRA_ARGS = (
    (),
    ("value",),
    ("loss",),
    ("value", "grad", "value_fn"),
    ("obj_fn",),
    ("grad_fn",),
    ("sum_sq_diff_grads", "sample_size"),
)

# The extra args that Optax's own optimizers take, by name: a function of the entry, the
# params and the gradients.
_EXTRA_ARGS: dict[str, Callable[[Entry, Any, Any], Any]] = {
    "value": lambda entry, params, updates: entry.loss(params),
    "grad": lambda entry, params, updates: updates,
    "value_fn": lambda entry, params, updates: entry.loss,
    "obj_fn": lambda entry, params, updates: entry.loss,
    "loss": lambda entry, params, updates: entry.loss(params),
    "grad_fn": _gradient_function,
    "sum_sq_diff_grads": lambda entry, params, updates: updates,
    "sample_size": lambda entry, params, updates: jnp.asarray(8, jnp.int32),
}
