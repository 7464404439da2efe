"""Audits programs under a mesh with explicit axes, of all devices that there are.

Prints as JSON, by program, the error and the error of the compiled program.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import dtypeguard

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


def errors():
    axis_types = (jax.sharding.AxisType.Explicit,)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=axis_types)
    normal = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape).astype(
        BF16
    )
    found = {}
    with jax.set_mesh(mesh):
        x, w = jax.device_put(normal(0, 8, 4), P("data")), normal(1, 4, 4)
        for f in (resharded, embedded, scanned):
            for name, g in {
                f"{f.__name__}": f,
                f"gradient of {f.__name__}": jax.grad(f, 1),
            }.items():
                report = dtypeguard.audit_precision(g, x, w)
                made, exact = (
                    np.asarray(jax.jit(g)(x.astype(d), w.astype(d)), np.float32)
                    for d in (BF16, F32)
                )
                off = np.linalg.norm(made - exact) / np.linalg.norm(exact)
                found[name] = report.error, float(off)
    return found


if __name__ == "__main__":
    print(json.dumps(errors()))
