"""Run by test_devices.py with eight simulated devices: prints the collectives of gradients.

They are those of the program after the partitioner: the optimized HLO of a CPU has none
in bfloat16, whatever was asked for.
"""

import collections
import json
import os
import pathlib
import re
import tempfile

DUMP = tempfile.mkdtemp()
os.environ["XLA_FLAGS"] += f" --xla_dump_to={DUMP} --xla_dump_hlo_pass_re=.*partition.*"

import jax  # noqa: E402 (after the flags)
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

from dtypeguard import Plan, autocast  # noqa: E402

jax.config.update("jax_enable_compilation_cache", False)  # which dumps nothing
BF16 = jnp.dtype("bfloat16")
COLLECTIVE = re.compile(r"= \(?(\w+)\[[\d,]*\].* (all-reduce|reduce-scatter|all-gather)\(")
# Whole parameters and a split batch; or the parameters are split as well.
LAYOUTS = {"data": (P(), P()), "fsdp": (P("data", None), P("data", None))}


def loss(params, x):
    w, v = params
    return jnp.mean((jax.nn.relu(x @ w) @ v) ** 2)


def narrow(params, x):
    """As one writes it by hand."""
    cast = lambda tree: jax.tree_util.tree_map(lambda y: y.astype(BF16), tree)
    return loss(cast(params), cast(x)).astype(jnp.float32)


def in_shards(params, x):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    of_shard = lambda params, x: jax.lax.pmean(loss(params, x), "data")
    mapped = jax.shard_map(of_shard, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    return mapped(params, x)


PROGRAMS = {
    "float32": jax.grad(loss),
    "by hand": jax.grad(narrow),
    "products": jax.grad(autocast(loss, BF16)),
    "all": jax.grad(autocast(loss, Plan(BF16, "all"))),
    "of the gradient": autocast(jax.grad(loss), Plan(BF16, "all")),
    "in shards": jax.grad(autocast(in_shards, Plan(BF16, "all"))),
}


def collectives(function, layout):
    """The collectives of a partitioned program: how many of which dtype."""
    mesh = Mesh(jax.devices(), ("data",))
    put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
    key = jax.random.key(0)
    shapes = (16, 32), (32, 16)
    params = [put(jax.random.normal(key, s), x) for s, x in zip(shapes, layout)]
    x = put(jax.random.normal(key, (64, 16)), P("data"))
    before = {*pathlib.Path(DUMP).iterdir()}
    made = jax.jit(function)(params, x)
    dumped = {*pathlib.Path(DUMP).iterdir()} - before
    texts = [
        path.read_text()
        for path in sorted(dumped)
        if "after_spmd-partitioning" in path.name and ".jit_" in path.name
    ]
    assert texts, [path.name for path in dumped]
    counts = collections.Counter(" ".join(x) for x in COLLECTIVE.findall(texts[-1]))
    shards = [str(x.sharding.spec) for x in made]
    return dict(counts), shards, sum(float(jnp.sum(abs(x))) for x in made)


for layout_name, layout in LAYOUTS.items():
    for name, function in PROGRAMS.items():
        counts, shards, size = collectives(function, layout)
        case = {"layout": layout_name, "program": name, "counts": counts}
        print(json.dumps({**case, "shards": shards, "size": size}), flush=True)
