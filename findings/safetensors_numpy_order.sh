#!/usr/bin/env bash
# safetensors.numpy.save writes the memory of an array that is in Fortran order or a transposed
# view as if it were in C order: the shape comes back, the elements stand in other places, and
# nothing is raised. safetensors.flax.save of a transposed jax.Array is right, of a transposed
# NumPy array wrong as well.
# Seen with jax 0.10.2, jaxlib 0.10.2, numpy 2.4.6, safetensors 0.8.0, on a CPU, with Python 3.11:
#   saved  [[0, 1, 2], [3, 4, 5]] in Fortran order
#   loaded [[0, 3, 1], [4, 2, 5]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 safetensors==0.8.0
cd "$folder"
venv/bin/python - <<'PYTHON'
import jax.numpy as jnp
import numpy as np
from safetensors import flax, numpy as st

rows = np.arange(6.0, dtype=np.float32).reshape(2, 3)
loaded = st.load(st.save({"x": np.asfortranarray(rows)}))["x"]
print(loaded.tolist())
assert loaded.tolist() == [[0, 3, 1], [4, 2, 5]]
of_numpy = flax.load(flax.save({"x": rows.T}))["x"]
of_jax = flax.load(flax.save({"x": jnp.asarray(rows).T}))["x"]
print(of_numpy.tolist(), of_jax.tolist())
assert of_numpy.tolist() == [[0, 1], [2, 3], [4, 5]]
assert of_jax.tolist() == rows.T.tolist()
PYTHON
