"""Public models with the products of a TPU and of an A100: see docs/products.md.

    python benchmarks/as_on_a_device.py
    python benchmarks/as_on_a_device.py examples/mnist_vae.py

Needs Equinox, Equimo, Flax, Haiku and tinygp; the file is JAX's example, of a checkout. For
each model, forward and gradient: the error of `audit_precision` beside that of an
interpreter of the jaxpr which rounds operands (`tests/support/products.py`), the line that
is named first, what its advice leaves, and what the interpreter says once the call on that
line stands in `with jax.default_matmul_precision(...)`.
"""

import argparse
import contextlib
import importlib
import pathlib
import re
import sys
import types

import jax
import jax.numpy as jnp

from dtypeguard import audit_precision

sys.path.append(str(pathlib.Path(__file__).parents[1]))
products = importlib.import_module("tests.support.products")

# How the model is called: in the context that the advice names, or in none.
around = contextlib.nullcontext


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def linen_attention():
    from flax import linen as nn

    x = normal(1, 2, 16, 32)
    model = nn.MultiHeadDotProductAttention(4)
    params = model.init(jax.random.key(0), x)

    def forward(params, x):
        with around():
            return model.apply(params, x)

    return forward, params, x


def nnx_block():
    from flax import nnx

    model = nnx.Sequential(
        nnx.Linear(32, 64, rngs=nnx.Rngs(0)),
        nnx.gelu,
        nnx.LayerNorm(64, rngs=nnx.Rngs(1)),
        nnx.Linear(64, 32, rngs=nnx.Rngs(2)),
    )
    graph, params = nnx.split(model)

    def forward(params, x):
        with around():
            return nnx.merge(graph, params)(x)

    return forward, params, normal(3, 16, 32)


def haiku_mobilenet():
    import haiku as hk

    net = hk.without_apply_rng(
        hk.transform_with_state(
            lambda x: hk.nets.MobileNetV1((1, 2, 1), (16, 16, 32), 10)(x, True)
        )
    )
    x = normal(1, 8, 32, 32, 3)
    params, state = net.init(jax.random.key(0), x)

    def forward(params, x):
        with around():
            return net.apply(params, state, x)[0]

    return forward, params, x


def equinox_gru():
    import equinox as eqx

    cell = eqx.nn.GRUCell(8, 32, key=jax.random.key(0))
    params, static = eqx.partition(cell, eqx.is_array)

    def forward(params, xs):
        cell = eqx.combine(params, static)

        def step(h, x):
            with around():
                return cell(x, h), None

        return jax.lax.scan(step, jnp.zeros(32), xs)[0]

    return forward, params, normal(1, 40, 8)


def equimo_vit():
    import equinox as eqx

    models = importlib.import_module("equimo.vision.models")
    model = models.VisionTransformer(
        16, 3, 32, 4, 4, [2], key=jax.random.key(0), num_classes=10
    )
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def forward(params, x):
        model = eqx.combine(params, static)
        with around():
            return model(x, key=jax.random.key(0), inference=True)

    return forward, params, normal(1, 3, 16, 16)


def tinygp_regression():
    tinygp = importlib.import_module("tinygp")

    def forward(params, x):
        kernel = params["size"] * tinygp.kernels.ExpSquared(params["scale"])
        process = tinygp.GaussianProcess(kernel, x, diag=0.1)
        with around():
            return process.predict(jnp.sin(x), x + 0.1)

    return (
        forward,
        {"size": jnp.array(2.0), "scale": jnp.array(0.5)},
        jnp.linspace(0, 5, 40),
    )


def mnist_vae(file):
    text = file.read_text().replace("import matplotlib.pyplot as plt\n", "\n")
    text = text.replace("from examples import datasets\n", "\n")
    module = types.ModuleType("mnist_vae")
    exec(compile(text, str(file), "exec"), vars(module))
    keys = jax.random.split(jax.random.key(0), 2)
    _, encoder = module.encoder_init(keys[0], (32, 784))
    _, decoder = module.decoder_init(keys[1], (32, 10))

    def forward(params, images):
        with around():
            return module.elbo(jax.random.key(2), params, images)

    images = jax.random.bernoulli(jax.random.key(1), 0.3, (32, 784)).astype(jnp.float32)
    return forward, (encoder, decoder), images


def row(name, device, f, *args):
    global around
    report = audit_precision(f, *args, matmul_precision=device)
    vanishing = [path for path, x in report.outputs.items() if x.vanishes]
    error = products.off(device, f, *args, without=vanishing)
    advised = re.search(r'default_matmul_precision\("(\w+)"\)', str(report))
    level = advised.group(1) if advised else "high"
    around = lambda: jax.default_matmul_precision(level)
    try:  # JAX keeps the trace of a function
        followed = products.off(device, lambda *args: f(*args), *args, without=vanishing)
    finally:
        around = contextlib.nullcontext
    place = report.losses[0].place if report.losses else ""
    numbers = f"{report.error:.2%}", f"{report.error / error:.2f}" if error else ""
    left = f"{report.fixed.error:.2g}", f"{followed:.2g}", f"{report.fixed.price:.0%}"
    print(f"| {name} | {device} | {' | '.join((*numbers, place, *left))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vae", nargs="?", type=pathlib.Path)
    options = parser.parse_args()
    makers = [linen_attention, nnx_block, haiku_mobilenet, equinox_gru, equimo_vit]
    makers += [tinygp_regression]
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}\n")
    print("| model | as on | off | over interpreter | line | mended | followed | dearer |")
    print("|---|---|---|---|---|---|---|---|")
    for make in (*makers, *([lambda: mnist_vae(options.vae)] if options.vae else [])):
        forward, params, x = make()
        leaves = lambda *args, f=forward: jax.tree.leaves(f(*args))
        loss = lambda *args, of=leaves: sum(jnp.mean(jnp.sin(y)) for y in of(*args))
        name = forward.__qualname__.partition(".")[0]
        for device in ("bfloat16", "tensorfloat32"):
            row(f"{name}, forward", device, forward, params, x)
            row(f"{name}, gradient", device, jax.grad(loss), params, x)


if __name__ == "__main__":
    main()
