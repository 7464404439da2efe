"""What Prodigy and Fromage have in common: types, x64, composition, input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from helpers import (
    assert_close,
    assert_same,
    needs_x64_scope,
    types,
)
from jax import lax, tree_util
from quadratic import add, assert_blind, make_params, run, slope

import dtypeguard
from dtypeguard import fromage, prodigy

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
name_of = lambda dtype: jnp.dtype(dtype).name
OWN = {
    "prodigy": lambda: prodigy(weight_decay=0.01),
    "fromage": lambda: fromage(0.1),
    "fromage, bounded": lambda: fromage(0.1, p_bound=1.1),
}
own = pytest.mark.parametrize("make", OWN.values(), ids=OWN)


@own
@pytest.mark.parametrize(
    ("dtype", "grad_dtype"),
    [(jnp.float8_e4m3fn, F16), (BF16, F32), (F16, BF16), (F32, BF16)],
    ids=name_of,
)
def test_state_and_updates_keep_their_types(dtype, grad_dtype, make):
    params, opt = make_params(dtype), make()
    grads_of = lambda p: tree_util.tree_map(lambda g: g.astype(grad_dtype), slope(p))
    start = opt.init(params)
    for name in ("exp_avg", "exp_avg_sq", "grad_sum", "params0"):  # of Prodigy
        leaves = tree_util.tree_leaves(getattr(start, name, ()))
        assert {leaf.dtype for leaf in leaves} <= {jnp.dtype(dtype)}
    scalars = [leaf for leaf in tree_util.tree_leaves(start) if leaf.shape == ()]
    assert {leaf.dtype for leaf in scalars} <= {jnp.dtype("int32"), jnp.dtype(F32)}
    found = jax.eval_shape(lambda params: run(opt, params, 3, grads_of), params)
    assert types(found) == types((params, start))


@needs_x64_scope
@pytest.mark.parametrize(
    "make",
    [lambda f: prodigy(f(1.0), weight_decay=0.1), lambda f: fromage(f(0.1), p_bound=2.0)],
)
def test_blind_to_the_x64_flag_without_a_guard(make):
    schedule = lambda rate: optax.cosine_decay_schedule(rate, 100)
    assert_blind(lambda: make(schedule), BF16)


@own
def test_vmap_is_each_member_alone_and_scan_each_step_alone(make):
    opt = make()
    stacked = tree_util.tree_map(lambda p: jnp.stack([p, 2 * p, 0 * p]), make_params())
    together = jax.vmap(lambda params: run(opt, params, 3))(stacked)
    for member in range(3):
        of = functools.partial(tree_util.tree_map, lambda leaf, i=member: leaf[i])
        carry = (of(stacked), opt.init(of(stacked)))
        for _ in range(3):
            updates, state = opt.update(slope(carry[0]), carry[1], carry[0])
            new = add(carry[0], updates), state
            carry = lax.cond(True, lambda new, old: new, lambda new, old: old, new, carry)
        assert types(of(together)) == types(carry)
        assert_close(of(together), carry, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("make", "start", "steps"),
    [
        (lambda: prodigy(estim_lr0=1e-2), 0.2, 4),
        (lambda: fromage(0.05, p_bound=3.0), 0.2, 2),
        (lambda: fromage(0.05, p_bound=3.0), -0.5, 2),
    ],
)
def test_derivative_by_the_start(make, start, steps):
    """At -0.5 the bias has norm 0, and the derivative is not NaN there either."""

    @jax.jit
    def after(shift):
        params = tree_util.tree_map(lambda p: p + shift, make_params())
        found, _ = run(make(), params, steps)
        return sum(jnp.sum(p) for p in tree_util.tree_leaves(found))

    found = [float(jax.jit(by(after))(start)) for by in (jax.grad, jax.jacfwd)]
    assert np.isfinite(found).all()
    np.testing.assert_allclose(*found, rtol=1e-4)
    if start > 0:
        expected = (float(after(start + 1e-2)) - float(after(start - 1e-2))) / 2e-2
        np.testing.assert_allclose(found[0], expected, rtol=2e-2)


@own
def test_a_param_whose_gradient_is_none_does_not_move(make):
    params, opt = make_params(), make()
    start = opt.init(params)
    updates, state = opt.update(slope(params) | {"b": None}, start, params)
    assert updates["b"] is None
    assert updates["w"].shape == (3, 4)
    of_b = lambda state: getattr(state, "exp_avg_sq", {"b": None})["b"]
    assert_same(of_b(state), of_b(start))


@pytest.mark.parametrize(
    "make", [*OWN.values(), lambda: dtypeguard.multi_steps(optax.sgd(0.1), 2)]
)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_gradients_below_a_param_are_another_tree(shape, make):
    params, opt = {"a": jnp.ones(shape)}, make()
    for below in ({"b": jnp.ones(shape)}, ()):
        with pytest.raises(ValueError, match=r"another tree.*\n +updates\['a'\]"):
            opt.update({"a": below}, opt.init(params), params)
