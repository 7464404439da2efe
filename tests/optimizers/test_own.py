"""What Prodigy and Fromage have in common: types, x64, composition, input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax, tree_util
from jax.test_util import check_grads

from dtypeguard import fromage, multi_steps, prodigy
from tests.support.dtypes import BF16, F16, F32
from tests.support.helpers import assert_close, assert_same, needs_x64_scope, set_x64, types
from tests.support.hlo import count_float64
from tests.support.quadratic import add, make_params, run, slope

OWN = {
    "prodigy": lambda: prodigy(weight_decay=0.01),
    "fromage": lambda: fromage(0.1),
    "fromage, bounded": lambda: fromage(0.1, p_bound=1.1),
}
own = pytest.mark.parametrize("make", OWN.values(), ids=OWN)


@own
@pytest.mark.parametrize(
    ("dtype", "grad_dtype"), [(jnp.float8_e4m3fn, F16), (BF16, F32), (F32, BF16)]
)
def test_state_and_updates_keep_their_types(dtype, grad_dtype, make):
    params, opt = make_params(dtype), make()
    grads_of = lambda p: tree_util.tree_map(lambda g: g.astype(grad_dtype), slope(p))
    start = opt.init(params)
    for leaf in tree_util.tree_leaves(start):
        allowed = [dtype] if leaf.shape else [F32, jnp.int32]
        assert leaf.dtype in allowed
    found = jax.eval_shape(lambda params: run(opt, params, 3, grads_of), params)
    assert types(found) == types((params, start))


@needs_x64_scope
@pytest.mark.parametrize(
    "make",
    [lambda f: prodigy(f(1.0), weight_decay=0.1), lambda f: fromage(f(0.1), p_bound=2.0)],
)
def test_blind_to_the_x64_flag_without_a_guard(make):
    results = []
    for x64 in (False, True):
        with set_x64(x64), jax.numpy_dtype_promotion("standard"):  # of optax's schedule
            opt = make(lambda rate: optax.cosine_decay_schedule(rate, 100))
            params = make_params(BF16)
            results.append(run(opt, params, 5))
            args = slope(params), opt.init(params), params
            assert count_float64(opt.update, *args) == 0
    assert_same(*results)


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
        found, _ = run(
            make(), tree_util.tree_map(lambda p: p + shift, make_params()), steps
        )
        return sum(jnp.sum(p) for p in tree_util.tree_leaves(found))

    if start > 0:
        check_grads(after, (start,), 1, rtol=2e-2, eps=1e-2)
    assert np.isfinite(jax.grad(after)(start))


@own
def test_a_param_whose_gradient_is_none_does_not_move(make):
    params, opt = make_params(), make()
    start = opt.init(params)
    updates, state = opt.update(slope(params) | {"b": None}, start, params)
    assert updates["b"] is None
    assert updates["w"].shape == (3, 4)
    of_b = lambda state: getattr(state, "exp_avg_sq", {"b": None})["b"]
    assert_same(of_b(state), of_b(start))


@pytest.mark.parametrize("make", [prodigy, lambda: multi_steps(optax.sgd(0.1), 2)])
@pytest.mark.parametrize("below", [{"b": jnp.ones(())}, ()])
def test_gradients_below_a_param_are_another_tree(make, below):
    params, opt = {"a": jnp.ones(())}, make()
    with pytest.raises(ValueError, match=r"another tree.*\n +updates\['a'\]"):
        opt.update({"a": below}, opt.init(params), params)


@pytest.mark.parametrize(
    ("make", "scalar"),
    [
        (prodigy, 2.0),
        (lambda: prodigy(slice_p=2), np.float32(2)),
        (lambda: fromage(0.1, p_bound=1.0), np.array(2.0)),
        (lambda: multi_steps(prodigy(slice_p=2), 1), jnp.asarray(2.0)),
    ],
)
@pytest.mark.parametrize("wrap", [jax.jit, lambda update: update])
def test_params_that_are_numbers(make, scalar, wrap):
    """A temperature, for example. Optax takes numbers, also without jit."""
    params, opt = {"t": scalar, "w": jnp.ones(2)}, make()
    first = opt.init(params)
    assert types(first) == types(opt.init({"t": jnp.float32(2), "w": jnp.ones(2)}))
    updates, state = wrap(opt.update)(params, first, params)
    assert (updates["t"].dtype, updates["t"].shape) == (F32, ())
    assert float(updates["t"]) < 0
    assert types(state) == types(first)
