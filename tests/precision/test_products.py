"""Products as another device does them: against an interpreter that rounds operands."""

import contextlib  # noqa: F401 (evaluated)
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from dtypeguard import audit_precision
from tests.support import products
from tests.support.dtypes import BF16, F64
from tests.support.helpers import need, normal, set_x64, some, users_programs

pytestmark = users_programs


def kernel(x, y, w, around="contextlib.nullcontext()"):
    """|x - y|^2 from products, where both are far from 0."""
    squares = jnp.sum(x**2, 1)[:, None] + jnp.sum(y**2, 1)
    with eval(around):
        k = jnp.exp(-(squares - 2 * (x @ y.T)) / 8)  # loses
    return k @ w / jnp.sum(k, 1, keepdims=True)


@pytest.mark.parametrize("device", ["bfloat16", "tensorfloat32"])
def test_error_line_and_remedy_are_those_of_the_interpreter(device):
    args = normal(0, 32, 8) + 4, normal(1, 48, 8) + 4, normal(2, 48, 3)
    audit = functools.partial(audit_precision, matmul_precision=device)
    report, error = audit(kernel, *args), products.off(device, kernel, *args)
    assert report.run.matmul_precision == device
    assert error > 1e-4
    assert report.error == pytest.approx(error, rel=0.2)

    # To the letter: the line in the context that is printed.
    (loss,) = report.fix
    assert loss.origin.code.endswith("# loses")
    pattern = rf"Put `with (.*):` around .*test_products.py:{loss.origin.line}\."
    told = re.fullmatch(pattern, loss.remedy)
    left = products.off(device, functools.partial(kernel, around=told[1]), *args)
    assert report.fixed.error == pytest.approx(left, rel=0.25)
    assert left < 0.4 * error
    with jax.default_matmul_precision("float32"):
        clean = audit(kernel, *args)
    assert (clean.error, clean.losses) == (0, ())
    assert "the outputs are the same: there are no" in str(clean)


A, B = normal(0, 16, 16), normal(1, 16, 16)
IMAGES, FILTERS = normal(2, 2, 4, 8, 8), normal(3, 6, 4, 3, 3)


def summed(f):
    """The gradient of a function of arrays."""
    return jax.grad(lambda *args: jnp.sum(jnp.sin(f(*args))), argnums=(0, 1))


def repeats(x, w):
    step = lambda turn: (turn[0] + 1, jnp.tanh(turn[1] @ w))
    return lax.while_loop(lambda turn: turn[0] < 4, step, (0, x))[1]


def chooses(x, w):
    return lax.cond(jnp.sum(x) > 0, lambda x: x @ w, lambda x: x @ w.T, x)


def mixed(x, y):
    return lax.dot_general(x.astype(BF16), y, (((1,), (0,)), ((), ())), None, jnp.float32)


PLACES = {
    "while": (repeats, A, B),
    "cond": (chooses, A, B),
    "vmap of a convolution": (
        jax.vmap(summed(lambda x, w: lax.conv(x, w, (2, 2), "SAME"))),
        normal(5, 2, *IMAGES.shape),
        normal(6, 2, *FILTERS.shape),
    ),
    "one bfloat16 operand": (mixed, A, B),
    "a sampler": (
        lambda x, y: jax.random.multivariate_normal(jax.random.key(0), x, y),
        A[0],
        B @ B.T,
    ),
}


@pytest.mark.parametrize("name", some(PLACES, 3))
def test_a_product_is_rounded_wherever_it_stands(name):
    f, *args = PLACES[name]
    report = audit_precision(f, *args, matmul_precision="bfloat16")
    error = products.off("bfloat16", f, *args)
    assert error > 1e-6
    assert report.error == pytest.approx(error, rel=0.1)
    assert report.not_examined == ()


V = normal(4, 16)
NOT_ROUNDED = {
    "a matrix and a vector": (jnp.dot, (A, V), ["tpu", "a100", "h100"]),
    "two vectors": (jnp.dot, (V, V), ["tpu", "a100"]),
    "a row": (jnp.dot, (A[:1], A), ["tpu", "a100"]),
    "vectors, each by its matrix": (jax.vmap(jnp.dot), (A.reshape(4, 8, 8), A[:4, :8]), []),
    "small matrices": (jnp.dot, (A[:5, :10], A[:10, :5]), []),
    "one vector by many": (jax.vmap(jnp.dot, (None, 0)), (A, A), []),
    "a convolution": (lambda x, w: lax.conv(x, w, (1, 1), "SAME"), (IMAGES, FILTERS), []),
}


@pytest.mark.parametrize("name", some(NOT_ROUNDED, 3))
def test_what_a_device_makes_a_multiply_and_a_sum(name):
    f, args, devices = NOT_ROUNDED[name]
    for device in {"tpu", "a100", *devices}:
        report = audit_precision(f, *args, matmul_precision=device)
        assert (report.error == 0) == (device in devices), (device, report)
    report = audit_precision(f, *args, matmul_precision="bfloat16", seconds=0)
    assert report.error > 0


