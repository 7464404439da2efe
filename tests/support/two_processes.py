"""One of the processes of test_distributed.py, or the only one, of 4 devices in all.

Usage: two_processes.py PORT NUMBER COUNT. Prints, for bare and guarded, a digest of every
bit of params, state and updates, their shardings and the collectives of a step.
"""

import hashlib
import json
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import dtypeguard

COUNT = int(sys.argv[3])
if COUNT > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{sys.argv[1]}",
        num_processes=COUNT,
        process_id=int(sys.argv[2]),
        initialization_timeout=60,
    )

BF16, F32 = jnp.bfloat16, jnp.float32
COLLECTIVE = re.compile(r" (all-[a-z-]+|reduce-scatter|collective-[a-z-]+)\(")
MESH = Mesh(np.array(jax.devices()), ("data",))
SHARDED = NamedSharding(MESH, P("data"))
OPTIMIZERS = {
    "adamw": optax.adamw(1e-2),
    "MultiSteps": optax.MultiSteps(optax.adam(1e-2), 2),
}


def everywhere(array):
    """An array of this process's own on all devices, of which each holds a part."""
    return jax.make_array_from_callback(array.shape, SHARDED, lambda index: array[index])


def scalar(leaf):
    """A scalar of this process's own, on all devices."""
    value = np.asarray(leaf)
    return jax.make_array_from_callback((), NamedSharding(MESH, P()), lambda _: value)


def loss(params, batch):
    """Linear, so that gradients are sums of a few bits: exact, in whatever order."""
    scores = batch @ params["w"].astype(F32) + params["b"].astype(F32)
    return jnp.mean(scores * jnp.sign(batch[:, :8]))


def train(opt, dtype):
    rng = np.random.default_rng(0)
    params = {"w": rng.integers(-4, 5, (16, 8)) / 4, "b": np.ones(8)}
    params = {name: everywhere(leaf.astype(dtype)) for name, leaf in params.items()}
    batch = everywhere(rng.integers(-1, 2, (64, 16)).astype(np.float32))
    state = opt.init(params)
    state = tree_util.tree_map(lambda leaf: leaf if leaf.ndim else scalar(leaf), state)

    def step(params, state, batch):
        grads = jax.grad(loss)(params, batch)
        grads = tree_util.tree_map(lambda leaf: leaf.astype(F32), grads)
        updates, state = opt.update(grads, state, params)
        return optax.apply_updates(params, updates), state, updates

    step = jax.jit(step, donate_argnums=(0, 1))
    text = str(step.lower(params, state, batch).compile().as_text())
    updates = None
    for _ in range(3):
        params, state, updates = step(params, state, batch)
    out = params, state, updates
    whole = multihost_utils.process_allgather(out, tiled=True)
    hashed = hashlib.sha256()
    for leaf in tree_util.tree_leaves(whole):
        hashed.update(f"{leaf.dtype}{leaf.shape}".encode() + np.asarray(leaf).tobytes())
    return {
        "bits": hashed.hexdigest(),
        "shardings": [str(leaf.sharding.spec) for leaf in tree_util.tree_leaves(out)],
        "dtypes": [str(leaf.dtype) for leaf in tree_util.tree_leaves(state)],
        "collectives": sorted(COLLECTIVE.findall(text)),
    }


def main():
    assert len(jax.devices()) == 4
    assert jax.process_count() == COUNT
    for name, opt in OPTIMIZERS.items():
        for dtype in (F32, BF16) if name == "adamw" else (F32,):
            told: dict[str, Any] = {"name": name, "dtype": jnp.dtype(dtype).name}
            for how, made in (("bare", opt), ("guarded", dtypeguard.guard(opt))):
                told[how] = train(made, dtype)
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
