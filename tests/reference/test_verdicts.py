"""Whether rounding explains how a reference differs from a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtypeguard import audit_precision
from dtypeguard.testing import check_precision
from tests.support import references
from tests.support.helpers import normal, set_x64, users_programs
from tests.support.products import as_on
from tests.support.references import BF16, F32, compared

pytestmark = users_programs
# One of each kind; the benchmark has all.
CASES = [*references.ROUNDING[0:5:2], *references.DIFFER[1:6:4], *references.OUTPUTS[:2]]
X = normal(0, 8, 16)


def verdicts(f, args, reference):
    made = compared(f, args, reference)["differences"]
    return {each.output: each.verdict for each in made}


def judged(f, x, reference):
    """The verdict on the only output, and the dtype that would tell."""
    (found,) = compared(f, (x,), reference)["differences"]
    return found.verdict, found.shows_in


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_verdict_is_that_of_what_was_planted(case):
    f, args, reference = case.make(0)
    found = verdicts(f, args, reference)
    assert found == {x: "differs" if x in case.wrong else "rounding" for x in found}


def test_a_gelu_within_rounding_hides_and_a_function_tells():
    x = normal(1, 16, 8, dtype=BF16)
    ws = [normal(n, 8, 8, dtype=BF16) / 3 for n in (2, 3)]

    def net(act):
        return lambda x, ws: jnp.tanh(act(x @ ws[0]) @ ws[1])

    tanh, erf = net(jax.nn.gelu), net(references.exactly)
    (found,) = compared(tanh, (x, ws), references.run(erf, (x, ws)))["differences"]
    assert (found.verdict, found.shows_in) == ("rounding", "float32")
    assert found.rounding > 1e-4
    (found,) = compared(tanh, (x, ws), erf)["differences"]
    assert (found.verdict, found.shows_in) == ("differs", "float32")
    nudged = lambda x: jnp.tanh(x).at[0].multiply(1 + 3e-6)
    (found,) = compared(jnp.tanh, (jnp.linspace(1, 2, 99, dtype=BF16),), nudged)[
        "differences"
    ]
    assert (found.verdict, found.reason) == ("differs", "")


def scaled(x, eps):
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + eps)


def normed(x, eps=1e-5):
    return jax.nn.gelu(scaled(x, eps))


def test_arrays_of_float32_beside_a_bfloat16_program_are_judged_in_float32():
    """What they differ by is far below what bfloat16 rounds."""
    x = X.astype(BF16)
    same, other = (
        references.run(lambda x, e=e: normed(x, e), (x,), F32) for e in (1e-5, 1e-4)
    )
    assert judged(normed, x, same) == ("rounding", None)
    assert judged(normed, x, other) == ("undecidable", "float32")


def of_dtype(x):
    return scaled(x, jnp.finfo(x.dtype).eps * 20)


def test_a_function_that_asks_for_its_dtype_is_judged_in_that():
    x, eps = X.astype(BF16), float(jnp.finfo(BF16).eps)
    for n, verdict in ((20, "rounding"), (40, "differs")):
        f = lambda x, n=n: scaled(x, n * eps)
        for reference in (f, f(x), references.run(f, (x,), F32)):
            assert verdicts(of_dtype, (x,), reference) == {"": verdict}


def test_what_goes_wrong_in_bfloat16_alone_differs():
    """Traced in float32, the function is right, and is another one."""
    f = lambda x: jnp.cumsum(x[::-1] if x.dtype == BF16 else x, dtype=F32)
    x = X.astype(BF16)
    assert verdicts(f, (x,), np.cumsum(np.asarray(x, np.float32))) == {"": "differs"}
    assert verdicts(f, (x,), f(x)) == {"": "rounding"}


def test_a_float64_program_is_not_judged_in_float32():
    with set_x64(True):
        x = jnp.linspace(0.1, 1, 9)
        off = np.sin(np.asarray(x)) * (1 + 1e-8)
        (found,) = compared(jnp.sin, (x,), off)["differences"]
        (large,) = compared(lambda x: x * 1e200, (x,), x * 1.01e200)["differences"]
    assert (found.verdict, found.reason) == ("differs", "")
    assert large.error == pytest.approx(0.01 / 1.01)


def odd(x):
    return {
        "exact": x * 2,
        "chosen": jnp.argmax(x, -1),
        "mask": x > 0,
        "key": jax.random.key(0),
        "zero": jax.nn.softmax(x).sum(-1) - 1,
        "empty": x[:0],
        "complex": lax.complex(x, x),
    }


def test_exact_integer_empty_complex_and_vanishing_outputs_are_equal_or_differ():
    right = {n: np.asarray(x) for n, x in odd(X).items() if n != "key"}
    nan = np.where(np.arange(16) == 3, np.nan, right["exact"])
    wrong = right | {
        "exact": nan,
        "chosen": (right["chosen"] + 1) % 16,
        "mask": ~right["mask"],
        "zero": np.full(8, 1e-3),
        "complex": right["complex"].conj(),
    }
    assert {*verdicts(odd, (X,), right).values()} == {"rounding"}
    found = {x.output: x for x in compared(odd, (X,), wrong)["differences"]}
    assert found.pop("['empty']").verdict == "rounding"
    assert {x.verdict for x in found.values()} == {"differs"}
    assert found["['exact']"].error == np.inf
    assert np.isnan(found["['exact']"].reference)


def test_rounding_hides_nothing_of_integers_that_are_given_as_floats():
    x = X.astype(BF16)
    places = np.argmax(x, -1) * 1.0
    assert judged(lambda x: jnp.argmax(x, -1), x, places) == ("rounding", None)


def test_decisions_that_flip_are_rounding_and_are_named():
    w, x = (normal(n, 64, 64, dtype=BF16) for n in (1, 2))
    args = w / 8, x

    def f(w, x):
        net = lambda w: jax.nn.relu(jax.nn.relu(jax.nn.relu(x @ w) @ w) @ w)
        return jax.grad(lambda w: jnp.sum(net(w).astype(F32)))(w)

    text = str(audit_precision(f, *args, reference=references.run(f, args, F32)))
    assert "; rounding explains it." in text.splitlines()[0]
    assert "decisions that flipped" in text


@pytest.mark.parametrize(
    "given",
    [
        np.asarray(X * 2).tolist(),
        {"out": np.asarray(X * 2)},
        np.asarray(X * 2, np.float64),
        lambda x: x * 2,
    ],
    ids=["list", "by path", "float64", "function"],
)
def test_the_only_output_takes_what_numpy_takes(given):
    assert verdicts(lambda x: x * 2, (X,), given) == {"": "rounding"}


WRONG = {
    "missing": ({"a": X}, ["other outputs", "['b']  missing", "reference={"]),
    "extra": ({"a": X, "b": X, "c": X}, ["['c']  given", "the function has none"]),
    "array": (X, ["['a']      missing", "(no path)  given"]),
    "turned": ({"a": X.T, "b": X}, ["['a']  (16, 8)", "function has (8, 16)"]),
    "text": ({"a": "x", "b": X}, ["'x' in the reference at ['a']", "array of numbers"]),
    "complex": ({"a": X + 0j, "b": X}, ["complex", "real part"]),
    "function": (lambda x: {"a": x}, ["with other outputs", "['b']  missing"]),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_what_is_not_the_tree_is_refused(case):
    reference, parts = case
    with pytest.raises((ValueError, TypeError), match="audit_precision") as error:
        compared(lambda x: {"a": x * 2, "b": jnp.sin(x)}, (X,), reference)
    for part in parts:
        assert part in str(error.value)


def test_shapes_without_values_have_no_difference():
    with pytest.raises(TypeError, match="no values to compare"):
        audit_precision(jnp.sin, jax.ShapeDtypeStruct((3,), F32), reference=X)


def test_the_check_names_outputs_and_needs_no_tolerance():
    f = lambda x: {"a": jnp.sin(x), "b": jnp.cos(x)}
    right = {"a": np.sin(X), "b": np.cos(X)}
    check_precision(f, X, reference=right)
    with pytest.raises(AssertionError, match=r"reference in \['b'\]\.") as error:
        check_precision(f, X, reference=right | {"b": np.cos(X) * 1.01})
    text = str(error.value)
    assert "the reference differs by 0.99% in ['b']; rounding explains " in text
    assert "another computation in 1 of 2 outputs" in text


def test_modules_that_change_in_place_are_outputs():
    nnx = pytest.importorskip("flax.nnx")

    class Counter(nnx.Module):
        def __init__(self):
            self.total = nnx.Variable(jnp.ones(4))

    def step(factor):
        def change(model, x):
            model.total[...] = model.total[...] + factor * jnp.sum(x)
            return jnp.mean(x)

        return change

    assert {*verdicts(step(1.0), (Counter(), X), step(1.0)).values()} == {"rounding"}
    found = verdicts(step(1.0), (Counter(), X), step(1.1))
    (wrong,) = (path for path, verdict in found.items() if verdict == "differs")
    assert "total" in wrong
    # A tree is what is returned; what changes in place may be given by path.
    assert verdicts(step(1.0), (Counter(), X), np.mean(X)) == {"": "rounding"}
    given = {"out": np.mean(X), wrong: np.zeros(4)}
    assert verdicts(step(1.0), (Counter(), X), given)[wrong] == "differs"


def test_a_report_has_the_place_and_the_next_step():
    report = audit_precision(jnp.sin, X, reference=1.01 * np.sin(X))
    first, place, following = str(report).splitlines()  # no line in float64 is the matter
    assert first.startswith("precision: the reference differs by 0.99%; rounding explains ")
    assert first.endswith(": another computation.")
    off = np.abs(0.01 * np.sin(X))
    at = np.unravel_index(np.argmax(off), off.shape)
    (found,) = report.differences
    assert found.at == at
    assert found.program == np.float32(jnp.sin(X)[at])
    assert found.reference == np.float32(1.01) * np.sin(X)[at]
    begin = f"Element [{at[0]}, {at[1]}] is off by 0.01: the program has "
    assert place.startswith(f"{begin}{found.program:.8g}, the reference ")
    assert "return activations as well" in following
    assert report.losses
    assert '"verdict": "differs"' in report.to_json()
    assert "activations" not in str(audit_precision(jnp.sin, X, reference=np.sin(X)))


def test_the_first_output_that_differs_in_the_order_of_the_program_is_named():
    w = normal(1, 16, 16) / 4

    def net(scale):
        def f(x):
            begin = scale * jnp.sin(x)
            return {"after": jnp.tanh(begin @ w), "begin": begin}

        return f

    # The products of a TPU would explain what follows a product, and no first output.
    there = dict(zip(("after", "begin"), as_on("tpu", net(1.0), X)))
    wrong = there | {"begin": np.asarray(net(1.0005)(X)["begin"])}
    text = str(audit_precision(net(1.0), X, reference=wrong))
    assert "in ['begin']; rounding explains " in text.splitlines()[0]
    assert "In the order of the program, ['begin'] is the first output" in text
    assert "activations" not in text
    assert "matmul_precision" not in text


def test_the_place_of_an_output_of_several_and_of_a_scalar():
    f = lambda x: {"a": jnp.sin(x), "b": x.sum()}
    report = audit_precision(f, X, reference={"a": np.sin(X), "b": np.float32(X.sum() + 1)})
    assert "\nIn ['b'], it is off by 1: the program has " in str(report)
    assert [each.at for each in report.differences][1] == ()
    same = compared(f, (X,), f(X))["differences"]
    assert [each.at for each in same] == [None, None]


def test_a_function_that_draws_is_the_same_as_itself():
    f = lambda x: x + jax.random.normal(jax.random.key(0), x.shape, x.dtype)
    assert verdicts(f, (X.astype(BF16),), f) == {"": "rounding"}


def moments(m, v, g):
    return {"m": 0.9 * m + (1 - 0.9) * g, "v": 0.999 * v + (1 - 0.999) * g * g}


def torch_moments(m, v, g):
    """As PyTorch's AdamW has them, in float32."""
    rest = np.float32(1) - np.float32(0.999)
    return {"m": m + (g - m) * np.float32(0.1), "v": v * np.float32(0.999) + rest * g**2}


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_moments_in_another_order_are_rounding(dtype):
    g = X.astype(dtype)
    arrays = g / 10, g**2 / 10, g
    reference = torch_moments(*(np.asarray(x, np.float32) for x in arrays))
    assert {*verdicts(moments, arrays, reference).values()} == {"rounding"}


