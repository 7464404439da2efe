"""Verdicts on pairs of public libraries: the same layer with the same params in both.

    python benchmarks/ports.py --only norm

Each pair states beforehand whether rounding explains the difference, in float32 and in
bfloat16. Prints a line for each pair and setting: the verdict expected, the worst verdict
given, seconds without and with the reference, and the first divergence.
"""

import argparse
import collections
import time

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import dtypeguard

Pair = collections.namedtuple("Pair", "name float32 bfloat16 args program reference")
ORDER = ("rounding", "undecidable", "differs")
SETTINGS = (
    ("forward", "float32", "function"),
    ("gradient", "float32", "function"),
    ("forward", "float32", "array"),
    ("forward", "bfloat16", "array"),
    ("gradient", "bfloat16", "array"),
)


def normal(seed, *shape, scale=1.0):
    return scale * jax.random.normal(jax.random.key(seed), shape)


def haiku(make):
    """Returns what applies a Haiku module to given params."""
    transformed = hk.without_apply_rng(hk.transform(make))
    return transformed.apply


def equinox(module, **leaves):
    """Returns the module with the leaves in place of its own."""
    for name, leaf in leaves.items():
        module = eqx.tree_at(lambda m, name=name: getattr(m, name), module, leaf)
    return module


def norms():
    args = (normal(0, 32) + 1, normal(1, 32), normal(2, 16, 32))
    own = eqx.nn.LayerNorm(32)

    def flax_layer(scale, bias, x, epsilon=1e-6):
        params = {"scale": scale, "bias": bias}
        return nn.LayerNorm(epsilon=epsilon).apply({"params": params}, x)

    def equinox_layer(scale, bias, x):
        return jax.vmap(equinox(own, weight=scale, bias=bias))(x)

    def flax_rms(scale, bias, x, epsilon=1e-6):
        return nn.RMSNorm(epsilon=epsilon).apply({"params": {"scale": scale}}, x) + bias

    def equinox_rms(scale, bias, x):
        return jax.vmap(equinox(eqx.nn.RMSNorm(32), weight=scale, bias=bias))(x)

    def flax_group(scale, bias, x, epsilon=1e-6):
        params = {"scale": scale, "bias": bias}
        return nn.GroupNorm(num_groups=4, epsilon=epsilon).apply({"params": params}, x)

    def haiku_group(scale, bias, x):
        params = {"group_norm": {"scale": scale, "offset": bias}}
        return haiku(lambda x: hk.GroupNorm(4)(x))(params, x)

    for name, mine, other in (
        ("layer norm, Flax, Equinox", flax_layer, equinox_layer),
        ("RMS norm, Flax, Equinox", flax_rms, equinox_rms),
        ("group norm, Flax, Haiku", flax_group, haiku_group),
    ):
        yield Pair(f"{name}: eps 1e-6, 1e-5", "differs", "undecidable", args, mine, other)

        def same(*args, mine=mine):
            return mine(*args, epsilon=1e-5)

        yield Pair(f"{name}: eps 1e-5", "rounding", "rounding", args, same, other)


