#!/usr/bin/env bash
# JAX's cast of a number beyond the range of float6_e2m3fn or float6_e3m2fn gives 0.0, infinity
# included, where ml_dtypes gives the largest number of the format. Numbers within the range are right.
# float4_e2m1fn, which has no infinity either, gives its largest number in both.
# Seen with jax 0.12.0.1, jaxlib 0.12.0.1, ml_dtypes 0.6.0, numpy 2.5.5, on a CPU, with Python 3.13
# (these releases need 3.12: PYTHON=python3.13 bash findings/float6_overflow_of_jax.sh):
#   float6_e2m3fn: 1.5 is 1.5 and 1.5; 30 is 0.0 in JAX, 7.5 in ml_dtypes; inf is 0.0 and 7.5
#   float6_e3m2fn: 1.5 is 1.5 and 1.5; 112 is 0.0 in JAX, 28.0 in ml_dtypes; inf is 0.0 and 28.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.12.0.1 jaxlib==0.12.0.1 ml_dtypes==0.6.0 numpy==2.5.5
cd "$folder"
venv/bin/python - <<'PYTHON'
import warnings

import jax.numpy as jnp
import ml_dtypes
import numpy as np

warnings.simplefilter("ignore")  # NumPy warns of the overflow
for name in ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"):
    dtype = getattr(ml_dtypes, name)
    largest = float(ml_dtypes.finfo(dtype).max)
    for number in (1.5, 4 * largest, np.inf):
        of_jax = float(np.asarray(jnp.float32(number).astype(dtype)).astype(np.float32))
        of_numpy = float(np.float32(number).astype(dtype))
        print(name, number, "jax", of_jax, "ml_dtypes", of_numpy)
        expected = number if number == 1.5 else largest
        assert of_numpy == expected, "ml_dtypes gives another number now"
        is_lost = name.startswith("float6") and number != 1.5
        if of_jax != (0.0 if is_lost else expected):
            raise SystemExit(f"JAX gives {of_jax} for {number} in {name} now")
PYTHON
