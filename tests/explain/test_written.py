"""What a note says to write is the user's own expression, which it names without doubt."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from advice import applied, line as line_of, note_on
from jax import lax

from dtypeguard._source.syntax import returned

pytestmark = pytest.mark.third_party
BF16, F32 = jnp.bfloat16, jnp.float32
HALF = jnp.ones(3, BF16)
SCALE = np.float32(2)


class Pair(NamedTuple):
    h: jax.Array
    c: jax.Array


def of_a_tuple():
    def body(carry, _):
        h, c = carry
        return (h, c * SCALE), None

    return lax.scan(body, (HALF, HALF), None, 2)


def of_a_dict():
    def body(carry, _):
        return {"h": carry["h"], "c": carry["c"] * SCALE}, None

    return lax.scan(body, {"h": HALF, "c": HALF}, None, 2)


def of_keywords():
    def body(pair, _):
        return pair._replace(c=pair.c * SCALE), None

    return lax.scan(body, Pair(HALF, HALF), None, 2)


def of_arguments():
    def body(pair, _):
        return Pair(pair.h, pair.c * SCALE), None

    return lax.scan(body, Pair(HALF, HALF), None, 2)


def of_two_leaves():
    def body(carry, _):
        h, c = carry
        return (h + SCALE, c * SCALE), None

    return lax.scan(body, (HALF, HALF), None, 2)


def of_a_lambda():
    return lax.scan(lambda c, x: (c * SCALE, None), HALF, None, 2)


def of_a_comprehension():
    def body(layers, _):
        return [h * SCALE for h in layers], None

    return lax.scan(body, [HALF, HALF], None, 2)


def of_a_map():
    def body(carry, _):
        return lax.map(lambda y: y * SCALE, carry), None

    return lax.scan(body, HALF, None, 2)


def of_an_associative_scan():
    return lax.associative_scan(lambda a, b: a * b * SCALE, HALF)


def of_branches():
    def wide(x):
        return x, x * SCALE

    return lax.cond(True, wide, lambda x: (x, x), HALF)


def of_a_variable_that_a_branch_returns():
    def wide(x):
        y = x * SCALE
        return {"x": x, "y": y}

    return lax.cond(True, wide, lambda x: {"x": x, "y": x}, HALF)


def of_lambdas_alike():
    return lax.cond(True, lambda x: x * SCALE, lambda x: x, HALF)


def of_an_int():
    def body(carry, _):
        return (carry[0], carry[1] + 0.5), None

    return lax.scan(body, (HALF, jnp.int32(0)), None, 2)


def of_dtypes_alike():
    first = (jnp.zeros(3, BF16), jnp.zeros(3, BF16))

    def body(carry, x):
        return (carry[0], 0.999 * carry[1] + 0.001 * x), None

    return lax.scan(body, first, jnp.ones((5, 3)))


def of_positions():
    first = Pair(jnp.zeros(3, BF16), jnp.zeros(3, BF16))

    def body(pair, x):
        return Pair(pair.h, 0.999 * pair.c + 0.001 * x), None

    return lax.scan(body, first, jnp.ones((5, 3)))


TWO = "h + SCALE", "c * SCALE"
ROUNDED = "jnp.round(carry[1] + 0.5).astype(jnp.int32)"
SAID = {
    of_a_tuple: ("c * SCALE", "(c * SCALE).astype(jnp.bfloat16)"),
    of_a_dict: ('carry["c"] * SCALE', '(carry["c"] * SCALE).astype(jnp.bfloat16)'),
    of_keywords: ("pair.c * SCALE", "(pair.c * SCALE).astype(jnp.bfloat16)"),
    of_arguments: ("pair.c * SCALE", "(pair.c * SCALE).astype(jnp.bfloat16)"),
    of_a_lambda: ("c * SCALE", "(c * SCALE).astype(jnp.bfloat16)"),
    of_a_comprehension: ("h * SCALE", "(h * SCALE).astype(jnp.bfloat16)"),
    of_a_map: ("y * SCALE", "(y * SCALE).astype(jnp.bfloat16)"),
    of_an_associative_scan: ("a * b * SCALE", "(a * b * SCALE).astype(jnp.bfloat16)"),
    of_branches: ("x * SCALE", "(x * SCALE).astype(jnp.bfloat16)"),
    of_a_variable_that_a_branch_returns: (
        '{"x": x, "y": y}',
        '{"x": x, "y": y.astype(jnp.bfloat16)}',
    ),
    of_an_int: ("carry[1] + 0.5", ROUNDED),
    of_dtypes_alike: (
        "(jnp.zeros(3, BF16), jnp.zeros(3, BF16))",
        "(jnp.zeros(3, BF16), jnp.zeros(3, jnp.float32))",
    ),
    of_positions: (
        "Pair(jnp.zeros(3, BF16), jnp.zeros(3, BF16))",
        "Pair(jnp.zeros(3, BF16), jnp.zeros(3, jnp.float32))",
    ),
}


@pytest.mark.parametrize("program", SAID, ids=lambda program: program.__name__)
def test_the_expression_of_the_leaf(program):
    old, new = SAID[program]
    note = note_on(program)
    assert f"{new} in place of {old}" in note
    assert "Tried: the types then agree." in note
    applied(program, (old, new))()


def test_several_leaves_of_one_line():
    note = note_on(of_two_leaves)
    for old in TWO:
        assert f"write ({old}).astype(jnp.bfloat16) in place of {old}" in note
    applied(of_two_leaves, *((old, f"({old}).astype(jnp.bfloat16)") for old in TWO))()


def test_lambdas_alike_on_one_line():
    note = note_on(of_lambdas_alike)
    assert "Let true_fun return (x * SCALE).astype(jnp.bfloat16).\n" in note


def test_lambdas_are_told_apart_by_their_instructions():
    first, second, outer = (lambda x: x + 1), (lambda x: x - 1), (lambda x: lambda x: -x)
    ends = [returned(each.__code__).col_offset for each in (first, second, outer, outer(1))]
    assert ends == sorted(ends)
    assert len({*ends}) == 4


def mixed():
    def body(layers, _):
        return [h + layers[0] * SCALE for h in layers], None  # mixed

    return lax.scan(body, [HALF, jnp.ones(3)], None, 2)


def test_a_comprehension_of_leaves_of_several_types_is_not_cast_as_a_whole():
    note = note_on(mixed)
    assert "astype(jnp.bfloat16) in place of" not in note
    assert "Write lax.scan(dtypeguard.guard_step(body), " in note


def long_lambda():
    return lax.scan(  # the loop
        lambda carry, x: ((carry + SCALE) * SCALE + SCALE * x - SCALE * SCALE, None),  # it
        HALF,
        jnp.ones((5, 3), BF16),
    )


def test_a_lambda_in_a_long_call_is_wrapped():
    note = note_on(long_lambda)
    where = line_of(__file__, "it")
    assert f"Wrap the lambda at {where} in dtypeguard.guard_step, or " in note


def alike():
    return lax.cond(True, lambda: [HALF * SCALE, HALF * SCALE], lambda: [HALF, HALF])


def test_several_that_are_alike_are_told_by_their_order():
    new, old = "(HALF * SCALE).astype(jnp.bfloat16)", "HALF * SCALE"
    said = f"Let true_fun return {new} in place of the first {old} and {new} in place of "
    assert f"{said}the second {old}.\n" in note_on(alike)


def some_of_a_comprehension():
    wide = lambda: [h * SCALE for h in (HALF, jnp.ones(3))]
    return lax.cond(True, wide, lambda: [HALF, jnp.ones(3)])


def numbers_of_a_comprehension():
    def body(carry, _):
        return {k: v * SCALE for k, v in carry.items()}, None

    return lax.scan(body, {"a": HALF, "n": jnp.int32(1)}, None, 2)


@pytest.mark.parametrize("program", [some_of_a_comprehension, numbers_of_a_comprehension])
def test_a_comprehension_is_not_cast_for_one_of_its_leaves(program):
    assert "* SCALE).astype(" not in note_on(program)


def in_a_helper():
    scale = jax.jit(lambda c: c * SCALE)
    return lax.fori_loop(0, 3, lambda i, c: scale(c), HALF)


def of_one_of_two_returns():
    def body(carry, x):
        if x is None:
            return carry * SCALE, None
        return carry, None

    return lax.scan(body, HALF, None, 2)


@pytest.mark.parametrize("program", [in_a_helper, of_one_of_two_returns])
def test_the_line_that_promotes_tells_the_expression(program):
    old = "c * SCALE" if program is in_a_helper else "carry * SCALE"
    assert f"write ({old}).astype(jnp.bfloat16) in place of {old}" in note_on(program)
