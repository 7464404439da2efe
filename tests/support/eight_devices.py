"""Trains on eight simulated devices; run by test_devices.py in a process of its own.

Prints as JSON, for replicated and for sharded params, data-parallel: all-bfloat16 training
with stochastic rounding against one device (numbers) and against bare float32
(collectives); and what an update of Prodigy by itself communicates.
"""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dtypeguard import Policy, apply_updates, guard, prodigy

BF16, F32 = jnp.bfloat16, jnp.float32
STEPS, BATCH = 5, 64
ALL_BF16 = Policy(
    compute_dtype=F32, state_dtype=BF16, updates_dtype=F32, rounding="stochastic"
)
COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-\w+)(?:-start)?\("
)
MESH = Mesh(np.array(jax.devices()), ("data",))
WHOLE, SPLIT = (NamedSharding(MESH, PartitionSpec(*axes)) for axes in ((), ("data",)))


def place_replicated(tree):
    return jax.device_put(tree, WHOLE)


def place_sharded(tree):
    by_rows = lambda x: SPLIT if x.ndim and x.shape[0] % 8 == 0 else WHOLE
    return tree_util.tree_map(lambda x: jax.device_put(x, by_rows(x)), tree)


def place_single(tree):
    return jax.device_put(tree, jax.devices()[0])


LAYOUTS = {"replicated": place_replicated, "sharded": place_sharded}


def loss(params, batch):
    """Linear, so that gradients are sums of a few bits: exact, in whatever order."""
    inputs, targets = batch
    wide = tree_util.tree_map(lambda p: p.astype(F32), params)
    return jnp.mean(jnp.sum((inputs @ wide["w"] + wide["b"]) * targets, axis=1))


def with_noise(params, updates, number):
    key = jax.random.fold_in(jax.random.key(3), number)
    return apply_updates(params, updates, key=key)


def plain(params, updates, _):
    return optax.apply_updates(params, updates)


def batches():
    generator = np.random.default_rng(0)
    for _ in range(STEPS):
        signs = (generator.integers(-1, 2, (BATCH, n)).astype(np.float32) for n in (48, 24))
        yield tuple(signs)


def train(opt, dtype, apply, place, place_batch=place_sharded):
    """Final params and state, and a step's collectives."""
    params = {"w": jnp.linspace(-1, 1, 48 * 24).reshape(48, 24), "b": jnp.ones(24)}
    params = place(tree_util.tree_map(lambda p: p.astype(dtype), params))
    carry = params, place(opt.init(params))

    def step(carry, batch, number):
        params, state = carry
        updates, state = opt.update(jax.grad(loss)(params, batch), state, params)
        return apply(params, updates, number), state

    shardings = tree_util.tree_map(lambda leaf: leaf.sharding, carry)
    step = jax.jit(step, donate_argnums=0, out_shardings=shardings)
    program = str(step.lower(carry, place_batch(next(batches())), 0).compile().as_text())
    for number, batch in enumerate(batches()):
        carry = step(carry, place_batch(batch), number)
    return carry, sorted(COLLECTIVE.findall(program))


def same(one, other):
    """Whether each leaf has the same type and bits, by path."""
    leaves = zip(tree_util.tree_flatten_with_path(one)[0], tree_util.tree_leaves(other))
    return {
        tree_util.keystr(path): a.dtype == b.dtype
        and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for (path, a), b in leaves
    }


def rows(array):
    return [shard.data.shape[0] for shard in array.addressable_shards]


def communication(opt, place):
    """The collectives of an update by itself, its gradients spread as the params."""
    params = {"w": jnp.linspace(-1, 1, 48 * 24).reshape(48, 24), "v": jnp.ones((24, 8))}
    args = place((params, opt.init(params), params))
    update = jax.jit(opt.update)
    (updates, state), program = update(*args), str(update.lower(*args).compile().as_text())
    kinds = COLLECTIVE.findall(program)
    # XLA may make one all-reduce of several, with a tuple of their values.
    values = re.findall(r"= \(?(.*?)\)? all-reduce(?:-start)?\(", program)
    sums = [value for group in values for value in re.findall(r"\w+\[[\d,]*\]", group)]
    spread = [rows(x) == rows(p) for x, p in zip(updates.values(), args[0].values())]
    alone = opt.update(*place_single((params, opt.init(params), params)))
    gap = lambda a, b: float(np.max(np.abs(a - b) / (1e-8 + np.abs(b))))
    found, expected = (jax.device_get(tree) for tree in ((updates, state), alone))
    gaps = tree_util.tree_leaves(tree_util.tree_map(gap, found, expected))
    return {"kinds": sorted(set(kinds)), "sums": sums, "spread": spread, "gap": max(gaps)}


def main():
    assert len(jax.devices()) == 8
    told = {"prodigy": communication(prodigy(weight_decay=0.1), place_sharded)}
    noisy = guard(optax.adamw(1e-2), policy=ALL_BF16)
    on_one, _ = train(noisy, BF16, with_noise, place_single, place_single)
    for layout, place in LAYOUTS.items():
        ours, collectives = train(noisy, BF16, with_noise, place)
        _, bare = train(optax.adamw(1e-2), F32, plain, place)
        told[layout] = {
            "same": same(on_one, ours),
            "collectives": (collectives, bare),
            "rows": rows(ours[0]["w"]),
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
