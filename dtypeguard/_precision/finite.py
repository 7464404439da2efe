"""Where the values of a paired program stop being finite."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from .._leaves.types import Leaf
from .._program.graph import Stack

# What is made first has the largest code.
_FIRST = 2**30


class Birth(NamedTuple):
    """What made a value that may not be finite.

    Attributes:
        number: of the input, if it is one.
        stack: the equation and those around it, inside out; empty for an input.
        dtype: that of the value as written.
    """

    number: int | None
    stack: Stack
    dtype: str


class Finite:
    """Follows where values stop being finite while a paired program is traced.

    Every floating value has a cause: two codes, one for the value as written where the wide
    one is finite, and one for the wide value. A code is 0 if that is finite, or infinite
    because a constant or an input is, such as a mask. What is selected away is followed no
    further.

    Attributes:
        births: what the codes stand for.
    """

    def __init__(self):
        self.births: list[Birth] = []

    def none(self) -> Leaf:
        """The cause of what is finite."""
        return jnp.zeros(2, jnp.int32)

    def births_of(self, codes: Sequence[Leaf]) -> list[Birth]:
        """What codes stand for, in the order of the program."""
        found = sorted({int(code) for code in codes if int(code)}, reverse=True)
        return [self.births[_FIRST - code] for code in found]

    def cause(
        self,
        number: int | None,
        stack: Stack,
        given: Sequence[tuple[Leaf, Leaf]],
        narrow: Leaf,
        wide: Leaf,
    ) -> Leaf:
        """The cause of a value that is made of these wide values with their causes."""
        code = jnp.int32(_FIRST - len(self.births))
        self.births.append(Birth(number, stack, str(narrow.dtype)))
        is_lost = jnp.any(~jnp.isfinite(narrow.astype(wide.dtype)) & jnp.isfinite(wide))
        is_bad, is_nan = jnp.any(~jnp.isfinite(wide)), jnp.any(jnp.isnan(wide))
        was_bad = was_nan = jnp.bool_(False)
        before = self.none()
        for each, cause in given:
            was_bad |= jnp.any(~jnp.isfinite(each))
            was_nan |= jnp.any(jnp.isnan(each))
            before = jnp.maximum(before, cause)
        is_new = jnp.stack([is_lost, is_bad & (~was_bad | (is_nan & ~was_nan))])
        if number is not None:  # an infinite input is like an infinite constant
            is_new = jnp.stack([is_lost, is_nan])
        own = jnp.where(is_new, code, jnp.int32(0))
        is_either = jnp.stack([is_lost, is_bad])
        return jnp.where(is_either, jnp.where(before > 0, before, own), jnp.int32(0))
