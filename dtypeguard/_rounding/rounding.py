"""Stochastic rounding: a narrowing cast that is unbiased, and its random bits.

It rounds a value to one of its two neighbours in a narrow dtype, with probabilities that
make the mean the value itself. Updates too small for round-to-nearest then add up instead
of vanishing.

References:
    Gupta, Agrawal, Gopalakrishnan, Narayanan, "Deep Learning with Limited Numerical
    Precision", 2015, section 3, https://arxiv.org/abs/1502.02551.

    Connolly, Higham, Mary, "Stochastic Rounding and Its Probabilistic Backward Error
    Analysis", 2021, SIAM J. Sci. Comput. 43(1), https://doi.org/10.1137/20M1334796.

    Zamirai, Zhang, Aberger, De Sa, "Revisiting BFloat16 Training", 2020: why bfloat16
    parameters need it, https://arxiv.org/abs/2010.06192.
"""

import functools
from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util

from .._leaves.arguments import is_subtree, shown
from .._leaves.casts import Casts
from .._leaves.dtypes import broadcasts, cast, dtype_of, has_zero, kind, promoted
from .._leaves.key_path import KeyPath, key_paths
from .._leaves.leaf_change import leaf_changes, tree_changes
from .._leaves.table import Table
from .._leaves.types import DType, Function, Leaf, Updates, public

Word = int | jax.Array  # a Python int or a uint32 scalar


def rounds(dtype: DType) -> bool:
    """Whether `stochastic_round` supports a dtype: 16 bits, or 8 with sign and zero."""
    narrow = kind(dtype) == "float" and 8 <= jnp.finfo(dtype).bits < 32
    return narrow and has_zero(dtype)


def stochastic_round(x: Leaf, dtype: DType, bits: jax.Array) -> jax.Array:
    """Rounds a floating array to a narrower dtype, so that the mean is the exact value.

    From the largest finite value of `dtype` on it rounds to nearest: no more overflow.
    """
    if dtype_of(x).itemsize < dtype.itemsize or dtype_of(x) == dtype or not rounds(dtype):
        return cast(x, dtype)
    return _round(cast(x, jnp.float32), dtype, bits)


def _with_own_name(function: Function) -> Function:
    """A function with a name that no other has: `jit` keeps nothing else of it."""
    function.__name__ = f"<dtypeguard.{function.__name__}>"
    return function


@functools.partial(jax.jit, static_argnums=1)
@_with_own_name
def round_with(
    x: jax.Array, dtype: DType, words: Sequence[Word], after: jax.Array | None = None
) -> jax.Array:
    """`stochastic_round` with the bits of `words`, traced once per shape and dtype.

    A model has hundreds of leaves. Without `jit`, the dozens of bit operations of each
    rounding would be traced and lowered for every leaf.
    """
    bits = random_bits(words, x.shape)
    return stochastic_round(x, dtype, bits if after is None else bits | _nothing_of(after))


