"""Products with wide results run on a CPU, whatever their layout."""

import jax
import jax.numpy as jnp
import pytest

import dtypeguard
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")


FORMS = """td,edh,te->th
i,i->
ij,j->i
i,j->ij
ij,jk->ki
ji,kj->ik
ij,ij->i
bij,bkj->bki
bij,jk->bik
bij,bij->b
btd,edh,bte->bth
bhi,bhj,bi->bh
abij,abjk->bik
aibj,bk->kja
bhkm,bkhn->bhmn
kbhm,nkbh->bhmn
bmhk,bhnk->bhmn"""


@pytest.mark.optimized  # XLA moves a transposition into a product only then
@pytest.mark.parametrize("wide", [None, jnp.float32], ids=["narrow", "wide"])
@pytest.mark.parametrize("form", FORMS.split())
def test_products_of_any_form_and_their_transposes(form, wide):
    shapes = [[3 + ord(c) % 7 for c in x] for x in form.split("->")[0].split(",")]
    keys = jax.random.split(jax.random.key(0), len(shapes))
    given = [jax.random.uniform(*each) / 4 for each in zip(keys, shapes)]
    product = lambda *x: jnp.einsum(form, *x, preferred_element_type=wide)
    loss = lambda *x: jnp.sum(jnp.sin(product(*x)))
    places = (*range(len(given)),)
    exact = jax.grad(loss, places)(*given)
    fast = dtypeguard.autocast(loss, jnp.bfloat16)
    for gradient in (
        jax.grad(fast, places),
        jax.jit(jax.grad(fast, places)),
        jax.jit(dtypeguard.autocast(jax.grad(loss, places), jnp.bfloat16)),
    ):
        for made, true in zip(gradient(*given), exact):
            assert jnp.linalg.norm(made - true) < 0.1 * jnp.linalg.norm(true)


@pytest.mark.optimized
def test_a_layer_that_is_mapped():
    """As every layer of Equinox."""
    w, x = (jax.random.normal(jax.random.key(n), (n, 8)) for n in (4, 16))
    loss = lambda w, x: jnp.sum(jax.vmap(lambda x: w @ x)(x) ** 2)
    exact = jax.grad(loss)(w, x)
    for gradient in (
        jax.grad(dtypeguard.autocast(loss, jnp.bfloat16)),
        dtypeguard.autocast(jax.grad(loss), jnp.bfloat16),
    ):
        made = jax.block_until_ready(jax.jit(gradient)(w, x))
        assert 0 < jnp.linalg.norm(made - exact) / jnp.linalg.norm(exact) < 0.05


@pytest.mark.optimized
@pytest.mark.parametrize("compiled", [lambda f: f, jax.jit], ids=["eager", "compiled"])
def test_gradients_for_each_of_a_batch(compiled):
    w, x = (jax.random.normal(jax.random.key(n), (8, n)) for n in (16, 8))
    loss = lambda w, x: jnp.mean((x @ w) @ w.T)
    each = lambda f: compiled(jax.vmap(jax.grad(f), (None, 0)))(w, jnp.stack([x, x / 2]))
    made, exact = each(dtypeguard.autocast(loss, jnp.bfloat16)), each(loss)
    assert 0 < jnp.linalg.norm(made - exact) / jnp.linalg.norm(exact) < 0.05


@jax.custom_vjp
def _product(w, x, key):
    return x["x"] @ w


_product.defvjp(
    lambda w, x, key: (x["x"] @ w, x["x"]), lambda x, g: (x.T @ g, {"x": None}, None)
)


def test_a_rule_that_gives_no_cotangent():
    w, x = jnp.ones((8, 4)), {"x": jax.random.normal(jax.random.key(0), (4, 8))}
    loss = lambda w, x: jnp.sum(_product(w, x, jax.random.key(1)))
    made = jax.grad(dtypeguard.autocast(loss, jnp.bfloat16), (0, 1))(w, x)
    assert jnp.allclose(made[0], jax.grad(loss)(w, x), rtol=0.02, atol=0.02)
    assert not made[1]["x"].any()


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
    made = jax.make_jaxpr(dtypeguard.autocast(jax.grad(loss), plan))(params)
    assert "bf16" in str(made)
