"""What is said of branches has been tried on the types of all of them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from advice import applied, note_on
from jax import lax

from dtypeguard._explain.trials import Trials

pytestmark = pytest.mark.third_party
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
HALF, WIDE = jnp.ones(3, BF16), jnp.ones(3)
SCALE = np.float32(2)
TRIED = "Tried: the types then agree."


def two(x):
    grow = lambda x: x * SCALE
    return lax.cond(x.sum() > 9, grow, lambda x: x, x)


def test_a_remedy_is_said_to_be_tried_only_if_it_was(monkeypatch):
    program = lambda: two(HALF)
    advice = "Let true_fun return (x * SCALE).astype(jnp.bfloat16)"
    assert f"\n{advice}.\n{TRIED}" in note_on(program)
    monkeypatch.setattr(Trials, "branches", lambda *_: None)
    note = note_on(program)
    assert f"\n{advice} (not tried)." in note
    assert TRIED not in note
    monkeypatch.setattr(Trials, "branches", lambda *_: False)
    assert advice not in note_on(program)


def three(x):
    branches = [lambda x: x * F16(2), lambda x: x * SCALE, lambda x: x]
    return lax.switch(1, branches, x)


def test_all_branches_of_a_switch_are_cast():
    """The message of JAX, and the note, have two of the three."""
    note = note_on(lambda: three(HALF))
    (advice,) = re.findall("Let .*", note)
    one, other = "branches[0] return ", "branches[1] return "
    assert advice.startswith(f"Let {one}")
    assert f" and {other}" in advice
    assert TRIED in note
    back = "x.astype(jnp.bfloat16)"
    mended = applied(three, ("x * F16(2)", f"({back})"), ("x * SCALE", f"({back})"))
    assert mended(HALF).dtype == BF16


def none_or_a_float():
    return lax.cond(HALF.sum() > 9, lambda: HALF.sum(), lambda: 0)


def test_a_number_beside_16_bits_is_an_array():
    """JAX gives `0.0` float32, and no other type beside bfloat16."""
    note = note_on(none_or_a_float)
    new = "jnp.asarray(0, jnp.bfloat16)"
    assert f"Let false_fun return {new} in place of 0.\n{TRIED}" in note
    assert applied(none_or_a_float, ("lambda: 0)", f"lambda: {new})"))().dtype == BF16


def counted(total):
    return lax.cond(total > 3, lambda t: t + 0.5, lambda t: t, total)


def test_an_operand_that_begins_in_another_type():
    total = jnp.int32(0)
    note = note_on(lambda: counted(total))
    assert "Let the first value of total be float32: jnp.asarray(x, jnp.float32)" in note
    assert note.endswith(TRIED)
    assert counted(jnp.asarray(total, F32)).dtype == F32


def unlike(x):
    def wide():
        return x * SCALE, jnp.float32(0)

    def narrow():
        return x, jnp.int32(0)

    return lax.cond(x.sum() > 9, wide, narrow)


def test_results_of_different_types_have_a_remedy_each():
    note = note_on(lambda: unlike(HALF))
    assert "true_fun return " in note
    assert "false_fun return " in note


def shapes():
    return lax.cond(True, lambda: jnp.ones(3), lambda: jnp.ones(2))


def test_a_shape_is_not_tried():
    assert note_on(shapes).endswith("Return one shape from all branches (not tried).")


def test_what_a_loss_returns_is_tried():
    note = note_on(lambda: jax.grad(lambda x: jnp.argmax(x))(WIDE))
    assert "write jnp.argmax(x).astype(jnp.float32) in place of jnp.argmax(x); " in note
    assert TRIED in note
