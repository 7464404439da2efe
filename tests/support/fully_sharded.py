"""Run by test_fully_sharded.py with eight simulated devices, one line of JSON a case.

Usage: fully_sharded.py CASE OPTIMIZER...

No sharding of an output is asked for: what XLA gives state and updates, bare and guarded.
"""

import collections
import functools
import json
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, tree_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import dtypeguard
from dtypeguard import guard

BF16, F32 = jnp.bfloat16, jnp.float32
COLLECTIVES = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
SPECS = {"w": P("data", "model"), "v": P("model", "data"), "b": P(("data", "model"))}
WHOLE = dict.fromkeys(SPECS, P())
OPTIMIZERS = {
    "adamw": lambda: optax.adamw(1e-2),
    "clipped lamb": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.lamb(1e-2)),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=8),
    "muon": lambda: optax.contrib.muon(1e-2),
    "lbfgs": lambda: optax.lbfgs(1e-2, linesearch=None),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(1e-2), 2),
    "multi_steps": lambda: dtypeguard.multi_steps(optax.adam(1e-2), 2),
    "prodigy": lambda: dtypeguard.prodigy(),
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


def explicit(opt, dtype):
    """Meshes whose shardings are part of the types, and a scan, which compares those."""
    axes = (jax.sharding.AxisType.Explicit,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=axes)
    with jax.set_mesh(mesh):
        place = lambda leaf: jax.device_put(leaf, P("data", *[None] * (leaf.ndim - 1)))
        params = tree_util.tree_map(place, make_params(dtype))

        def step(carry, _):
            params, state = carry
            grads = tree_util.tree_map(lambda p: 2 * p.astype(F32), params)
            updates, state = opt.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        train = jax.jit(lambda p: lax.scan(step, (p, opt.init(p)), None, length=3)[0])
        out = train(params)
        return {"layout": shardings(out), "bits": bits(out), "dtypes": dtypes(out)}


# Bare, these fail there in float32 as well: muon and L-BFGS contract over sharded axes,
# and L-BFGS starts from zeros that vary over no axis, as Prodigy does from one estimate.
FAIL_BARE = {"in_shard_map": ("lbfgs", "prodigy"), "explicit": ("lbfgs", "muon")}


def main(case, names):
    assert len(jax.devices()) == 8
    for name in names:
        for dtype in (F32, BF16) if name in ("adamw", "multi_steps") else (F32,):
            told: dict[str, Any] = {"name": name, "dtype": jnp.dtype(dtype).name}
            for how, wrap in (("bare", lambda opt: opt), ("guarded", guard)):
                try:
                    told[how] = case(wrap(OPTIMIZERS[name]()), dtype)
                except Exception as error:
                    told[how] = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(told), flush=True)


CASES = {
    "fully_sharded": functools.partial(donated, specs=SPECS),
    "replicated": functools.partial(donated, specs=WHOLE),
    "in_shard_map": in_shard_map,
    "explicit": explicit,
}
if __name__ == "__main__":
    main(CASES[sys.argv[1]], sys.argv[2:])
