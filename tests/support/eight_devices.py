"""Run by test_devices.py with eight simulated devices: prints one line of JSON a case.

For most cases no sharding of an output is asked for: what XLA gives state and updates, bare
and guarded. Besides, it compares rounding on eight devices with that on one.
"""

import collections
import functools
import itertools
import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, tree_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from dtypeguard import Policy, apply_updates, guard, multi_steps, prodigy

BF16, F32 = jnp.bfloat16, jnp.float32
COLLECTIVES = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
SPECS = {"w": P("data", "model"), "v": P("model", "data"), "b": P(("data", "model"))}
# Moments and a counter, one that contracts over sharded axes, and dtypeguard's own two.
OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda: optax.adamw(1e-2),
    "muon": lambda: optax.contrib.muon(1e-2),
    "multi_steps": lambda: multi_steps(optax.adam(1e-2), 2),
    "prodigy": lambda: prodigy(),
}


def loss(params, batch):
    hidden = jnp.tanh(batch @ params["w"])
    return jnp.mean((hidden @ params["v"] + params["b"]) ** 2)


def make_params(dtype):
    rng = np.random.default_rng(0)
    shapes = {"w": (16, 32), "v": (32, 8), "b": (8,)}
    return {k: jnp.asarray(rng.normal(size=shape), dtype) for k, shape in shapes.items()}


def make_batch():
    return jnp.asarray(np.random.default_rng(1).normal(size=(64, 16)), F32)


def shardings(tree):
    return [
        f"{tree_util.keystr(path)}: {getattr(leaf.sharding, 'spec', 'one device')}"
        for path, leaf in tree_util.tree_flatten_with_path(tree)[0]
    ]


def bits(tree):
    return [np.asarray(leaf).tobytes().hex() for leaf in tree_util.tree_leaves(tree)]


def dtypes(tree):
    return [str(leaf.dtype) for leaf in tree_util.tree_leaves(tree)]


def collectives(compiled):
    found = re.findall(rf" ({COLLECTIVES})(?:-start)?\(", compiled.as_text())
    return dict(sorted(collections.Counter(found).items()))


