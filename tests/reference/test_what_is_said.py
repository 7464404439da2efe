"""What a report says beside verdicts; optimizers, devices, and programs that it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from products import as_on
from references import BF16, F32, compared

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8"),
]
X = jax.random.normal(jax.random.key(0), (8, 16))


def verdicts(f, args, reference):
    made = compared(f, args, reference)["differences"]
    return {each.output: each.verdict for each in made}


def test_the_next_step_is_said_where_it_differs():
    f, wrong = jnp.sin, 1.01 * np.sin(X)
    assert "return activations as well" in str(audit_precision(f, X, reference=wrong))
    for reference in (np.sin(X), lambda x: 1.01 * jnp.sin(x)):
        assert "activations" not in str(audit_precision(f, X, reference=reference))


def test_the_place_of_an_output_of_several_and_of_a_scalar():
    f = lambda x: {"a": jnp.sin(x), "b": x.sum()}
    given = {"a": np.sin(X), "b": np.float32(X.sum() + 1)}
    report = audit_precision(f, X, reference=given)
    assert "\nIn ['b'], it is off by 1: the program has " in str(report)
    assert [each.at for each in report.differences][1] == ()
    same = audit_precision(f, X, reference=f(X))
    assert [each.at for each in same.differences] == [None, None]


def adamw(p, g, m, v, t):
    m, v = 0.9 * m + (1 - 0.9) * g, 0.999 * v + (1 - 0.999) * g * g
    update = (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return {"p": p - 1e-3 * (update + 0.01 * p), "m": m, "v": v}


def torch_adamw(p, g, m, v, t):
    """As PyTorch has it, in float32."""
    b1, b2, lr, eps, decay = map(np.float32, (0.9, 0.999, 1e-3, 1e-8, 0.01))
    one, p = np.float32(1), p * (np.float32(1) - lr * decay)
    m, v = m + (g - m) * (one - b1), v * b2 + g * g * (one - b2)
    denominator = np.sqrt(v) / np.sqrt(one - b2**t) + eps
    return {"p": p - lr / (one - b1**t) * (m / denominator), "m": m, "v": v}


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_adamw_in_another_order_is_rounding(dtype):
    for seed in range(3):
        keys = jax.random.split(jax.random.key(seed), 4)
        p, g, m, v = (jax.random.normal(key, (64, 32)) for key in keys)
        arrays = p, g * 1e-2, m * 1e-3, v**2 * 1e-5
        arrays = *(x.astype(dtype) for x in arrays), jnp.float32(10)
        reference = torch_adamw(*(np.asarray(x, np.float32) for x in arrays))
        assert {*verdicts(adamw, arrays, reference).values()} == {"rounding"}


def net(eps, gain=1.0):
    def f(w, x):
        x = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + eps)
        return jnp.tanh(gain * jnp.tanh(x @ w) @ w)

    return f


@pytest.mark.parametrize("device", ["tpu", "a100"])
def test_arrays_of_a_device_are_judged_as_it_computes(device):
    w, x = (jax.random.normal(jax.random.key(n), (16, 16)) for n in (1, 2))
    f, args = net(1e-5), (w / 4, x)
    (there,) = as_on(device, net(1e-5, 1.0001), *args)
    report = audit_precision(f, *args, reference=there, matmul_precision=device)
    assert report.differences[0].verdict == "rounding"
    assert str(report).startswith("precision: the reference differs by ")
    # Without it, that is what would explain it.
    (found,) = audit_precision(f, *args, reference=there).differences
    assert found.verdict == "differs"
    assert f'give matmul_precision="{device}"' in found.reason
    # Another computation is one there as well.
    (wrong,) = as_on(device, net(0.3), *args)
    report = audit_precision(f, *args, reference=wrong, matmul_precision=device)
    assert report.differences[0].verdict == "differs"
    assert "matmul_precision" not in str(report)
    (found,) = audit_precision(f, *args, reference=wrong).differences
    assert "matmul_precision" not in found.reason
    # A small one hides in its rounding, and float32 would tell.
    hidden = np.asarray(net(1e-4)(*args))
    report = audit_precision(f, *args, reference=hidden, matmul_precision=device)
    assert report.differences[0].verdict == "rounding"
    assert report.differences[0].shows_in == "float32"
