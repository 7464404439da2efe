#!/usr/bin/env bash
# safetensors.flax.save writes bfloat16 and float8 arrays. From the bytes, safetensors.flax.load
# reads neither; from a file, load_file reads bfloat16 but not float8.
# Seen with jax 0.10.2, jaxlib 0.10.2, numpy 2.4.6, safetensors 0.8.0, on a CPU, with Python 3.11:
#   bfloat16:      load KeyError('BF16'), load_file bfloat16
#   float8_e4m3fn: load KeyError('F8_E4M3'), load_file AttributeError of numpy.float8_e4m3fn
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 safetensors==0.8.0
cd "$folder"
venv/bin/python - <<'PYTHON'
import jax.numpy as jnp
from safetensors import flax

for dtype, tag in (jnp.bfloat16, "BF16"), (jnp.float8_e4m3fn, "F8_E4M3"):
    arrays = {"x": jnp.ones(3, dtype)}
    try:
        flax.load(flax.save(arrays))
    except KeyError as error:
        print("load:", repr(error))
        assert error.args == (tag,)
    else:
        raise SystemExit("load reads it now")
flax.save_file({"x": jnp.ones(3, jnp.bfloat16)}, "bfloat16.safetensors")
assert flax.load_file("bfloat16.safetensors")["x"].dtype == jnp.bfloat16
flax.save_file({"x": jnp.ones(3, jnp.float8_e4m3fn)}, "float8.safetensors")
try:
    flax.load_file("float8.safetensors")
except AttributeError as error:
    print("load_file:", error)
else:
    raise SystemExit("load_file reads float8 now")
PYTHON
