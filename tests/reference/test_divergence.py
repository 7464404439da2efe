"""The first lines at which two programs differ by more than rounding."""

import jax
import jax.numpy as jnp
import pytest

from dtypeguard import audit_precision
from tests.support import references
from tests.support.helpers import normal, users_programs
from tests.support.trained import written

pytestmark = users_programs

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
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape, bool)), scores, -1e4)
    weights = jax.nn.softmax(scores, -1)
    return weights @ v

def block(params, x):
    x = x + attend(params, norm(params["g1"], x))
    h = jax.nn.gelu(x @ params["up"])
    return x + h @ params["down"]

def layers(params, x):
    return lax.scan(lambda x, _: (block(params, x), x.sum()), x, length=3)
"""
GELU = 'jax.nn.gelu(x @ params["up"])'
BY_HAND = """(u := x @ params["up"])
    t = jnp.tanh(0.8 * (u + 0.0447 * u**3))
    h = 0.5 * u * (1 + t)"""
# What stands in the reference for what, the text of the program's line, and of the
# reference's.
PAIRS = {
    "eps": ("1e-5", "1e-3", "lax.rsqrt(var + 1e-5)", "lax.rsqrt(var + 1e-3)"),
    "activation": ("gelu", "silu", "jax.nn.gelu(x @", "jax.nn.silu(x @"),
    "no scale": (
        "    scores = scores * 32**-0.5\n",
        "",
        "scores = scores * 32**-0.5",
        "jnp.where(jnp.tril(",
    ),
    "two lines": (GELU, BY_HAND, GELU, "t = jnp.tanh"),
}


def diverged(f, args, reference):
    return references.compared(f, args, reference)["divergence"]


@pytest.mark.parametrize(
    ("name", "which"), [*((name, "block") for name in PAIRS), ("eps", "layers")]
)
def test_both_lines_are_those_of_the_edit(name, which, tmp_path):
    this, that, line, other = PAIRS[name]
    folders = tmp_path / "mine", tmp_path / "port"
    for folder in folders:
        folder.mkdir()
    mine = written(folders[0], text=MODEL)
    port = written(folders[1], (this, that), text=MODEL)
    found = diverged(getattr(mine, which), references.inputs(0)[:2], getattr(port, which))
    assert found.program.file.endswith("mine/train.py")
    assert line in found.program.code
    assert found.reference.file.endswith("port/train.py")
    assert other in found.reference.code
    place = f"{found.program.place} (`{found.program.code}`)"
    assert f"up to {place}; there the reference has {found.reference.place}" in str(found)


def test_the_first_lines_are_named_also_where_they_compute_something_else():
    x, y = (normal(n, 6, 8) for n in range(2))

    def mine(x, y):
        z = jnp.sin(x)
        return jnp.exp(z * y)

    found = diverged(mine, (x, y), lambda x, y: jnp.tanh(jnp.sin(x)))
    assert found.program.code == "return jnp.exp(z * y)"
    assert "jnp.tanh" in found.reference.code


def test_where_one_returns_what_the_other_computes_with_it_names_the_outputs():
    x = normal(0, 6, 8)

    def scaled(x):
        y = jnp.sin(x)
        return 1.25 * y

    found = diverged(scaled, (x,), jnp.sin)
    assert found.program.code == "return 1.25 * y"
    assert found.apart == pytest.approx(0.2)
    found = diverged(jnp.sin, (x,), scaled)
    assert found.reference.code == "return 1.25 * y"
    assert found.apart == pytest.approx(0.25)
    # An input is no line.
    assert diverged(lambda x: 1.25 * x, (x,), lambda x: x).reference is None


def test_a_report_has_it_for_functions_that_differ_alone():
    x = normal(0, 6, 8)
    f, g = lambda x: jnp.sin(x) * 2, lambda x: jnp.sin(x) * 2.02
    report = audit_precision(f, x, reference=g)
    assert report.divergence.apart == pytest.approx(0.01, rel=1e-3)
    assert str(report.divergence) in str(report)
    assert '"apart"' in report.to_json()
    assert diverged(f, (x,), f) is None


def test_a_scan_has_what_leads_to_its_result_alone():
    def scanned(next_a, next_b):
        def turn(carry, x):
            b, a = carry
            return (next_b(b, x), next_a(a, x)), None

        return lambda xs: jax.lax.scan(turn, (xs[1], xs[0]), xs)[0][1]

    f = scanned(
        lambda a, x: a * 0.9 + x,
        lambda b, x: b + x * x,
    )
    reference = scanned(
        lambda a, x: a * 0.8 + x,
        lambda b, x: b + x * x * 2.5,
    )
    assert "a * 0.9" in diverged(f, (jnp.linspace(0.1, 2.0, 33),), reference).program.code


def test_a_loop_with_no_turn_has_no_values_inside():
    def scanned(factor):
        return lambda x: factor * jax.lax.scan(lambda x, y: (x * y, x), x, x[:0])[0]

    assert diverged(scanned(2), (jnp.arange(3.0),), scanned(3)).apart == 0.5