def attention():
    x = normal(0, 2, 8, 32)
    module = nn.MultiHeadDotProductAttention(num_heads=4)
    params = module.init(jax.random.key(1), x)["params"]
    graph, state = nnx.split(
        nnx.MultiHeadAttention(4, in_features=32, decode=False, rngs=nnx.Rngs(0))
    )
    names = ("query", "key", "value", "out")

    def linen(params, x):
        return module.apply({"params": params}, x)

    def of_nnx(params, x):
        pure = {name: params[name] for name in names}
        filled = nnx.merge(graph, jax.tree.map(lambda leaf: leaf, state))  # fresh Variables
        nnx.update(filled, nnx.State(pure))
        return filled(x)

    def of_haiku(params, x):
        def flat(name, rows):
            return {
                "w": params[name]["kernel"].reshape(rows, -1),
                "b": params[name]["bias"].reshape(-1),
            }

        given = {f"multi_head_attention/{name}": flat(name, 32) for name in names[:3]}
        given["multi_head_attention/linear"] = flat("out", 32)
        init = hk.initializers.VarianceScaling(1.0)
        layer = haiku(lambda x: hk.MultiHeadAttention(4, 8, w_init=init)(x, x, x))
        return layer(given, x)

    yield Pair("attention, linen, NNX", "rounding", "rounding", (params, x), linen, of_nnx)
    yield Pair(
        "attention, linen, Haiku", "rounding", "rounding", (params, x), linen, of_haiku
    )

    heads = tuple(normal(seed, 2, 8, 4, 8) for seed in (3, 4, 5))

    def fused(q, k, v):
        return jax.nn.dot_product_attention(q, k, v)

    def unscaled(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, scale=1.0)

    flax = nn.dot_product_attention
    yield Pair("attention, JAX, Flax", "rounding", "rounding", heads, fused, flax)
    yield Pair("attention, JAX, Flax: scale", "differs", "differs", heads, unscaled, flax)


def recurrent():
    x, h, c = normal(0, 8, 16), normal(1, 8, 32), normal(2, 8, 32)
    cell = nn.OptimizedLSTMCell(32)
    params = cell.init(jax.random.key(3), (c, h), x)["params"]

    def lstm(params, x, h, c):
        return cell.apply({"params": params}, (c, h), x)[1]

    def haiku_lstm(params, x, h, c, forget=0.0):
        order = "igfo"  # Haiku's; it adds 1 to the gate f
        inputs = jnp.concatenate([params["i" + gate]["kernel"] for gate in order], -1)
        hidden = jnp.concatenate([params["h" + gate]["kernel"] for gate in order], -1)
        bias = jnp.concatenate(
            [params["h" + gate]["bias"] - forget * (gate == "f") for gate in order]
        )
        given = {"lstm/linear": {"w": jnp.concatenate([inputs, hidden]), "b": bias}}
        run = haiku(lambda x, h, c: hk.LSTM(32)(x, hk.LSTMState(h, c))[0])
        return run(given, x, h, c)

    def shifted(*args):
        return haiku_lstm(*args, forget=1.0)

    args = (params, x, h, c)
    yield Pair(
        "LSTM, Flax, Haiku: forget bias", "differs", "differs", args, lstm, haiku_lstm
    )
    yield Pair("LSTM, Flax, Haiku", "rounding", "rounding", args, lstm, shifted)

    gru = nn.GRUCell(32)
    gates = gru.init(jax.random.key(4), h, x)["params"]
    own = eqx.nn.GRUCell(16, 32, key=jax.random.key(0))

    def flax_gru(params, x, h):
        return gru.apply({"params": params}, h, x)[1]

    def equinox_gru(params, x, h):
        kernels = [
            jnp.concatenate([params[side + gate]["kernel"].T for gate in "rzn"])
            for side in "ih"
        ]
        bias = jnp.concatenate([params["i" + gate]["bias"] for gate in "rzn"])
        filled = equinox(
            own,
            weight_ih=kernels[0],
            weight_hh=kernels[1],
            bias=bias,
            bias_n=params["hn"]["bias"],
        )
        return jax.vmap(filled)(x, h)

    args = (gates, x, h)
    yield Pair("GRU, Flax, Equinox", "rounding", "rounding", args, flax_gru, equinox_gru)


