"""What `dtypeguard run` lists at exit, from calls that JAX reports."""

import types

import jax
import jax.numpy as jnp
import optax
import pytest

from dtypeguard._cli.recompiled import Change, CompiledCall, Recompiled, _is_listed

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
    ("function", "caller", "is_listed"),
    [
        (step, step, True),
        (step, optax.sgd, True),
        (optax.sgd, step, True),
        (optax.sgd, optax.adam, False),
        (jax.nn.relu, step, False),
    ],
)
def test_what_a_package_compiles_by_itself_is_not_listed(function, caller, is_listed):
    made = call(jnp.ones(2), function, [frame_of(caller)])
    assert _is_listed(made) is is_listed


def test_a_list_is_cut_at_20_leaves():
    seen = Recompiled()
    change = Change("float32", "bfloat16", "")
    seen._found["step"] = {f"x[{number}]": change for number in range(25)}
    lines = seen.lines()
    assert len([line for line in lines if " -> " in line]) == 20
    assert "    and 5 more" in lines
