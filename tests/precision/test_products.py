"""Products as another device does them: against an interpreter that rounds operands."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import products
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from dtypeguard import ProductsReport, audit_precision
from dtypeguard._leaves.compat import HAS_BARRIER, set_x64
from dtypeguard.testing import check_precision

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_BARRIER, reason="needs JAX >= 0.5"),
]


def normal(seed, *shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


# The line of the product that loses most ends in "# loses", and the expression to give a
# precision stands after it.
SOURCES = {
    # |x - y|^2 from products, where both are far from 0
    "kernel": """
def f(x, y, w):
    squares = jnp.sum(x**2, 1)[:, None] + jnp.sum(y**2, 1)
    k = jnp.exp(-(squares - 2 * (x @ y.T)) / 8)  # loses: x @ y.T
    return k @ w / jnp.sum(k, 1, keepdims=True)
inputs = normal(0, 32, 8) + 4, normal(1, 48, 8) + 4, normal(2, 48, 3)
""",
    "logits": """
def f(q, k, v):
    q, k = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    scores = jax.nn.softmax(300 * jnp.einsum("qd,kd->qk", q, k))  # loses: jnp.einsum("qd,kd->qk", q, k)
    return scores @ v
inputs = normal(0, 32, 16), normal(1, 32, 16), normal(2, 32, 4)
""",
    "power iteration": """
def f(a, v, w):
    def step(v, _):
        v = jnp.dot(a, v)  # loses: jnp.dot(a, v)
        return v / jnp.linalg.norm(v), None
    v = lax.scan(step, v, None, length=60)[0]
    return v * jnp.tanh(w @ v)
inputs = (lambda q: (q * jnp.array([1.0, 0.97, 0.5, 0.4, 0.3, 0.2])) @ q.T)(jnp.linalg.qr(normal(0, 6, 6))[0]), normal(1, 6), normal(2, 6)
""",
    "convolution": """
def f(filters, x):
    layout = "NHWC", "HWIO", "NHWC"
    def loss(filters):
        h = lax.conv_general_dilated(x, filters[0], (1, 1), "SAME", dimension_numbers=layout)  # loses: lax.conv_general_dilated(x, filters[0], (1, 1), "SAME", dimension_numbers=layout)
        h = jnp.tanh(h - jnp.mean(h, (1, 2), keepdims=True))
        h = lax.conv(jnp.moveaxis(h, 3, 1), filters[1], (2, 2), "VALID")
        return jnp.sum(h**2)
    return jax.grad(loss)(filters)
inputs = (normal(0, 3, 3, 2, 4) / 4, normal(1, 2, 4, 2, 2) / 4), normal(2, 2, 8, 8, 2) + 20
""",
    "rotations": """
def f(x, rates):
    angles = rates * 2 * jnp.pi / 100
    r = jnp.stack([jnp.cos(angles), -jnp.sin(angles), jnp.sin(angles), jnp.cos(angles)], -1).reshape(-1, 2, 2)
    turn = lambda i, x: jnp.matmul(r, x)  # loses: jnp.matmul(r, x)
    return lax.fori_loop(0, 100, turn, x) - x
inputs = normal(0, 16, 2, 2), 1 + jnp.arange(16.0) / 7
""",
    "remat attention": """
@jax.checkpoint
def attend(q, k, v):
    scores = jax.nn.softmax(20 * q @ k.T)  # loses: 20 * q @ k.T
    return scores @ v
def f(params, x):
    def loss(params):
        q, k, v = (jnp.tanh(x * params[name]) for name in "qkv")
        return jnp.mean(jnp.sin(3 * jax.vmap(attend)(q, k, v)))
    return jax.grad(loss)(params)
inputs = {name: normal(n, 2, 24, 8) for n, name in enumerate("qkv")}, normal(3, 24, 8)
""",
}


def program(source, path):
    """The module of a source, in a file of its own."""
    path.write_text(source)
    module = types.ModuleType(path.stem)
    vars(module).update(jax=jax, jnp=jnp, lax=lax, normal=normal)
    exec(compile(source, str(path), "exec"), vars(module))
    return module


@pytest.mark.parametrize("device", products.DIGITS)
@pytest.mark.parametrize("name", SOURCES)
def test_error_line_and_remedy_are_those_of_the_interpreter(name, device, tmp_path):
    source = SOURCES[name]
    written = program(source, tmp_path / "written.py")
    report = audit_precision(written.f, *written.inputs, matmul_precision=device)
    error = products.off(device, written.f, *written.inputs)
    assert isinstance(report, ProductsReport) and error > 1e-4
    assert report.error == pytest.approx(error, rel=0.2)
    number, line = next(x for x in enumerate(source.splitlines(), 1) if "# loses" in x[1])
    assert report.losses[0].origin.line == number

    # To the letter: what is printed takes the place of the expression.
    assert report.fix == report.losses[:1]
    told = re.fullmatch(rf"On .*written.py:{number}, write (.*)\.", report.losses[0].remedy)
    code, _, expression = line.partition("  # loses: ")
    assert code.count(expression) == 1
    edited = source.replace(line, code.replace(expression, told[1]))
    mended = program(edited, tmp_path / "edited.py")
    left = products.off(device, mended.f, *mended.inputs)
    assert report.mended == pytest.approx(left, rel=0.25)
    assert left < 0.4 * error
    level = "HIGH" if device == "tpu" else "HIGHEST"
    assert f"precision=jax.lax.Precision.{level})" in told[1]
    with jax.default_matmul_precision("float32"):
        clean = audit_precision(written.f, *written.inputs, matmul_precision=device)
    assert (clean.error, clean.losses) == (0, ())
