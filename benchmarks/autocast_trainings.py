"""Three trainings to the end, in float32, in bfloat16 and by a plan.

    python benchmarks/autocast_trainings.py

scikit-learn's digits by an MLP and by a small convolutional net, and a transformer on the
characters of Python's own library. The plan is searched on the gradient at the first params
and one batch. For each, the loss of the last steps and the accuracy on data that was held
out, as mean and standard deviation over five seeds. Prints Markdown.
"""

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import dtypeguard

SEEDS = 5


class Training(NamedTuple):
    """A model and its data.

    Attributes:
        init: makes params of a key.
        forward: the logits of params and inputs.
        data: the inputs and labels, to train on and held out.
        size: of a batch.
        steps: how many.
        rate: that of Adam.
        tolerance: of the plan.
    """

    init: Callable[[jax.Array], Any]
    forward: Callable[..., jax.Array]
    data: tuple[tuple[Any, Any], tuple[Any, Any]]
    size: int
    steps: int
    rate: float
    tolerance: float = 0.05


def normal(key: jax.Array, *shape: int) -> jax.Array:
    return jax.random.normal(key, shape) / np.sqrt(np.prod(shape[:-1]))


def digits() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    first, last = order[:1400], order[1400:]
    return (images[first], labels[first]), (images[last], labels[last])


def mlp() -> Training:
    def init(key):
        keys = jax.random.split(key, 3)
        sizes = (64, 128), (128, 128), (128, 10)
        return [(normal(k, *s), jnp.zeros(s[1])) for k, s in zip(keys, sizes)]

    def forward(params, x):
        for w, b in params[:-1]:
            x = jax.nn.relu(x @ w + b)
        w, b = params[-1]
        return x @ w + b

    return Training(init, forward, digits(), 64, 300, 3e-3)


def convolutions() -> Training:
    def init(key):
        keys = jax.random.split(key, 3)
        kernels = [normal(keys[0], 3, 3, 1, 16), normal(keys[1], 3, 3, 16, 32)]
        return kernels, normal(keys[2], 32, 10)

    def forward(params, x):
        kernels, last = params
        x = x.reshape(-1, 8, 8, 1)
        for n, kernel in enumerate(kernels):
            layout = ("NHWC", "HWIO", "NHWC")
            strides = (1 + n, 1 + n)
            x = jax.lax.conv_general_dilated(
                x, kernel, strides, "SAME", dimension_numbers=layout
            )
            x = jax.nn.relu(standardized(x))
        return jnp.mean(x, (1, 2)) @ last

    def standardized(x):
        centered = x - jnp.mean(x, (0, 1, 2))
        return centered * jax.lax.rsqrt(jnp.mean(centered**2, (0, 1, 2)) + 1e-5)

    return Training(init, forward, digits(), 64, 200, 3e-3)


def characters() -> Training:
    text = pathlib.Path(argparse.__file__).read_bytes()
    codes = np.frombuffer(text, np.uint8).astype(np.int32) % 128
    length, width, heads, layers = 32, 48, 4, 2
    starts = np.arange(0, len(codes) - length - 1, length)
    rows = np.stack([codes[n : n + length + 1] for n in starts])
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    cut = len(rows) // 10
    split = lambda x: (x[:, :-1], x[:, 1:])

    def init(key):
        keys = iter(jax.random.split(key, 3 + 6 * layers))
        names = {"qkv": 3 * width, "out": width, "up": 2 * width}
        block = lambda: {
            **{name: normal(next(keys), width, size) for name, size in names.items()},
            "down": normal(next(keys), 2 * width, width),
        }
        return {
            "embed": 0.02 * jax.random.normal(next(keys), (128, width)),
            "place": 0.02 * jax.random.normal(next(keys), (length, width)),
            "blocks": [block() for _ in range(layers)],
            "last": normal(next(keys), width, 128),
        }

    def norm(x):
        centered = x - jnp.mean(x, -1, keepdims=True)
        return centered * jax.lax.rsqrt(jnp.mean(centered**2, -1, keepdims=True) + 1e-6)

    def attend(p, x):
        split = (x @ p["qkv"]).reshape(*x.shape[:2], 3, heads, width // heads)
        q, k, v = jnp.moveaxis(split, 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // heads)
        scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -1e9)
        weights = jax.nn.softmax(scores)
        made = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return made.reshape(x.shape) @ p["out"]

    def forward(params, tokens):
        x = params["embed"][tokens] + params["place"]
        for p in params["blocks"]:
            x = x + attend(p, norm(x))
            x = x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]
        return norm(x) @ params["last"]

    data = split(rows[cut:]), split(rows[:cut])
    return Training(init, forward, data, 16, 300, 3e-3)