def donated(opt, dtype, specs):
    """Three donated steps: layouts of init, of the state and of the updates, and bits."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    place = lambda spec: NamedSharding(mesh, spec)
    layout = {name: place(spec) for name, spec in specs.items()}
    params = jax.device_put(make_params(dtype), layout)
    batch = jax.device_put(make_batch(), place(P("data")))

    def step(params, state, batch):
        wide = tree_util.tree_map(lambda p: p.astype(F32), params)
        grads = jax.grad(loss)(wide, batch)
        updates, state = opt.update(grads, state, params)
        return optax.apply_updates(params, updates), state, updates

    state = opt.init(params)
    told: dict[str, Any] = {"init": shardings(state)}
    jitted: Any = jax.jit(step, donate_argnums=(0, 1))
    updates = None
    compiled = jitted.lower(params, state, batch).compile()
    told["collectives"] = collectives(compiled)
    told["donated bytes"] = compiled.memory_analysis().alias_size_in_bytes
    told["deleted"] = []
    for _ in range(3):
        given = tree_util.tree_leaves((params, state))
        params, state, updates = jitted(params, state, batch)
        told["deleted"].append([leaf.is_deleted() for leaf in given])
    told |= {"state": shardings(state), "updates": shardings(updates)}
    told |= {"params": shardings(params), "bits": bits((params, state, updates))}
    return told | {"dtypes": dtypes(state), "programs": jitted._cache_size()}


def in_shard_map(opt, dtype):
    """State kept in shards of rows: gradients scattered, updates gathered, in a scan."""
    mesh = Mesh(np.array(jax.devices()), ("data",))

    def train(params, batch):
        number = lax.axis_index("data")
        rows = {name: len(leaf) // 8 for name, leaf in params.items()}
        mine = {
            name: lax.dynamic_slice_in_dim(leaf, number * rows[name], rows[name])
            for name, leaf in params.items()
        }

        def step(carry, _):
            mine, state = carry
            gather = lambda leaf: lax.all_gather(leaf, "data", tiled=True)
            whole = tree_util.tree_map(lambda p: gather(p).astype(F32), mine)
            grads = jax.grad(loss)(whole, batch)
            scatter = lambda leaf: lax.psum_scatter(leaf, "data", tiled=True) / 8
            grads = tree_util.tree_map(scatter, grads)
            updates, state = opt.update(grads, state, mine)
            return (optax.apply_updates(mine, updates), state), None

        (mine, state), _ = lax.scan(step, (mine, opt.init(mine)), None, length=3)
        arrays = [leaf for leaf in tree_util.tree_leaves(state) if leaf.ndim]
        return mine, arrays

    mapped = jax.shard_map(train, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    compiled = jax.jit(mapped).lower(make_params(dtype), make_batch()).compile()
    out = compiled(
        *jax.device_put(
            (make_params(dtype), make_batch()),
            (NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))),
        )
    )
    told = {"collectives": collectives(compiled), "layout": shardings(out)}
    return told | {"bits": bits(out), "dtypes": dtypes(out)}


def rounded():
    """All-bfloat16 training against one device (bits) and bare float32 (collectives)."""
    policy = Policy(
        compute_dtype=F32, state_dtype=BF16, updates_dtype=F32, rounding="stochastic"
    )
    noisy = guard(optax.adamw(1e-2), policy=policy)
    noise = lambda n: jax.random.fold_in(jax.random.key(3), n)
    add = lambda params, updates, n: apply_updates(params, updates, key=noise(n))
    plain = lambda params, updates, _: optax.apply_updates(params, updates)
    on_one, _ = trained(noisy, BF16, add, on_one_device)
    ours, found = trained(noisy, BF16, add, by_rows)
    _, bare = trained(optax.adamw(1e-2), F32, plain, by_rows)
    same = [a == b for a, b in zip(bits(on_one), bits(ours))]
    return {"same": same, "collectives": (found, bare), "rows": rows(ours[0]["w"])}


def trained(opt, dtype, apply, place):
    """Final params and state, and a step's collectives.

    The loss is linear, so that gradients are sums of a few bits: exact, in whatever order.
    """
    params = {"w": jnp.linspace(-1, 1, 48 * 24).reshape(48, 24), "b": jnp.ones(24)}
    params = place(tree_util.tree_map(lambda p: p.astype(dtype), params))
    carry = params, place(opt.init(params))

    def linear(params, batch):
        inputs, targets = batch
        wide = tree_util.tree_map(lambda p: p.astype(F32), params)
        return jnp.mean(jnp.sum((inputs @ wide["w"] + wide["b"]) * targets, axis=1))

    def step(carry, batch, number):
        params, state = carry
        updates, state = opt.update(jax.grad(linear)(params, batch), state, params)
        return apply(params, updates, number), state

    layout = tree_util.tree_map(lambda leaf: leaf.sharding, carry)
    step = jax.jit(step, donate_argnums=0, out_shardings=layout)
    rng, compiled = np.random.default_rng(0), None
    for number in range(5):
        signs = [rng.integers(-1, 2, (64, n)).astype(np.float32) for n in (48, 24)]
        args = carry, place(signs), number
        compiled = compiled or step.lower(*args).compile()
        carry = step(*args)
    return carry, collectives(compiled)


def by_rows(tree):
    mesh = Mesh(np.array(jax.devices()), ("data",))
    spec = lambda x: P("data") if x.ndim and x.shape[0] % 8 == 0 else P()
    place = lambda x: jax.device_put(x, NamedSharding(mesh, spec(x)))
    return tree_util.tree_map(place, tree)


def on_one_device(tree):
    return jax.device_put(tree, jax.devices()[0])


def rows(array):
    return [shard.data.shape[0] for shard in array.addressable_shards]


# Bare, it fails there in float32 as well: it starts from one estimate that varies over no
# axis.
FAIL_BARE = {"in_shard_map": ("prodigy",)}
CASES: dict[str, Any] = {
    "fully_sharded": functools.partial(donated, specs=SPECS),
    "in_shard_map": in_shard_map,
}


def main():
    assert len(jax.devices()) == 8
    for case, (name, make) in itertools.product(CASES, OPTIMIZERS.items()):
        for dtype in (F32, BF16) if name == "adamw" else (F32,):
            told: dict[str, Any] = {"case": case, "name": name}
            told["dtype"] = jnp.dtype(dtype).name
            for how, wrap in (("bare", lambda opt: opt), ("guarded", guard)):
                try:
                    told[how] = CASES[case](wrap(make()), dtype)
                except Exception as error:
                    told[how] = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(told))
    print(json.dumps({"case": "rounded", **rounded()}))


if __name__ == "__main__":
    main()
