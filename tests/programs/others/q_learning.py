"""Q-learning of a walk with RLax; after RLax's `examples/simple_dqn`."""

import collections
from sys import argv  # the name of a mistake to make, for `notes.py`
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import rlax

Params = collections.namedtuple("Params", "online target")


class Learner(NamedTuple):
    count: jax.Array
    opt_state: Any


def network(obs):
    return hk.nets.MLP([8, 2])(obs)


net = hk.without_apply_rng(hk.transform(network))
optimizer = optax.adam(1e-2)
PERIOD = 2


class Replay:
    def __init__(self, size):
        self.size, self.rows = size, []

    def push(self, *row):
        self.rows.append(row)

    def sample(self, rng, batch):
        picked = [self.rows[i] for i in rng.integers(len(self.rows), size=batch)]
        if "actions as floats" in argv:
            picked = [(o, np.float32(a), *rest) for o, a, *rest in picked]  # the mistake
        obs, action, reward, discount, later = map(np.stack, zip(*picked))
        return obs, action, reward.astype(np.float32), discount.astype(np.float32), later


def loss(online, target, obs, action, reward, discount, later):
    q, q_later = net.apply(online, obs), net.apply(target, later)
    batched = jax.vmap(rlax.double_q_learning)
    error = batched(q, action, reward, discount, q_later, net.apply(online, later))
    return jnp.mean(rlax.l2_loss(error))


@jax.jit
def learn(params, learner, batch):
    grads = jax.grad(loss)(params.online, params.target, *batch)
    updates, opt_state = optimizer.update(grads, learner.opt_state)
    online = optax.apply_updates(params.online, updates)
    copied = lambda: online
    kept = lambda: params.target
    if "a copy in bfloat16 in a branch" in argv:
        narrow = lambda x: x.astype(jnp.bfloat16)  # the mistake
        copied = lambda: jax.tree.map(narrow, online)
    if "a reward that counts in a branch" in argv:
        jax.lax.cond(learner.count > 0, lambda: 0, lambda: batch[2].mean())  # the mistake
    target = jax.lax.cond(learner.count % PERIOD == 0, copied, kept)
    return Params(online, target), Learner(learner.count + 1, opt_state)


@jax.jit
def act(params, key, obs, epsilon):
    q = net.apply(params.online, obs[None])[0]
    return rlax.epsilon_greedy(epsilon).sample(key, q)


rng, key = np.random.default_rng(0), jax.random.key(0)
obs = np.zeros(3, np.float32)
first = net.init(key, obs[None])
params = Params(first, first)
learner = Learner(jnp.zeros((), jnp.int32), optimizer.init(first))
replay = Replay(16)
for number in range(4):
    epsilon = np.float32(0.1 / (1 + number))
    if "an epsilon that becomes a number" in argv and number == 0:
        epsilon = 1  # the mistake
    action = int(act(params, key, obs, epsilon))
    later = obs + np.float32(2 * action - 1)
    replay.push(obs, action, later.sum(), 0.9, later)
    obs = later
    params, learner = learn(params, learner, replay.sample(rng, 2))
