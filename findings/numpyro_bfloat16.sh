#!/usr/bin/env bash
# NumPyro's distributions with parameters in bfloat16 draw float32 samples, and TruncatedNormal
# raises.
# Seen with jax 0.10.2, jaxlib 0.10.2, numpy 2.4.6, numpyro 0.22.0, on a CPU, with Python 3.11:
#   Normal, Gamma, Beta: sample float32, log_prob float32
#   TruncatedNormal: TypeError, x.dtype=bfloat16 is not supported
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 numpyro==0.22.0
cd "$folder"
venv/bin/python - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpyro.distributions as dist

one = jnp.ones(2, jnp.bfloat16)
key = jax.random.key(0)
for of in dist.Normal, dist.Gamma, dist.Beta:
    sample = of(one, one).sample(key)
    print(of.__name__, sample.dtype, of(one, one).log_prob(sample).dtype)
    assert sample.dtype == "float32"
try:
    dist.TruncatedNormal(one, one, low=0).sample(key)
except TypeError as error:
    print(str(error)[:80])
else:
    raise SystemExit("it takes bfloat16 now")
PYTHON
