"""An Equinox CNN on small images: MaxPool2d, Dropout, an average of the weights."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

IMAGES, BATCH, STEPS = 48, 16, 12


class CNN(eqx.Module):
    """Layers in a list, numbers that are no arrays beside them."""

    layers: list
    temperature: float
    size: int

    def __init__(self, key, dtype):
        keys = jax.random.split(key, 3)
        self.layers = [
            eqx.nn.Conv2d(1, 3, kernel_size=3, padding=1, dtype=dtype, key=keys[0]),
            eqx.nn.MaxPool2d(kernel_size=2, stride=2),
            jax.nn.relu,
            jnp.ravel,
            eqx.nn.Linear(48, 8, dtype=dtype, key=keys[1]),
            jax.nn.relu,
            eqx.nn.Dropout(0.1),
            eqx.nn.Linear(8, 4, dtype=dtype, key=keys[2]),
        ]
        self.temperature = 2.0
        self.size = 8

    def __call__(self, x, key):
        x = x.reshape(1, self.size, self.size)
        for layer in self.layers:
            x = layer(x, key=key) if isinstance(layer, eqx.nn.Dropout) else layer(x)
        return jax.nn.log_softmax(x / self.temperature)


def data():
    """Images of four kinds: one quarter of each is bright."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, IMAGES)
    images = rng.normal(size=(IMAGES, 2, 4, 2, 4)) * 0.3
    images[np.arange(IMAGES), labels // 2, :, labels % 2] += 1
    return images.reshape(IMAGES, 64).astype(np.float32), labels


def loss_fn(model, x, y, key):
    keys = jax.random.split(key, len(x))
    log_probs = jax.vmap(model)(x, keys)
    return -jnp.take_along_axis(log_probs, y[:, None], 1).mean()


def train(dtype=jnp.float32, opt=lambda opt: opt, step=lambda step, **options: step):
    """Trains for some epochs in a Python loop.

    Returns:
        The losses, the first carry and the last, and how often the step was traced.
    """
    key = jax.random.key(0)
    model = CNN(key, dtype)
    average = model
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.02, 3, STEPS)
    optim = opt(optax.adamw(schedule))
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    traces = []

    @eqx.filter_jit
    @functools.partial(step, carry=("model", "average", "opt_state"))
    def make_step(model, average, opt_state, x, y, key):
        traces.append(x)
        loss, grads = eqx.filter_value_and_grad(loss_fn)(model, x, y, key)
        params = eqx.filter(model, eqx.is_array)
        updates, opt_state = optim.update(grads, opt_state, params)
        model = eqx.apply_updates(model, updates)
        decay = 0.9
        average = jax.tree.map(
            lambda a, p: decay * a + (1 - decay) * p if eqx.is_array(p) else p,
            average,
            model,
        )
        return model, average, opt_state, loss

    first = model, average, opt_state
    images, labels = data()
    losses = []
    for n in range(STEPS):
        key, step_key = jax.random.split(key)
        rows = slice(n * BATCH % IMAGES, n * BATCH % IMAGES + BATCH)
        x, y = jnp.asarray(images[rows], dtype), jnp.asarray(labels[rows])
        model, average, opt_state, loss = make_step(
            model, average, opt_state, x, y, step_key
        )
        losses.append(loss.item())
    return losses, first, (model, average, opt_state), len(traces)
