"""Under `dtypeguard run`, an error that follows from the step before says so."""

import re
import sys
import textwrap

import jax
import pytest

from dtypeguard._source.files import short_path

_INFO = getattr(jax.make_jaxpr(lambda x: x)(1.0).jaxpr, "debug_info", None)
pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(
        not getattr(_INFO, "result_paths", None), reason="results have no names here"
    ),
]

CONVOLUTION = """
    import jax, jax.numpy as jnp
    from jax import lax

    def convolved(params, x):
        numbers = ("NHWC", "HWIO", "NHWC")
        about = dict(dimension_numbers=numbers)
        return lax.conv_general_dilated(x, params["k"], (1, 1), "SAME", **about).sum()

    params = {"k": jnp.ones((3, 3, 1, 1), jnp.bfloat16)}
    x = jnp.ones((1, 4, 4, 1), jnp.bfloat16)
"""
# What follows the lines above, the leaf, and the mark of the line that is named.
PROGRAMS = {
    "one function": (
        """
        @jax.jit
        def step(params, x):
            grads = jax.grad(convolved)(params, x)
            return jax.tree.map(
                lambda p, g: p - jnp.float32(0.1) * g, params, grads  # the update
            )

        for _ in range(3):
            params = step(params, x)
        """,
        "params['k']",
    ),
    "in a state": (
        """
        @jax.jit
        def step(state, x):
            params, count = state
            value, grads = jax.value_and_grad(convolved)(params, x)
            rate = jnp.float32(0.1)  # the update
            params = {"k": params["k"] - rate * grads["k"]}
            return (params, count + 1), value

        state = params, 0
        def train(state):
            for _ in range(3):
                state, value = step(state, x)
        train(state)
        """,
        "state[0]['k']",
    ),
}


def ran(program, run, script):
    path = script("".join(map(textwrap.dedent, (CONVOLUTION, program))))
    code, _, err = run(path)
    assert code == 1
    lines = path.read_text().splitlines()
    (number,) = [n for n, text in enumerate(lines, 1) if text.endswith("# the update")]
    return err[
        err.index("dtypeguard: the arguments") :
    ], f"{short_path(str(path))}:{number}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_call_that_gave_a_leaf_back_in_another_type(name, run, script):
    program, leaf = PROGRAMS[name]
    note, place = ran(program, run, script)
    text = f"The call of step (.*) before this one was given {re.escape(leaf)} as bfloat16 "
    at = place if sys.version_info >= (3, 12) else r"\S+"
    assert re.search(rf"\n{text}and gave it back as float32, at {at}\.\n", note)
    assert "dtypeguard.guard_step(step)" in note
    # A cast at the convolution would fail in the first step.
    assert "in place of" not in note


TWO = """
grad = jax.jit(jax.grad(convolved))

@jax.jit
def apply(params, grads):
    less = lambda p, g: p - jnp.float32(0.1) * g  # the update
    return jax.tree.map(less, params, grads)

for _ in range(3):
    params = apply(params, grad(params, x))
"""


def test_another_function_gave_the_leaf_back(run, script):
    note, place = ran(TWO, run, script)
    at = f", at {place}" if sys.version_info >= (3, 12) else ""  # where it is recorded
    text = f"this one was given params['k'] as bfloat16, this one as float32{at}."
    assert text in note
    assert "dtypeguard.guard_step(step)" in note


def test_a_first_call_has_none_before_it(run, script):
    note, _ = ran("\nconvolved(params, x.astype(jnp.float32))  # the update\n", run, script)
    assert " before " not in note
    assert ".astype(" in note


# JAX issue 2486: a column of the data is an index.
INDEX = """
import jax, jax.numpy as jnp

@jax.jit
def losses(data):
    table = jnp.zeros(2)
    body = lambda loss, row: (loss + table[row[0]], None)
    return jax.lax.scan(body, 0.0, data)[0]

losses(jnp.array([[0, 1], [0, 1]]))
data = jnp.array([[0, 1.1], [0, 1.1]])
losses(data)
"""


def test_a_call_before_had_another_kind(run, script):
    """No step gave it back: what is to be written stands beside what was before."""
    path = script(INDEX)
    code, _, err = run(path)
    assert code == 1
    told = "The call of losses (.*) before this one was given data as int32, this one as "
    at = ", at .*:11" if sys.version_info >= (3, 12) else ""
    assert re.search(rf"\n{told}float32{at}\.\n", err)
    place = f"At {short_path(str(path))}:7"
    assert f"{place} cast row[0] to int32" in err


COMPILED = """
import jax, jax.numpy as jnp

def step(params, x):
    return jax.tree.map(lambda p: p - jnp.float32(0.1) * x.mean(), params)

params, x = {"w": jnp.ones(3, jnp.bfloat16)}, jnp.ones((4, 3))
step = jax.jit(step).lower(params, x).compile()
for _ in range(3):
    params = step(params, x)
"""


def test_a_compiled_step_gave_it_back(run, script):
    """Mujoco issue 2565, where the recorder knows what forced the type."""
    code, _, err = run(script(COMPILED))
    assert code == 1
    assert "compile a function that keeps its types: dtypeguard.guard_step(step)" in err
