"""The expression that an advice has the user type does what was run."""

import itertools
import re
import runpy

import jax
import jax.numpy as jnp
import pytest

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_BARRIER

pytestmark = pytest.mark.skipif(not HAS_BARRIER, reason="needs JAX >= 0.5")
BF16, F32 = jnp.bfloat16, jnp.float32
X, Y = (jax.random.normal(jax.random.key(n), (64, 64), BF16) for n in (0, 1))

# A line that loses, and what is to be typed.
FORMS = {
    "h = jnp.cumsum(x, axis=1)": "jnp.cumsum(x.astype(jnp.float32), axis=1)",
    "h = (x + 9).cumsum(axis=1)": "(x.astype(jnp.float32) + 9).cumsum(axis=1)",
    "h = nn.softmax(40 * x, -1)": "nn.softmax(40 * x.astype(jnp.float32), -1)",
    "h = jnp.exp(4 * x[:, :8]) / 3": "jnp.exp(4 * x[:, :8].astype(jnp.float32)) / 3",
    "h = jnp.mean(x * y, axis=0)": (
        "jnp.mean(x.astype(jnp.float32) * y.astype(jnp.float32), axis=0)"
    ),
    "h = x + 9 - y.mean() * scale": (
        "x.astype(jnp.float32) + 9 - y.astype(jnp.float32).mean() * scale"
    ),
    "h = jnp.sin(p['w'] * 30)": "jnp.sin(p['w'].astype(jnp.float32) * 30)",
    "h = flipped(x) * 40 + jnp.cos(y * 40)": (
        "flipped(x).astype(jnp.float32) * 40 + jnp.cos(y.astype(jnp.float32) * 40)"
    ),
    "h = jnp.log(x**2 + y**2)": (
        "jnp.log(x.astype(jnp.float32) ** 2 + y.astype(jnp.float32) ** 2)"
    ),
    "h *= jnp.exp(y * 4)": "h = h.astype(jnp.float32) * jnp.exp(y.astype(jnp.float32) * 4)",
    "h = nn.logsumexp(x * y * 9, axis=1)": (
        "nn.logsumexp(x.astype(jnp.float32) * y.astype(jnp.float32) * 9, axis=1)"
    ),
    "h = x @ y": "jnp.matmul(x, y, preferred_element_type=jnp.float32)",
    "h = jnp.einsum('ij,jk->ik', x, y)": (
        "jnp.einsum('ij,jk->ik', x, y, preferred_element_type=jnp.float32)"
    ),
    "h = nn.softmax(x @ y)": ("nn.softmax(x.astype(jnp.float32) @ y.astype(jnp.float32))"),
}
# Where it is not certain what is an array, or that no more than it is cast.
UNSURE = [
    "h = jnp.where(x > 0, jnp.exp(x * 4), y)",
    "h = jnp.sin(x.astype(y.dtype) * 30)",
    "h = jnp.sum(x * 30, axis=1, dtype=x.dtype)",
    "h = sum([x * 3, y * 3])",
    "h = jnp.power(3 + x * x, exponent)",
    "h = jnp.sin(x * 30) + xp.sum(x)",
    "h = xp.cumsum(x * 30)",
    "h = jax.grad(lambda x: jnp.sum(jnp.tanh(x * 3) * y))(x)",
]
SOURCE = """import jax
import jax.numpy as jnp
from jax import nn

def flipped(x):
    return x[::-1]

def f(x, y, p, scale=30, exponent=3.0, xp=jnp):
    y = jnp.tanh(y * 1.3)
    h = x
    {}
    return jnp.sin(h + 0.01).astype(jnp.bfloat16)
"""


@pytest.fixture
def function(tmp_path):
    """Makes the function `f` of some source."""
    numbers = itertools.count()

    def make(source):
        file = tmp_path / f"planted_{next(numbers)}.py"
        file.write_text(source)
        return runpy.run_path(str(file))["f"]

    return make


def audited(function, line):
    """The error, the report, and what to type for the line."""
    f, params = function(SOURCE.format(line)), {"w": X}
    report = audit_precision(f, X, Y, params)
    remedy = next(each.remedy for each in report.losses if each.origin.code == line)
    pattern = r"(keep what it makes so|cast the result back): (.*)\."
    return f(X, Y, params), report, re.search(pattern, remedy)[2]


def off(made, exact):
    return float(jnp.linalg.norm(made.astype(F32) - exact) / jnp.linalg.norm(exact))


@pytest.mark.parametrize("line", FORMS)
def test_the_line_is_typed_with_its_operands_cast(line, function):
    written, report, typed = audited(function, line)
    assert report.keeps
    assert typed == FORMS[line]
    new = typed if typed.startswith("h = ") else f"h = {typed}"
    made = function(SOURCE.format(new))(X, Y, {"w": X})
    wide = function(SOURCE.format(line).replace("bfloat16", "float32"))
    exact = wide(X.astype(F32), Y.astype(F32), {"w": X.astype(F32)})
    assert off(written, exact) == pytest.approx(report.error, rel=0.1)
    left = next(each.left for each in report.losses if each.origin.code == line)
    assert (off(made, exact) / off(written, exact)) ** 2 == pytest.approx(left, 0.1, 1e-4)


@pytest.mark.parametrize("line", UNSURE)
def test_what_is_uncertain_is_typed_as_any_cast(line, function):
    assert audited(function, line)[2] in ("x.astype(jnp.float32)", "dtype=jnp.float32")


def test_what_is_cast_back_is_so_in_the_expression(function):
    source = """import jax.numpy as jnp

def f(x, w):
    h = x + jnp.cumsum(x * 3, axis=1)
    return jnp.dot(h, w, preferred_element_type=jnp.float32)
"""
    f = function(source)
    x, w = X.reshape(4, 1024), Y.reshape(1024, 4)
    report = audit_precision(f, x, w)
    (loss,) = report.fix
    assert not report.keeps
    typed = "(x.astype(jnp.float32) + jnp.cumsum(x.astype(jnp.float32) * 3, axis=1))"
    assert f"{typed}.astype(jnp.bfloat16)." in loss.remedy
    new = source.replace(loss.origin.code, f"h = {typed}.astype(jnp.bfloat16)")
    exact = f(x.astype(F32), w.astype(F32))
    left = (off(function(new)(x, w), exact) / off(f(x, w), exact)) ** 2
    assert left == pytest.approx(report.left, 0.1)


def test_a_function_on_the_line_of_its_call_is_no_operand(function):
    source = """import jax
import jax.numpy as jnp

def f(x, y):
    return jax.lax.cond(x[0, 0] > 0, lambda: jnp.sin(x * 30), lambda: jnp.cos(y * 30)) * 3
"""
    (loss,) = audit_precision(function(source), X, Y).fix
    assert loss.remedy.endswith(": x.astype(jnp.float32).")


def test_a_module_that_another_cell_imports_is_no_operand(tmp_path):
    file = tmp_path / "cell.py"
    file.write_text("f = lambda x: nn.softmax(x * 9)")
    f = runpy.run_path(str(file), {"nn": jax.nn})["f"]
    (loss,) = audit_precision(f, X).fix
    assert loss.remedy.endswith(": nn.softmax(x.astype(jnp.float32) * 9).")
