"""On the eight simulated devices of the tests: layouts, collectives and bits stay.

No sharding of an output is asked for, but where rounding is compared with that of one
device: it is what XLA gives state and updates, bare and guarded.
"""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax, tree_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from dtypeguard import Policy, apply_updates, guard, multi_steps, prodigy
from tests.support.dtypes import BF16, F32
from tests.support.helpers import dtypes, types

pytestmark = [pytest.mark.exhaustive, pytest.mark.third_party]
COLLECTIVES = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
SPECS = {"w": P("data", "model"), "v": P("model", "data"), "b": P(("data", "model"))}
ADAM, MESH = optax.adamw(1e-2), ("data", "model")
# Moments and a counter, one that contracts over sharded axes, and dtypeguard's own two.
OPTIMIZERS = {
    "adamw": ADAM,
    "muon": optax.contrib.muon(1e-2),
    "multi_steps": multi_steps(optax.adam(1e-2), 2),
    "prodigy": prodigy(),
}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def make_mesh(*sizes):
    return Mesh(np.array(jax.devices()).reshape(sizes), MESH[: len(sizes)])


def loss(params, batch):
    return jnp.mean((jnp.tanh(batch @ params["w"]) @ params["v"] + params["b"]) ** 2)


RNG = np.random.default_rng(0)
SHAPES = {"w": (16, 32), "v": (32, 8), "b": (8,)}
PARAMS = jax.device_put({k: RNG.normal(size=shape) for k, shape in SHAPES.items()})
BATCH = jax.device_put(RNG.normal(size=(64, 16)))


def make_params(dtype):
    return {name: leaf.astype(dtype) for name, leaf in PARAMS.items()}


def wide(tree):
    return tree_util.tree_map(lambda leaf: leaf.astype(F32), tree)


def shardings(tree):
    return [
        f"{tree_util.keystr(path)}: {getattr(leaf.sharding, 'spec', 'one device')}"
        for path, leaf in tree_util.tree_flatten_with_path(tree)[0]
    ]


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in tree_util.tree_leaves(tree)]


def collectives(compiled):
    found = re.findall(rf" ({COLLECTIVES})(?:-start)?\(", compiled.as_text())
    return collections.Counter(found)


def donated(opt, dtype):
    """Three donated steps on a mesh of 4 by 2: facts, what was donated, the state."""
    mesh = make_mesh(4, 2)
    place = lambda spec: NamedSharding(mesh, spec)
    params = jax.device_put(make_params(dtype), {k: place(s) for k, s in SPECS.items()})
    batch = jax.device_put(BATCH, place(P("data")))

    def step(params, state, batch):
        updates, state = opt.update(jax.grad(loss)(wide(params), batch), state, params)
        return optax.apply_updates(params, updates), state, updates

    state, updates, deleted = opt.init(params), None, []
    facts = {"init": shardings(state)}
    jitted = jax.jit(step, donate_argnums=(0, 1))
    facts["collectives"] = collectives(jitted.lower(params, state, batch).compile())
    for _ in range(3):
        given = tree_util.tree_leaves((params, state))
        params, state, updates = jitted(params, state, batch)
        deleted.append([leaf.is_deleted() for leaf in given])
    facts["carry"] = shardings((params, state, updates))
    return facts, (deleted, jitted._cache_size(), bits((params, state, updates))), state


@every_optimizer
def test_sharded_and_donated(name):
    """The guard leaves layouts and collectives alone, and what is donated."""
    opt = OPTIMIZERS[name]
    for dtype in (F32, BF16) if opt is ADAM else (F32,):
        bare, ours = donated(opt, dtype), donated(guard(opt), dtype)
        assert bare[0] == ours[0]
        assert "all-gather" in ours[0]["collectives"]
        assert any("'data', 'model'" in leaf for leaf in ours[0]["carry"])
        assert sum(ours[1][0][-1]) >= sum(bare[1][0][-1]) > 6
        if dtype == F32:
            assert bare[1] == ours[1]
        else:
            assert "float32" in dtypes(bare[2])
            assert dtypes(ours[2]) == {"int32", "bfloat16"}


