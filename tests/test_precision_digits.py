"""All-bfloat16 training on scikit-learn's digits ends where float32 does."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax, tree_util
from sklearn.datasets import load_digits

from dtypeguard import Policy, apply_updates, guard

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
STEPS, BATCH, HIDDEN, SEEDS = 3000, 128, 128, 3
ALL_BF16 = Policy(
    compute_dtype=F32, state_dtype=BF16, updates_dtype=F32, rounding="stochastic"
)
OPTIMIZERS = {
    "adam": lambda: optax.adam(1e-4),
    "lion": lambda: optax.lion(2e-5),
    "adamw": lambda: optax.adamw(
        optax.linear_schedule(3e-4, 0.0, STEPS), weight_decay=1e-2
    ),
}


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    return jnp.asarray(images / 16, F32), jnp.asarray(labels, jnp.int32)


def make_params(seed, dtype):
    """Of one hidden layer, by He's rule."""
    first, second = jax.random.split(jax.random.PRNGKey(seed))
    return tree_util.tree_map(
        lambda p: p.astype(dtype),
        {
            "w1": jax.random.normal(first, (64, HIDDEN)) * np.sqrt(2 / 64),
            "b1": jnp.zeros(HIDDEN),
            "w2": jax.random.normal(second, (HIDDEN, 10)) * np.sqrt(2 / HIDDEN),
            "b2": jnp.zeros(10),
        },
    )


def loss(params, images, labels):
    """In float32 whatever the params: the optimizer is what is tested here."""
    params = tree_util.tree_map(lambda p: p.astype(F32), params)
    hidden = jax.nn.relu(images @ params["w1"] + params["b1"])
    scores = hidden @ params["w2"] + params["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def train(opt, dtype, apply, digits):
    """The final training loss for each seed, and the bytes of params and state."""
    images, labels = digits

    def step(carry, key):
        params, state = carry
        rows = jax.random.randint(key, (BATCH,), 0, len(images))
        grads = jax.grad(loss)(params, images[rows], labels[rows])
        updates, state = opt.update(grads, state, params)
        return (apply(params, updates, key=jax.random.fold_in(key, 0)), state), None

    @jax.jit
    def run(seed):
        params = make_params(seed, dtype)
        keys = jax.random.split(jax.random.PRNGKey(1000 + seed), STEPS)
        carry, _ = lax.scan(step, (params, opt.init(params)), keys)
        return loss(carry[0], *digits), carry

    runs = [run(seed) for seed in range(SEEDS)]
    leaves = tree_util.tree_leaves(runs[0][1])
    return np.array([float(value) for value, _ in runs]), sum(x.nbytes for x in leaves)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_within_a_tenth_of_float32_in_half_the_bytes(digits, name):
    make = OPTIMIZERS[name]
    plain = lambda params, updates, key: optax.apply_updates(params, updates)
    float32, all_bytes = train(make(), F32, plain, digits)
    bare, _ = train(make(), BF16, plain, digits)
    ours, our_bytes = train(guard(make(), policy=ALL_BF16), BF16, apply_updates, digits)
    assert (abs(ours / float32 - 1) < 0.1).all()
    assert (bare > 2 * float32).all()
    assert our_bytes < 0.501 * all_bytes
