#!/usr/bin/env bash
# np.sort leaves an array of an ml_dtypes float unsorted if it holds a NaN, without a warning:
# NumPy puts the NaNs of its own floats last, jnp.sort those of bfloat16 as well. Of
# float8_e4m3b11fnuz jnp.sort puts them first. np.searchsorted and np.unique build on that order.
# Seen with jax 0.10.2, jaxlib 0.10.2, ml_dtypes 0.6.0, numpy 2.4.6, on a CPU, with Python 3.11:
#   np.sort   bfloat16            [3.0, nan, 1.0, nan, 0.5, 2.0]
#   np.sort   float16             [0.5, 1.0, 2.0, 3.0, nan, nan]
#   jnp.sort  bfloat16            [0.5, 1.0, 2.0, 3.0, nan, nan]
#   jnp.sort  float8_e4m3b11fnuz  [nan, nan, 0.5, 1.0, 2.0, 3.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON'
import jax.numpy as jnp
import ml_dtypes
import numpy as np

values = np.array([3, np.nan, 1, np.nan, 2, 0.5])


def as_sorted(library, dtype):
    result = [float(x) for x in library.sort(library.asarray(values.astype(dtype)))]
    print(f"{library.__name__:10}{np.dtype(dtype).name:20}{result}")
    return str(result)


assert as_sorted(np, ml_dtypes.bfloat16) == "[3.0, nan, 1.0, nan, 0.5, 2.0]"
assert as_sorted(np, np.float16) == "[0.5, 1.0, 2.0, 3.0, nan, nan]"
assert as_sorted(jnp, ml_dtypes.bfloat16) == "[0.5, 1.0, 2.0, 3.0, nan, nan]"
assert as_sorted(jnp, ml_dtypes.float8_e4m3b11fnuz) == "[nan, nan, 0.5, 1.0, 2.0, 3.0]"
PYTHON
