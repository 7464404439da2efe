"""Training in bfloat16: `python benchmarks/precision.py`, about five minutes on two cores.

It needs scikit-learn, which the extra `test` installs.

`--cost` stops after the cost of a step, which comes first, `--training` leaves it out.

Two models, four optimizers, four settings: the final training loss, the bytes of params
and optimizer state, the time of a train step over float32's. Draws
docs/precision.svg. What an optimizer step and its random bits cost is measured by itself.
The models compute in float32 in every setting: what is compared is the optimizer.
"""

import functools
import pathlib
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import timing
from drawing import draw
from jax import lax, tree_util

from dtypeguard import Policy, apply_updates, guard
from dtypeguard._guard import precision
from dtypeguard._rounding.rounding import stochastic_round

BF16, F32 = jnp.bfloat16, jnp.float32
WIDE = Policy(compute_dtype=F32)
NEAREST = Policy(compute_dtype=F32, state_dtype=BF16, updates_dtype=F32)
STOCHASTIC = Policy(
    compute_dtype=F32, state_dtype=BF16, updates_dtype=F32, rounding="stochastic"
)
CHUNK = 50  # steps per point of a curve
ROOT = pathlib.Path(__file__).parents[1]


def plain(params, updates, key):
    return optax.apply_updates(params, updates)


SETTINGS = {  # dtype of the params, what is put around the optimizer, how updates are added
    "float32": (F32, lambda opt: opt, plain),
    "bare bfloat16": (BF16, lambda opt: opt, plain),
    "bfloat16, compute float32": (BF16, functools.partial(guard, policy=WIDE), plain),
    "all bfloat16, stochastic": (
        BF16,
        functools.partial(guard, policy=STOCHASTIC),
        lambda params, updates, key: apply_updates(params, updates, key=key),
    ),
}


def normal(key, *shape):
    return jax.random.normal(key, shape) * np.sqrt(2 / (shape[0] + shape[-1]))


def cross_entropy(scores, labels):
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def optimizers(model):
    """By name, with the model's learning rates; AdamW's falls to zero, Prodigy has none."""
    adam, adamw, lion = model.rates
    return {
        "adam": optax.adam(adam),
        "adamw": optax.adamw(optax.linear_schedule(adamw, 0.0, model.steps)),
        "lion": optax.lion(lion),
        "prodigy": optax.contrib.prodigy(),
    }


class Digits:
    """scikit-learn's digits, a hidden layer of 128."""

    title, steps, batch = "digits MLP", 3000, 128
    rates = (1e-4, 3e-4, 2e-5)

    def __init__(self):
        from sklearn.datasets import load_digits  # the cost of a step does not need it

        images, labels = load_digits(return_X_y=True)
        self.data = jnp.asarray(images / 16, F32), jnp.asarray(labels, jnp.int32)

    def init(self, key):
        one, two = jax.random.split(key)
        zeros = {"b1": jnp.zeros(128), "b2": jnp.zeros(10)}
        return {"w1": normal(one, 64, 128), "w2": normal(two, 128, 10)} | zeros

    def sample(self, key):
        rows = jax.random.randint(key, (self.batch,), 0, len(self.data[0]))
        return tuple(part[rows] for part in self.data)

    def loss(self, params, batch):
        hidden = jax.nn.relu(batch[0] @ params["w1"] + params["b1"])
        return cross_entropy(hidden @ params["w2"] + params["b2"], batch[1])


