#!/usr/bin/env bash
# A jitted function whose static argument holds a dtype, such as a frozen dataclass with `dtype=None` or
# `dtype=np.dtype("float64")`, runs for the second what JAX compiled for the first, silently: NumPy says
# that None and that dtype are equal, though their hashes differ. As a static argument by itself the two
# are told apart, and so they are in any place by JAX 0.8.0 and 0.12.0.1.
# Seen with jax 0.10.2 (and 0.9.0), jaxlib 0.10.2, numpy 2.4.6, on a CPU, with Python 3.11:
#   NumPy: None == dtype is True, hashes are equal: False
#   by itself: float32 then float64
#   in a dataclass: float32 then float32
#   in a dataclass, the other order: float64 then float64
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON'
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
FLOAT64 = np.dtype("float64")


@dataclasses.dataclass(frozen=True)
class Settings:
    dtype: np.dtype | None


def result_dtypes(case, settings):
    """Returns the dtypes that one jitted function gives back, called with each setting in turn."""

    def total(setting, x):
        dtype = setting.dtype if isinstance(setting, Settings) else setting
        return jnp.sum(x, dtype=dtype)

    jitted = jax.jit(total, static_argnums=0)
    x = jnp.ones(3, jnp.float32)
    dtypes = [jitted(setting, x).dtype.name for setting in settings]
    print(f"{case}: {' then '.join(dtypes)}")
    return dtypes


is_equal = FLOAT64 == None  # noqa: E711
has_equal_hash = hash(None) == hash(FLOAT64)
print(f"NumPy: None == dtype is {is_equal}, hashes are equal: {has_equal_hash}")
assert is_equal and not has_equal_hash
none, float64 = Settings(None), Settings(FLOAT64)
assert result_dtypes("by itself", [None, FLOAT64]) == ["float32", "float64"]
assert result_dtypes("in a dataclass", [none, float64]) == ["float32", "float32"]
other_order = result_dtypes("in a dataclass, the other order", [float64, none])
assert other_order == ["float64", "float64"]
PYTHON
