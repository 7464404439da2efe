"""Which leaf of a state survives in which dtype: `python benchmarks/state_dtypes.py`.

One leaf of a state is stored in a narrow dtype, rounded stochastically; params, arithmetic
and the other leaves are float32. Two things are told of each. The size of a step for
gradients of three sizes, as the root mean square over that of the same steps with a float32
state: 1.00 is right. And the training loss of a small model, float32's in the first column.
About two minutes on two cores, with the tests' requirements installed.
"""

import functools

import jax
import jax.numpy as jnp
import optax
import timing
from jax import lax
from precision import Digits

from dtypeguard import Policy, guard

F32 = jnp.float32
DTYPES = (jnp.bfloat16, jnp.float16, jnp.float8_e5m2, jnp.float8_e4m3fn)
SIZES = (1e-5, 1e-2, 1e3)  # of the gradients
LEAVES = {  # a leaf and its optimizer, with a learning rate that suits the model
    "adam, mu": ("*.mu*", lambda rate=1e-3: optax.adam(rate)),
    "adam, nu": ("*.nu*", lambda rate=1e-3: optax.adam(rate)),
    "lion, mu": ("*.mu*", lambda rate=1e-4: optax.lion(rate)),
    "momentum, trace": ("*.trace*", lambda rate=1e-1: optax.sgd(rate, momentum=0.9)),
}


def stored(opt, pattern, dtype):
    """The optimizer with some leaves of its state in a dtype."""
    rule = {pattern: dtype}
    policy = Policy(compute_dtype=F32, state_dtype=rule, rounding="stochastic")
    return guard(opt, policy=policy)


def step_sizes(opt, size, steps=400, entries=4096):
    """The root mean square of the last 100 updates for noise of a size as gradients."""
    params = jnp.zeros(entries)

    def step(state, number):
        key = jax.random.fold_in(jax.random.key(0), number)
        updates, state = opt.update(
            size * jax.random.normal(key, (entries,)), state, params
        )
        return state, jnp.mean(jnp.square(updates))

    squares = lax.scan(step, opt.init(params), jnp.arange(steps))[1]
    return jnp.sqrt(jnp.mean(squares[-100:]))


def final_loss(model, opt, steps=500):
    """The loss after a short training."""

    def step(carry, number):
        params, state = carry
        batch = model.sample(jax.random.fold_in(jax.random.key(1), number))
        value, grads = jax.value_and_grad(lambda p: model.loss(p, batch))(params)
        updates, state = opt.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), value

    params = model.init(jax.random.key(0))
    return lax.scan(step, (params, opt.init(params)), jnp.arange(steps))[1][-50:].mean()


def row(*cells):
    print(f"{cells[0]:<16}" + "".join(f"{cell:>16}" for cell in cells[1:]), flush=True)


def main():
    print(timing.setting())
    names = [jnp.dtype(dtype).name for dtype in DTYPES]
    print("\nsize of a step")
    row("leaf", "gradients", *names)
    for leaf, (pattern, make) in LEAVES.items():
        for size in SIZES:
            measure = jax.jit(
                lambda opt, size=size: step_sizes(opt, size), static_argnums=0
            )
            right = measure(make(1.0))
            found = [measure(stored(make(1.0), pattern, dtype)) for dtype in DTYPES]
            row(leaf, f"{size:g}", *(f"{value / right:.2f}" for value in found))
    print("\nloss on the digits")
    row("leaf", "float32", *names)
    model = Digits()
    measure = jax.jit(functools.partial(final_loss, model), static_argnums=0)
    for leaf, (pattern, make) in LEAVES.items():
        opts = [make(), *(stored(make(), pattern, dtype) for dtype in DTYPES)]
        row(leaf, *(f"{measure(opt):.3g}" for opt in opts))


if __name__ == "__main__":
    main()
