"""Prodigy beyond its authors' trajectories: low precision, edges, types, composition."""

import digits
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from helpers import assert_close, assert_same, types
from jax import lax, tree_util
from quadratic import make_params, run, slope

import dtypeguard
from dtypeguard import guard, prodigy

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
third_party, in_ci = pytest.mark.third_party, pytest.mark.exhaustive
name_of = lambda dtype: jnp.dtype(dtype).name


def is_finite(tree):
    return all(bool(jnp.isfinite(leaf).all()) for leaf in tree_util.tree_leaves(tree))


# Low precision --------------------------------------------------------------------------


def losses_on_digits(opt, dtype, steps=100):
    """The training loss after full batches, for two seeds: near 0.005, from 2.5."""
    images, labels = map(jnp.asarray, digits.data())

    @jax.jit
    def trained(params):
        grads_of = lambda params: jax.grad(digits.loss)(params, images, labels)
        return digits.loss(run(opt, params, steps, grads_of)[0], images, labels)

    return np.array([trained(digits.make_params(seed, dtype)) for seed in range(2)])


@pytest.fixture(scope="module")
def float32_losses():
    return losses_on_digits(prodigy(), F32)


@third_party
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [BF16, F16], ids=name_of)
def test_narrow_params_learn_digits_as_float32_does(dtype, float32_losses):
    """In the geometric mean over seeds: losses this low vary from run to run."""
    assert (float32_losses < 0.01).all()
    ratios = losses_on_digits(prodigy(), dtype) / float32_losses
    assert np.exp(np.log(ratios).mean()) < 2


@pytest.mark.parametrize("dtype", [BF16, F16], ids=name_of)
def test_averages_of_narrow_params_move(dtype):
    """Round-to-nearest would stop the second moment far from the mean."""
    params = {"w": jnp.zeros(4096, dtype)}
    grads = {"w": jnp.ones(4096, dtype)}
    opt = prodigy(0.0001, estim_lr0=1.0)  # d stays 1, so the averages are those of g
    step = lambda state, _: (opt.update(grads, state, params)[1], None)
    state, _ = jax.jit(lambda s: lax.scan(step, s, None, length=2000))(opt.init(params))
    mean = float(np.asarray(state.exp_avg_sq["w"], np.float64).mean())
    mean = mean**2 if dtype == F16 else mean  # of float16 the root is kept
    np.testing.assert_allclose(mean, 1 - 0.999**2000, rtol=0.02)


# Updates of narrow params --------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, F16, jnp.float8_e4m3fn], ids=name_of)
def test_updates_of_narrow_params_are_unbiased(dtype):
    """`p + u` moves by the step of float32 in the mean, if small for `p`."""
    opt = prodigy(float(jnp.finfo(dtype).eps) / 8, estim_lr0=1.0)
    first_update = jax.jit(lambda params: opt.update(params, opt.init(params), params)[0])
    params, step = jnp.ones(10**5, dtype), float(first_update(jnp.ones(1))[0])
    moved = np.asarray(params + first_update(params), np.float64) - 1
    low, high = sorted({*moved.tolist()})
    assert (low, high) == (-float(jnp.finfo(dtype).eps) / 2, 0)
    assert abs(moved.mean() - step) < 4 * -low * np.sqrt(0.25 / moved.size)


def test_the_noise_of_each_step_and_leaf_is_independent():
    opt = prodigy(5e-4, estim_lr0=1.0, growth_rate=1.0)
    params = {name: jnp.ones(10_000, BF16) for name in "ab"}
    grads, state, step = params, opt.init(params), jax.jit(opt.update)
    ups = []
    for _ in range(2):
        updates, state = step(grads, state, params)
        ups += [np.asarray(u != 0) for u in updates.values()]
    for i, one in enumerate(ups):
        assert 0.1 < one.mean() < 0.9
        for other in ups[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 4 / 100


@third_party
def test_seeds_tell_optimizers_apart():
    """In `multi_transform` they would otherwise count steps and leaves alike."""
    params = {name: jnp.ones(10_000, BF16) for name in "ab"}
    of = lambda seed: prodigy(5e-4, estim_lr0=1.0, seed=seed)
    for seeds, is_same in (((None, None), True), ((1, 1), True), ((0, 2**32 - 1), False)):
        opt = optax.multi_transform(dict(zip("xy", map(of, seeds))), {"a": "x", "b": "y"})
        updates, _ = jax.jit(opt.update)(params, opt.init(params), params)
        ups = [np.asarray(u != 0) for u in updates.values()]
        assert (abs(np.corrcoef(*ups)[0, 1]) < 4 / 100) != is_same


# Edges ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estim_lr0", "dtype"), [(2e-38, BF16), (1e-19, F16), (1e-12, jnp.float8_e5m2)]
)
def test_the_smallest_first_estimates(estim_lr0, dtype):
    """`d**2` underflows in float32 from `d = 1e-19` down."""
    opt = prodigy(estim_lr0=estim_lr0)
    assert is_finite(run(opt, {"w": jnp.zeros(300, dtype)}, 60))


