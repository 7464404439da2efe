"""A training script, which tests write, edit and search plans of."""

import importlib.util
import itertools
import sys

TEXT = """
import jax
import jax.numpy as jnp


def norm(x):
    mean = jnp.mean(x * x, -1, keepdims=True)
    return x * jax.lax.rsqrt(mean + 1e-6)


def forward(params, x):
    for w in params[:-1]:
        x = x + jnp.tanh(norm(x) @ w)
    return norm(x) @ params[-1]


def loss(params, x, y):
    scores = forward(params, x)
    logs = jax.nn.log_softmax(scores)
    return -jnp.mean(jnp.take_along_axis(logs, y[:, None], 1))


def step(params, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    return [p - 0.1 * g for p, g in zip(params, grads)], value


keys = jax.random.split(jax.random.key(0), 8)
SIZE = 16
params = [jax.random.normal(k, (SIZE, SIZE)) / SIZE**0.5 for k in keys[:3]]


def batch(key):
    x = jax.random.normal(key, (24, SIZE))
    return params, x, jax.random.randint(key, (24,), 0, SIZE)


def inputs():
    return batch(keys[4])


def unseen():
    return batch(keys[5])
"""
_numbers = itertools.count()


def written(folder, *edits, text=TEXT):
    """Writes the script with some texts replaced, and returns its module."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    (folder / "pyproject.toml").touch()
    path = folder / "train.py"
    path.write_text(text)
    name = f"trained_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
