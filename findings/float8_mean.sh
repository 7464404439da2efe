#!/usr/bin/env bash
# jnp.mean and jnp.sum accumulate 8-bit floats in their own type: the mean of ones is neither 1
# nor an error. Of float16 and bfloat16 JAX accumulates in float32.
# Seen with jax 0.10.2, jaxlib 0.10.2, ml_dtypes 0.6.0, numpy 2.4.6, on a CPU, with Python 3.11:
#   float8_e4m3fn: 449 ones have mean 0.5625 (sum 240), 500 ones have mean nan (500 has no number there)
#   float8_e5m2: 16 ones have mean 0.5 (sum 8), 1000 ones have mean 0.0625 (sum 64)
#   bfloat16: 1000 ones have mean 1.0 (sum 1000)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON'
import math

import jax.numpy as jnp


def mean_and_sum(dtype, count):
    ones = jnp.ones(count, dtype)
    result = float(jnp.mean(ones)), float(jnp.sum(ones))
    print(jnp.dtype(dtype).name, count, *result)
    return result


assert mean_and_sum(jnp.float8_e4m3fn, 449) == (0.5625, 240)
assert math.isnan(mean_and_sum(jnp.float8_e4m3fn, 500)[0])
assert mean_and_sum(jnp.float8_e5m2, 16) == (0.5, 8)
assert mean_and_sum(jnp.float8_e5m2, 1000) == (0.0625, 64)
assert mean_and_sum(jnp.bfloat16, 1000) == (1, 1000)
PYTHON
