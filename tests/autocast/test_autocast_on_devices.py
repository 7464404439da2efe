"""autocast on eight simulated devices: in which dtypes gradients communicate.

Collectives are those of the program after the partitioner: the optimized HLO of a CPU has
none in bfloat16, whatever was asked for.
"""

import collections
import functools
import pathlib
import re
import tempfile

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from dtypeguard import Plan, autocast

BF16 = jnp.dtype("bfloat16")
COLLECTIVE = re.compile(r"= \(?(\w+)\[[\d,]*\].* (all-reduce|reduce-scatter|all-gather)\(")
# Whole parameters and a split batch; or the parameters are split as well.
LAYOUTS = {"data": P(), "fsdp": P("data", None)}


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


BARE, BY_HAND = jax.grad(loss), jax.grad(narrow)
AUTOCAST = {
    "products": jax.grad(autocast(loss, BF16)),
    "all": jax.grad(autocast(loss, Plan(BF16, "all"))),
    "of the gradient": autocast(jax.grad(loss), Plan(BF16, "all")),
    "in shards": jax.grad(autocast(in_shards, Plan(BF16, "all"))),
}


@functools.cache
def partitioned(function, layout):
    """Of a partitioned program: how many collectives of which dtype, shardings, values."""
    mesh = Mesh(jax.devices(), ("data",))
    put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
    draw = functools.partial(jax.random.normal, jax.random.key(0))
    args = [put(draw(shape), layout) for shape in ((16, 32), (32, 16))]
    args = args, put(draw((64, 16)), P("data"))
    with tempfile.TemporaryDirectory() as folder:
        dump = {"xla_dump_to": folder, "xla_dump_hlo_pass_re": ".*partition.*"}
        unique = lambda *args: function(*args)
        unique.__name__ = pathlib.Path(folder).name  # what is cached dumps nothing
        made = jax.jit(unique).lower(*args).compile(compiler_options=dump)(*args)
        (path,) = pathlib.Path(folder).glob("*.after_spmd-partitioning.*.txt")
        found = COLLECTIVE.findall(path.read_text())
    sizes = sum(float(jnp.sum(abs(x))) for x in made)
    return collections.Counter(map(" ".join, found)), [x.sharding for x in made], sizes


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("function", AUTOCAST.values(), ids=AUTOCAST)
def test_gradients_are_added_up_in_float32(function, layout):
    """And have the shardings and the values of the program."""
    counts, *made = partitioned(function, layout)
    # What is written by hand is not: the test would see it.
    by_hand, *_ = partitioned(BY_HAND, layout)
    assert by_hand["bf16 all-reduce"] == 2
    assert (counts["f32 all-reduce"], counts["bf16 all-reduce"]) == (2, 0)
    _, shardings, size = partitioned(BARE, layout)
    assert made == [shardings, pytest.approx(size, rel=0.01)]
    if layout != P() and function is not AUTOCAST["in shards"]:  # gathered narrow
        # The barriers that a CPU needs may keep two gatherings of a value apart.
        least = by_hand["bf16 all-gather"]
        assert least <= counts["bf16 all-gather"] <= 2 * least
        assert counts["f32 all-gather"] == 0
