"""One table says how each function of control flow is called."""

import jax.numpy as jnp
import numpy as np
import pytest
from advice import note_on
from jax import lax

pytestmark = pytest.mark.third_party
BF16 = jnp.bfloat16
SCALE = np.float32(2)
X = jnp.ones(3, BF16)


def of_scan():
    def body(carry, x):
        return carry * SCALE, None

    return lax.scan(f=body, init=X, xs=None, length=3)


def of_while():
    body = lambda x: x * SCALE
    return lax.while_loop(lambda x: x[0] < 3, body, X)


def of_fori():
    body = lambda i, x: x * SCALE
    return lax.fori_loop(0, 3, body, X)


def of_fori_with_a_body_like_its_bounds():
    f = lambda i, x: x * SCALE
    n = 3
    return lax.fori_loop(0 * len("f"), n, f, X)


def of_associative_scan():
    fn = lambda a, b: a * b * SCALE
    return lax.associative_scan(fn, X)


LOOPS = {
    of_scan: "lax.scan(f=dtypeguard.guard_step(body), init=X, xs=None, length=3)",
    of_while: "lax.while_loop(lambda x: x[0] < 3, dtypeguard.guard_step(body), X)",
    of_fori: "lax.fori_loop(0, 3, dtypeguard.guard_step(body, carry=1), X)",
    of_fori_with_a_body_like_its_bounds: (
        'lax.fori_loop(0 * len("f"), n, dtypeguard.guard_step(f, carry=1), X)'
    ),
    of_associative_scan: "lax.associative_scan(dtypeguard.guard_step(fn), X)",
}


@pytest.mark.parametrize("program", LOOPS, ids=lambda program: program.__name__)
def test_the_users_call_with_its_body_guarded(program):
    assert f"Write {LOOPS[program]}, or" in note_on(program)


def over_a_map():
    """`lax.map` is a scan of JAX's, without a carry: the note is on the user's loop."""

    def body(carry, _):
        return lax.map(lambda x: x * SCALE, carry), None

    return lax.scan(body, X, None, 2)


def in_a_map():
    def body(carry, _):
        return carry * SCALE, None

    return lax.map(lambda x: lax.scan(body, x, None, 2), X)


@pytest.mark.parametrize("program", [over_a_map, in_a_map])
def test_a_map_is_not_taken_for_a_loop_of_the_users(program):
    note = note_on(program)
    assert "1 leaf of the carry of scan comes back" in note
    assert "Write lax.scan(dtypeguard.guard_step(body), " in note
    assert "Give map" not in note
