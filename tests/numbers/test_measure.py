"""The small set of lines that a report proposes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

from dtypeguard import audit_precision
from dtypeguard._leaves.compat import HAS_NUMBERS


def test_the_error_of_outputs_whose_norm_overflows():
    values = jnp.linspace(0.5, 1, 64)
    scaled = lambda x: (x * jnp.bfloat16(1.01)) * jnp.bfloat16(1.01)
    error = lambda size: audit_precision(scaled, (size * values).astype(jnp.bfloat16)).error
    assert error(1.0) == error(2.0**126) > 1e-3


@pytest.mark.third_party
@pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")
def test_of_a_line_in_a_package_the_remedy_is_what_to_give_it():
    logits = 4 * jax.random.normal(jax.random.key(0), (64, 32)).astype(jnp.bfloat16)
    labels = jax.nn.one_hot(jnp.arange(64) % 32, 32, dtype=jnp.bfloat16)
    loss = lambda x, y: optax.losses.softmax_cross_entropy(x, y)
    report = audit_precision(loss, logits, labels)
    (advice,) = {line for line in str(report).splitlines() if line.startswith("Have ")}
    assert advice.startswith("Have optax at ")
    assert advice.endswith(" compute in float32.")
    followed = lambda x, y: optax.losses.softmax_cross_entropy(x.astype(jnp.float32), y)
    assert audit_precision(followed, logits, labels).error == 0


@pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")
def test_of_a_package_each_line_that_calls_it_is_one_of_the_report():
    def model(layer, x):
        hidden = layer(jnp.tanh(x))
        return layer(jnp.tanh(hidden))

    layer = eqx.nn.Linear(64, 64, use_bias=False, key=jax.random.key(0))
    layer = jax.tree.map(lambda w: w.astype(jnp.bfloat16), layer)
    x = jax.random.normal(jax.random.key(1), (64,), jnp.bfloat16)
    report = audit_precision(model, layer, x)
    products = [each for each in report.losses if each.origin.called_from]
    assert len({each.origin.line for each in products}) == 1
    assert {each.origin.users.code.partition(" ")[0] for each in products} == {
        "hidden",
        "return",
    }


@pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")
def test_an_output_that_hides_the_errors_of_the_others_is_named():
    def metrics(x, offset):
        cancels = (x + offset).mean() - offset
        return {"mean": cancels, "square": x @ x, "greatest": jnp.exp(x)}

    x = jax.random.uniform(jax.random.key(1), (256,), jnp.bfloat16)
    note = "Furthest off of 3 outputs: ['mean'] (100%)"
    zero, large = (jnp.asarray(each, jnp.bfloat16) for each in (0, 300))
    assert note in str(audit_precision(metrics, x, large))
    assert note not in str(audit_precision(metrics, x, zero))