def in_shard_map(opt, dtype):
    """State kept in shards of rows: gradients scattered, updates gathered, in a scan."""
    mesh = make_mesh(8)

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
            grads = jax.grad(loss)(wide(tree_util.tree_map(gather, mine)), batch)
            scatter = lambda leaf: lax.psum_scatter(leaf, "data", tiled=True) / 8
            grads = tree_util.tree_map(scatter, grads)
            updates, state = opt.update(grads, state, mine)
            return (optax.apply_updates(mine, updates), state), None

        (mine, state), _ = lax.scan(step, (mine, opt.init(mine)), None, length=3)
        return mine, [leaf for leaf in tree_util.tree_leaves(state) if leaf.ndim]

    mapped = jax.shard_map(train, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    args = make_params(dtype), BATCH
    compiled = jax.jit(mapped).lower(*args).compile()
    places = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    out = compiled(*jax.device_put(args, places))
    return collectives(compiled), shardings(out), bits(out), dtypes(out)


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="needs JAX >= 0.7")
@every_optimizer
def test_in_shard_map(name):
    """Sharded state in a scan: no collective more, the same bits."""
    opt = OPTIMIZERS[name]
    if name == "prodigy":  # it starts from one estimate that varies over no axis
        with pytest.raises(TypeError, match="carry"):
            in_shard_map(opt, F32)
        return
    ours = in_shard_map(guard(opt), F32)
    assert ours == in_shard_map(opt, F32)
    assert ours[0] == {"all-gather": 3, "reduce-scatter": 3}
    if opt is ADAM:
        with pytest.raises(TypeError, match="dtypes do not match"):
            in_shard_map(opt, BF16)
        assert in_shard_map(guard(opt), BF16)[-1] == {"bfloat16"}


def trained(opt, dtype, apply, place):
    """Final params and state, and a step's collectives.

    The loss is linear, so that gradients are sums of a few bits: exact, in whatever order.
    """
    params = {"w": jnp.linspace(-1, 1, 48 * 24).reshape(48, 24), "b": jnp.ones(24)}
    params = place(tree_util.tree_map(lambda p: p.astype(dtype), params))
    carry = params, place(opt.init(params))

    def linear(params, batch):
        inputs, targets = batch
        outputs = inputs @ params["w"] + params["b"]
        return jnp.mean(jnp.sum(outputs * targets, axis=1))

    def step(carry, batch, number):
        params, state = carry
        updates, state = opt.update(jax.grad(linear)(wide(params), batch), state, params)
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
    mesh = make_mesh(8)
    spec = lambda x: P("data") if x.ndim and x.shape[0] % 8 == 0 else P()
    place = lambda x: jax.device_put(x, NamedSharding(mesh, spec(x)))
    return tree_util.tree_map(place, tree)


def test_stochastic_rounding_is_that_of_one_device():
    """All in bfloat16: the bits of one device, the collectives of bare float32."""
    policy = Policy(
        compute_dtype=F32, state_dtype=BF16, updates_dtype=F32, rounding="stochastic"
    )
    noise = lambda n: jax.random.fold_in(jax.random.key(3), n)
    add = lambda params, updates, n: apply_updates(params, updates, key=noise(n))
    noisy = functools.partial(trained, guard(ADAM, policy=policy), BF16, add)
    on_one, _ = noisy(lambda tree: jax.device_put(tree, jax.devices()[0]))
    ours, found = noisy(by_rows)
    _, bare = trained(ADAM, F32, lambda p, u, _: optax.apply_updates(p, u), by_rows)
    assert [x.data.shape[0] for x in ours[0]["w"].addressable_shards] == [6] * 8
    assert (types(ours), bits(ours)) == (types(on_one), bits(on_one))
    assert found == bare != {}
