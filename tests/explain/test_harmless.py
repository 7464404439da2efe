"""No advice loses numbers: a float is cast to an int only as an index or a size."""

import re

import jax
import jax.numpy as jnp
import pytest
from advice import note_on
from jax import lax

HALVES = jnp.array([0.5, 1.5, 2.5])


def counted():
    kinds = jnp.array([0.0, 1.0, 2.0])
    return jnp.bincount(kinds, weights=HALVES)


def divided():
    return jnp.gcd(HALVES, jnp.array([4.0]))


def combined():
    return lax.bitwise_and(HALVES, HALVES)


def shifted():
    return lax.shift_left(HALVES, jnp.array([1.0]))


def drawn():
    return jax.random.randint(jax.random.key(0), (3.0,), 0.1, 2.5)


@pytest.mark.parametrize("program", [counted, divided, combined, shifted, drawn])
def test_no_float_that_is_no_index_is_cast_to_an_int(program):
    note = note_on(program)
    casts = [x for x in note.splitlines() if re.search(" (cast|make|begin) ", x)]
    assert not any("HALVES" in line or "0.1" in line for line in casts), note
    assert bool(casts) == (program in (counted, drawn)), note
