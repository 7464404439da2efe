"""Real runs on scikit-learn's digits in the frameworks that people use Optax through.

Bare first: what breaks or drifts there. Then guarded, and what the framework's users do
next: serialize, save, restore, train on. `tests/programs` has whole programs of each. A
missing package skips its tests; where `CI` or `DTYPEGUARD_REQUIRE_ALL` is set, it fails
them.
"""

import functools
import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from digits import parts
from helpers import assert_same, need, set_x64, types
from jax import tree_util

from dtypeguard import guard, record, restore

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
HIDDEN, BATCH, STEPS = 32, 100, 120


@pytest.fixture(scope="module")
def digits():
    return parts()


def batches(digits, steps=STEPS):
    images, labels = digits[0]
    for number in range(steps):
        start = number * BATCH % len(labels)
        yield images[start : start + BATCH], labels[start : start + BATCH]


def cross_entropy(scores, labels):
    return optax.softmax_cross_entropy_with_integer_labels(
        scores.astype(F32), labels
    ).mean()


def right(scores, labels):
    return float(np.mean(np.argmax(scores, axis=1) == labels))


def wide(tree):
    """As gradients come that were averaged in float32, over micro-batches or devices."""
    return tree_util.tree_map(lambda leaf: leaf.astype(F32), tree)


def linen_state(opt, dtype):
    """A TrainState and the step that trains it."""
    linen, train_state = need("flax.linen"), need("flax.training.train_state")

    class Model(linen.Module):
        @linen.compact
        def __call__(self, images):
            options = {"param_dtype": dtype, "dtype": F32}
            hidden = linen.relu(linen.Dense(HIDDEN, **options)(images))
            return linen.Dense(10, **options)(hidden)

    model = Model()
    params = model.init(jax.random.PRNGKey(0), jnp.zeros((1, 64), F32))["params"]

    def step(state, images, labels):
        loss = lambda params: cross_entropy(
            state.apply_fn({"params": params}, images), labels
        )
        return state.apply_gradients(grads=wide(jax.grad(loss)(state.params)))

    return train_state.TrainState.create(apply_fn=model.apply, params=params, tx=opt), step


def step_equinox(opt, carry, images, labels):
    model, state = carry
    loss = lambda model: cross_entropy(jax.vmap(model)(images), labels)
    grads = wide(eqx.filter_grad(loss)(model))
    updates, state = opt.update(grads, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state


def some_steps(state, step, digits, number=5):
    for batch in batches(digits, number):
        state = step(state, *batch)
    return state


def test_flax_bytes(digits):
    """`from_bytes` checks no dtype: a drifted state comes back drifted, and is healed."""
    serialization = need("flax.serialization")
    for opt in (optax.adam(3e-3), guard(optax.adam(3e-3))):
        fresh, step = linen_state(opt, BF16)
        step = jax.jit(step)
        trained = some_steps(fresh, step, digits)
        loaded = serialization.from_bytes(fresh, serialization.to_bytes(trained))
        if types(trained.opt_state) == types(fresh.opt_state):
            assert_same(loaded.opt_state, trained.opt_state)
            assert_same(
                some_steps(loaded, step, digits).params,
                some_steps(trained, step, digits).params,
            )
        else:
            drifted = loaded.opt_state
    assert drifted[0].mu["Dense_0"]["kernel"].dtype == F32
    healed = restore(drifted, record(optax.adam(3e-3), fresh.params))
    assert types(healed) == types(fresh.opt_state)
    resumed = some_steps(fresh.replace(opt_state=healed), step, digits)
    assert types(resumed.opt_state) == types(fresh.opt_state)


def test_equinox_serialised_leaves(digits):
    """Equinox refuses to load a drifted state; a guarded one loads and trains on."""
    model = eqx.nn.Linear(64, 10, dtype=BF16, key=jax.random.PRNGKey(0))

    def saved(opt):
        step = eqx.filter_jit(functools.partial(step_equinox, opt))
        fresh = model, opt.init(eqx.filter(model, eqx.is_array))
        trained = some_steps(fresh, step, digits)
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, trained)
        file.seek(0)
        loaded = eqx.tree_deserialise_leaves(file, fresh)
        return [some_steps(start, step, digits) for start in (trained, loaded)]

    with pytest.raises(RuntimeError, match="dtype"):
        saved(optax.adam(3e-3))
    assert_same(
        *(eqx.filter(carry, eqx.is_array) for carry in saved(guard(optax.adam(3e-3))))
    )


def make_params(dtypes):
    keys = jax.random.split(jax.random.PRNGKey(0))
    return {
        "w1": (jax.random.normal(keys[0], (64, HIDDEN), F32) / 8).astype(dtypes[0]),
        "w2": (jax.random.normal(keys[1], (HIDDEN, 10), F32) / 4).astype(dtypes[1]),
    }


def scores_of(params, images):
    params = wide(params)
    return jax.nn.relu(images @ params["w1"]) @ params["w2"]


def digits_loss(params, data):
    return cross_entropy(scores_of(params, data[0]), data[1])


def minimise(opt, dtypes, digits, steps=60, loss=digits_loss):
    """The accuracy that optimistix reaches, and the params."""
    optimistix = need("optimistix")
    solver = optimistix.OptaxMinimiser(opt, rtol=1e-6, atol=1e-6)
    data = tuple(map(jnp.asarray, digits[0]))
    solution = optimistix.minimise(
        loss, solver, make_params(dtypes), data, max_steps=steps, throw=False
    )
    return right(scores_of(solution.value, digits[1][0]), digits[1][1]), solution.value


def test_optimistix_lbfgs_x64(digits):
    """Bare, the line search calls the loss in float64, which optimistix has fixed."""
    with set_x64(True), pytest.raises(ValueError, match="different dynamic arguments"):
        minimise(optax.lbfgs(), (F32, F32), digits, 30)
    plain, _ = minimise(optax.lbfgs(), (F32, F32), digits, 30)
    with set_x64(True):
        guarded, params = minimise(guard(optax.lbfgs()), (F32, F32), digits, 30)
    assert types(params) == types(make_params((F32, F32)))
    assert min(plain, guarded) > 0.95