@pytest.mark.parametrize("dtype", [F16, F32], ids=name_of)
def test_while_gradients_are_zero_nothing_moves(dtype):
    """Optax is NaN from the first such step on."""
    params = make_params(dtype)
    opt = prodigy(weight_decay=0.1)
    start = opt.init(params)
    zeros = lambda params: tree_util.tree_map(jnp.zeros_like, params)
    found, state = run(opt, params, 3, zeros)
    assert_same(found, params)
    assert_same(state, start._replace(count=jnp.int32(3)))
    later, state = run(opt, found, 50, state=state)
    assert is_finite((later, state))
    assert_same(later, run(opt, params, 50, state=start._replace(count=jnp.int32(3)))[0])


def test_a_rate_of_zero_takes_no_step():
    """Five NaN gradients at a rate of 0; then it trains as from the start."""
    schedule = lambda count: jnp.where(count < 5, 0.0, 1.0)
    params = make_params()
    opt = prodigy(schedule, weight_decay=0.1)
    wild = lambda params: tree_util.tree_map(lambda p: jnp.full_like(p, jnp.nan), params)
    found, state = run(opt, params, 5, wild)
    assert_same(found, params)
    assert_same(state, opt.init(params)._replace(count=jnp.int32(5)))
    later, state = run(opt, found, 20, state=state)
    expected, _ = run(prodigy(weight_decay=0.1), params, 20)
    assert_same(later, expected)
    assert int(state.steps_taken) == 20


def test_slices_take_less_state():
    params = {"w": jnp.linspace(-1, 1, 220).reshape(20, 11)}
    sizes = lambda opt: {
        name: sum(leaf.size for leaf in tree_util.tree_leaves(field))
        for name, field in opt.init(params)._asdict().items()
    }
    whole, some = sizes(prodigy()), sizes(prodigy(slice_p=11))
    assert (whole["grad_sum"], whole["params0"]) == (220, 220)
    assert (some["grad_sum"], some["params0"]) == (20, 20)
    assert some["exp_avg"] == some["exp_avg_sq"] == 220
    found, _ = run(prodigy(slice_p=11), params, 300)
    np.testing.assert_allclose(found["w"], 0.25, atol=0.05)


@pytest.mark.parametrize("slice_p", [1, 7])
def test_the_first_state_is_one_however_init_is_called(slice_p):
    """Biases start at zero, and a traced `init` cannot depend on that."""
    params = {"w": jnp.zeros((50, 50), BF16), "b": jnp.ones(50)}
    opt = prodigy(slice_p=slice_p)
    state = opt.init(params)
    assert_same(jax.jit(opt.init)(params), state)
    assert_same(jax.jit(lambda: opt.init(params))(), state)
    for abstract in (
        jax.eval_shape(opt.init, params),
        jax.eval_shape(lambda: opt.init(params)),
    ):
        assert types(abstract) == types(state)
    assert_same(dtypeguard.restore(state, dtypeguard.record(opt, params)), state)
    again = lambda flag: lax.cond(flag, lambda s: opt.init(params), lambda s: s, state)
    assert_same(again(True), state)
    step = jax.jit(opt.update)
    for first in (state, jax.jit(opt.init)(params)):
        step(params, first, params)
    assert step._cache_size() == 1


# Composition ----------------------------------------------------------------------------


@pytest.mark.parametrize("beta1", [0.0, pytest.param(0.9, marks=in_ci)])
def test_derivative_by_hyperparameters_that_are_arrays(beta1):
    """They are finite at beta1 = 0 too, where the logarithm in the correction is not."""

    def after(beta1, weight_decay):
        opt = prodigy(betas=(beta1, 0.99), weight_decay=weight_decay, estim_lr0=1e-2)
        found, _ = run(opt, make_params(), 6)
        return sum(jnp.sum(p**2) for p in tree_util.tree_leaves(found))

    at, eps = (jnp.float32(beta1), jnp.float32(0.1)), 4e-3
    by_beta, by_decay = jax.grad(after, argnums=(0, 1))(*at)
    assert jnp.isfinite(by_beta)
    decay = (after(at[0], at[1] + eps) - after(at[0], at[1] - eps)) / (2 * eps)
    np.testing.assert_allclose(by_decay, decay, rtol=2e-2)
    if beta1:  # at 0 the step is another one
        beta = (after(at[0] + eps, at[1]) - after(at[0] - eps, at[1])) / (2 * eps)
        np.testing.assert_allclose(by_beta, beta, rtol=2e-2)
    found, _ = run(prodigy(betas=(at[0], 0.99)), make_params(), 6)
    expected, _ = run(prodigy(betas=(beta1, 0.99)), make_params(), 6)
    assert_close(found, expected, rtol=1e-5)


