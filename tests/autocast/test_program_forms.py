"""A program keeps its form and its own rules of derivatives, as written and narrow."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from dtypeguard import Plan, autocast
from dtypeguard._program.program import Block
from dtypeguard._tracebacks.written import Written
from tests.support import clipped
from tests.support.dots import SIGNED, W, X, dots
from tests.support.dtypes import BF16, F32
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
    return lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
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


_COUNTS = jnp.arange(4)


@jax.custom_vjp
def rounded(x):
    return jnp.round(x)


rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))


def straight(w, x):
    return jnp.sum(rounded(x @ w) * (x @ w))


def of_integers(w, x):
    y, counts = jax.vmap(lambda x, n: counted(jnp.tanh, w, x[None], n[None]))(x, _COUNTS)
    return jnp.sum((y[:, 0] @ w) ** 2 / (1 + counts.astype(F32)))


def in_a_loop(w, x):
    layer = jax.checkpoint(
        lambda x, _: (x / 2 + counted(jnp.tanh, w, x, _COUNTS)[0] / 9, None)
    )
    return jnp.sum(lax.scan(layer, x, None, 3)[0] ** 2)


def of_tangents(w, x):
    return jnp.sum(jax.jit(lambda x: powered(w, x, 3))(x) @ w.T)


_LOSSES = straight, of_integers, in_a_loop, of_tangents


def _is_near(own, bare):
    return jnp.linalg.norm(own - bare) < 0.03 * jnp.linalg.norm(bare)


@pytest.mark.parametrize("default", ["products", "all"])
@pytest.mark.parametrize("loss", _LOSSES)
def test_both_sides_are_narrow(loss, default):
    plan = Plan("bfloat16", default)
    cast = autocast(loss, plan)
    of_cast, bare = (jax.grad(f, (0, 1)) for f in (cast, loss))
    cast_gradient = autocast(bare, plan)
    for each in (cast, of_cast, cast_gradient):
        assert {x for dot in dots(each, W, X) for x in dot[:2]} == {"bfloat16"}
    assert _is_near(cast(W, X), jax.jit(loss)(W, X))
    expected = jax.jit(bare)(W, X)
    for each in (of_cast, jax.jit(of_cast), cast_gradient):
        assert all(map(_is_near, each(W, X), expected))


def test_a_straight_through_gradient():
    """Run as its primal, `round` has no gradient: 0 in place of 2."""
    one = jnp.ones((2, 1))
    loss = lambda w: jnp.sum(rounded(one * 2 @ w[None]))
    cast = autocast(jax.jit(loss), BF16)
    for gradient in (
        jax.grad(cast),
        autocast(jax.grad(loss), BF16),
        jax.jit(jax.grad(lambda w: lax.map(cast, w[None])[0])),
    ):
        assert gradient(jnp.array([1.0, 1.0])).tolist() == [4, 4]


def test_own_casts_stay_on_both_sides():
    def loss(w, x):
        return jnp.sum(powered(w.astype(F32), x.astype(F32), 2))

    narrow = W.astype(BF16), X.astype(BF16)
    cast = autocast(loss, BF16)
    for f, g in ((cast, loss), (jax.grad(cast), jax.grad(loss))):
        assert dots(f, *narrow) == dots(g, *narrow)


def test_a_derivative_of_a_derivative_has_all_its_parts():
    loss = lambda w, x: jnp.sum(jnp.sin(powered(w, x, 3)))
    along = lambda f: jax.jvp(jax.grad(f), (W, X), (W / 2, X / 3))[1]
    expected, found = along(loss), along(autocast(loss, jnp.float16))
    assert jnp.linalg.norm(found - expected) < 0.01 * jnp.linalg.norm(expected)


def test_an_island_holds_where_its_rule_is_in_the_place_of_it():
    loss = lambda w, x: jnp.sum(jnp.sin(counted(jnp.tanh, w, x, _COUNTS)[0]))
    plan = {"own_rules.py:counted": "float32"}
    assert "bf16" not in str(jax.make_jaxpr(jax.grad(autocast(loss, plan)))(W, X))
    lines = "x @ w", "activation(x @ w)", "activation(x @ w) * _column(counts)"
    plan = {f"own_rules.py:counted: {line}": "float32" for line in lines}
    assert "bf16" in str(jax.make_jaxpr(jax.grad(autocast(loss, plan)))(W, X))


def test_a_rule_that_gives_no_cotangent():
    product = jax.custom_vjp(lambda w, x: x["x"] @ w)
    product.defvjp(lambda w, x: (x["x"] @ w, x["x"]), lambda x, g: (x.T @ g, {"x": None}))
    loss = lambda w, x: jnp.sum(product(w, x))
    made = jax.grad(autocast(loss, BF16), (0, 1))(W, {"x": X})
    assert _is_near(made[0], jax.grad(loss)(W, {"x": X}))
    assert not made[1]["x"].any()


def test_a_reference_that_changes_stays_as_written():
    def step(w, x):
        kept = jax.new_ref(jnp.zeros(4))
        y = x @ w

        def turn(total, row):
            kept[...] += jnp.sum(row)
            return total + row @ y.T, None

        return lax.scan(turn, jnp.zeros(4), y)[0] + kept[...]

    assert jnp.allclose(autocast(step, BF16)(W, X), step(W, X), rtol=0.05)


_ALL = Plan(BF16, "all")


def _first(function, primitive, *args):
    nodes = Block(jax.make_jaxpr(function)(*args)).all_nodes()
    return next(node.stack for node in nodes if node.name == primitive)


def _rematted(w, x):
    names = jax.checkpoint_policies.save_only_these_names("hidden")
    layer = lambda x: jnp.sin(checkpoint_name(jnp.sin(x @ w), "hidden") @ w)
    return jax.checkpoint(layer, policy=names)(x)


def test_what_a_policy_saves_is_rounded_to_its_own_bits():
    loss = lambda w, x: jnp.sum(_rematted(w, x))
    for gradient in (
        jax.grad(autocast(loss, _ALL)),
        autocast(jax.grad(loss), _ALL),
    ):
        eqn, *_ = _first(gradient, "reduce_precision", W, SIGNED)
        assert eqn.invars[0].aval.dtype == BF16
        assert (eqn.params["exponent_bits"], eqn.params["mantissa_bits"]) == (8, 7)


def test_what_a_loop_carries_is_narrow_between_products():
    def f(w, x):
        layer = lambda x, _: (x + jax.nn.gelu(x @ w) @ w, None)
        return lax.scan(layer, x, None, length=3)[0] @ w

    eqn, *_ = _first(autocast(f, _ALL), "scan", W, SIGNED)
    assert [str(v.aval.dtype) for v in eqn.outvars] == ["bfloat16"]
    # The weight that the turns share is not: its cotangents are added up.
    assert "float32" in [str(v.aval.dtype) for v in eqn.invars]
    eqn, *_ = _first(autocast(f, BF16), "scan", W, SIGNED)
    assert [str(v.aval.dtype) for v in eqn.outvars] == ["float32"]


def test_jit_keeps_its_name_and_what_it_donates():
    @jax.jit
    def forward(w, x):
        return x @ w

    def update(w, x):
        return w - 0.1 * x.T @ forward(w, x)

    cast = autocast(jax.jit(update, donate_argnums=0), BF16)
    *_, eqn = _first(cast, "jit", W, SIGNED)
    assert eqn.params["name"] == "update"
    assert eqn.params["donated_invars"] == (True, False)
    assert (
        "tf.aliasing_output" in jax.jit(cast, donate_argnums=0).lower(W, SIGNED).as_text()
    )
    w = W + 0
    assert cast(w, SIGNED).dtype == jnp.float32
    assert w.is_deleted()


def test_scopes_and_lines():
    def f(w, x):
        with jax.named_scope("outer"):
            return jax.jit(lambda x: jnp.tanh(x @ w))(x)

    for function in (f, autocast(f, _ALL)):
        stack = _first(function, "dot_general", W, SIGNED)
        assert Written(stack).scope == ("outer",)
        assert Written(stack).origin.code == "return jax.jit(lambda x: jnp.tanh(x @ w))(x)"


@pytest.mark.optimized
def test_xla_leaves_out_no_rounding_on_one_side_of_a_choice():
    args = clipped.inputs()
    gradient = jax.grad(clipped.clipped)
    for cast in (
        autocast(gradient, _ALL),
        jax.grad(autocast(clipped.clipped, _ALL)),
    ):
        for a, b in zip(jax.jit(cast)(*args), gradient(*args)):
            assert jnp.linalg.norm(a - b) < 0.03 * jnp.linalg.norm(b)
