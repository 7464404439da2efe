"""The first lines at which two programs differ by more than rounding."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8"),
]

MODEL = """
import jax, jax.numpy as jnp
from jax import lax

def norm(gain, x):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    scale = lax.rsqrt(var + 1e-5)
    return (x - mean) * scale * gain

def attend(params, x):
    q, k, v = (x @ params[name] for name in "qkv")
    scores = q @ k.T
    scores = scores * 32**-0.5
    mask = jnp.tril(jnp.ones(scores.shape, bool))
    scores = jnp.where(mask, scores, -1e4)
    weights = jax.nn.softmax(scores, -1)
    return weights @ v

def block(params, x):
    h = norm(params["g1"], x)
    x = x + attend(params, h)
    h = jax.nn.gelu(x @ params["up"])
    return x + h @ params["down"]

def loss(params, x):
    return jnp.mean(block(params, x) ** 2)

gradient = jax.grad(loss)

def layers(params, x):
    return lax.scan(lambda x, _: (block(params, x), x.sum()), x, length=3)
"""
# What stands in the reference for what, the text of the program's line, of the
# reference's, and how far they are apart.
PAIRS = {
    "eps": ("1e-5", "1e-3", "lax.rsqrt(var + 1e-5)", "lax.rsqrt(var + 1e-3)", (1e-5, 0.01)),
    "activation": (
        "gelu(x @",
        "silu(x @",
        "jax.nn.gelu(x @",
        "jax.nn.silu(x @",
        (0.1, 0.5),
    ),
    "no scale": (
        "    scores = scores * 32**-0.5\n",
        "",
        "scores = scores * 32**-0.5",
        "jnp.where(mask",
        (0.3, 5),
    ),
    "two lines": (
        'h = jax.nn.gelu(x @ params["up"])',
        'u = x @ params["up"]\n    t = jnp.tanh(0.8 * (u + 0.0447 * u**3))\n'
        "    h = 0.5 * u * (1 + t)",
        "jax.nn.gelu",
        "t = jnp.tanh",
        (1e-5, 0.01),
    ),
    "3%": (
        "return x + h @",
        "return x + 1.03 * h @",
        "return x + h @",
        "return x + 1.03 * h @",
        (0.02, 0.04),
    ),
}


@pytest.fixture
def loaded(tmp_path):
    def load(name, text):
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


PROGRAMS = [*((name, "block") for name in PAIRS), ("eps", "layers")]


@pytest.mark.parametrize(("name", "which"), PROGRAMS)
def test_both_lines_are_those_of_the_edit(name, which, loaded):
    this, that, line, other, (least, most) = PAIRS[name]
    assert MODEL.count(this) == 1
    mine, reference = loaded("model", MODEL), loaded("reference", MODEL.replace(this, that))
    args = references.inputs(0)[:2]
    found = references.diverged(getattr(mine, which), args, getattr(reference, which))
    assert found.program.file.endswith("model.py")
    assert line in found.program.code
    assert found.reference.file.endswith("reference.py")
    assert other in found.reference.code
    assert least < found.apart < most
    place = (
        f"up to {found.program.place} (`{found.program.code}`); there the reference has "
    )
    assert place + found.reference.place in str(found)


def test_where_nothing_corresponds_it_stops():
    x, y = (jax.random.normal(jax.random.key(n), (6, 8)) for n in range(2))

    def mine(x, y):
        z = jnp.sin(x)
        return jnp.exp(z * y)

    def other(x, y):
        z = jnp.sin(x)
        return jnp.tanh(z)

    found = references.diverged(mine, (x, y), other)
    assert np.isnan(found.apart)
    assert found.reference is None
    assert found.program.code == "z = jnp.sin(x)"
    assert str(found).endswith("what follows does not correspond.")


def test_one_goes_on_where_the_other_returns():
    def mine(x):
        return jnp.sin(x)

    def other(x):
        y = jnp.sin(x)
        return 1.01 * y

    x = jnp.linspace(0, 1, 9)
    found = references.diverged(mine, (x,), other)
    assert (found.program.code, found.reference.code) == (
        "return jnp.sin(x)",
        "return 1.01 * y",
    )
    back = references.diverged(other, (x,), mine)
    assert (back.program.code, back.reference.code) == (
        "return 1.01 * y",
        "return jnp.sin(x)",
    )
    assert found.apart == pytest.approx(0.01)


def test_a_report_has_it_for_functions_that_differ_alone():
    x = jax.random.normal(jax.random.key(0), (6, 8))
    f, g = lambda x: jnp.sin(x) * 2, lambda x: jnp.sin(x) * 2.02
    report = audit_precision(f, x, reference=g)
    assert report.divergence.apart == pytest.approx(0.01, rel=1e-3)
    assert str(report.divergence) in str(report)
    assert '"apart"' in report.to_json()
    assert audit_precision(f, x, reference=f).divergence is None
