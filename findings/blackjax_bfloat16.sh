#!/usr/bin/env bash
# BlackJAX's NUTS, HMC and MALA cannot step a position in bfloat16: the kinetic energy or the
# acceptance is float32, and a scan or cond of its own raises. With a float32 position they run.
# Seen with blackjax 1.7.1, jax 0.10.2, jaxlib 0.10.2, numpy 2.4.6, optax 0.2.8, on a CPU, with Python 3.11:
#   nuts and mala: TypeError, cond branches must have equal output types
#   hmc: TypeError, scan body function carry input and carry output must have equal types
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q blackjax==1.7.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 optax==0.2.8
cd "$folder"
venv/bin/python - <<'PYTHON'
import blackjax
import jax
import jax.numpy as jnp


def log_density(position):
    return -0.5 * jnp.sum(position**2)


mass = jnp.ones(3)
samplers = {
    "nuts": blackjax.nuts(log_density, step_size=0.1, inverse_mass_matrix=mass),
    "hmc": blackjax.hmc(log_density, 0.1, mass, num_integration_steps=3),
    "mala": blackjax.mala(log_density, step_size=0.1),
}
for name, sampler in samplers.items():
    sampler.step(jax.random.key(0), sampler.init(jnp.ones(3)))
    try:
        sampler.step(jax.random.key(0), sampler.init(jnp.ones(3, jnp.bfloat16)))
    except TypeError as error:
        print(name, str(error).splitlines()[0])
        assert "must have equal" in str(error)
    else:
        raise SystemExit(f"{name} steps in bfloat16 now")
PYTHON
