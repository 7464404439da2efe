"""Decompositions in wide types, with the choices that the program made as written.

An eigenvector may have either sign, and a row may be a pivot or not. Such a choice is a
branch of the program: both sides make the same one.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from .._leaves.types import Function, Leaf


def _eigh(_: Sequence[Leaf], made: Sequence[Leaf], narrow: Sequence[Leaf]) -> list[Leaf]:
    vectors, *rest = made
    return [vectors * _turn(vectors, narrow[0]), *rest]


def _svd(_: Sequence[Leaf], made: Sequence[Leaf], narrow: Sequence[Leaf]) -> list[Leaf]:
    if len(made) == 1:
        return list(made)
    values, left, right = made
    size = values.shape[-1]
    first = lambda x: lax.slice_in_dim(x, 0, size, axis=-1)
    turn = _turn(first(left), first(narrow[1]))
    more = [(0, 0)] * (turn.ndim - 1)
    ones = lambda x, many: jnp.pad(x, [*more, (0, many - size)], constant_values=1)
    left = left * ones(turn, left.shape[-1])
    back = jnp.conj(jnp.swapaxes(ones(turn, right.shape[-2]), -1, -2))
    return [values, left, right * back]


def _lu(
    operands: Sequence[Leaf], made: Sequence[Leaf], narrow: Sequence[Leaf]
) -> list[Leaf]:
    """Gaussian elimination with the pivots of the program, where they differ."""
    (matrix,), (_, pivots, order) = operands, narrow
    is_same = jnp.all(made[2] == order, axis=-1)[..., None, None]
    matrix = jnp.take_along_axis(matrix, order[..., None], -2)
    below, right = (lax.broadcasted_iota(jnp.int32, matrix.shape[-2:], n) for n in (0, 1))

    def eliminate(step, matrix):
        step = step.astype(jnp.int32)
        row, column = (lax.dynamic_index_in_dim(matrix, step, n) for n in (-2, -1))
        pivot = lax.dynamic_index_in_dim(row, step, -1)
        factors = column / jnp.where(pivot == 0, jnp.ones_like(pivot), pivot)
        rest = jnp.where(right > step, matrix - factors * row, matrix)
        rest = jnp.where(right == step, factors, rest)
        return jnp.where((below > step) & (right >= step), rest, matrix)

    steps = min(matrix.shape[-2:])
    eliminated = lax.fori_loop(0, steps, eliminate, matrix)
    return [jnp.where(is_same, made[0], eliminated), pivots, order]


def _turn(vectors: Leaf, others: Leaf) -> Leaf:
    """What turns unit vectors, the columns, to others: a sign, or a complex phase."""
    others = others.astype(vectors.dtype)
    along = jnp.sum(jnp.conj(vectors) * others, axis=-2, keepdims=True)
    size = jnp.abs(along)
    is_any = size > 0
    safe = jnp.where(is_any, size, jnp.ones_like(size)).astype(along.dtype)
    return jnp.where(is_any, along / safe, jnp.ones_like(along))


# Each takes the wide operands, the results in wide types and those as written.
ALIGNED: dict[str, Function] = {"eigh": _eigh, "svd": _svd, "lu": _lu}
