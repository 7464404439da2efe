"""What a note costs: `python benchmarks/explained.py`, a minute.

Each case raises one of JAX's errors over types, bare and with `dtypeguard.explain`, in
turn, and makes its functions anew each time, so that JAX traces them again. A ratio is the
median, over rounds, of the processor time with a note over that without one in the same
round. The most that is wanted is 3; a body of three operations, which is traced again and
tried, takes more.

Python 3.13, JAX 0.12.0, two cores that others used as well: until the bare error, and the
ratio.

    average       1.6 ms   4.7
    training      7.1 ms   2.0
    branches      2.1 ms   2.9
    arguments     5.4 ms   2.0
"""

import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from timing import setting

import dtypeguard

BF16, F32 = jnp.bfloat16, jnp.float32
ROUNDS = 20


def average() -> None:
    """A mean in bfloat16 of float32 values, in a scan."""
    decay = jnp.float32(0.99)

    def body(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return decay * carry + (1 - decay) * x, None

    jax.lax.scan(body, jnp.zeros(8, BF16), jnp.ones((4, 8)))


def training() -> None:
    """Adam on two layers, whose state has params in bfloat16 and float32 gradients."""
    params = {"w": jnp.ones((8, 8), BF16), "v": jnp.ones((8, 8), BF16)}
    opt = optax.adam(1e-3)

    def loss(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"]) ** 2)

    def body(carry, x):
        params, state = carry
        grads = jax.tree.map(lambda g: g.astype(F32), jax.grad(loss)(params, x))
        updates, state = opt.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    jax.lax.scan(body, (params, opt.init(params)), jnp.ones((4, 2, 8), BF16))


def branches() -> None:
    """A `cond` of which one branch multiplies with a float32 array."""
    x, scale = jnp.ones(8, BF16), jnp.ones(8)
    jax.lax.cond(jnp.bool_(True), lambda x: jnp.sin(x * scale), lambda x: x, x)


def arguments() -> None:
    """An update of a cache, in a jitted function."""

    @jax.jit
    def write(cache: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(20):
            x = jnp.tanh(x) * 0.9
        return jax.lax.dynamic_update_slice(cache, x[None], (0, 0))

    write(jnp.zeros((4, 8), BF16), jnp.ones(8))


def seconds(case: Callable[[], None], is_explained: bool) -> float:
    """The processor time until a case has raised its error."""
    begin = time.process_time()
    try:
        if is_explained:
            with dtypeguard.explain():
                case()
        else:
            case()
    except TypeError as error:
        notes = getattr(error, "__notes__", ())  # of which JAX adds one as well
        assert any(text.startswith("dtypeguard") for text in notes) is is_explained
    return time.process_time() - begin


if __name__ == "__main__":
    print(setting())
    print(f"{'':12} {'bare':>9} {'with a note':>12}")
    for case in (average, training, branches, arguments):
        pairs = [(seconds(case, False), seconds(case, True)) for _ in range(ROUNDS + 2)][2:]
        bare = statistics.median(x for x, _ in pairs)
        ratio = statistics.median(y / x for x, y in pairs)
        print(f"{case.__name__:12} {1000 * bare:6.1f} ms {ratio:11.2f}x")
