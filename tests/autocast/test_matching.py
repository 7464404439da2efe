"""From equations to entries of a plan, by the source of their lines."""

import jax
import jax.numpy as jnp
import pytest

import dtypeguard
from tests.support.dots import equations
from tests.support.trained import written

_MODEL = """
import jax
import jax.numpy as jnp

def norm(x):
    return x / jnp.sqrt(jnp.mean(x * x) + 1e-6)

class Block:
    def __call__(self, x, w):
        h = norm(x @ w)
        return jax.nn.softmax(h) + x @ w

def model(x, w):
    with jax.named_scope("first"):
        x = Block()(x, w)
    with jax.named_scope("second"):
        x = jax.jit(Block())(x, w)
    return jnp.sum(x)
"""


def _model(tmp_path, text=_MODEL):
    return written(tmp_path, text=text).model


def _dtypes(tmp_path, function, table, default="all"):
    """The equations of a function by a plan with these entries, and their dtypes."""
    path = tmp_path / "model.plan"
    head = f"version = 1\nnarrow = 'bfloat16'\ndefault = '{default}'\n"
    path.write_text(f"{head}{table}\n")
    x = jnp.ones((4, 4))
    jaxpr = jax.make_jaxpr(dtypeguard.autocast(function, path))(x, x)
    made = ((e.primitive.name, e.outvars[0].aval) for e in equations(jaxpr))
    return [(name, str(getattr(aval, "dtype", None))) for name, aval in made]


def test_whole_function_and_expression(tmp_path):
    model = _model(tmp_path)
    made = _dtypes(tmp_path, model, "[entries]\n'train.py:norm' = 'float32'")
    assert {("sqrt", "float32"), ("exp", "bfloat16")} <= {*made}
    product = ("dot_general", "float32")
    entry = "'train.py:Block.__call__: x@w' = 'float32'"
    assert _dtypes(tmp_path, model, f"[entries]\n{entry}").count(product) == 4
    assert _dtypes(tmp_path, model, f"[scope.second]\n{entry}").count(product) == 2


def test_expression_before_function(tmp_path):
    both = "'train.py:norm' = 'float32'\n'train.py:norm: x * x' = 'bfloat16'"
    made = _dtypes(tmp_path, _model(tmp_path), f"[entries]\n{both}")
    assert {("mul", "bfloat16"), ("sqrt", "float32")} <= {*made}


def test_backward_pass_counts_for_the_line(tmp_path):
    entry = "[entries]\n'train.py:Block.__call__: x @ w' = 'float32'"
    made = _dtypes(tmp_path, jax.grad(_model(tmp_path)), entry, "products")
    assert made.count(("dot_general", "float32")) == 8
    assert ("dot_general", "bfloat16") not in made


_PLANNED = """[entries]
'train.py:norm: jnp.mean(x * x)' = 'float32'
'train.py:norm: jnp.mean(x * x) + 1e-6' = 'float32'
'train.py:norm: jnp.sqrt(jnp.mean(x * x) + ?)' = 'float32'
'train.py:Block.__call__: x @ w' = 'float32'
'src/train.py:Block.__call__: jax.nn.softmax(h)' = 'float32'
"""


def test_holds_for_another_number_and_more_layers(tmp_path):
    layer = "    x = Block()(x, w)\n    return jnp.sum"
    text = _MODEL.replace("1e-6", "1e-5").replace("    return jnp.sum", layer)
    _dtypes(tmp_path, _model(tmp_path, text), _PLANNED)


def test_what_is_taken_out_matches_nothing(tmp_path):
    model = _model(tmp_path, _MODEL.replace("jax.nn.softmax(h)", "h"))
    with pytest.raises(ValueError, match="1 of 5 entries of the plan match nothing"):
        _dtypes(tmp_path, model, _PLANNED)


def test_unknown_function_and_scope(tmp_path):
    norms = "'train.py:norms' = 'float32'\n[scope.frist]\n'train.py:norm' = 'float32'"
    message = (
        r'nearest there is "train.py:norm"\n.*nearest .* "train.py:norm in scope first"'
    )
    with pytest.raises(ValueError, match=message):
        _dtypes(tmp_path, _model(tmp_path), f"{_PLANNED}{norms}")