def net(eps, gain=1.0):
    def f(w, x):
        return jnp.tanh(gain * jnp.tanh(scaled(x, eps) @ w) @ w)

    return f


@pytest.mark.parametrize("device", ["tpu", "a100"])
def test_arrays_of_a_device_are_judged_as_it_computes(device):
    w, x = (normal(n, 16, 16) for n in (1, 2))
    f, args = net(1e-5), (w / 4, x)

    def judged(reference, **options):
        report = audit_precision(f, *args, reference=reference, seconds=0, **options)
        return report.differences[0]

    (there,) = as_on(device, net(1e-5, 1.0001), *args)
    assert judged(there, matmul_precision=device).verdict == "rounding"
    # Without it, that is what would explain it.
    assert judged(there).verdict == "differs"
    assert f'give matmul_precision="{device}"' in judged(there).reason
    # Another computation is one there as well.
    (wrong,) = as_on(device, net(0.3), *args)
    assert judged(wrong, matmul_precision=device).verdict == "differs"
    assert "matmul_precision" not in judged(wrong).reason
    # A small one hides in its rounding, and float32 would tell.
    hidden = judged(np.asarray(net(1e-4)(*args)), matmul_precision=device)
    assert (hidden.verdict, hidden.shows_in) == ("undecidable", "float32")


def test_large_integers_that_are_not_equal_differ():
    f = lambda add: lambda k: (k * 7919 + add, 1.0 * k)
    report = audit_precision(
        f(12_345_678), jnp.arange(8), reference=f(12_345_679), seconds=0
    )
    assert [row.verdict for row in report.differences] == ["differs", "rounding"]


@pytest.mark.parametrize("factor", [1e5, 1e-20])
def test_an_error_beside_zeros_is_relative_to_the_output(factor):
    report = audit_precision(lambda x: x * factor, normal(0, 33), reference=np.zeros(33))
    assert report.differences[0].error == pytest.approx(1)
