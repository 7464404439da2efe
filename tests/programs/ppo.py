"""PPO in one `lax.scan`: environments under `vmap`, advantages backwards, minibatches."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from flax.training.train_state import TrainState
from jax import lax

ENVS, STEPS, UPDATES, EPOCHS, MINIBATCHES = 4, 8, 6, 2, 2
GAMMA, LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01


@struct.dataclass
class EnvState:
    position: jax.Array
    velocity: jax.Array
    time: jax.Array


class Balance:
    """A cart that is pushed left or right and has to stay near the origin."""

    def reset(self, key):
        position = jax.random.uniform(key, minval=-0.1, maxval=0.1)
        state = EnvState(position, jnp.zeros(()), jnp.array(0))
        return self.observe(state), state

    def step(self, key, state, action):
        velocity = 0.9 * state.velocity + jnp.where(action == 1, 0.1, -0.1)
        position = state.position + velocity
        state = EnvState(position, velocity, state.time + 1)
        done = (jnp.abs(position) > 1.0) | (state.time >= 20)
        reward = 1.0 - jnp.abs(position)
        _, fresh = self.reset(key)
        state = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, state)
        return self.observe(state), state, reward, done

    def observe(self, state):
        return jnp.stack([state.position, state.velocity])


@struct.dataclass
class LogState:
    env: EnvState
    running_return: float
    running_length: int
    episode_return: float
    episode_length: int
    timestep: int


class Log:
    """Keeps the return and the length of the last episode beside an environment."""

    def __init__(self, env):
        self.env = env

    def reset(self, key):
        obs, env = self.env.reset(key)
        return obs, LogState(env, 0, 0, 0, 0, 0)

    def step(self, key, state, action):
        obs, env, reward, done = self.env.step(key, state.env, action)
        total = state.running_return + reward
        length = state.running_length + 1
        state = LogState(
            env=env,
            running_return=total * (1 - done),
            running_length=length * (1 - done),
            episode_return=state.episode_return * (1 - done) + total * done,
            episode_length=state.episode_length * (1 - done) + length * done,
            timestep=state.timestep + 1,
        )
        return obs, state, reward, done


class ActorCritic(nn.Module):
    """Computes in `dtype`; params and what it returns are float32."""

    dtype: Any

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(8, dtype=self.dtype)(x))
        logits = nn.Dense(2, dtype=self.dtype)(x).astype(jnp.float32)
        value = nn.Dense(1, dtype=self.dtype)(x).astype(jnp.float32)
        return logits, value[..., 0]


class Transition(NamedTuple):
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


class Runner(NamedTuple):
    train: TrainState
    env: LogState
    obs: jax.Array
    scale: jax.Array
    key: jax.Array


def log_prob_of(logits, action):
    return jnp.take_along_axis(nn.log_softmax(logits), action[..., None], -1)[..., 0]


def train(dtype=jnp.float32, opt=lambda opt: opt, step=lambda step, **options: step):
    """Trains with two seeds, in one compiled function.

    Returns:
        The losses, the first runner and the last, and how often the function was traced.
    """
    env = Log(Balance())
    network = ActorCritic(dtype)
    reset = jax.vmap(env.reset)
    move = jax.vmap(step(env.step, carry="state", returned=1))
    traces = []

    def begin(key):
        key, init_key, env_key = jax.random.split(key, 3)
        params = network.init(init_key, jnp.zeros(2))
        schedule = optax.linear_schedule(3e-3, 0.0, UPDATES * EPOCHS * MINIBATCHES)
        tx = opt(
            optax.chain(optax.clip_by_global_norm(0.5), optax.adam(schedule, eps=1e-5))
        )
        state = TrainState.create(apply_fn=network.apply, params=params, tx=tx)
        obs, env_state = reset(jax.random.split(env_key, ENVS))
        return Runner(state, env_state, obs, jnp.ones(()), key)

    def interact(runner, _):
        key, action_key, env_key = jax.random.split(runner.key, 3)
        logits, value = network.apply(runner.train.params, runner.obs)
        action = jax.random.categorical(action_key, logits)
        env_keys = jax.random.split(env_key, ENVS)
        obs, env_state, reward, done = move(env_keys, runner.env, action)
        log_prob = log_prob_of(logits, action)
        seen = Transition(runner.obs, action, log_prob, value, reward / runner.scale, done)
        scale = 0.99 * runner.scale + 0.01 * jnp.abs(reward).mean()
        return Runner(runner.train, env_state, obs, scale, key), seen

    def advantages_of(seen, last_value):
        def backwards(carry, seen):
            advantage, next_value = carry
            alive = 1.0 - seen.done
            delta = seen.reward + GAMMA * next_value * alive - seen.value
            advantage = delta + GAMMA * LAMBDA * alive * advantage
            return (advantage, seen.value), advantage

        start = jnp.zeros_like(last_value), last_value
        return lax.scan(step(backwards), start, seen, reverse=True)[1]

    def loss_of(params, seen, advantages, targets):
        logits, value = network.apply(params, seen.obs)
        log_prob = log_prob_of(logits, seen.action)
        ratio = jnp.exp(log_prob - seen.log_prob)
        clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
        policy_loss = -jnp.minimum(ratio * advantages, clipped * advantages).mean()
        value_loss = jnp.square(value - targets).mean()
        probs = nn.softmax(logits)
        entropy = -(probs * nn.log_softmax(logits)).sum(-1).mean()
        return policy_loss + 0.5 * value_loss - ENTROPY * entropy

    def minibatch(state, batch):
        loss, grads = jax.value_and_grad(loss_of)(state.params, *batch)
        return state.apply_gradients(grads=grads), loss

    def epoch(carry, _):
        state, batch, key = carry
        key, shuffle_key = jax.random.split(key)
        order = jax.random.permutation(shuffle_key, ENVS * STEPS)
        flat = jax.tree.map(lambda x: x.reshape(ENVS * STEPS, *x.shape[2:])[order], batch)
        parts = jax.tree.map(lambda x: x.reshape(MINIBATCHES, -1, *x.shape[1:]), flat)
        state, losses = lax.scan(step(minibatch), state, parts)
        return (state, batch, key), losses

    def update(runner, _):
        runner, seen = lax.scan(step(interact), runner, None, STEPS)
        _, last_value = network.apply(runner.train.params, runner.obs)
        advantages = advantages_of(seen, last_value)
        batch = seen, advantages, advantages + seen.value
        carry = runner.train, batch, runner.key
        (state, _, key), losses = lax.scan(step(epoch), carry, None, EPOCHS)
        return runner._replace(train=state, key=key), losses.mean()

    @jax.jit
    def run(key):
        traces.append(key)
        return lax.scan(step(update), begin(key), None, UPDATES)

    losses = []
    for seed in range(2):
        key = jax.random.key(seed)
        runner, losses_of_seed = run(key)
        losses += np.asarray(losses_of_seed).tolist()
    return losses, jax.eval_shape(begin, key), runner, len(traces)
