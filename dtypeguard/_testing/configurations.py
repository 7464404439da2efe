"""The dtypes and flags in which an optimizer is checked."""

import contextlib
import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from .._leaves.compat import HAS_EXPLICIT_X64, set_explicit_x64, set_x64
from .entry import DTypes

_MIXED = (jnp.bfloat16, jnp.float32)


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
