"""DQN in one scan: a replay buffer of arrays, a cond that learns, a slow target network."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax import lax

CAPACITY, BATCH, STEPS, CHUNKS = 32, 8, 16, 3
GAMMA, TAU = 0.9, 0.05


class QNetwork(nn.Module):
    dtype: Any

    @nn.compact
    def __call__(self, x):
        dense = lambda size: nn.Dense(size, dtype=self.dtype, param_dtype=self.dtype)
        return dense(2)(nn.relu(dense(8)(x)))


class Buffer(NamedTuple):
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    done: jax.Array
    position: int
    size: int


class DQNState(TrainState):
    target_params: Any
    timesteps: int
    updates: int


class Carry(NamedTuple):
    state: DQNState
    buffer: Buffer
    obs: jax.Array
    running_return: float
    last_return: float
    epsilon: float
    key: jax.Array


def env_step(key, obs, action):
    """A walk on a line, left or right, until it is 1 away from where it began."""
    moved = obs[0] + jnp.where(action == 1, 0.25, -0.25) + 0.05 * jax.random.normal(key)
    done = jnp.abs(moved) >= 1.0
    reward = jnp.where(moved >= 1.0, 1.0, -0.05)
    next_obs = jnp.stack([moved, moved**2])
    return next_obs, jnp.where(done, jnp.zeros(2), next_obs), reward, done


def add(buffer, obs, action, reward, next_obs, done):
    at = buffer.position
    return Buffer(
        obs=buffer.obs.at[at].set(obs),
        action=buffer.action.at[at].set(action),
        reward=buffer.reward.at[at].set(reward),
        next_obs=buffer.next_obs.at[at].set(next_obs),
        done=buffer.done.at[at].set(done),
        position=(at + 1) % CAPACITY,
        size=jnp.minimum(buffer.size + 1, CAPACITY),
    )


def train(dtype=jnp.float32, opt=lambda opt: opt, step=lambda step, **options: step):
    """Trains in chunks, as one does who looks at the return in between.

    Returns:
        The losses, the first carry and the last, and how often a chunk was traced.
    """
    network = QNetwork(dtype)
    traces = []

    def loss_of(params, target_params, batch):
        obs, action, reward, next_obs, done = batch
        best = network.apply(target_params, next_obs).max(-1)
        target = reward + GAMMA * (1 - done) * best
        chosen = jnp.take_along_axis(network.apply(params, obs), action[:, None], 1)[:, 0]
        return jnp.mean((chosen - lax.stop_gradient(target)) ** 2)

    def learn(state, buffer, key):
        rows = jax.random.randint(key, (BATCH,), 0, buffer.size)
        batch = jax.tree.map(lambda x: x[rows], tuple(buffer[:5]))
        loss, grads = jax.value_and_grad(loss_of)(state.params, state.target_params, batch)
        state = state.apply_gradients(grads=grads)
        target = optax.incremental_update(state.params, state.target_params, TAU)
        return state.replace(target_params=target, updates=state.updates + 1), loss

    def wait(state, buffer, key):
        return state, jnp.array(0.0)

    def interact(carry, _):
        state, buffer, obs, running_return, last_return, epsilon, key = carry
        key, explore_key, action_key, env_key, batch_key = jax.random.split(key, 5)
        greedy = jnp.argmax(network.apply(state.params, obs))
        explored = jax.random.randint(action_key, (), 0, 2)
        action = jnp.where(jax.random.uniform(explore_key) < epsilon, explored, greedy)
        reached, next_obs, reward, done = env_step(env_key, obs, action)
        buffer = add(buffer, obs, action, reward, reached, done)
        running_return = running_return + reward
        last_return = jnp.where(done, running_return, last_return)
        running_return = running_return * (1 - done)
        epsilon = jnp.maximum(0.1, epsilon * 0.95)
        state = state.replace(timesteps=state.timesteps + 1)
        ready = (buffer.size >= BATCH) & (state.timesteps % 2 == 0)
        state, loss = lax.cond(ready, step(learn), step(wait), state, buffer, batch_key)
        carry = Carry(state, buffer, next_obs, running_return, last_return, epsilon, key)
        return carry, loss

    @jax.jit
    @step
    def chunk(carry):
        traces.append(carry)
        return lax.scan(step(interact), carry, None, STEPS)

    key, init_key = jax.random.split(jax.random.key(0))
    obs = jnp.zeros(2)
    params = jax.jit(network.init)(init_key, obs)
    state = DQNState.create(
        apply_fn=network.apply,
        params=params,
        target_params=jax.tree.map(jnp.copy, params),
        tx=opt(optax.adam(1e-2)),
        timesteps=0,
        updates=0,
    )
    buffer = Buffer(
        obs=jnp.zeros((CAPACITY, 2)),
        action=jnp.zeros(CAPACITY, int),
        reward=jnp.zeros(CAPACITY),
        next_obs=jnp.zeros((CAPACITY, 2)),
        done=jnp.zeros(CAPACITY, bool),
        position=0,
        size=0,
    )
    first = carry = Carry(state, buffer, obs, 0, 0, 1.0, key)
    losses = []
    for _ in range(CHUNKS):
        carry, losses_of_chunk = chunk(carry)
        losses += np.asarray(losses_of_chunk).tolist()
    return losses, first, carry, len(traces)