TRAININGS = {
    "digits (MLP)": mlp,
    "digits (convolutions)": convolutions,
    "characters (transformer)": characters,
}


def narrow(tree: Any) -> Any:
    is_float = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16) if is_float(x) else x, tree)


def loss_of(training: Training) -> Callable[..., jax.Array]:
    def loss(params, x, y):
        logits = training.forward(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    return loss


def run(
    training: Training, seed: int, gradient: Callable[..., Any], is_narrow: bool
) -> tuple[float, float]:
    """The mean loss of the last steps, and the accuracy on what is held out."""
    opt = optax.adam(training.rate)
    params = training.init(jax.random.key(seed))
    params = narrow(params) if is_narrow else params
    state = opt.init(params)

    @jax.jit
    def step(params, state, x, y):
        value, grads = gradient(params, x, y)
        updates, state = opt.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    (xs, ys), (x, y) = training.data
    draw, losses = np.random.default_rng(seed), []
    for _ in range(training.steps):
        chosen = draw.integers(0, len(xs), training.size)
        batch = jnp.asarray(xs[chosen]), jnp.asarray(ys[chosen])
        batch = narrow(batch) if is_narrow else batch
        params, state, value = step(params, state, *batch)
        losses.append(value)
    last = losses[-training.steps // 10 :]
    given = narrow(jnp.asarray(x)) if is_narrow else jnp.asarray(x)
    right = jnp.argmax(training.forward(params, given), -1) == y
    return float(jnp.mean(jnp.stack(last).astype(jnp.float32))), float(right.mean())


def main(names: Sequence[str]) -> None:
    print(f"JAX {jax.__version__}, {jax.devices()[0].platform}, {SEEDS} seeds\n")
    print("| training | in | loss | held-out accuracy | multiply-adds in bfloat16 |")
    print("|---|---|---|---|---|")
    for name, make in TRAININGS.items():
        if names and not any(each in name for each in names):
            continue
        training, started = make(), time.monotonic()
        gradient = jax.value_and_grad(loss_of(training))
        (xs, ys), _ = training.data
        size = training.size
        batches = [(xs[n : n + size], ys[n : n + size]) for n in (0, size)]
        params = training.init(jax.random.key(0))
        first, other = ((params, *map(jnp.asarray, batch)) for batch in batches)
        report = dtypeguard.audit_precision(
            gradient,
            *first,
            narrow=jnp.bfloat16,
            tolerance=training.tolerance,
            held_out=[other],
            progress=False,
        )
        plan = report.plan
        assert plan is not None
        print(f"<!-- {report.search}\n-->")
        ways = {
            "float32": (gradient, False, 0.0),
            "all bfloat16": (gradient, True, 1.0),
            "plan": (dtypeguard.autocast(gradient, plan), False, plan.share or 0.0),
        }
        for way, (f, is_narrow, share) in ways.items():
            made = [run(training, seed, f, is_narrow) for seed in range(SEEDS)]
            losses, scores = zip(*made)
            cells = (shown(losses), shown(scores), f"{100 * share:.0f}%")
            print(f"| {name} | {way} | {' | '.join(cells)} |", flush=True)
        print(f"<!-- {time.monotonic() - started:.0f} s -->")


def shown(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("names", nargs="*", help="of trainings, or parts of names")
    main(arguments.parse_args().names)
