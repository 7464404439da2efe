"""What an optimizer is checked with: dtypes and flags, params, gradients, extra args."""

import contextlib
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._leaves.compat import HAS_EXPLICIT_X64, set_explicit_x64, set_x64
from .._leaves.dtypes import dtype_of, kind
from .._leaves.types import DType, Leaf, Optimizer, Params, PyTree, Updates

DTypes = DType | tuple[DType, ...]


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Dtypes and the x64 flag."""

    name: str
    params: DTypes
    grads: DTypes
    x64: bool
    explicit: str = "warn"

    @property
    def where(self) -> str:
        """The configuration in a message, such as `bf16, x64 off`."""
        return f"{self.name}, x64 {'on' if self.x64 else 'off'}"

    @contextlib.contextmanager
    def flags(self) -> Iterator[None]:
        """A context with both flags, and JAX's standard promotion, which Optax needs."""
        with (
            set_x64(self.x64),
            set_explicit_x64(self.explicit),
            jax.numpy_dtype_promotion("standard"),
        ):
            yield


_MIXED = (jnp.bfloat16, jnp.float32)
_NARROW = (
    ("bf16", jnp.bfloat16, jnp.bfloat16),
    ("f16", jnp.float16, jnp.float16),
    ("f32", jnp.float32, jnp.float32),
    ("mixed", _MIXED, _MIXED),
    ("bf16/f32", jnp.bfloat16, jnp.float32),
    ("f32/bf16", jnp.float32, jnp.bfloat16),
)
_WIDE = (
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
    *(Configuration(*dtypes, x64=False) for dtypes in _NARROW),
    *(_EXPLICIT if HAS_EXPLICIT_X64 else ()),
    *(Configuration(*dtypes, x64=True) for dtypes in (*_NARROW, *_WIDE)),
)


class UpdateInputs(NamedTuple):
    """What one update takes: `opt.update(updates, state, params, **extra_args)`."""

    params: Params
    updates: Updates
    extra_args: dict[str, Any]


def sample(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Params of these shapes, with values between -1 and 1."""
    counts = {name: np.arange(1.0, 1 + np.prod(shape)) for name, shape in shapes.items()}
    return {name: np.sin(counts[name]).reshape(shape) for name, shape in shapes.items()}


def slopes(params: Params) -> Updates:
    """The gradients of `loss`."""
    return tree_util.tree_map(lambda param: param - 1, params)


def loss(params: Params) -> jax.Array:
    """The loss whose gradients are `slopes`, in the promoted dtype of the params."""
    leaves = tree_util.tree_leaves(params)
    leaves = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    dtype = functools.reduce(jnp.promote_types, [leaf.dtype for leaf in leaves])
    squares = [((leaf - 1) ** 2).sum().astype(dtype) for leaf in leaves]
    return sum(squares, jnp.zeros((), dtype)) / 2


class Recipe(NamedTuple):
    """What one optimizer is fed."""

    params: Params = sample({"w": (4, 3), "b": (3,)})
    grads: Callable[[Params], Updates] = slopes


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One way to make an optimizer, and what to feed it."""

    id: str
    make: Callable[[], Optimizer]
    recipe: Recipe = dataclasses.field(default_factory=Recipe)

    def build(self) -> Optimizer:
        """Makes the transformation, under the x64 flag that it will run under."""
        # Optax announces renamings.
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            return self.make()

    def inputs(
        self, params: DTypes, grads: DTypes, extra_args: dict[str, Any] | None = None
    ) -> UpdateInputs:
        """Small arrays for one update, with the caller's extra args or those it needs."""
        if extra_args is not None:
            return self._inputs(params, grads, ())._replace(extra_args=extra_args)
        names: tuple[str, ...] = ()
        with contextlib.suppress(Exception):  # as the checks will tell
            names = self.extra_names
        return self._inputs(params, grads, names)

    @functools.cached_property
    def extra_names(self) -> tuple[str, ...]:
        """The names of the extra args that it needs.

        The signature of a chain does not show what it needs. Only a run does: in the
        plainest dtypes, without extra args, with each of them, with all that it takes.
        """
        first: Exception | None = None
        # Optax relies on standard promotion, whatever the caller chose.
        standard = jax.numpy_dtype_promotion("standard")
        with set_x64(False), standard, warnings.catch_warnings(action="ignore"):
            opt = self.make()
            run = lambda params, updates, extra_args: opt.update(
                updates, opt.init(params), params, **extra_args
            )
            takes = inspect.signature(opt.update).parameters
            takes_all = any(p.kind is p.VAR_KEYWORD for p in takes.values())
            known = [name for name in _EXTRA_ARGS if takes_all or name in takes]
            each = [(name,) for name in known]
            for names in ((), *each, *_TOGETHER, tuple(known)):
                try:
                    eqx.filter_eval_shape(
                        run, *self._inputs(jnp.float32, jnp.float32, names)
                    )
                    return names
                except Exception as error:
                    first = first or error
        raise first or TypeError(self.id)

    def _inputs(
        self, params: DTypes, grads: DTypes, names: tuple[str, ...]
    ) -> UpdateInputs:
        arrays = in_turn(self.recipe.params, params)
        updates = in_turn(self.recipe.grads(self.recipe.params), grads)
        extra_args = {name: _EXTRA_ARGS[name](arrays, updates) for name in names}
        return UpdateInputs(arrays, updates, extra_args)


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


def _value(params: Params, _: Updates) -> jax.Array:
    return jnp.asarray(1, jax.eval_shape(loss, params).dtype)


def _gradient_function(_: Params, updates: Updates) -> Callable[..., Updates]:
    return lambda params, step: tree_util.tree_map(
        lambda g, like: g.astype(like.dtype), jax.grad(loss)(params), updates
    )


# Those of Optax's own optimizers, each made of the params and the gradients.
_EXTRA_ARGS: dict[str, Callable[[Params, Updates], object]] = {
    "value": _value,
    "grad": lambda params, updates: updates,
    "value_fn": lambda params, updates: loss,
    "obj_fn": lambda params, updates: loss,
    "loss": _value,
    "grad_fn": _gradient_function,
    "sum_sq_diff_grads": lambda params, updates: updates,
    "sample_size": lambda params, updates: jnp.asarray(8, jnp.int32),
}
# Those that optimizers need together.
_TOGETHER = ("value", "grad", "value_fn"), ("sum_sq_diff_grads", "sample_size")
