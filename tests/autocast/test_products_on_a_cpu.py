"""Products with wide results run on a CPU, whatever their layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import dtypeguard
from tests.support.dtypes import BF16
from tests.support.helpers import needs_numbers, normal

pytestmark = needs_numbers
FORMS = [
    "td,edh,te->th",
    "ij,j->i",
    "i,j->ij",
    "ji,kj->ik",
    "bij,jk->bik",
    "bhi,bhj,bi->bh",
    "aibj,bk->kja",
    "kbhm,nkbh->bhmn",
]


def _is_near(made, exact):
    made, exact = np.asarray(made), np.asarray(exact)  # NumPy compiles nothing
    return 0 < np.linalg.norm(made - exact) < 0.05 * np.linalg.norm(exact)


def _fast_gradients(loss, places):
    """The gradient of what is cast, and the gradient, cast: one program has both."""
    of_fast = jax.grad(dtypeguard.autocast(loss, BF16), places)
    fast_gradient = dtypeguard.autocast(jax.grad(loss, places), BF16)
    return lambda *x: (of_fast(*x), fast_gradient(*x))


@pytest.mark.parametrize("wide", [None, jnp.float32], ids=["narrow", "wide"])
@pytest.mark.parametrize("form", FORMS)
def test_products_of_any_form_and_their_transposes(form, wide):
    shapes = [[3 + ord(c) % 7 for c in x] for x in form.split("->")[0].split(",")]
    draw = np.random.default_rng(0).uniform
    given = [np.float32(draw(0, 0.25, shape)) for shape in shapes]
    product = lambda *x: jnp.einsum(form, *x, preferred_element_type=wide)
    loss = lambda *x: jnp.sum(jnp.sin(product(*x)))
    places = (*range(len(given)),)
    exact = jax.jit(jax.grad(loss, places))(*given)
    for made in jax.jit(_fast_gradients(loss, places))(*given):
        assert all(map(_is_near, made, exact))


_W, _X = (np.asarray(normal(n, 8, n)) / 4 for n in (16, 8))
_CALLS = {
    "plain": lambda f: f,
    "a call": jax.jit,
    "a checkpoint": jax.checkpoint,
    "a loop": lambda f: lambda w, x: lax.scan(lambda x, _: (f(w, x), None), x, None, 2)[0],
}


@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None)])
@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
def test_a_product_that_is_mapped_from_outside(call, axes):
    layer = call(lambda w, x: jnp.tanh(x @ w) @ w.T)
    places = 0, 1
    loss = lambda w, x: jnp.mean(layer(w, x) ** 2)
    given = [x if axis is None else np.stack([x, x / 2]) for x, axis in zip((_W, _X), axes)]
    exact = jax.jit(jax.vmap(jax.grad(loss, places), axes))(*given)
    for made in jax.jit(jax.vmap(_fast_gradients(loss, places), axes))(*given):
        assert all(map(_is_near, made, exact))


@pytest.mark.third_party
def test_a_number_that_is_given_to_a_function_inside():
    """What flows through attention's mask, which is filled with a number."""
    nn = pytest.importorskip("flax.linen")
    model = nn.MultiHeadDotProductAttention(2)
    x = jnp.ones((1, 4, 8))
    mask = nn.make_causal_mask(jnp.ones((1, 4)))
    params = model.init(jax.random.key(0), x, mask=mask)
    loss = lambda params: jnp.sum(model.apply(params, x, mask=mask) ** 2)
    plan = dtypeguard.Plan(jnp.dtype("bfloat16"), "all")
    assert "bf16" in str(jax.make_jaxpr(dtypeguard.autocast(jax.grad(loss), plan))(params))
