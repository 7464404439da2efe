"""Trains on eight simulated devices and on one; run by test_sharding.py.

Prints, for replicated and for sharded params: whether the final params and state are those
of one device, bit for bit, and how many collectives the step compiles to, all-bfloat16
guarded and bare in float32.
"""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dtypeguard import Policy, apply_updates, guard

BF16, F32 = jnp.bfloat16, jnp.float32
STEPS, BATCH = 5, 64
POLICY = Policy(
    compute_dtype=F32, state_dtype=BF16, updates_dtype=F32, rounding="stochastic"
)
COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-\w+)(?:-start)?\("
)


def loss(params, batch):
    """Linear, so that gradients are sums of a few bits: exact, in whatever order."""
    inputs, targets = batch
    wide = tree_util.tree_map(lambda p: p.astype(F32), params)
    return jnp.mean(jnp.sum((inputs @ wide["w"] + wide["b"]) * targets, axis=1))


def step_of(opt, apply):
    def step(params, state, batch, number):
        updates, state = opt.update(jax.grad(loss)(params, batch), state, params)
        return apply(params, updates, number), state

    return jax.jit(step)


def with_noise(params, updates, number):
    key = jax.random.fold_in(jax.random.key(3), number)
    return apply_updates(params, updates, key=key)


def batches():
    generator = np.random.default_rng(0)
    for _ in range(STEPS):
        signs = (generator.integers(-1, 2, (BATCH, n)).astype(np.float32) for n in (48, 24))
        yield tuple(signs)


def train(step, opt, dtype, place, place_batch):
    params = {"w": jnp.linspace(-1, 1, 48 * 24).reshape(48, 24), "b": jnp.ones(24)}
    params = place(tree_util.tree_map(lambda p: p.astype(dtype), params))
    state = place(opt.init(params))
    for number, batch in enumerate(batches()):
        batch = place_batch(batch)
        args = (params, state, batch, number)
        params, state = step(*args)
    return (params, state), step.lower(*args).compile().as_text()


def main():
    devices = np.array(jax.devices())
    assert len(devices) == 8
    mesh = Mesh(devices, ("data",))
    everywhere = lambda *axes: NamedSharding(mesh, PartitionSpec(*axes))
    split = lambda x: everywhere("data") if x.ndim and x.shape[0] % 8 == 0 else everywhere()
    sharded = lambda tree: tree_util.tree_map(lambda x: jax.device_put(x, split(x)), tree)
    replicated = lambda tree: jax.device_put(tree, everywhere())
    single = lambda tree: jax.device_put(tree, devices[0])
    guarded, bare = guard(optax.adamw(1e-2), policy=POLICY), optax.adamw(1e-2)
    noisy = step_of(guarded, with_noise)
    plain = step_of(bare, lambda params, updates, _: optax.apply_updates(params, updates))
    expected, _ = train(noisy, guarded, BF16, single, single)
    told = {}
    for name, place in {"replicated": replicated, "sharded": sharded}.items():
        found, program = train(noisy, guarded, BF16, place, sharded)
        _, bare_program = train(plain, bare, F32, place, sharded)
        same = [
            np.asarray(a).tobytes() == np.asarray(b).tobytes()
            for a, b in zip(*map(tree_util.tree_leaves, (expected, found)))
        ]
        kinds = (sorted(COLLECTIVE.findall(text)) for text in (program, bare_program))
        told[name] = {"same": same, **dict(zip(("guarded", "bare"), kinds))}
        told[name]["spread"] = len(found[0]["w"].sharding.device_set)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
