"""From equations to entries of a plan, by the source of their lines."""

import dataclasses
import importlib.util
import sys

import jax
import jax.numpy as jnp
import pytest

from dtypeguard._autocast.matching import Matcher, key_of_line
from dtypeguard._autocast.plan import Plan, PlanEntry, PlanError
from dtypeguard._program.graph import jaxprs_in, open_jaxpr

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


def _stacks(jaxpr, outer=()):
    for eqn in open_jaxpr(jaxpr).eqns:
        inside = [*map(open_jaxpr, jaxprs_in(eqn.params))]
        for each in inside:
            yield from _stacks(each, (eqn, *outer))
        if not inside:
            yield (eqn, *outer)


def _program(tmp_path, text=_MODEL, grad=False):
    (tmp_path / "pyproject.toml").touch()
    path = tmp_path / "model.py"
    path.write_text(text)
    name = f"model_{abs(hash((text, str(tmp_path))))}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    function = jax.grad(module.model) if grad else module.model
    x = jnp.ones((4, 4))
    return [*_stacks(jax.make_jaxpr(function)(x, x))]


def _entries(*entries):
    return Plan(jnp.dtype("bfloat16"), entries=entries)


_F64 = jnp.dtype("float64")


def matched(plan, stacks):
    matcher = Matcher(plan)
    entries = [matcher.entry(stack) for stack in stacks]
    matcher.check()
    return [None if entry is None else entry.dtype for entry in entries]


def _names(stacks, plan):
    found = zip(stacks, matched(plan, stacks))
    return [stack[0].primitive.name for stack, dtype in found if dtype is not None]


def test_lines(tmp_path):
    lines = {*map(key_of_line, _program(tmp_path))}
    assert {(line.place, line.expression) for line in lines} >= {
        ("model.py:norm", "jnp.mean(x * x)"),
        ("model.py:norm", "x * x"),
        ("model.py:Block.__call__", "x @ w"),
        ("model.py:Block.__call__", "jax.nn.softmax(h)"),
        ("model.py:model", "jnp.sum(x)"),
    }
    assert {line.scope for line in lines} == {"first", "second", ""}


def test_whole_function_and_expression(tmp_path):
    stacks = _program(tmp_path)
    assert "sqrt" in _names(stacks, _entries(PlanEntry("model.py:norm")))
    both = _names(stacks, _entries(PlanEntry("model.py:Block.__call__", "x@w")))
    assert both == ["dot_general"] * 4
    scoped = PlanEntry("model.py:Block.__call__", "x @ w", "second")
    assert _names(stacks, _entries(scoped)) == ["dot_general"] * 2


def test_expression_before_function(tmp_path):
    stacks = _program(tmp_path)
    plan = _entries(
        PlanEntry("model.py:norm"), PlanEntry("model.py:norm", "x * x", dtype=_F64)
    )
    found = {s[0].primitive.name: d for s, d in zip(stacks, matched(plan, stacks)) if d}
    assert found["mul"] == _F64
    assert found["sqrt"] == jnp.float32


def test_backward_pass_counts_for_the_line(tmp_path):
    stacks = _program(tmp_path, grad=True)
    names = _names(stacks, _entries(PlanEntry("model.py:Block.__call__", "x @ w")))
    assert names.count("dot_general") == 8


_REFACTORED = {
    "another number": _MODEL.replace("1e-6", "1e-5"),
    "moved": _MODEL.replace("def norm", "# A comment.\n\n\ndef norm"),
    "spaces": _MODEL.replace("x * x", "x*x"),
    "brackets": _MODEL.replace("h = norm(x @ w)", "h = norm((x @ w))"),
    "renamed result": _MODEL.replace("x @ w)", "x @ w)\n        g = h").replace(
        "x(h)", "x(h)"
    ),
    "more layers": _MODEL.replace(
        "    return jnp.sum", "    x = Block()(x, w)\n    return jnp.sum"
    ),
}
_PLANNED = (
    PlanEntry("model.py:norm", "jnp.mean(x * x)"),
    PlanEntry("model.py:norm", "jnp.mean(x * x) + 1e-6"),
    PlanEntry("model.py:norm", "jnp.sqrt(jnp.mean(x * x) + ?)"),
    PlanEntry("model.py:Block.__call__", "x @ w"),
    PlanEntry("model.py:Block.__call__", "jax.nn.softmax(h)"),
)


@pytest.mark.parametrize("text", _REFACTORED.values(), ids=_REFACTORED)
def test_holds(tmp_path, text):
    matched(_entries(*_PLANNED), _program(tmp_path, text))


_EDITED = {
    "renamed variable": (
        _MODEL.replace("(h)", "(scores)").replace("h =", "scores ="),
        r'softmax\(h\): the nearest there is "model.py:Block.__call__: jax.nn.softmax\(s',
    ),
    "renamed function": (
        _MODEL.replace("norm(", "rms_norm("),
        r'mean\(x \* x\): the nearest there is "model.py:rms_norm: jnp.mean\(x \* x\)"',
    ),
    "taken out": (
        _MODEL.replace("jax.nn.softmax(h)", "h"),
        "1 of 5 entries of the plan match nothing",
    ),
}


@pytest.mark.parametrize(("text", "message"), _EDITED.values(), ids=_EDITED)
def test_does_not_hold(tmp_path, text, message):
    with pytest.raises(PlanError, match=message):
        matched(_entries(*_PLANNED), _program(tmp_path, text))


def test_unknown_function_and_scope(tmp_path):
    stacks = _program(tmp_path)
    norms = PlanEntry("model.py:norms"), PlanEntry("model.py:norm", scope="frist")
    message = (
        r'nearest there is "model.py:norm"\n.*nearest .* "model.py:norm in scope first"'
    )
    with pytest.raises(PlanError, match=message):
        matched(_entries(*norms, *_PLANNED), stacks)


def test_another_root(tmp_path):
    entry = dataclasses.replace(_PLANNED[0], place="src/model.py:norm")
    assert _names(_program(tmp_path), _entries(entry))