@third_party
@pytest.mark.parametrize("mask", [{"w": True, "b": False}, None], ids=["mask", "all"])
def test_decay_by_mask(mask):
    params = make_params()
    of = lambda **kwargs: run(prodigy(estim_lr0=1e-2, **kwargs), params, 1)[0]
    plain, decayed = of(), of(weight_decay=0.5, mask=mask)
    assert not np.array_equal(plain["w"], decayed["w"])
    assert np.array_equal(plain["b"], decayed["b"]) == (mask is not None)
    if mask is not None:
        assert_same(decayed, of(weight_decay=0.5, mask=lambda params: mask))


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
    theirs, ours = of(optax.contrib.prodigy), of(prodigy, slice_p=slice_p)
    params, old = trained(theirs, make_params(dtype), 10)
    state = dtypeguard.ProdigyState(*old, steps_taken=old.count, estim_lr_max=old.estim_lr)
    if beta1 == 0:
        with pytest.raises(dtypeguard.DtypeDriftError, match=r"state\.exp_avg\['b'\]"):
            dtypeguard.restore(state, dtypeguard.record(ours, params))
        state = state._replace(exp_avg=())
    if slice_p > 1:
        kept = lambda tree: tree_util.tree_map(lambda x: x.ravel()[::slice_p], tree)
        with pytest.raises(dtypeguard.DtypeDriftError, match=r"grad_sum\['w'\]"):
            dtypeguard.restore(state, dtypeguard.record(ours, params))
        state = state._replace(grad_sum=kept(state.grad_sum), params0=kept(state.params0))
    state = dtypeguard.restore(state, dtypeguard.record(ours, params))
    found, new_state = trained(ours, params, 10, state)
    if (beta1, slice_p) == (0.9, 1):  # of others Optax has another step, or none
        expected, _ = trained(theirs, params, 10, old)
        assert_close(found, expected, rtol=1e-3 if dtype == F16 else 1e-4)
    assert types(new_state) == types(state)
    assert float(new_state.estim_lr) >= float(old.estim_lr)


def trained(opt, params, steps, state=None):
    """Like `run`, but with wide updates, whose sum is rounded."""

    def step(carry, _):
        params, state = carry
        updates, state = opt.update(slope(params), state, params)
        return (dtypeguard.apply_updates(params, updates), state), None

    carry = params, opt.init(params) if state is None else state
    return jax.jit(lambda carry: lax.scan(step, carry, None, length=steps)[0])(carry)


# Input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "scalar"),
    [
        (prodigy, 2.0),
        (lambda: prodigy(slice_p=2), np.float32(2)),
        (lambda: dtypeguard.fromage(0.1, p_bound=1.0), np.array(2.0)),
        (lambda: dtypeguard.multi_steps(prodigy(slice_p=2), 1), jnp.asarray(2.0)),
    ],
)
def test_params_that_are_numbers(make, scalar):
    """A temperature, for example. Optax takes numbers, also without jit."""
    expected = make().init({"t": jnp.float32(2), "w": jnp.ones(2)})
    for jitted in (False, True):
        params = {"t": scalar, "w": jnp.ones(2)}
        opt = make()
        state = opt.init(params)
        assert types(state) == types(expected)
        step = jax.jit(opt.update) if jitted else opt.update
        updates, state = step(params, state, params)
        assert (updates["t"].dtype, updates["t"].shape) == (F32, ())
        assert float(updates["t"]) < 0
        assert types(state) == types(expected)


def test_an_entry_with_a_zero_gradient_stays_and_has_a_derivative():
    """Its square is 0, where the root has no derivative; without eps the step is 0/0."""
    opt = prodigy(eps=0.0)
    mask = jnp.array([1.0, 0.0, 1.0])

    def after(params):
        return run(opt, params, 2, lambda p: p * mask)[0]

    start = jnp.array([1.0, 2.0, 3.0])
    found = after(start)
    assert is_finite(found)
    assert float(found[1]) == 2
    assert is_finite(jax.grad(lambda params: jnp.sum(after(params)))(start))
