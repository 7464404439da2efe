"""Functions with rules of derivatives of their own: both sides are narrow, and right."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from dtypeguard import Plan, autocast
from tests.support.dots import W, X, dots
from tests.support.dtypes import BF16, F32
from tests.support.own_rules import counted, powered

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
