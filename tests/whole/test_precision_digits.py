"""All-bfloat16 training on scikit-learn's digits ends where float32 does."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax, tree_util

from dtypeguard import Policy, apply_updates, guard
from tests.support import digits
from tests.support.dtypes import BF16, F32

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.optimized,
    pytest.mark.exhaustive,
]  # thousands of steps
STEPS, BATCH = 3000, 128
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


def train(opt, dtype, apply):
    """The final training loss, and the bytes of params and state."""
    images, labels = map(jnp.asarray, digits.data())

    def step(carry, key):
        params, state = carry
        rows = jax.random.randint(key, (BATCH,), 0, len(images))
        grads = jax.grad(digits.loss)(params, images[rows], labels[rows])
        updates, state = opt.update(grads, state, params)
        return (apply(params, updates, key=jax.random.fold_in(key, 0)), state), None

    @jax.jit
    def run(params):
        keys = jax.random.split(jax.random.PRNGKey(1000), STEPS)
        carry, _ = lax.scan(step, (params, opt.init(params)), keys)
        return digits.loss(carry[0], images, labels), carry

    value, carry = run(digits.make_params(0, dtype))
    return float(value), sum(leaf.nbytes for leaf in tree_util.tree_leaves(carry))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_within_a_tenth_of_float32_in_half_the_bytes(name):
    make = OPTIMIZERS[name]
    plain = lambda params, updates, key: optax.apply_updates(params, updates)
    float32, all_bytes = train(make(), F32, plain)
    bare, _ = train(make(), BF16, plain)
    ours, our_bytes = train(guard(make(), policy=ALL_BF16), BF16, apply_updates)
    assert abs(ours / float32 - 1) < 0.1
    assert bare > 2 * float32
    assert our_bytes < 0.501 * all_bytes
