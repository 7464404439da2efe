"""A program keeps its form: as written it is the same HLO, and narrow it is narrow."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from dtypeguard import Plan, autocast
from tests.support.dots import W, X, dots
from tests.support.hlo import optimized_hlo
from tests.support.own_rules import counted, powered


def donated(w, x):
    return jax.jit(lambda w, x: w - 0.1 * (x.T @ (x @ w)), donate_argnums=0)(w * 2, x)


def scanned(w, x):
    body = lambda x, y: (jnp.tanh(x @ w), jnp.sum(x + y))
    return lax.scan(body, x, jnp.arange(6.0), unroll=2, reverse=True)


def looped(w, x):
    turn = lambda carry: (jnp.tanh(carry[0] @ w), carry[1] + 1)
    return lax.while_loop(lambda carry: carry[1] < 3, turn, (x, 0))


def branched(w, x):
    branches = [lambda x: x @ w, lambda x: x * 2, lambda x: jnp.tanh(x @ w)]
    return lax.switch(jnp.int32(x[0, 1] * 2), branches, x)


def rematted(w, x):
    layer = lambda x: jnp.sin(jnp.sin(x @ w) @ w)
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    x = jax.checkpoint(layer, policy=policy)(x)
    return jax.checkpoint(layer, prevent_cse=False)(x)


def own_vjp(w, x):
    return counted(jnp.tanh, w, x, jnp.arange(4))[0] * 2


def own_jvp(w, x):
    return powered(w, x, 2) + jax.nn.relu(x @ w)


def _mesh():
    return jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def sharded(w, x):
    body = lambda w, x: lax.psum(jnp.sum(jnp.tanh(x @ w)), "data")
    specs = (PartitionSpec(), PartitionSpec("data"))
    mapped = functools.partial(jax.shard_map, mesh=_mesh(), in_specs=specs)
    return mapped(body, out_specs=PartitionSpec())(w, x)


def constrained(w, x):
    sharding = NamedSharding(_mesh(), PartitionSpec("data"))
    return lax.with_sharding_constraint(x, sharding) @ w


def convolved(w, x):
    image, kernel = x.reshape(1, 4, 4, 2), w.reshape(2, 2, 2, 8)
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=numbers
    )


_FORMS = [
    donated,
    scanned,
    looped,
    branched,
    rematted,
    own_vjp,
    own_jvp,
    sharded,
    constrained,
    convolved,
]


# Products of these are lines of another file.
_RULES = {own_vjp: "own_rules.py:counted", own_jvp: "own_rules.py:powered"}


def _gradient(form):
    def loss(w, x):
        leaves = jax.tree_util.tree_leaves(form(w, x))
        return sum(jnp.sum(y**2) for y in leaves if jnp.issubdtype(y.dtype, jnp.floating))

    return jax.grad(loss, (0, 1))


@pytest.mark.parametrize("form", _FORMS)
def test_as_written_is_the_same_program(form):
    place = f"tests/autocast/test_program_forms.py:{form.__name__}"
    cast = autocast(form, dict.fromkeys([place, _RULES.get(form, place)], "float32"))
    assert optimized_hlo(cast, W, X) == optimized_hlo(form, W, X)
    if form is not looped:
        own, bare = (optimized_hlo(_gradient(f), W, X) for f in (cast, form))
        assert own == bare


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("default", ["products", "all"])
def test_products_are_narrow(form, default):
    cast = autocast(form, Plan("bfloat16", default))
    for own, bare in zip(*(jax.tree.leaves(f(W, X)) for f in (cast, form))):
        assert own.dtype == bare.dtype
        assert jnp.allclose(own, bare, rtol=0.1, atol=0.1)
    pairs = [(cast, form)]
    pairs += [] if form is looped else [(_gradient(cast), _gradient(form))]
    for narrow, bare in pairs:
        assert jax.eval_shape(narrow, W, X) == jax.eval_shape(bare, W, X)
        products = dots(narrow, W, X)
        assert len(products) == len(dots(bare, W, X)) > 0
        assert {dtype for x in products for dtype in x[:2]} == {"bfloat16"}
