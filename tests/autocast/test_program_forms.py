"""A program keeps its form: as written it is the same HLO, and narrow it is narrow."""

import functools

import jax
import jax.numpy as jnp
import pytest
from dots import dots
from hlo import optimized_hlo
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import dtypeguard
from dtypeguard import Plan
from dtypeguard._autocast.plan import PlanEntry

_BFLOAT16 = jnp.dtype("bfloat16")
_W, _X = jnp.eye(8) + 0.1, jnp.linspace(0.0, 1.0, 32).reshape(4, 8)


def plain(w, x):
    return jnp.tanh(x @ w)


def jitted(w, x):
    return jax.jit(plain, inline=False)(w, x) + 1


def donated(w, x):
    step = jax.jit(lambda w, x: w - 0.1 * (x.T @ (x @ w)), donate_argnums=0)
    return step(w * 2, x)


def scanned(w, x):
    body = lambda x, y: (jnp.tanh(x @ w), jnp.sum(x + y))
    return lax.scan(body, x, jnp.arange(6.0), unroll=2, reverse=True)


def nested(w, x):
    inner = lambda x, _: (plain(w, x), None)
    outer = lambda x, _: (lax.scan(inner, x, None, length=3)[0], x[0, 0])
    return lax.scan(outer, x, None, length=2)


def looped(w, x):
    return lax.while_loop(lambda c: c[1] < 3, lambda c: (plain(w, c[0]), c[1] + 1), (x, 0))


def branched(w, x):
    return lax.cond(x[0, 0] < 0.5, lambda x: x @ w, lambda x: x * 2, x)


def switched(w, x):
    branches = [lambda x: x @ w, lambda x: x * 2, lambda x: plain(w, x)]
    return lax.switch(jnp.int32(x[0, 1] * 2), branches, x)


def rematted(w, x):
    layer = lambda x: jnp.sin(jnp.sin(x @ w) @ w)
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    x = jax.checkpoint(layer, policy=policy)(x)
    return jax.checkpoint(layer, prevent_cse=False)(x)


def rematted_in_a_scan(w, x):
    layer = jax.checkpoint(lambda x, _: (jnp.sin(x @ w), None), prevent_cse=False)
    return lax.scan(layer, x, None, length=3)


@jax.custom_vjp
def _clipped(w, x):
    return jnp.tanh(x @ w)


def _forward(w, x):
    y = x @ w
    return jnp.tanh(y), (w, x, y)


def _backward(kept, g):
    w, x, y = kept
    g = jnp.clip(g / jnp.cosh(y) ** 2, -1, 1)
    return x.T @ g, g @ w.T


_clipped.defvjp(_forward, _backward)


def own_vjp(w, x):
    return _clipped(w, x) * 2


@jax.custom_jvp
def _squared(w, x):
    return (x @ w) ** 2


@_squared.defjvp
def _squared_jvp(primals, tangents):
    (w, x), (dw, dx) = primals, tangents
    y = x @ w
    return y**2, 2 * y * (dx @ w + x @ dw)


def own_jvp(w, x):
    return _squared(w, x) + jax.nn.relu(x @ w)


def sharded(w, x):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (PartitionSpec(), PartitionSpec("data"))

    def body(w, x):
        return lax.psum(jnp.sum(plain(w, x)), "data")

    mapped = functools.partial(jax.shard_map, mesh=mesh, in_specs=specs)
    return mapped(body, out_specs=PartitionSpec())(w, x)


def constrained(w, x):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    y = lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("data")))
    return y @ w


def convolved(w, x):
    image = x.reshape(1, 4, 4, 2)
    kernel = w.reshape(2, 2, 2, 8)
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=numbers
    )


def scoped(w, x):
    with jax.named_scope("layer"):
        return jnp.einsum("ij,jk->ik", x, w)


def vmapped(w, x):
    return jax.vmap(lambda row: jax.nn.gelu(row @ w))(x)


def gradient(w, x):
    return jax.grad(lambda w: jnp.sum(plain(w, x) ** 2))(w)


_FORMS = [
    plain,
    jitted,
    donated,
    scanned,
    nested,
    looped,
    branched,
    switched,
    rematted,
    rematted_in_a_scan,
    own_vjp,
    own_jvp,
    sharded,
    constrained,
    convolved,
    scoped,
    vmapped,
    gradient,
]
_NOT_REVERSED = (looped,)
_INSIDE = "plain", "_clipped", "_forward", "_backward", "_squared", "_squared_jvp"
_IN_FILE = "tests/autocast/test_program_forms.py"


def _as_written(form):
    entries = tuple(PlanEntry(f"{_IN_FILE}:{x}") for x in (form.__name__, *_INSIDE))
    return Plan(_BFLOAT16, entries=entries)


def _loss(form):
    def loss(w, x):
        leaves = jax.tree_util.tree_leaves(form(w, x))
        return sum(jnp.sum(y**2) for y in leaves if jnp.issubdtype(y.dtype, jnp.floating))

    return loss


@pytest.fixture
def unchecked(monkeypatch):
    """A plan of many entries, of which a form has few."""
    monkeypatch.setattr("dtypeguard._autocast.matching.Matcher.check", lambda self: None)


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.usefixtures("unchecked")
def test_as_written_is_the_same_program(form):
    cast = dtypeguard.autocast(form, _as_written(form))
    assert optimized_hlo(cast, _W, _X) == optimized_hlo(form, _W, _X)
    if form not in _NOT_REVERSED:
        bare, own = (jax.grad(_loss(each), (0, 1)) for each in (form, cast))
        assert optimized_hlo(own, _W, _X) == optimized_hlo(bare, _W, _X)


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("default", ["products", "all"])
def test_products_are_narrow(form, default):
    cast = dtypeguard.autocast(form, Plan(_BFLOAT16, default))
    bare = jax.eval_shape(form, _W, _X)
    assert jax.eval_shape(cast, _W, _X) == bare
    products = dots(cast, _W, _X)
    assert products
    assert all(each == "bfloat16" for x in products for each in x[:2])
    if form not in _NOT_REVERSED:
        loss = jax.grad(_loss(cast), (0, 1))
        assert [x.dtype for x in jax.eval_shape(loss, _W, _X)] == ["float32", "float32"]
        products = dots(loss, _W, _X)
        bare = dots(jax.grad(_loss(form), (0, 1)), _W, _X)
        assert len(products) == len(bare)
        assert all(each == "bfloat16" for x in products for each in x[:2])


@pytest.mark.parametrize("form", _FORMS)
def test_values(form):
    cast = dtypeguard.autocast(form, jnp.bfloat16)
    bare = form(_W, _X)
    for own, other in zip(*map(jax.tree_util.tree_leaves, (cast(_W, _X), bare))):
        assert own.dtype == other.dtype
        assert jnp.allclose(own, other, rtol=0.1, atol=0.1)