def rotary():
    def half(x):
        return eqx.nn.RotaryPositionalEmbedding(16)(x)

    def interleaved(x):
        angles = jnp.outer(jnp.arange(12.0), 10000.0 ** -(jnp.arange(0, 16, 2) / 16))
        sin, cos = jnp.sin(angles).astype(x.dtype), jnp.cos(angles).astype(x.dtype)
        even, odd = x[:, ::2], x[:, 1::2]
        return jnp.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(
            x.shape
        )

    def split(x):
        index = np.arange(16).reshape(2, 8).T.reshape(-1)  # pairs (i, i + 8) side by side
        return interleaved(x[:, index])[:, np.argsort(index)]

    x = (normal(0, 12, 16),)
    yield Pair("rotary, Equinox: interleaved", "differs", "differs", x, half, interleaved)
    yield Pair("rotary, Equinox: half split", "rounding", "rounding", x, half, split)


def losses():
    logits = (normal(0, 32, 10, scale=3),)
    labels = jax.random.randint(jax.random.key(1), (32,), 0, 10)

    def of_optax(x):
        return optax.softmax_cross_entropy_with_integer_labels(x, labels)

    def by_hand(x):
        return -(jax.nn.log_softmax(x) * jax.nn.one_hot(labels, 10, dtype=x.dtype)).sum(-1)

    def binary(x):
        return optax.sigmoid_binary_cross_entropy(
            x, jax.nn.one_hot(labels, 10, dtype=x.dtype)
        )

    def stable(x):
        y = jax.nn.one_hot(labels, 10, dtype=x.dtype)
        return jnp.maximum(x, 0) - x * y + jnp.log1p(jnp.exp(-jnp.abs(x)))

    def smoothed(x):
        y = jax.nn.one_hot(labels, 10, dtype=x.dtype)
        return optax.softmax_cross_entropy(x, optax.smooth_labels(y, 0.01))

    def exact(x):
        return jax.nn.gelu(x, approximate=False)

    yield Pair("cross-entropy, Optax", "rounding", "rounding", logits, of_optax, by_hand)
    yield Pair("cross-entropy, Optax: 1%", "differs", "differs", logits, smoothed, by_hand)
    yield Pair("binary, Optax", "rounding", "rounding", logits, binary, stable)
    yield Pair("GELU: tanh, erf", "differs", "undecidable", logits, nn.gelu, exact)


def gradient(f):
    def loss(*args):
        out = f(*args)
        weights = jnp.sin(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
        return (out * weights.astype(out.dtype)).sum()

    return lambda *args: jax.grad(loss, argnums=tuple(range(len(args))))(*args)


def judged(pair, pass_, dtype, kind):
    program, reference = pair.program, pair.reference
    if pass_ == "gradient":
        program, reference = gradient(program), gradient(reference)
    args = jax.tree.map(lambda leaf: leaf.astype(dtype), pair.args)
    if kind == "array":  # float32, as saved from another framework
        wide = jax.tree.map(lambda leaf: leaf.astype("float32"), args)
        reference = jax.tree.map(np.asarray, jax.jit(reference)(*wide))
    begin = time.perf_counter()
    dtypeguard.audit_precision(program, *args)
    middle = time.perf_counter()
    report = dtypeguard.audit_precision(program, *args, reference=reference)
    return report, middle - begin, time.perf_counter() - middle


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="part of the name of a pair")
    only = parser.parse_args().only
    wrong = count = 0
    for group in (attention, recurrent, rotary, losses, norms):
        for pair in group():
            if only not in pair.name:
                continue
            for setting in SETTINGS:
                report, without, with_ = judged(pair, *setting)
                given = max((d.verdict for d in report.differences), key=ORDER.index)
                expected = getattr(pair, setting[1])
                count, wrong = count + 1, wrong + (given != expected)
                mark = "" if given == expected else "  <- not as expected"
                print(
                    f"{pair.name:42} {' '.join(setting):26} {expected:11} {given:11} "
                    f"{without:5.1f} s {with_:5.1f} s{mark}",
                    flush=True,
                )
                if report.divergence is not None:
                    print(f"    {report.divergence}", flush=True)
    print(f"{count} verdicts, {wrong} not as expected; JAX {jax.__version__}")


if __name__ == "__main__":
    main()
