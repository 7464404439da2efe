"""A program under a mesh with explicit axes is audited as others are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from dtypeguard import audit_precision
from tests.support.dtypes import BF16, F32


def scanned(x, w):
    activation = lambda h: jnp.tanh(h) * 1.7
    x = lax.dynamic_update_slice(jnp.exp(x), -x[:, :1], (0, 0))

    def step(x, _):
        h = jnp.dot(x, w, out_sharding=P("data"))
        made = jax.sharding.auto_axes(activation, out_sharding=P("data"))(h)
        return made, jax.sharding.reshard(x, P())

    last, steps = lax.scan(step, x, None, 3)
    return jnp.mean(jnp.asarray(last, F32) ** 2) + jnp.mean(jnp.asarray(steps, F32))


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="needs JAX >= 0.10")
def test_the_error_of_a_gradient_is_near_that_of_the_compiled_program(devices):
    mesh = jax.make_mesh(
        (devices,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,)
    )
    draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape, BF16)
    g = jax.grad(scanned, 1)
    with jax.set_mesh(mesh):
        x, w = jax.device_put(draw(0, 8, 4), P("data")), draw(1, 4, 4)
        error = audit_precision(g, x, w).error
        made, exact = (
            np.asarray(jax.jit(g)(x.astype(d), w.astype(d)), np.float32)
            for d in (BF16, F32)
        )
    assert error / 4 < np.linalg.norm(made - exact) / np.linalg.norm(exact) < 4 * error
