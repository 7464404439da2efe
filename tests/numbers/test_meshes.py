"""Programs under a mesh with explicit axes are audited as others are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import dtypeguard

pytestmark = pytest.mark.skipif(
    not all(hasattr(jax.sharding, name) for name in ("auto_axes", "reshard"))
    or jax.__version_info__ < (0, 10),
    reason="needs JAX >= 0.10",
)
BF16, F32 = jnp.bfloat16, jnp.float32


def automatic(x):
    activation = lambda h: jnp.tanh(h) * 1.7
    return jax.sharding.auto_axes(activation, out_sharding=P("data"))(x)


def resharded(x, w):
    h = automatic(jnp.dot(x, w, out_sharding=P("data")))
    return jnp.mean(jax.sharding.reshard(h, P()).astype(F32) ** 2)


def embedded(x, w):
    rows = w.at[jnp.arange(8) % 4].get(out_sharding=P("data"))
    return jnp.mean((rows * x).astype(F32) ** 2)


def scanned(x, w):
    def step(x, _):
        made = automatic(jnp.dot(x, w, out_sharding=P("data")))
        return made, jax.sharding.reshard(x, P())

    last, steps = lax.scan(step, x, None, 3)
    return jnp.mean(jnp.asarray(last, F32) ** 2) + jnp.mean(jnp.asarray(steps, F32))


@pytest.mark.parametrize(
    ("f", "devices"),
    [
        (scanned, 8),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in ((resharded, 8), (embedded, 8), (resharded, 1))
        ),
    ],
)
def test_programs_under_a_mesh_with_explicit_axes(f, devices):
    """The error of a gradient is near that of the compiled program."""
    axis_types = (jax.sharding.AxisType.Explicit,)
    chosen = jax.devices()[:devices]
    mesh = jax.make_mesh((devices,), ("data",), axis_types=axis_types, devices=chosen)
    draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape, BF16)
    g = jax.grad(f, 1)
    with jax.set_mesh(mesh):
        x, w = jax.device_put(draw(0, 8, 4), P("data")), draw(1, 4, 4)
        error = dtypeguard.audit_precision(g, x, w).error
        made, exact = (
            np.asarray(jax.jit(g)(x.astype(d), w.astype(d)), np.float32)
            for d in (BF16, F32)
        )
    off = np.linalg.norm(made - exact) / np.linalg.norm(exact)
    assert error / 4 < off < 4 * error
