"""What `dtypeguard run` lists at exit, from calls that JAX reports."""

import types

import jax
import jax.numpy as jnp
import optax
import pytest

from dtypeguard._cli.changes import TypeChange
from dtypeguard._cli.compiled import CompiledCall, is_listed
from dtypeguard._cli.recompiled import Recompiled, RecompiledFunction
from dtypeguard._leaves.rows import Type

BF16, F32 = jnp.bfloat16, jnp.float32


def step(x):
    return x


def call(x, function=step, callers=()):
    return CompiledCall(function, function, (x,), {}, ("x",), "", [*callers])


def frame_of(function):
    return types.SimpleNamespace(f_code=function.__code__)


def test_types_that_were_compiled_before_are_not_what_changed():
    seen = Recompiled()
    for dtype in (F32, BF16, F32):
        seen._record(call(jnp.ones(2, dtype)))
    text = "\n".join(seen.lines())
    assert "float32 -> bfloat16" in text
    assert "bfloat16 -> float32" not in text


def test_other_shapes_and_static_values_are_another_program():
    seen = Recompiled()
    for x in (jnp.ones(2, F32), jnp.ones(3, BF16)):
        seen._record(call(x))
    assert seen.lines() == []


@pytest.mark.parametrize(
    ("function", "caller", "listed"),
    [
        (step, step, True),
        (step, optax.sgd, True),
        (optax.sgd, step, True),
        (optax.sgd, optax.adam, False),
        (jax.nn.relu, step, False),
    ],
)
def test_what_a_package_compiles_by_itself_is_not_listed(function, caller, listed):
    made = call(jnp.ones(2), function, [frame_of(caller)])
    assert is_listed(made) is listed


def test_leaves_of_one_cause_share_a_row():
    seen = Recompiled()
    types = Type("float32"), Type("bfloat16")
    changes = {f"x[{n}]": TypeChange(f"x[{n}]", *types) for n in range(25)}
    seen._found["step"] = RecompiledFunction("step", changes, {}, [])
    _, _, row, some, *_ = seen.lines()
    assert row == "    25 leaves of x  float32 -> bfloat16"
    assert some == "      x[0], x[24]"
    assert sum(" -> " in line for line in seen.lines(is_whole=True)) == 25


def test_a_shape_alone_has_one_line():
    seen = Recompiled()
    for size in (8, 8, 3, 5):
        seen._record(call({"x": jnp.ones((size, 2), F32)}))
    (line,) = seen.lines()
    assert line.startswith("dtypeguard run: step (")
    assert line.endswith(
        "was compiled again because of a shape: x['x'] is float32[8,2] then float32[3,2]. "
        "No type changed."
    )
