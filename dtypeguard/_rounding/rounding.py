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
from jax import Array, lax

from .._leaves.arguments import shown
from .._leaves.casts import Casts
from .._leaves.dtypes import broadcasts, cast, dtype_of, has_zero, kind, promoted
from .._leaves.key_path import key_paths
from .._leaves.types import DType, Leaf, Updates, public
from .updates import fitting_leaves, is_missing

Word = int | Array  # a Python int or a uint32 scalar


def rounds(dtype: DType) -> bool:
    """Returns whether `stochastic_round` supports a dtype: 16 bits, or 8 with a zero."""
    if kind(dtype) != "float" or not has_zero(dtype):
        return False
    bits = jnp.finfo(dtype).bits
    return 8 <= bits < 32


def stochastic_round(x: Leaf, dtype: DType, bits: Array) -> Array:
    """Rounds a floating array to a narrower dtype, so that the mean is the exact value.

    From the largest finite value of `dtype` on it rounds to nearest: no more overflow.
    """
    source = dtype_of(x)
    is_wider = dtype.itemsize > source.itemsize
    if is_wider or dtype == source or not rounds(dtype):
        return cast(x, dtype)
    x = cast(x, jnp.float32)
    return _round_float32(x, dtype, bits)


@functools.partial(jax.jit, static_argnums=1)
def round_with(
    x: Array,
    dtype: DType,
    words: Sequence[Word],
    after: Array | None = None,
) -> Array:
    """Rounds stochastically with the bits of `words`, traced once per shape and dtype.

    A model has hundreds of leaves. Without `jit`, the dozens of bit operations of each
    rounding would be traced and lowered for every leaf.

    Args:
        x: a floating array.
        dtype: the dtype to round to.
        words: what the random bits are a function of.
        after: an array that XLA computes before it rounds.
    """
    bits = random_bits(words, x.shape)
    if after is not None:
        bits |= _zeros_that_depend_on(after)
    return stochastic_round(x, dtype, bits)


def _zeros_that_depend_on(x: Array) -> Array:
    """Returns uint32 zeros that XLA takes to depend on an array."""
    bits = jnp.finfo(x.dtype).bits
    word_dtype = jnp.dtype(f"uint{bits}")
    word = lax.bitcast_convert_type(x, word_dtype)
    # XLA does not know that two shifts by half of the bits leave 0; LLVM does, later.
    half = bits // 2
    word >>= half
    word >>= half
    return word.astype(jnp.uint32)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _round_float32(x: Array, dtype: DType, bits: Array) -> Array:
    if dtype != jnp.bfloat16:
        return _round_to_small(x, dtype, bits)
    # Its smallest spacing is subnormal in float32, where CPUs flush it to 0: no counting.
    return _round_to_bfloat16(x, dtype, bits)


@_round_float32.defjvp
def _round_float32_jvp(dtype, primals, tangents):
    x, bits = primals
    x_tangent, _ = tangents
    rounded = _round_float32(x, dtype, bits)
    return rounded, x_tangent.astype(dtype)


def _round_to_bfloat16(x: Array, dtype: DType, bits: Array) -> Array:
    """Adds noise to the lower half of a float32, then keeps the upper half: a bfloat16."""
    word = lax.bitcast_convert_type(x, jnp.uint32)
    magnitude = word & 0x7FFFFFFF
    # From the largest finite bfloat16 on, half a spacing: to nearest.
    is_largest = magnitude >= 0x7F7F0000
    noise = bits >> 16
    half_spacing = jnp.uint32(0x8000)
    noise = jnp.where(is_largest, half_spacing, noise)
    # A NaN keeps its sign, becomes quiet, and takes no carry.
    is_nan = magnitude > 0x7F800000
    quiet_nan = word | 0x00400000
    word += noise
    word = jnp.where(is_nan, quiet_nan, word)
    word >>= 16
    upper_half = word.astype(jnp.uint16)
    return lax.bitcast_convert_type(upper_half, dtype)


def _round_to_small(x: Array, dtype: DType, bits: Array) -> Array:
    """Rounds to any format within float32's range.

    It counts the spacings of the format in the significand, an integer, rounds the count,
    and multiplies it by the spacing, a power of two. Both are exact.
    """
    info = jnp.finfo(dtype)
    mantissa_bits = int(info.nmant)
    lowest_exponent = int(info.minexp)
    lowest_exponent += 127  # as float32 stores it
    word = lax.bitcast_convert_type(x, jnp.uint32)
    magnitude = word & 0x7FFFFFFF
    # A subnormal float32 has the lowest exponent, and no hidden bit.
    stored_exponent = magnitude >> 23
    exponent = jnp.maximum(stored_exponent, 1)
    hidden_bit = jnp.minimum(stored_exponent, 1)
    hidden_bit <<= 23
    significand = magnitude & 0x7FFFFF
    significand |= hidden_bit
    # Below its lowest exponent, the format drops more bits.
    binade = jnp.maximum(exponent, lowest_exponent)
    dropped_bits = binade - exponent
    dropped_bits += 23 - mantissa_bits

    # The noise is uniform below one spacing: the sum carries as often as it should.
    shift = jnp.minimum(dropped_bits, 31)
    num_unused = 32 - shift
    near_count = bits >> num_unused
    near_count += significand
    near_count >>= shift
    # A shift by 32 bits or more is undefined. Then at most one spacing is left, with the
    # probability that the significand has as a fraction of it.
    shift = jnp.clip(dropped_bits, 32, 56)
    shift -= 32
    fraction = significand >> shift
    has_spacing = bits < fraction
    far_count = has_spacing.astype(jnp.uint32)
    is_near = dropped_bits < 32
    count = jnp.where(is_near, near_count, far_count)
    # An exponent without a mantissa is a power of two.
    spacing = binade - mantissa_bits
    spacing <<= 23
    spacing = lax.bitcast_convert_type(spacing, jnp.float32)
    rounded = count.astype(jnp.int32)
    rounded = rounded.astype(jnp.float32)
    rounded *= spacing
    rounded = jnp.copysign(rounded, x)
    # The conversion of larger numbers rounds to nearest.
    largest = float(info.max)
    is_in_range = jnp.abs(x) < largest
    rounded = jnp.where(is_in_range, rounded, x)
    return rounded.astype(dtype)