class Characters:
    """A transformer of two blocks on the text of the licence, which does not change."""

    title, steps, batch, length, width, heads = "character transformer", 1000, 8, 64, 64, 4
    rates = (3e-4, 1e-3, 5e-5)

    def __init__(self):
        text = (ROOT / "LICENSE").read_text()
        letters, coded = np.unique(np.array(list(text)), return_inverse=True)
        self.letters, self.text = len(letters), jnp.asarray(coded, jnp.int32)

    def init(self, key):
        keys = iter(jax.random.split(key, 20))
        width = self.width
        block = lambda: {
            "qkv": normal(next(keys), width, 3 * width),
            "out": normal(next(keys), width, width),
            "up": normal(next(keys), width, 4 * width),
            "down": normal(next(keys), 4 * width, width),
            "scales": jnp.ones((2, width)),
        }
        return {
            "letters": normal(next(keys), self.letters, width),
            "places": normal(next(keys), self.length, width),
            "blocks": [block(), block()],
            "head": normal(next(keys), width, self.letters),
        }

    def sample(self, key):
        starts = jax.random.randint(key, (self.batch, 1), 0, len(self.text) - self.length)
        return self.text[starts + jnp.arange(self.length + 1)]

    def loss(self, params, batch):
        x = params["letters"][batch[:, :-1]] + params["places"]
        for block in params["blocks"]:
            x = x + self.attend(block, x)
            up = jax.nn.gelu(normed(x) * block["scales"][1] @ block["up"])
            x = x + up @ block["down"]
        return cross_entropy(normed(x) @ params["head"], batch[:, 1:])

    def attend(self, block, x):
        parts = normed(x) * block["scales"][0] @ block["qkv"]
        split = lambda part: part.reshape(*x.shape[:2], self.heads, -1)
        mixed = jax.nn.dot_product_attention(
            *map(split, jnp.split(parts, 3, axis=-1)), is_causal=True
        )
        return mixed.reshape(x.shape) @ block["out"]


def normed(x):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


class Run:
    """One model, optimizer and setting, trained a chunk of steps at a time."""

    def __init__(self, model, name, setting):
        self.model = model
        dtype, wrap, self.apply = SETTINGS[setting]
        self.opt = wrap(optimizers(model)[name])
        params = model.init(jax.random.key(0))
        params = tree_util.tree_map(lambda p: p.astype(dtype), params)
        self.carry, self.curve, self.seconds = (params, self.opt.init(params)), [], []
        self.chunk = jax.jit(functools.partial(lax.scan, self.step))

    def step(self, carry, number):
        params, state = carry
        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), number))
        batch = self.model.sample(keys[0])
        loss = lambda p: self.model.loss(widened(p), batch)
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = self.opt.update(grads, state, params)
        return (self.apply(params, updates, keys[1]), state), value

    def advance(self, start):
        begin = time.perf_counter()
        self.carry, values = self.chunk(self.carry, jnp.arange(start, start + CHUNK))
        self.curve.append((start + CHUNK, float(values.mean())))
        self.seconds.append(time.perf_counter() - begin)

    def final_loss(self):
        keys = jax.random.split(jax.random.key(2), 100)
        loss = lambda p: lambda key: self.model.loss(p, self.model.sample(key))
        return float(
            jax.jit(lambda p: lax.map(loss(p), keys).mean())(widened(self.carry[0]))
        )

    def kibibytes(self):
        return sum(leaf.nbytes for leaf in tree_util.tree_leaves(self.carry)) / 1024


def widened(params):
    return tree_util.tree_map(lambda p: p.astype(F32), params)


def training():
    panels = []
    for model in (Digits(), Characters()):
        panels.append([])
        print(f"\n{model.title}, {model.steps} steps")
        print("optimizer  setting                        loss      KiB  bytes  step time")
        for name in optimizers(model):
            runs = {setting: Run(model, name, setting) for setting in SETTINGS}
            for start in range(0, model.steps, CHUNK):
                for run in runs.values():
                    run.advance(start)
            base = runs["float32"]
            for setting, run in runs.items():
                pairs = list(zip(run.seconds, base.seconds))[1:]  # the first one compiles
                print(
                    f"{name:<10} {setting:<26} {run.final_loss():>8.3g} "
                    f"{run.kibibytes():>8.1f}   "
                    f"{run.kibibytes() / base.kibibytes():.2f}   "
                    f"{statistics.median(ours / float32 for ours, float32 in pairs):.2f}",
                    flush=True,
                )
            curves = {setting: run.curve for setting, run in runs.items()}
            panels[-1].append((f"{model.title}, {name}", curves))
    path = ROOT / "docs" / "precision.svg"
    draw(panels, path)
    print(f"\ncurves: {path.name}")


