"""Trains on digits and saves after every step; run and killed by test_checkpoints.py.

Usage: training_run.py FOLDER bare|guarded STEPS

Goes on from the last complete checkpoint in FOLDER. Tells where it is: `resumed N DIGEST`,
`within N` in the midst of a step, `saving N`, `saved N`, `done DIGEST`. A digest is of
every bit of params and state.
"""

import hashlib
import sys
import time

import digits
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util

from dtypeguard import guard

HIDDEN = 32
OPTIMIZERS = {
    "adam": optax.adam(3e-3),
    "chain": optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 3e-3, 5, 40)),
        optax.apply_every(2),
    ),
    "MultiSteps": optax.MultiSteps(optax.adam(3e-3), 3),
}


def make_params(dtype=jnp.float32):
    return digits.make_params(0, dtype, HIDDEN)


def batch(number):
    images, labels = digits.data()
    rows = np.random.default_rng(number).integers(0, len(labels), 100)
    return images[rows], labels[rows]


def make(wrap, within):
    """The first params and states, and the step of all the optimizers."""
    optimizers = {name: wrap(opt) for name, opt in OPTIMIZERS.items()}
    params = make_params()
    carry = {name: (params, opt.init(params)) for name, opt in optimizers.items()}

    @jax.jit
    def step(carry, images, labels, number):
        new = {}
        for name, opt in optimizers.items():
            params, state = carry[name]
            value, grads = jax.value_and_grad(digits.loss)(params, images, labels)
            if name == "chain":
                jax.debug.callback(within, number, value)
            updates, state = opt.update(grads, state, params)
            new[name] = optax.apply_updates(params, updates), state
        return new

    return carry, step


def digest(carry):
    """Of the tree, types and bits."""
    hashed = hashlib.sha256()
    for path, leaf in tree_util.tree_flatten_with_path(carry)[0]:
        hashed.update(f"{tree_util.keystr(path)}{leaf.dtype}{leaf.shape}".encode())
        hashed.update(np.asarray(leaf).tobytes())
    return hashed.hexdigest()


def tell(*words):
    print(*words, flush=True)


def within(number, value):
    tell("within", number)
    time.sleep(0.02)


def main(folder, wrap, steps):
    import orbax.checkpoint as orbax

    carry, step = make({"bare": lambda opt: opt, "guarded": guard}[wrap], within)
    with orbax.CheckpointManager(folder) as manager:
        first = manager.latest_step() or 0
        if first:
            carry = manager.restore(first, args=orbax.args.StandardRestore(carry))
        tell("resumed", first, digest(carry))
        for number in range(first, steps):
            carry = jax.block_until_ready(step(carry, *batch(number), number))
            tell("saving", number + 1)
            manager.save(number + 1, args=orbax.args.StandardSave(carry))
            manager.wait_until_finished()
            tell("saved", number + 1)
    tell("done", digest(carry))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
