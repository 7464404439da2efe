"""All that differs between releases of JAX and Optax."""

import contextlib
import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import lax

from .types import Function, Jaxpr, PyTree

# Up to JAX 0.6 a computation traced with x64 off cannot be lowered inside one traced
# with x64 on: inner jaxprs are lowered under the flag of the outermost call.
HAS_X64_SCOPE = jax.__version_info__ >= (0, 7)


# What JAX raises for a missing promotion: in spite of its name, not a TypeError.
PromotionError: type[Exception] = TypeError
try:
    with jax.numpy_dtype_promotion("strict"):
        jnp.promote_types("bfloat16", "float32")
except Exception as error:
    PromotionError = type(error)

# A mutable array: `jax.new_ref` makes one. No type before it was public.
Ref = getattr(jax, "Ref", ())


def x64_enabled() -> bool:
    """Returns whether `jax_enable_x64` is on, in this thread and context."""
    return bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import


def set_x64(enabled: bool | None) -> contextlib.AbstractContextManager[None]:
    """Returns a context with `jax_enable_x64` on or off; for None, as it is."""
    if enabled is None:
        return contextlib.nullcontext()
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(enabled)
    from jax import experimental

    return experimental.enable_x64(enabled)  # pyright: ignore[reportAttributeAccessIssue]: gone since JAX 0.8


def add_x64(is_needed: bool) -> contextlib.AbstractContextManager[None]:
    """Returns a context with `jax_enable_x64` on if it is needed, else as it is."""
    return set_x64(True if is_needed else None)


# What all but guards, optimizers, restore, accumulation and `check_contract` need:
# equations with lines and a context of their own, a public `jax.shard_map`, barriers that
# keep roundings from being left out.
HAS_NUMBERS = jax.__version_info__ >= (0, 8)

# The options of XLA for CPUs have a choice of emitters.
HAS_FUSION_EMITTERS = jax.__version_info__ < (0, 11)


def check_release(owner: str) -> None:
    """Raises `NotImplementedError` before JAX 0.8."""
    if not HAS_NUMBERS:
        raise NotImplementedError(
            f"{owner} needs JAX 0.8 or later, and this is {jax.__version__}: write "
            "pip install -U jax."
        )


# Since JAX 0.10 or so: what JAX does if a program names a 64-bit dtype with x64 off.
_EXPLICIT_X64 = "jax_explicit_x64_dtypes"
HAS_EXPLICIT_X64 = hasattr(jax.config, _EXPLICIT_X64)


def has_float64() -> bool:
    """Returns whether JAX now makes a float64 array for a program that names the dtype."""
    if x64_enabled():
        return True
    return _explicit_x64() == "allow"


@contextlib.contextmanager
def set_explicit_x64(mode: str) -> Iterator[None]:
    """Sets what named 64-bit dtypes do with x64 off, in the whole process, for a while."""
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
    if not HAS_EXPLICIT_X64:
        return "warn"
    return getattr(jax.config, _EXPLICIT_X64).name.lower()


# Whether `jax.device_put` has `may_alias=False`, which copies an array.
CAN_COPY = jax.__version_info__ >= (0, 5)


def barrier(tree: PyTree) -> PyTree:
    """Puts a `lax.optimization_barrier` at each leaf, in releases that have its rules.

    JAX 0.4 has no rule for `vmap`, and 0.5 none for derivatives. In a common barrier, each
    leaf would vary over the shard_map axes of all others.
    """
    if jax.__version_info__ < (0, 6):
        return tree
    return jax.tree_util.tree_map(lax.optimization_barrier, tree)


_TRACES = itertools.count()


def traced_anew() -> contextlib.AbstractContextManager[object]:
    """Returns a context in which JAX traces jitted functions again."""
    from jax.experimental.xla_metadata import set_xla_metadata  # since JAX 0.5

    return set_xla_metadata(dtypeguard=str(next(_TRACES)))


# `jax.extend` imports Pallas, after which JAX traces again what it has traced before.
Primitive = type(lax.neg_p)


def as_function(jaxpr: Jaxpr) -> Function:
    """Returns a closed jaxpr as a function from its inputs to a list."""
    from jax.extend.core import jaxpr_as_fun  # which JAX 0.4.25 does not have

    return jaxpr_as_fun(jaxpr)
