#!/usr/bin/env bash
# In float8_e8m0fnu, which has no zero and no sign, jax.random.uniform and normal give NaN alone,
# and jnp.nextafter(1, 2) is 0.5, away from 2; np.nextafter with ml_dtypes is 2.
# Seen with jax 0.10.2, jaxlib 0.10.2, ml_dtypes 0.6.0, numpy 2.4.6, on a CPU, with Python 3.11:
#   uniform [nan, nan, nan]   normal [nan, nan, nan]
#   nextafter(1, 2): JAX 0.5, NumPy 2.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np

dtype = jnp.float8_e8m0fnu
key = jax.random.key(0)
for sample in jax.random.uniform, jax.random.normal:
    drawn = np.asarray(sample(key, (3,), dtype)).astype(np.float32)
    print(sample.__name__, drawn)
    assert np.isnan(drawn).all()
one = np.ones(1, dtype)
two = np.full(1, 2, dtype)
in_jax = float(jnp.nextafter(jnp.asarray(one), jnp.asarray(two))[0])
in_numpy = float(np.nextafter(one, two)[0])
print("nextafter(1, 2):", in_jax, in_numpy)
assert (in_jax, in_numpy) == (0.5, 2)
PYTHON
