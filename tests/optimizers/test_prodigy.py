"""Prodigy beyond its authors' trajectories: low precision, edges, types, composition."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from jax import lax, tree_util
from jax.test_util import check_grads

import dtypeguard
from dtypeguard import DtypeDriftError, apply_updates, guard, prodigy, record, restore
from tests.support.dtypes import BF16, F16, F32, I32
from tests.support.helpers import assert_close, assert_same, types
from tests.support.quadratic import make_params, run

F8 = jnp.float8_e4m3fn
PAIR = {name: jnp.ones(10_000, BF16) for name in "ab"}
third_party = pytest.mark.third_party


def is_finite(tree):
    return all(jnp.isfinite(leaf).all() for leaf in tree_util.tree_leaves(tree))


# Low precision --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_averages_of_narrow_params_move(dtype):
    """Round-to-nearest would stop the second moment far from the mean."""
    params, grads = jnp.zeros(4096, dtype), jnp.ones(4096, dtype)
    opt = prodigy(0.0001, estim_lr0=1.0)  # d stays 1, so the averages are those of g
    step = lambda state, _: (opt.update(grads, state, params)[1], None)
    state, _ = jax.jit(lambda s: lax.scan(step, s, None, length=2000))(opt.init(params))
    mean = float(np.asarray(state.exp_avg_sq, np.float64).mean())
    mean = mean**2 if dtype == F16 else mean  # of float16 the root is kept
    np.testing.assert_allclose(mean, 1 - 0.999**2000, rtol=0.02)


@pytest.mark.parametrize("dtype", [BF16, F16, F8])
def test_updates_of_narrow_params_are_unbiased(dtype):
    """`p + u` moves by the step of float32 in the mean, if small for `p`."""
    opt = prodigy(float(jnp.finfo(dtype).eps) / 8, estim_lr0=1.0)
    first_update = jax.jit(lambda params: opt.update(params, opt.init(params), params)[0])
    params, step = jnp.ones(10**5, dtype), float(first_update(jnp.ones(1))[0])
    moved = np.asarray(params + first_update(params), np.float64) - 1
    low, high = sorted({*moved.tolist()})
    assert (low, high) == (-float(jnp.finfo(dtype).eps) / 2, 0)
    assert abs(moved.mean() - step) < 4 * -low * np.sqrt(0.25 / moved.size)


def moved(updates):
    """Which entries of each update are not 0."""
    return [np.asarray(u != 0) for u in updates.values()]


def are_independent(one, other):
    return abs(np.corrcoef(one, other)[0, 1]) < 4 / 100


def test_the_noise_of_each_step_and_leaf_is_independent():
    opt = prodigy(5e-4, estim_lr0=1.0, growth_rate=1.0)
    step = jax.jit(opt.update)
    updates, state = step(PAIR, opt.init(PAIR), PAIR)
    noise = [*moved(updates), *moved(step(PAIR, state, PAIR)[0])]
    for i, one in enumerate(noise):
        assert 0.1 < one.mean() < 0.9
        assert all(are_independent(one, other) for other in noise[:i])


@third_party
@pytest.mark.parametrize(
    ("seeds", "is_same"), [((None, None), True), ((1, 1), True), ((0, 2**32 - 1), False)]
)
def test_seeds_tell_optimizers_apart(seeds, is_same):
    """In `multi_transform` they would otherwise count steps and leaves alike."""
    parts = {
        seed_of: prodigy(5e-4, estim_lr0=1.0, seed=s) for seed_of, s in zip("ab", seeds)
    }
    opt = optax.multi_transform(parts, {"a": "a", "b": "b"})
    updates, _ = jax.jit(opt.update)(PAIR, opt.init(PAIR), PAIR)
    assert are_independent(*moved(updates)) != is_same


def test_a_seed_of_numpy_is_checked_as_an_int_is():
    with pytest.raises(ValueError, match="seed=-1: write an int from 0 to"):
        prodigy(seed=np.array(-1))


# Edges ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estim_lr0", "dtype"), [(2e-38, BF16), (1e-19, F16), (1e-12, jnp.float8_e5m2)]
)
def test_the_smallest_first_estimates(estim_lr0, dtype):
    """`d**2` underflows in float32 from `d = 1e-19` down."""
    assert is_finite(run(prodigy(estim_lr0=estim_lr0), jnp.zeros(300, dtype), 60))


@pytest.mark.parametrize("dtype", [F16, F32])
def test_while_gradients_are_zero_nothing_moves(dtype):
    """Optax is NaN from the first such step on."""
    params, opt = make_params(dtype), prodigy(weight_decay=0.1)
    start = opt.init(params)._replace(count=I32(3))
    zeros = lambda params: tree_util.tree_map(jnp.zeros_like, params)
    assert_same(run(opt, params, 3, zeros), (params, start))
    with jax.debug_nans(True):  # nor does it divide by 0
        opt.update(zeros(params), start, params)
    assert is_finite(run(opt, params, 50, state=start))


def test_a_rate_of_zero_takes_no_step():
    """Five NaN gradients at a rate of 0; then it trains as from the start."""
    schedule = lambda count: jnp.where(count < 5, 0.0, 1.0)
    params, opt = make_params(), prodigy(schedule, weight_decay=0.1)
    wild = lambda params: tree_util.tree_map(lambda p: jnp.full_like(p, jnp.nan), params)
    found, state = run(opt, params, 5, wild)
    assert_same((found, state), (params, opt.init(params)._replace(count=I32(5))))
    later, state = run(opt, found, 20, state=state)
    assert_same(later, run(prodigy(weight_decay=0.1), params, 20)[0])
    assert int(state.steps_taken) == 20


def test_an_entry_with_a_zero_gradient_stays_and_has_a_derivative():
    """Its square is 0, where the root has no derivative; without eps the step is 0/0."""
    mask = jnp.array([1.0, 0.0, 1.0])
    after = lambda params: run(prodigy(eps=0.0), params, 2, lambda p: p * mask)[0]
    start = jnp.array([1.0, 2.0, 3.0])
    found = after(start)
    assert is_finite((found, jax.grad(lambda params: jnp.sum(after(params)))(start)))
    assert float(found[1]) == 2


def test_slices_take_less_state():
    params = jnp.ones((20, 11))
    whole, some = (prodigy(slice_p=p).init(params) for p in (1, 11))
    assert whole.grad_sum.size == whole.params0.size == some.exp_avg.size == 220
    assert some.grad_sum.size == some.params0.size == 20


@pytest.mark.parametrize("slice_p", [1, 7])
def test_the_first_state_is_one_however_init_is_called(slice_p):
    """Biases start at zero, and a traced `init` cannot depend on that."""
    params = {"w": jnp.zeros((50, 50), BF16), "b": jnp.ones(50)}
    opt = prodigy(slice_p=slice_p)
    state = opt.init(params)
    assert_same(jax.jit(opt.init)(params), state)
    assert_same(jax.jit(lambda: opt.init(params))(), state)
    assert types(jax.eval_shape(opt.init, params)) == types(state)
    assert_same(restore(state, record(opt, params)), state)
    step = jax.jit(opt.update)
    for first in (state, jax.jit(opt.init)(params)):
        step(params, first, params)
    assert step._cache_size() == 1


# Composition ----------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_derivative_by_hyperparameters_that_are_arrays():
    def trained(beta1, weight_decay):
        opt = prodigy(betas=(beta1, 0.99), weight_decay=weight_decay, estim_lr0=1e-2)
        return run(opt, make_params(), 6)[0]

    @jax.jit
    def after(*args):
        return sum(jnp.sum(p**2) for p in tree_util.tree_leaves(trained(*args)))

    at = F32(0.9), F32(0.1)
    assert_close(trained(*at), trained(0.9, 0.1), rtol=1e-5)
    assert is_finite(jax.grad(after)(*at))
    check_grads(lambda decay: after(at[0], decay), at[1:], 1, rtol=2e-2, eps=4e-3)
    check_grads(lambda beta: after(beta, at[1]), at[:1], 1, rtol=2e-2, eps=4e-3)


@third_party
@pytest.mark.parametrize("mask", [{"w": True, "b": False}, None], ids=["mask", "all"])
def test_decay_by_mask(mask):
    of = lambda **kwargs: run(prodigy(estim_lr0=1e-2, **kwargs), make_params(), 1)[0]
    plain, decayed = of(), of(weight_decay=0.5, mask=mask)
    assert not np.array_equal(plain["w"], decayed["w"])
    assert np.array_equal(plain["b"], decayed["b"]) == (mask is not None)
    if mask is not None:
        assert_same(decayed, of(weight_decay=0.5, mask=lambda params: mask))


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_a_mask_of_another_tree_is_refused(weight_decay):
    params, opt = make_params(), prodigy(weight_decay=weight_decay, mask={"w": True})
    with pytest.raises(ValueError, match=r"different numbers of pytree children"):
        opt.update(params, opt.init(params), params)


@third_party
def test_slice_p_is_static_in_inject_hyperparams():
    params = make_params()
    opt = optax.inject_hyperparams(prodigy)(slice_p=2)
    state = opt.init(params)
    with pytest.raises(TypeError, match='static_args="slice_p"'):
        jax.jit(opt.update)(params, state, params)
    opt = optax.inject_hyperparams(prodigy, static_args="slice_p")(slice_p=2)
    assert opt.init(params).inner_state.params0["w"].shape == (6,)


@third_party
@pytest.mark.parametrize(
    ("dtype", "beta1", "slice_p"),
    [(F32, 0.9, 1), (F32, 0.0, 1), (F32, 0.9, 2), (F16, 0.9, 1)],
)
def test_continues_from_a_state_of_optax(dtype, beta1, slice_p):
    """As `migrating.md` says; a larger first estimate, for float16 to hold the sums."""
    policy = dtypeguard.Policy(compute_dtype=F32, updates_dtype=F32)
    of = lambda make, **options: guard(
        make(betas=(beta1, 0.999), estim_lr0=0.1, **options), policy=policy
    )
    # Like `run`, but with wide updates, whose sum is rounded.
    trained = lambda opt, params, state=None: run(
        opt, params, 10, state=state, add=apply_updates
    )
    theirs, ours = of(optax.contrib.prodigy), of(prodigy, slice_p=slice_p)
    params, old = trained(theirs, make_params(dtype))
    state = dtypeguard.ProdigyState(*old, steps_taken=old.count, estim_lr_max=old.estim_lr)
    target = record(ours, params)
    every = lambda tree: tree_util.tree_map(lambda x: x.ravel()[::slice_p], tree)
    changes = {}
    if beta1 == 0:
        changes = {"exp_avg": ()}
    if slice_p > 1:
        changes = {"grad_sum": every(state.grad_sum), "params0": every(state.params0)}
    if changes:
        with pytest.raises(
            DtypeDriftError,
            match=rf"{next(iter(changes))}(\['[bw]'\]|  \(absent\) -> dict of b, w)",
        ):
            restore(state, target)
    state = restore(state._replace(**changes), target)
    found, new_state = trained(ours, params, state)
    if not changes:  # of others Optax has another step, or none
        expected, _ = trained(theirs, params, old)
        assert_close(found, expected, rtol=1e-3 if dtype == F16 else 1e-4)
    assert types(new_state) == types(state)
    assert float(new_state.estim_lr) >= float(old.estim_lr)
