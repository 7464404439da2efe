"""scikit-learn's digits and a perceptron of one hidden layer, for runs on real data."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util


@functools.cache
def data():
    """1,797 images of 64 pixels between 0 and 1, float32, and their labels."""
    from sklearn.datasets import load_digits  # a second, for each process that imports it

    images, labels = load_digits(return_X_y=True)
    return np.asarray(images / 16, np.float32), np.asarray(labels, np.int32)


def make_params(seed, dtype, hidden=128):
    """By He's rule, drawn in float32."""
    first, second = jax.random.split(jax.random.PRNGKey(seed))
    return tree_util.tree_map(
        lambda p: p.astype(dtype),
        {
            "w1": jax.random.normal(first, (64, hidden)) * np.sqrt(2 / 64),
            "b1": jnp.zeros(hidden),
            "w2": jax.random.normal(second, (hidden, 10)) * np.sqrt(2 / hidden),
            "b2": jnp.zeros(10),
        },
    )


def loss(params, images, labels):
    """In float32 whatever the params: the optimizer is what is tested."""
    params = tree_util.tree_map(lambda p: p.astype(jnp.float32), params)
    hidden = jax.nn.relu(images @ params["w1"] + params["b1"])
    scores = hidden @ params["w2"] + params["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()