def _nothing_of(x: jax.Array) -> jax.Array:
    """uint32 zeros that XLA takes to depend on an array; LLVM sees the two shifts."""
    bits = jnp.finfo(x.dtype).bits
    word = lax.bitcast_convert_type(x, jnp.dtype(f"uint{bits}"))
    return (word >> bits // 2 >> bits // 2).astype(jnp.uint32)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _round(x: jax.Array, dtype: DType, bits: jax.Array) -> jax.Array:
    return (_to_bfloat16 if dtype == jnp.bfloat16 else _to_small)(x, dtype, bits)


@_round.defjvp
def _round_jvp(dtype, primals, tangents):
    return _round(primals[0], dtype, primals[1]), tangents[0].astype(dtype)


def _to_bfloat16(x: jax.Array, dtype: DType, bits: jax.Array) -> jax.Array:
    """Adds noise to the lower half of a float32, then keeps the upper half: a bfloat16."""
    word = lax.bitcast_convert_type(x, jnp.uint32)
    magnitude = word & 0x7FFFFFFF
    noise = jnp.where(magnitude >= 0x7F7F0000, jnp.uint32(0x8000), bits >> 16)
    is_nan = magnitude > 0x7F800000  # keeps its sign, becomes quiet, and takes no carry
    word = jnp.where(is_nan, word | 0x00400000, word + noise)
    return lax.bitcast_convert_type((word >> 16).astype(jnp.uint16), dtype)


def _to_small(x: jax.Array, dtype: DType, bits: jax.Array) -> jax.Array:
    """Rounds to any format within float32's range; the exponent decides what to drop."""
    info = jnp.finfo(dtype)
    mantissa, lowest_exponent = int(info.nmant), int(info.minexp) + 127
    word = lax.bitcast_convert_type(x, jnp.uint32)
    magnitude = word & 0x7FFFFFFF
    exponent = jnp.maximum(magnitude >> 23, jnp.uint32(1))
    hidden = jnp.where(magnitude >> 23 > 0, jnp.uint32(1 << 23), jnp.uint32(0))
    significand = magnitude & 0x7FFFFF | hidden
    binade = jnp.maximum(exponent, jnp.uint32(lowest_exponent))
    dropped = binade - exponent + (23 - mantissa)
    near = jnp.minimum(dropped, jnp.uint32(31))
    far = jnp.clip(dropped, jnp.uint32(32), jnp.uint32(56)) - 32
    count = jnp.where(  # of spacings
        dropped < 32,
        significand + (bits >> (32 - near)) >> near,
        (bits < significand >> far).astype(jnp.uint32),
    )
    spacing = lax.bitcast_convert_type(binade - mantissa << 23, jnp.float32)
    rounded = count.astype(jnp.int32).astype(jnp.float32) * spacing
    rounded = jnp.where(word >> 31 > 0, -rounded, rounded)
    largest = np.float32(info.max).view(np.uint32)
    return jnp.where(magnitude < largest, rounded, x).astype(dtype)


def random_bits(words: Sequence[Word], shape: tuple[int, ...]) -> jax.Array:
    """Uniform uint32 bits, a pure function of `words` and the index of each element.

    A keyed 32-bit mixer hashes the index, in a handful of integer operations that XLA fuses
    with the rounding. The index is global: a sharded array gets the same bits as on one
    device, without communication. The bits are good enough for rounding noise, and for
    nothing else.

    References:
        Wellons, "Prospecting for Hash Functions", 2018 (the mixer is `triple32`),
        https://nullprogram.com/blog/2018/07/31/; Salmon, Moraes, Dror, Shaw, "Parallel
        Random Numbers: As Easy as 1, 2, 3", 2011 (bits from a counter),
        https://doi.org/10.1145/2063384.2063405.
    """
    first, second = jnp.uint32(0x243F6A88), jnp.uint32(0x85A308D3)  # pi's first digits
    for word in words:
        word = jnp.asarray(word, jnp.uint32)
        first, second = _mix(first ^ word, second), _mix(second + word, first)
    return _mix(_index(shape) + first, second)


def _mix(word: jax.Array, key: jax.Array) -> jax.Array:
    """`triple32`, keyed before the last of its three multiplications.

    Without the key, two streams would be one sequence, shifted. With an earlier key, some
    pairs of streams share more words than chance allows.
    """
    word = (word ^ word >> 17) * jnp.uint32(0xED5AD4BB)
    word = (word ^ word >> 11) * jnp.uint32(0xAC4C1B51)
    word = (word ^ word >> 15 ^ key) * jnp.uint32(0x31848BAB)
    return word ^ word >> 14


def _index(shape: tuple[int, ...]) -> jax.Array:
    """The index of each element, modulo 2**32."""
    index, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        iota = lax.broadcasted_iota(jnp.uint32, shape, axis)
        index = index + iota * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    return index


_T = TypeVar("_T")


@public
def apply_updates(params: _T, updates: Updates, *, key: jax.Array | None = None) -> _T:
    """Adds updates to params; each param keeps its dtype.

    It works like `optax.apply_updates`, in any promotion mode. Round-to-nearest loses an
    update below half the spacing at its param: in bfloat16, below 1/512 of the param. With
    a key, the sum is rounded stochastically if the param has fewer than 32 bits: the mean
    is then the float32 sum, which loses what a float32 param loses: an update below half
    the spacing of float32, at most 2**-24 of the param.

    Args:
        params: a tree of arrays.
        updates: their updates, of any floating dtype. float32 updates (see
            `Policy(updates_dtype=...)`) are not rounded before the sum. None, also for a
            whole subtree, or a float0 array does not change its param.
        key: a `jax.random` key, a new one at every step; None rounds to nearest. The noise
            does not depend on `jit`, `scan` or the number of devices.

    Returns:
        The new params, with the tree structure, shapes and dtypes of `params`.

    Raises:
        ValueError: if the trees differ.
        TypeError: if an update is not an array, is complex where its param is real, would
            change the shape of its param, or if one of them alone is of 4-bit integers; if
            `key` is not a single key.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp
        >>> params, updates = jnp.ones(1000, jnp.bfloat16), jnp.full(1000, 1e-3)
        >>> for key in (None, jax.random.key(0)):
        ...     moved = dtypeguard.apply_updates(params, updates, key=key)
        ...     print(f"{moved.astype(jnp.float32).mean():.3f}")
        1.000
        1.001
    """
    words = () if key is None else tuple(jax.random.bits(_checked(key), (2,), jnp.uint32))
    leaves, treedef = tree_util.tree_flatten(updates, is_leaf=lambda u: u is None)
    try:
        own = treedef.flatten_up_to(params)
    except ValueError:
        own = None
    if own is None or any(is_subtree(p) and u is not None for p, u in zip(own, leaves)):
        changes = tree_changes(
            "updates", params, updates, "give one for each param, or None"
        )
        headline = "apply_updates got updates in another tree than the params:"
        raise ValueError(str(Table(headline, changes)))
    _refuse(updates, own, leaves)
    added, casts = [], Casts("apply_updates", lambda: _paths("params", updates))
    for number, (param, update) in enumerate(zip(own, leaves)):
        with casts.of(number, param, update):
            added.append(_add(param, update, words and (*words, number)))
    return tree_util.tree_unflatten(treedef, added)


def _refuse(updates: Updates, params: list[Leaf], leaves: list[Leaf]) -> None:
    """Raises `TypeError` if an update does not fit its param; names every such update."""
    remedies = ["" if p is None else _remedy(p, u) for p, u in zip(params, leaves)]
    if any(remedies):
        changes = leaf_changes(_paths("updates", updates), params, leaves, remedies)
        headline = "apply_updates cannot add the update on the right to its param:"
        raise TypeError(str(Table(headline, changes)))


def _paths(name: str, updates: Updates) -> list[KeyPath]:
    """Returns the paths of updates, of which some may be None, in a tree of that name."""
    return key_paths(updates, name, is_leaf=lambda update: update is None)


def _remedy(param: Leaf, update: Leaf) -> str:
    """What to write in place of an update that does not fit its param; "" if it fits."""
    if update is None or dtype_of(update) is None:
        leaves_it = update is None or hasattr(update, "dtype")  # a float0 array
        return "" if leaves_it else "give an array or None"
    if dtype_of(param) is None:
        return "give None"
    if not broadcasts(np.shape(update), np.shape(param)):
        return f"give it in shape {np.shape(param)}"
    if kind(dtype_of(update)) == "complex" and kind(dtype_of(param)) != "complex":
        return "give jnp.real(x)"
    dtypes = {dtype_of(param), dtype_of(update)}
    if len(dtypes) > 1 and any(kind(x) == "int" and jnp.iinfo(x).bits < 8 for x in dtypes):
        return f"give it in {dtype_of(param)}: JAX does not promote 4-bit integers"
    return ""


def _checked(key: jax.Array) -> jax.Array:
    dtype = getattr(key, "dtype", None)
    is_typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if np.shape(key) != () if is_typed else dtype != np.uint32 or np.ndim(key) != 1:
        raise TypeError(
            f"apply_updates got key={shown(key)}. Write one new key for every step, "
            "such as key=jax.random.fold_in(jax.random.key(0), step)."
        )
    return key


def _add(param: Leaf, update: Leaf, words: tuple[Word, ...]) -> Leaf:
    """The sum in the dtype of the param, rounded stochastically if there are words."""
    if param is None or update is None or dtype_of(update) is None:
        return param
    param = jnp.asarray(param)
    stochastic = bool(words) and rounds(param.dtype)
    wide = promoted(param.dtype, dtype_of(update))
    if stochastic:
        wide = promoted(wide, jnp.dtype("float32"))
    total = cast(param, wide) + cast(update, wide)
    if stochastic:
        return round_with(total, param.dtype, words)
    return cast(total, param.dtype)
