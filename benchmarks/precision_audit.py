"""What an audit of precision costs: `python benchmarks/precision_audit.py`.

The program is one train step, the gradient of a transformer in bfloat16 and Adam, unrolled.
Each audit is timed against compiling the step once and running it 100 times, in the same
process, one after the other. The memory is the greatest that the process had until then:
run one number of layers alone to see what that takes. A float32 array makes the second step
of each size compute wide, so that its audit has costs, and a program more for each, to
measure its harm. With jax 0.10.2 on two cores that other programs use as well, over that
wall time and that processor time:

    12 layers:              7.9 and 7.8     (one round; 1.1 GB)
    12 layers, with a cost: 12.0 and 11.1   (1.1 GB)

Then costs alone, of the same step and of one that a float32 array makes wide, over
`jax.make_jaxpr`, in processor time, the least of five each:

    12 layers:  1.1 and 1.7
"""

import argparse
import resource
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dtypeguard

WIDTH, LENGTH, VOCABULARY = 64, 32, 128


def program(layers: int, is_wide: bool = False):
    """A train step of a transformer with so many layers, and its arguments.

    Args:
        layers: their number.
        is_wide: whether a float32 array makes it compute in float32.
    """
    keys = iter(jax.random.split(jax.random.key(0), 6 * layers + 3))
    new = lambda *shape: (jax.random.normal(next(keys), shape) / np.sqrt(shape[0])).astype(
        jnp.bfloat16
    )
    block = lambda: {
        **{name: new(WIDTH, WIDTH) for name in "qkvo"},
        "up": new(WIDTH, 4 * WIDTH),
        "down": new(4 * WIDTH, WIDTH),
    }
    params = {"embed": new(VOCABULARY, WIDTH), "blocks": [block() for _ in range(layers)]}
    opt = dtypeguard.guard(optax.adam(1e-3))

    def normalized(x):
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)
        return (wide * scale).astype(x.dtype)

    def attend(p, x):
        q, k, v = (normalized(x) @ p[name] for name in "qkv")
        scores = (q @ k.T).astype(jnp.float32) / np.sqrt(WIDTH)
        return jax.nn.softmax(scores).astype(x.dtype) @ v @ p["o"]

    def loss(params, tokens):
        x = params["embed"][tokens]
        if is_wide:
            x = x + jnp.sin(jnp.arange(LENGTH * 1.0))[:, None]
        for p in params["blocks"]:
            x = x + attend(p, x)
            x = x + jax.nn.gelu(normalized(x) @ p["up"]) @ p["down"]
        logits = (normalized(x) @ params["embed"].T).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits[:-1], tokens[1:])
        return losses.mean()

    def step(params, state, tokens):
        grads = jax.grad(loss)(params, tokens)
        updates, state = opt.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    tokens = jax.random.randint(next(keys), (LENGTH,), 0, VOCABULARY)
    return step, (params, opt.init(params), tokens)


def measure(layers: int, is_wide: bool, rounds: int) -> tuple[float, float, float, float]:
    """What an audit takes, over what the step takes that is compiled and runs 100 times.

    Returns:
        The ratio of wall times, that of processor times, the seconds of an audit, and the
        greatest memory of the process, in GB.
    """
    walls, processors, seconds = [], [], []
    for _ in range(rounds):
        jax.clear_caches()
        step, args = program(layers, is_wide)
        start = _now()
        compiled = jax.jit(step).lower(*args).compile()
        for _ in range(100):
            jax.block_until_ready(compiled(*args))
        middle = _now()
        report = dtypeguard.audit_precision(step, *args)
        end = _now()
        assert bool(report.work and report.work.costs) == is_wide
        (wall, processor), (before, before_processor) = end - middle, middle - start
        walls.append(wall / before)
        processors.append(processor / before_processor)
        seconds.append(wall)
    median = statistics.median
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # of kilobytes
    return median(walls), median(processors), median(seconds), memory


def _now() -> np.ndarray:
    """Wall and processor time."""
    return np.array([time.perf_counter(), time.process_time()])


def measure_costs(layers: int, is_wide: bool, rounds: int = 5) -> float:
    """The processor time of an audit of costs alone over that of `jax.make_jaxpr`."""
    step, args = program(layers, is_wide)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    traced, audited = [], []
    for _ in range(rounds):
        jax.clear_caches()
        start = time.process_time()
        jax.make_jaxpr(step)(*shapes)
        traced.append(time.process_time() - start)
        jax.clear_caches()
        start = time.process_time()
        report = dtypeguard.audit_precision(step, *shapes)
        audited.append(time.process_time() - start)
        assert bool(report.work and report.work.costs) == is_wide
    return min(audited) / min(traced)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", nargs="+", type=int, default=[6, 12, 24])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--costs", action="store_true", help="costs alone")
    options = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}")
    if not options.costs:
        print(
            "| layers | an audit / (compile + 100 runs), wall | processor | seconds "
            "| memory (GB) |"
        )
        print("|---|---|---|---|---|")
    for layers in options.layers if not options.costs else ():
        for is_wide in (False, True):
            wall, processor, seconds, memory = measure(layers, is_wide, options.rounds)
            name = f"{layers}, with a cost" if is_wide else f"{layers}"
            figures = f"{wall:.1f} | {processor:.1f} | {seconds:.0f} | {memory:.1f}"
            print(f"| {name} | {figures} |", flush=True)
    print("| layers | costs alone / make_jaxpr | of a program with a cost |")
    print("|---|---|---|")
    for layers in options.layers:
        ratios = [measure_costs(layers, is_wide) for is_wide in (False, True)]
        print(f"| {layers} | {ratios[0]:.2f} | {ratios[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
