"""The learning rate of RMSProp is learnt; after Optax's `examples/meta_learning`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax


def generator():
    rng = np.random.default_rng(0)
    while True:
        x = rng.uniform(0, 10)
        yield jnp.float32(x), jnp.float32(10 * x + rng.normal())


g = generator()
rate, meta_rate = jnp.array(0.1), jnp.array(0.03)
opt = optax.inject_hyperparams(optax.rmsprop)(learning_rate=rate)
meta_opt = optax.adam(learning_rate=meta_rate)


def loss(theta, x, y):
    return optax.l2_loss(y, x * theta)


def step(theta, state, x, y):
    grad = jax.grad(loss)(theta, x, y)
    updates, state = opt.update(grad, state)
    return optax.apply_updates(theta, updates), state


def outer_loss(eta, theta, state, xs, ys):
    state.hyperparams["learning_rate"] = jax.nn.sigmoid(eta)

    def inner(carry, sample):
        theta, state = carry
        return step(theta, state, *sample), None

    (theta, state), _ = jax.lax.scan(inner, (theta, state), (xs[:-1], ys[:-1]))
    return loss(theta, xs[-1], ys[-1]), (theta, state)


@jax.jit
def outer_step(eta, theta, meta_state, state, xs, ys):
    grad, (theta, state) = jax.grad(outer_loss, has_aux=True)(eta, theta, state, xs, ys)
    updates, meta_state = meta_opt.update(grad, meta_state)
    return optax.apply_updates(eta, updates), theta, meta_state, state


theta = jax.random.normal(jax.random.key(42))
state = opt.init(theta)
eta = -jnp.log(1.0 / rate - 1)
eta = jax.lax.convert_element_type(eta, jnp.float32)
state = jax.tree.map(jnp.asarray, state)
meta_state = meta_opt.init(eta)
for _ in range(2):
    xs, ys = map(jnp.stack, zip(*[next(g) for _ in range(3)]))
    eta, theta, meta_state, state = outer_step(eta, theta, meta_state, state, xs, ys)
print(jax.nn.sigmoid(eta))
