"""Errors over the types of tangents and cotangents name the rule, or the argument."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from advice import applied, line, note_on, raised
from jax import lax

BF16 = jnp.bfloat16


def of_two_lambdas():
    @jax.custom_vjp
    def scaled(x, w):
        return x * w

    def backward_of(wide):
        rule = lambda r, g: (g * r[1], (g * r[0]).astype(wide))  # the rules
        scaled.defvjp(lambda x, w: (x * w, (x, w)), rule)

    backward_of(jnp.float32)
    x, w = jnp.ones(3, BF16), jnp.ones(3, BF16)
    return jax.grad(lambda w: (scaled(x, w).sum() + w.sum()).astype(jnp.float32))(w)


# Two rules on one line, with parameters of the same names.
_ONE_LINE = """
import jax, jax.numpy as jnp
@jax.custom_vjp
def scaled(a, b):
    return a * b
scaled.defvjp(lambda a, b: (a * b, (a, b)), lambda a, b: (b * a[1], jnp.float32(b * a[0])))
x, w = jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.bfloat16)
run = lambda: jax.grad(lambda w: (scaled(x, w).sum() + w.sum()).astype(jnp.float32))(w)
"""


def test_a_rule_that_is_a_lambda():
    note = note_on(of_two_lambdas)
    assert note.startswith("dtypeguard: a lambda returns a cotangent in another")
    assert line(__file__, "the rules") in note
    assert "self[" not in note and "jax.tree.map" not in note
    way = "return each cotangent in the dtype of its argument, as x.astype(jnp.bfloat16)"
    assert f"At {line(__file__, 'the rules')} {way}" in note
    mended = applied(of_two_lambdas, ("(g * r[0]).astype(wide)", "(g * r[0]).astype(BF16)"))
    assert mended().dtype == BF16


def test_two_rules_on_one_line(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(_ONE_LINE)
    spec = importlib.util.spec_from_file_location("train", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    note = note_on(module.run)
    assert f"At {path}:6 return each cotangent in the dtype of its argument" in note


def of_a_product():
    @jax.custom_vjp
    def scaled(x, w):
        return x * w

    def backward(given, g):
        x, w = given
        return g * w, (g * x).astype(jnp.float32)  # a rule

    scaled.defvjp(lambda x, w: (x * w, (x, w)), backward)
    x = jnp.ones(3, BF16)
    return jax.grad(lambda w: scaled(x, w * w).sum().astype(jnp.float32))(x)


def test_a_cotangent_that_jax_multiplies():
    note = note_on(of_a_product)
    assert note.startswith("dtypeguard: backward returns a cotangent in another")
    assert f"At {line(__file__, 'a rule')} return each cotangent in the dtype of its" in note
