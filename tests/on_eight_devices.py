"""Run by test_devices.py in a process of its own, with eight simulated CPU devices.

Data-parallel and fully sharded training, bare and guarded: the same shardings, the same
collectives, the same numbers.
"""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import dtypeguard

COLLECTIVES = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
MESH = Mesh(np.array(jax.devices()).reshape(8), ("data",))
REPLICATED, SHARDED = (
    NamedSharding(MESH, PartitionSpec(*spec)) for spec in ((), ("data",))
)


def loss(params, batch):
    hidden = jnp.tanh(batch @ params["w"])
    return jnp.mean((hidden @ params["v"]) ** 2)


def train(opt, params, batch, shardings):
    """Final params and state, their shardings, and the collectives of a step."""

    def step(params, state, batch):
        grads = jax.grad(loss)(params, batch)
        updates, state = opt.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = jax.device_put(params, shardings)
    state = opt.init(params)
    on_mesh = lambda s: s if isinstance(s, NamedSharding) else REPLICATED
    like = tree_util.tree_map(lambda leaf: on_mesh(leaf.sharding), (params, state))
    state = jax.device_put(state, like[1])
    step = jax.jit(step, donate_argnums=(0, 1), out_shardings=like)
    text = step.lower(params, state, batch).compile().as_text()
    collectives = collections.Counter(re.findall(rf" ({COLLECTIVES})(?:-start)?\(", text))
    for _ in range(3):
        params, state = step(params, state, batch)
    return (params, state), like, collectives


def main():
    assert len(jax.devices()) == 8
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(16, 32)), "v": rng.normal(size=(32, 8))}
    params = tree_util.tree_map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    batch = jax.device_put(jnp.asarray(rng.normal(size=(64, 16)), jnp.float32), SHARDED)
    optimizers = {
        "adam": optax.adam(1e-2),
        "adamw in a chain": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2)),
        "lamb": optax.lamb(1e-2),
        "MultiSteps": optax.MultiSteps(optax.adam(1e-2), 2),
    }
    for name, opt in optimizers.items():
        for layout in (REPLICATED, SHARDED):
            copy = lambda: tree_util.tree_map(jnp.copy, params)
            bare, bare_shardings, bare_collectives = train(opt, copy(), batch, layout)
            guarded, shardings, collectives = train(
                dtypeguard.guard(opt), copy(), batch, layout
            )
            assert shardings == bare_shardings, name
            assert collectives == bare_collectives, name
            for one, other in zip(*map(tree_util.tree_leaves, (bare, guarded))):
                assert one.dtype == other.dtype, name
                assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), name
            print(f"{name}, {layout.spec}: {dict(collectives)}")
    # The rest of the contract, sharded: bfloat16 params, float32 gradients, one program.
    opt = dtypeguard.guard(optax.adam(1e-2))
    narrow = tree_util.tree_map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    (_, state), shardings, _ = train(opt, narrow, batch.astype(jnp.bfloat16), SHARDED)
    assert state[0].mu["w"].dtype == jnp.bfloat16
    assert state[0].mu["w"].sharding == shardings[1][0].mu["w"]
    print("done")


if __name__ == "__main__":
    main()
