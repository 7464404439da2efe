#!/usr/bin/env bash
# JAXopt's LevenbergMarquardt raises in bfloat16, where GaussNewton runs.
# Seen with jax 0.10.2, jaxlib 0.10.2, jaxopt 0.8.5, numpy 2.4.6, on a CPU, with Python 3.11:
#   GaussNewton bfloat16; LevenbergMarquardt: TypeError, primal and tangent arguments to jax.jvp do not match
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 jaxopt==0.8.5 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON'
import jax.numpy as jnp
import jaxopt

features = jnp.ones((5, 3), jnp.bfloat16)
weights = jnp.zeros(3, jnp.bfloat16)


def residual(weights):
    return features @ weights - 1


assert jaxopt.GaussNewton(residual, maxiter=1).run(weights).params.dtype == "bfloat16"
try:
    jaxopt.LevenbergMarquardt(residual, maxiter=1).run(weights)
except TypeError as error:
    print(str(error)[:80])
    assert "primal and tangent" in str(error)
else:
    raise SystemExit("LevenbergMarquardt runs now")
PYTHON
