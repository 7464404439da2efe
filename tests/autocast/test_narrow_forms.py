"""What a narrow program keeps of its form beside its products."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from dtypeguard import Plan, autocast
from dtypeguard._program.program import Block
from dtypeguard._tracebacks.written import Written
from tests.support import clipped
from tests.support.dots import SIGNED as X, W
from tests.support.dtypes import BF16

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
        eqn, *_ = _first(gradient, "reduce_precision", W, X)
        assert eqn.invars[0].aval.dtype == BF16
        assert (eqn.params["exponent_bits"], eqn.params["mantissa_bits"]) == (8, 7)


def test_what_a_loop_carries_is_narrow_between_products():
    def f(w, x):
        layer = lambda x, _: (x + jax.nn.gelu(x @ w) @ w, None)
        return lax.scan(layer, x, None, length=3)[0] @ w

    eqn, *_ = _first(autocast(f, _ALL), "scan", W, X)
    assert [str(v.aval.dtype) for v in eqn.outvars] == ["bfloat16"]
    # The weight that the turns share is not: its cotangents are added up.
    assert "float32" in [str(v.aval.dtype) for v in eqn.invars]
    eqn, *_ = _first(autocast(f, BF16), "scan", W, X)
    assert [str(v.aval.dtype) for v in eqn.outvars] == ["float32"]


def test_jit_keeps_its_name_and_what_it_donates():
    @jax.jit
    def forward(w, x):
        return x @ w

    def update(w, x):
        return w - 0.1 * x.T @ forward(w, x)

    cast = autocast(jax.jit(update, donate_argnums=0), BF16)
    *_, eqn = _first(cast, "jit", W, X)
    assert eqn.params["name"] == "update"
    assert eqn.params["donated_invars"] == (True, False)
    assert "tf.aliasing_output" in jax.jit(cast, donate_argnums=0).lower(W, X).as_text()
    w = W + 0
    assert cast(w, X).dtype == jnp.float32
    assert w.is_deleted()


def test_scopes_and_lines():
    def f(w, x):
        with jax.named_scope("outer"):
            return jax.jit(lambda x: jnp.tanh(x @ w))(x)

    for function in (f, autocast(f, _ALL)):
        stack = _first(function, "dot_general", W, X)
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