# What a step costs ----------------------------------------------------------------------


def threefry_round_with(leaf, dtype, words):
    """`precision.round_with` with JAX's own generator in the place of ours."""
    seed, *others = words
    key = functools.reduce(jax.random.fold_in, others, jax.random.key(seed))
    return stochastic_round(leaf, dtype, jax.random.bits(key, leaf.shape, jnp.uint32))


# XLA's CPU backend then finds that the old moments are read for the last time before the
# new ones are written over them, and copies none of them first.
NO_COPIES = {"xla_cpu_copy_insertion_use_region_analysis": True}
GIVEN = {  # what jit is told: donate_argnums, compiler_options
    "kept": ((), None),
    "given away": ((0, 1), None),
    "given away, no copies": ((0, 1), NO_COPIES),
}


def stepper(opt, dtype, apply, leaves, given):
    """A function that takes one optimizer step of `leaves` arrays of 1024 x 1024."""
    donated, options = GIVEN[given]
    make = lambda key: jax.random.normal(key, (1024, 1024)).astype(dtype)
    params = [make(key) for key in jax.random.split(jax.random.key(0), leaves)]
    grads = [(param * 0.01).astype(dtype) for param in params]

    @functools.partial(jax.jit, donate_argnums=donated)
    def step(params, state, grads, number):
        updates, state = opt.update(grads, state, params)
        key = jax.random.fold_in(jax.random.key(0), number)
        return apply(params, updates, key), state

    state = opt.init(params)
    compiled = step.lower(params, state, grads, 0).compile(compiler_options=options)
    box = [compiled(params, state, grads, 0)]

    def run():
        box[0] = jax.block_until_ready(compiled(*box[0], grads, 1))

    return run, timing.temporary_bytes(compiled) / 2**20


def cost(given, leaves, rounds=31):
    with_key = lambda params, updates, key: apply_updates(params, updates, key=key)
    without = lambda params, updates, key: apply_updates(params, updates)
    sides = {
        "float32": stepper(optax.adam(1e-4), F32, plain, leaves, given),
        "bare bfloat16": stepper(optax.adam(1e-4), BF16, plain, leaves, given),
    }
    for name, policy, apply in (
        ("all bfloat16, nearest", NEAREST, without),
        ("all bfloat16, stochastic", STOCHASTIC, with_key),
    ):
        opt = guard(optax.adam(1e-4), policy=policy)
        sides[name] = stepper(opt, BF16, apply, leaves, given)
    ours, precision.round_with = precision.round_with, threefry_round_with
    opt = guard(optax.adam(1e-4), policy=STOCHASTIC)
    sides["  with jax.random.bits"] = stepper(opt, BF16, with_key, leaves, given)
    precision.round_with = ours
    times = {name: [] for name in sides}
    for _ in range(rounds):
        for name, (run, _) in sides.items():
            begin = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begin)
    print(f"\nadam, update and apply, {leaves} x 1024 x 1024, params and state {given}")
    for name, values in times.items():
        ratio = statistics.median(a / b for a, b in zip(values, times["float32"]))
        print(
            f"  {name:<26} {1e3 * statistics.median(values):>7.2f} ms   {ratio:>5.2f}   "
            f"{sides[name][1]:>3.0f} MiB temporary"
        )


def main():
    """First the costs: a process that has trained has its memory laid out otherwise."""
    print(timing.setting())
    if "--training" not in sys.argv:
        for leaves in (4, 24):
            for given in GIVEN:
                cost(given, leaves)
    if "--cost" not in sys.argv:
        training()


if __name__ == "__main__":
    main()
