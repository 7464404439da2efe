#!/usr/bin/env bash
# jnp.from_dlpack, which hands over memory as it is, narrows 64-bit arrays without a warning where
# jax_enable_x64 is off: int64 2**40 becomes int32 0, float64 1e300 becomes float32 inf. With
# copy=False too.
# Seen with jax 0.10.2, jaxlib 0.10.2, numpy 2.4.6, on a CPU, with Python 3.11:
#   int64   2**40 -> int32   0
#   float64 1e300 -> float32 inf
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON'
import warnings

import jax.numpy as jnp
import numpy as np

warnings.simplefilter("error")
for copy in None, False:
    whole = jnp.from_dlpack(np.array([2**40]), copy=copy)
    real = jnp.from_dlpack(np.array([1e300]), copy=copy)
    print(copy, whole.dtype, whole, real.dtype, real)
    assert whole.dtype == "int32" and int(whole[0]) == 0
    assert real.dtype == "float32" and np.isinf(real[0])
PYTHON