def random_bits(words: Sequence[Word], shape: tuple[int, ...]) -> Array:
    """Returns uniform uint32 bits, a function of `words` and the index of each element.

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
    first = jnp.uint32(0x243F6A88)  # pi's first digits
    second = jnp.uint32(0x85A308D3)
    for word in words:
        word = jnp.asarray(word, jnp.uint32)
        old_first = first
        first ^= word
        first = _mix(first, second)
        second += word
        second = _mix(second, old_first)
    counter = _index(shape)
    counter += first
    return _mix(counter, second)


def _mix(word: Array, key: Array) -> Array:
    """Returns `triple32`, keyed before the last of its three multiplications.

    Without the key, two streams would be one sequence, shifted. With an earlier key, some
    pairs of streams share more words than chance allows.
    """
    word ^= word >> 17
    word *= jnp.uint32(0xED5AD4BB)
    word ^= word >> 11
    word *= jnp.uint32(0xAC4C1B51)
    word ^= word >> 15
    word ^= key
    word *= jnp.uint32(0x31848BAB)
    word ^= word >> 14
    return word


def _index(shape: tuple[int, ...]) -> Array:
    """Returns the index of each element, modulo 2**32."""
    index = jnp.zeros(shape, jnp.uint32)
    stride = 1
    # Axis by axis: the size may not fit into 32 bits.
    for axis in reversed(range(len(shape))):
        position = lax.broadcasted_iota(jnp.uint32, shape, axis)
        position *= jnp.uint32(stride % 2**32)
        index += position
        stride *= shape[axis]
    return index


_T = TypeVar("_T")


@public
def apply_updates(params: _T, updates: Updates, *, key: Array | None = None) -> _T:
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
    words = ()
    if key is not None:
        words = _words_of_key(key)
    param_leaves, update_leaves, treedef = fitting_leaves(
        "apply_updates", params, updates, _remedy_of_update, TypeError
    )

    def paths():
        return key_paths(updates, "params", is_missing)

    casts = Casts("apply_updates", paths)
    new_params = []
    for i, (param, update) in enumerate(zip(param_leaves, update_leaves)):
        with casts.of(i, param, update):
            new_params.append(_add(param, update, words, i))
    return treedef.unflatten(new_params)


def _words_of_key(key: Array) -> tuple[Word, ...]:
    """Returns two words of random bits for a key."""
    try:
        shape = (2,)
        bits = jax.random.bits(key, shape, jnp.uint32)
    except (TypeError, ValueError):
        raise TypeError(
            f"apply_updates got key={shown(key)}. Write one new key for every step, "
            "such as key=jax.random.fold_in(jax.random.key(0), step)."
        ) from None
    return tuple(bits)


def _remedy_of_update(param: Leaf, update: Leaf) -> str:
    """Returns how to write an update that fits its param; empty if it does fit."""
    if param is None or update is None:
        return ""
    param_dtype = dtype_of(param)
    update_dtype = dtype_of(update)
    if update_dtype is None:
        is_float0 = hasattr(update, "dtype")
        if is_float0:
            return ""
        return "give an array or None"
    if param_dtype is None:
        return "give None"
    shape = np.shape(param)
    update_shape = np.shape(update)
    if not broadcasts(update_shape, shape):
        return f"give it in shape {shape}"
    if kind(update_dtype) == "complex" and kind(param_dtype) != "complex":
        return "give jnp.real(x)"
    try:
        promoted(param_dtype, update_dtype)
    except (TypeError, ValueError):
        return f"give it in {param_dtype}: JAX does not promote 4-bit integers"
    return ""


def _add(param: Leaf, update: Leaf, words: Sequence[Word], number: int) -> Leaf:
    """Returns the sum in the dtype of the param, rounded stochastically if with words."""
    update_dtype = dtype_of(update)
    # None, also in place of a subtree of params, and float0 have no dtype of ours.
    if param is None or update_dtype is None:
        return param
    param = jnp.asarray(param)
    dtype = param.dtype
    # A float32 update of a bfloat16 param is not rounded before the sum.
    sum_dtype = promoted(dtype, update_dtype)
    is_stochastic = bool(words) and rounds(dtype)
    if is_stochastic:
        float32 = jnp.dtype("float32")
        sum_dtype = promoted(sum_dtype, float32)
    total = cast(param, sum_dtype)
    total += cast(update, sum_dtype)
    if is_stochastic:
        # Each leaf has noise of its own.
        leaf_words = (*words, number)
        return round_with(total, dtype, leaf_words)
    return cast(total, dtype)
