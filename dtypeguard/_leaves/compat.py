"""The names and behaviours that differ between JAX and Optax releases, in one place."""

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import custom_derivatives, lax

from .types import Leaf, PyTree

_JAX = tuple(int(part) for part in jax.__version__.split(".")[:2])

# Up to JAX 0.6 a computation traced with x64 off cannot be lowered inside one traced
# with x64 on: inner jaxprs are lowered under the flag of the outermost call.
HAS_X64_SCOPE = _JAX >= (0, 7)


def _promotion_error() -> type[Exception]:
    """What JAX raises where it has no promotion: `jax.dtypes.TypePromotionError` by now."""
    try:
        with jax.numpy_dtype_promotion("strict"):
            jnp.promote_types("bfloat16", "float32")
    except Exception as error:
        return type(error)
    return TypeError


# No TypeError, for all its name.
PromotionError = _promotion_error()


def x64_enabled() -> bool:
    """Whether `jax_enable_x64` is on, in this thread and context."""
    return bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import


def set_x64(enabled: bool) -> contextlib.AbstractContextManager[None]:
    """A context in which `jax_enable_x64` is `enabled`, for this thread alone.

    `jax.enable_x64` since JAX 0.8; before that the same manager stood in
    `jax.experimental`.
    """
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(enabled)
    from jax import experimental

    return experimental.enable_x64(enabled)  # pyright: ignore[reportAttributeAccessIssue]: gone since JAX 0.8


# Since JAX 0.10 or so: what asking for a 64-bit dtype by name means while x64 is off.
_EXPLICIT_X64 = "jax_explicit_x64_dtypes"
HAS_EXPLICIT_X64 = hasattr(jax.config, _EXPLICIT_X64)


def has_float64() -> bool:
    """Whether JAX makes a float64 array that is asked for by name, here and now."""
    return x64_enabled() or _explicit_x64() == "allow"


@contextlib.contextmanager
def set_explicit_x64(mode: str) -> Iterator[None]:
    """A context in which 64-bit dtypes asked for with x64 off are as `mode` says.

    For the whole process: JAX has no context of its own for this flag.

    Args:
        mode: "warn" (and give 32 bits, which is all that older releases do), "allow" or
            "error".
    """
    before = _explicit_x64()
    if mode == before:
        yield
        return
    jax.config.update(_EXPLICIT_X64, mode)
    try:
        yield
    finally:
        jax.config.update(_EXPLICIT_X64, before)


def _explicit_x64() -> str:
    return getattr(jax.config, _EXPLICIT_X64).name.lower() if HAS_EXPLICIT_X64 else "warn"


def barrier(tree: PyTree, *, derivative: bool = True) -> PyTree:
    """`lax.optimization_barrier`; nothing on releases of JAX where it has no rules.

    On JAX 0.4 it has none for `vmap`, on 0.5 none for derivatives. One for each leaf: in
    one, they would all vary over each other's axes of shard_map.

    Args:
        tree: of arrays.
        derivative: whether anything may be differentiated through it.
    """
    if ((0, 6) if derivative else (0, 5)) > _JAX:
        return tree
    return jax.tree_util.tree_map(lax.optimization_barrier, tree)


def zero_tangent(primal: Leaf) -> Leaf:
    """What a rule of `custom_jvp` gives for an integer or a key, which have no tangent.

    Up to JAX 0.4.33 in the type of the primal, since then in float0.
    """
    if hasattr(custom_derivatives, "zero_from_primal"):
        return custom_derivatives.zero_from_primal(primal, symbolic_zeros=True)
    aval = jax.core.raise_to_shaped(jax.core.get_aval(primal))  # pyright: ignore[reportAttributeAccessIssue]: gone since
    return custom_derivatives.SymbolicZero(aval)