LEFT_ALONE = {
    "bfloat16 operands": lambda x, y: x.astype(BF16) @ y.astype(BF16),
    "HIGHEST": lambda x, y: jnp.dot(x, y, precision="highest"),
    "float64": lambda x, y: x.astype(F64) @ y.astype(F64) + lax.dot(x, y.astype(F64)),
    "an algorithm": lambda x, y: jnp.dot(x, y, precision="TF32_TF32_F32"),
}


@pytest.mark.parametrize("name", some(LEFT_ALONE, 3))
def test_other_products_are_left_alone(name):
    with set_x64(name == "float64"):
        report = audit_precision(LEFT_ALONE[name], A, B, matmul_precision="tpu")
    assert (report.error, report.losses) == (0, ())
    assert "no float32 products, or each asks for another precision" in str(report)


@pytest.mark.parametrize(
    ("names", "bits"),
    [
        (("tpu", "bfloat16"), 8),
        (("a100", "h100", "tensorfloat32"), 11),
        (("bfloat16_3x",), 16),
        (("float32",), 99),
    ],
)
def test_settings_round_as_they_say(names, bits):
    audit = functools.partial(audit_precision, jnp.dot, A, B, seconds=0)
    errors = {audit(matmul_precision=name).error for name in names}
    assert bits > 20 or len(errors) == 1
    assert max(errors) < 2.0 ** -(bits - 1)
    assert bits > 20 or min(errors) > 2.0 ** -(bits + 3)


def unlike(exact):
    """The first product loses most and is dear: it or both others have to be exact."""

    def f(x, a, b, c):
        of = lambda n: lax.Precision.HIGH if n in exact else None
        y = jnp.matmul(x, a, precision=of(0))[:, :8]
        z = jnp.matmul(jnp.tanh(x[:, :8]), b, precision=of(1))
        w = jnp.matmul(jnp.tanh(x[:, 8:16]), c, precision=of(2))
        return y + 2 * z + 2 * w

    return f


UNLIKE = normal(0, 32, 64), normal(1, 64, 64), normal(2, 8, 8) * 2, normal(3, 8, 8) * 2
LINES = ["y = jnp.", "z = jnp.", "w = jnp."]


def test_the_fix_reaches_the_tolerance_at_the_lowest_price():
    """No other set of edited lines is enough and cheaper."""
    sets = [lines for n in range(4) for lines in itertools.combinations(range(3), n)]
    errors = {lines: products.off("tpu", unlike(lines), *UNLIKE) for lines in sets}
    work = lambda lines: sum((64 * 64, 64, 64)[line] for line in lines)
    either = 1.01 * max(errors[0,], errors[1, 2])
    assert errors[()] > either
    for tolerance, best in (
        (either, (1, 2)),
        (1.01 * errors[0, 1], (0, 1)),
        (1e-4, (0, 1, 2)),
    ):
        enough = [lines for lines, error in errors.items() if error <= tolerance]
        assert min(map(work, enough)) == work(best)
        report = audit_precision(
            unlike(()), *UNLIKE, matmul_precision="tpu", tolerance=tolerance
        )
        fix = [LINES.index(loss.origin.code[:8]) for loss in report.fix]
        assert work(fix) == work(best)
        assert report.fixed.error <= tolerance
        assert report.fixed.price == pytest.approx(work(best) / work(range(3)), abs=1e-6)


def test_of_a_package_the_call_is_to_be_precise():
    layer = need("equinox").nn.Linear(16, 8, key=jax.random.key(0))
    f = lambda x: jnp.tanh(jax.vmap(layer)(x))
    report = audit_precision(f, A, matmul_precision="a100")
    (loss,) = report.losses
    around = 'with jax.default_matmul_precision("highest"):'
    remedy = f"Put `{around}` around the call of equinox at {loss.origin.users}."
    assert loss.remedy == remedy
    with jax.default_matmul_precision("highest"):
        assert products.off("a100", lambda x: f(x), A) == report.fixed.error == 0


def test_on_an_a100_high_is_no_remedy():
    report = audit_precision(
        lambda x, y: jnp.dot(x, y, precision="high"), A, B, matmul_precision="a100"
    )
    assert report.error == pytest.approx(products.off("a100", jnp.dot, A, B), rel=0.1)
    assert "write precision=jax.lax.Precision.HIGHEST: it asks for less" in str(report)


def test_a_package_that_asks_for_less_itself_is_to_be_told():
    """A context does nothing for it; one that the program stands in is no such question."""
    linen = need("flax.linen")
    told, plain = linen.Dense(8, precision="default"), linen.Dense(8)
    params = plain.init(jax.random.key(0), A)
    report = audit_precision(lambda x: told.apply(params, x), A, matmul_precision="tpu")
    assert "On flax/linen/linear.py" in str(report)
    assert "write precision=jax.lax.Precision.HIGH: it asks for less" in str(report)
    within = "with jax.default_matmul_precision"
    assert within not in str(report)
    itself = functools.partial(jnp.dot, precision="default")
    remedy = "On the call of dot_general, write precision"
    assert remedy in str(audit_precision(itself, A, B, matmul_precision="tpu"))
    with jax.default_matmul_precision("bfloat16"):
        assert within in str(
            audit_precision(lambda x: plain.apply(params, x), A, matmul_precision="tpu")
        )
