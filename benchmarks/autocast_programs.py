"""Eight programs for `autocast_plans.py`: gradients of models of public packages.

Flax, Haiku, Equinox, jraph and tinygp have the layers and the kernel. The losses are
written here, after Equinox's example of a score-based diffusion and the paper on PPO.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import jraph  # pyright: ignore[reportMissingImports]: for this benchmark alone
import numpy as np
import optax
import tinygp  # pyright: ignore[reportMissingImports]: as above

KEY = jax.random.key(0)


class Subject(NamedTuple):
    """A gradient and its arguments.

    Attributes:
        gradient: of params and a batch.
        params: its params.
        batch: makes a batch from a key.
        tolerance: the error that is allowed.
    """

    gradient: Callable[..., Any]
    params: Any
    batch: Callable[[jax.Array], tuple[Any, ...]]
    tolerance: float


# Language: a decoder of Flax's attention layers


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(64, 32)(tokens) + nn.Embed(24, 32)(jnp.arange(24))
        mask = nn.make_causal_mask(tokens)
        for _ in range(2):
            x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x), mask=mask)
            h = nn.gelu(nn.Dense(64)(nn.LayerNorm()(x)))
            x = x + nn.Dense(32)(h)
        return nn.Dense(64)(nn.LayerNorm()(x))


def language() -> Subject:
    model = Decoder()

    def loss(params, tokens):
        logits = jnp.asarray(model.apply(params, tokens))[:, :-1]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    batch = lambda key: (jax.random.randint(key, (4, 24), 0, 64),)
    params = model.init(KEY, *batch(KEY))
    return Subject(jax.grad(loss), params, batch, 0.01)


# Vision: Haiku's ResNet, small


def vision() -> Subject:
    def run(images):
        x = hk.Conv2D(16, 3)(images)
        for n in range(2):
            x = hk.nets.ResNet.BlockGroup(
                channels=16 * (n + 1),
                num_blocks=1,
                stride=1 + n,
                bn_config={"create_scale": True, "create_offset": True, "decay_rate": 0.9},
                resnet_v2=False,
                bottleneck=False,
                use_projection=bool(n),
            )(x, True, False)
        return hk.Linear(10)(jnp.mean(x, (1, 2)))

    model = hk.without_apply_rng(hk.transform_with_state(run))

    def loss(params, state, images, labels):
        logits, _ = model.apply(params, state, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def batch(key):
        images = jax.random.normal(key, (8, 8, 8, 3))
        return state, images, jax.random.randint(key, (8,), 0, 10)

    params, state = model.init(KEY, jnp.ones((8, 8, 8, 3)))
    return Subject(jax.grad(loss), params, batch, 0.02)


# Graph: jraph's graph network


def graph() -> Subject:
    def run(nodes):
        ends = np.arange(16)
        senders = np.concatenate([ends, ends])
        receivers = np.concatenate([(ends + 1) % 16, (ends + 5) % 16])
        edges = nodes[senders] - nodes[receivers]
        made = jraph.GraphsTuple(
            nodes, edges, senders, receivers, None, np.array([16]), np.array([32])
        )
        mlp = lambda: hk.nets.MLP([32, 32])
        network = jraph.InteractionNetwork(
            update_edge_fn=jraph.concatenated_args(mlp()),
            update_node_fn=jraph.concatenated_args(mlp()),
        )
        for _ in range(2):
            made = network(made)
        return hk.Linear(1)(jnp.mean(made.nodes, 0))[0]

    model = hk.without_apply_rng(hk.transform(run))
    loss = lambda params, nodes, y: (model.apply(params, nodes) - y) ** 2
    batch = lambda key: (jax.random.normal(key, (16, 32)), 1.0 + jax.random.uniform(key))
    return Subject(jax.grad(loss), model.init(KEY, batch(KEY)[0]), batch, 0.02)


# Diffusion: the mixer of Equinox's example, and its score matching


class Mixer(eqx.Module):
    patch: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    mix: eqx.nn.MLP
    hidden: eqx.nn.MLP
    out: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.patch, self.norm = eqx.nn.Linear(17, 32, key=keys[0]), eqx.nn.LayerNorm(32)
        self.mix = eqx.nn.MLP(8, 8, 32, 1, jax.nn.gelu, key=keys[1])
        self.hidden = eqx.nn.MLP(32, 32, 64, 1, jax.nn.gelu, key=keys[2])
        self.out = eqx.nn.Linear(32, 16, key=keys[3])

    def __call__(self, t, y):
        y = jnp.concatenate([y, jnp.full((8, 1), t)], 1)
        y = jax.vmap(self.patch)(y)
        y = y + jax.vmap(self.mix)(jax.vmap(self.norm)(y).T).T
        y = y + jax.vmap(self.hidden)(jax.vmap(self.norm)(y))
        return jax.vmap(self.out)(y)


def diffusion() -> Subject:
    def single(model, image, t, noise):
        weight = 1 - jnp.exp(-t)
        mean = image * jnp.exp(-0.5 * t)
        std = jnp.sqrt(jnp.maximum(1 - jnp.exp(-t), 1e-5))
        score = model(t, mean + std * noise)
        return weight * jnp.mean((score + noise / std) ** 2)

    def loss(params, *batch):
        model = eqx.combine(params, static)
        return jnp.mean(jax.vmap(single, in_axes=(None, 0, 0, 0))(model, *batch))

    def batch(key):
        first, second, third = jax.random.split(key, 3)
        noise = jax.random.normal(second, (8, 8, 16))
        times = jax.random.uniform(third, (8,), minval=0.1, maxval=4.0)
        return jax.random.normal(first, (8, 8, 16)), times, noise

    params, static = eqx.partition(Mixer(KEY), eqx.is_inexact_array)
    return Subject(jax.grad(loss), params, batch, 0.01)


# Recurrent: Flax's LSTM over a sequence


def recurrent() -> Subject:
    class Classifier(nn.Module):
        @nn.compact
        def __call__(self, x):
            states = jnp.asarray(nn.RNN(nn.LSTMCell(32))(x))
            return nn.Dense(1)(states[:, -1])[:, 0]

    model = Classifier()

    def loss(params, x, y):
        return optax.sigmoid_binary_cross_entropy(model.apply(params, x), y).mean()

    def batch(key):
        x = jax.random.normal(key, (16, 32, 8))
        return x, (x.mean((1, 2)) > 0).astype(jnp.float32)

    return Subject(jax.grad(loss), model.init(KEY, batch(KEY)[0]), batch, 0.01)


# Reinforcement: PPO's clipped surrogate and TD(lambda), with an MLP of Haiku


def reinforcement() -> Subject:
    def run(seen):
        h = hk.nets.MLP([64, 64], activation=jnp.tanh, activate_final=True)(seen)
        return hk.Linear(6)(h), hk.Linear(1)(h)[:, 0]

    model = hk.without_apply_rng(hk.transform(run))

    def loss(params, seen, actions, rewards, before):
        logits, values = model.apply(params, seen)
        temporal = rewards + 0.99 * jax.lax.stop_gradient(values[1:]) - values[:-1]
        decayed = lambda total, error: (error + 0.99 * 0.9 * total,) * 2
        _, advantages = jax.lax.scan(decayed, 0.0, temporal, reverse=True)
        advantages = jax.lax.stop_gradient(advantages)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        every = jax.nn.log_softmax(logits[:-1])
        logs = every[jnp.arange(len(actions)), actions]
        ratios = jnp.exp(logs - before)
        clipped = jnp.clip(ratios, 0.8, 1.2)
        policy = -jnp.mean(jnp.minimum(ratios * advantages, clipped * advantages))
        entropy = jnp.mean(jnp.sum(jnp.exp(every) * every, 1))
        return policy + 0.5 * jnp.mean(temporal**2) + 0.01 * entropy

    def batch(key):
        keys = jax.random.split(key, 3)
        actions = jax.random.randint(keys[1], (64,), 0, 6)
        rewards = jax.random.normal(keys[2], (64,))
        return jax.random.normal(keys[0], (65, 12)), actions, rewards, jnp.full(64, -1.8)

    return Subject(jax.grad(loss), model.init(KEY, batch(KEY)[0]), batch, 0.02)


# Physics: the heat equation by an MLP of Equinox


def physics() -> Subject:
    params, static = eqx.partition(
        eqx.nn.MLP(2, "scalar", 32, 3, jnp.tanh, key=KEY), eqx.is_inexact_array
    )

    def loss(params, points, start):
        model = eqx.combine(params, static)
        u = lambda t, x: model(jnp.stack([t, x]))

        def residual(point):
            t, x = point
            return jax.grad(u)(t, x) - 0.1 * jax.grad(jax.grad(u, 1), 1)(t, x)

        at_start = jax.vmap(lambda x: u(0.0, x) - jnp.sin(np.pi * x))(start)
        return jnp.mean(jax.vmap(residual)(points) ** 2) + jnp.mean(at_start**2)

    def batch(key):
        return jax.random.uniform(key, (64, 2)), jax.random.uniform(key, (32,))

    return Subject(jax.grad(loss), params, batch, 0.02)


# A Gaussian process of tinygp


def process() -> Subject:
    def loss(params, x, y):
        kernel = jnp.exp(params["log_amplitude"]) * tinygp.kernels.ExpSquared(
            jnp.exp(params["log_scale"]), tinygp.kernels.distance.L2Distance()
        )
        features = jnp.tanh(x @ params["w"])
        made = tinygp.GaussianProcess(kernel, features, diag=jnp.exp(params["log_diag"]))
        return -made.log_probability(y)

    def batch(key):
        x = jax.random.normal(key, (48, 8))
        return x, jnp.sin(x.sum(1))

    names = ("log_amplitude", 0.0), ("log_scale", 0.5), ("log_diag", -1.0)
    params = {name: jnp.asarray(value) for name, value in names}
    params["w"] = jax.random.normal(KEY, (8, 4)) / 3
    return Subject(jax.grad(loss), params, batch, 0.02)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "language (Flax attention)": language,
    "vision (Haiku ResNet)": vision,
    "graph (jraph)": graph,
    "diffusion (Equinox mixer)": diffusion,
    "recurrent (Flax LSTM)": recurrent,
    "reinforcement (PPO, Haiku)": reinforcement,
    "physics-informed (Equinox MLP)": physics,
    "Gaussian process (tinygp)": process,
}
