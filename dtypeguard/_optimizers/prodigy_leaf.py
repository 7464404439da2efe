"""One param of Prodigy: what it remembers, its share of the two sums, its step."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._leaves.compat import barrier
from .._leaves.dtypes import cast
from .._leaves.types import Leaf
from .._rounding.rounding import round_with, rounds
from .scalars import at_least_float32


class Moments(NamedTuple):
    """`exp_avg`, `exp_avg_sq` and `grad_sum` of one param; 0 for an average not kept."""

    m: Any
    v: Any
    s: Any


class Learned(NamedTuple):
    """What one param learns: its new moments, its shares of `<g, p0 - p>` and `|s|_1`."""

    moments: Moments
    toward: Any
    length: Any


class Scalars(NamedTuple):
    """What one step has in common for all params, in its dtype for scalars.

    `beta1_rest` is `1 - beta1`, which is exact only where it is taken before rounding.
    """

    d: Any
    d0: Any
    beta1: Any
    beta1_rest: Any
    beta2: Any
    beta2_rest: Any
    beta3: Any
    weight: Any


def learn(
    scalars: Scalars, slice_p: int, param: Leaf, grad: Leaf, stored: Moments, param0: Any
) -> Learned:
    """`m`, `v` and `s` of one param, and what it adds to the two sums.

    All in float32, or float64 for a param that is.
    """
    own = lambda value: cast(value, at_least_float32(param))
    h = Scalars(*map(own, scalars))
    stored = Moments(*map(own, stored))
    m, v, s = _in_units(param, h, h.d, stored, load=True)
    g = own(grad)
    new = Moments(
        m=h.beta1 * m + h.beta1_rest * (h.d * g),
        v=h.beta2 * v + h.beta2_rest * (h.d * g) ** 2,
        s=h.beta3 * s + h.weight * every(slice_p, g),
    )
    # XLA's sum takes in the conversion of an operand, unless another reads that as well.
    seen = grad, param, param0
    grad, param, param0 = barrier(seen) if _orders(param) else seen
    away = own(param0) - own(every(slice_p, param))
    toward = jnp.sum(own(every(slice_p, grad)) * away)
    return Learned(new, toward, jnp.sum(jnp.abs(new.s)))


def store(
    scalars: Scalars,
    new_d: Any,
    param: Leaf,
    new: Moments,
    stored: Moments,
    update: Any,
    words: tuple[Any, ...],
) -> Moments:
    """The new moments as the state holds them: in the dtypes of those that came in.

    Narrow ones are rounded stochastically: `beta2 = 0.999` moves an average by less than
    half the spacing of a bfloat16, which to nearest would never move. They are written
    over `stored`, which the update reads: after that.
    """
    own = lambda value: cast(value, at_least_float32(param))
    new = _in_units(param, Scalars(*map(own, scalars)), own(new_d), new, load=False)

    def narrowed(value, old, field):
        reads = field < 2  # and not `s`
        after = update if reads and _orders(update) else None
        return round_with(value, jnp.result_type(old), (*words, field), after)

    return Moments(*map(narrowed, new, stored, range(3)))


def _orders(leaf: Leaf) -> bool:
    """Whether XLA is told what to compute first: in bfloat16 that saves copies.

    In float16 and 8 bits, whose rounding takes more operations, it costs some.
    """
    return leaf.dtype == jnp.bfloat16


def direction(param: Leaf, eps: Any, new: Moments, average: Leaf) -> Any:
    """`m / (sqrt(v) + eps)`; 0 where the square has underflown and eps is 0 as well."""
    denominator = _sqrt(new.v) + cast(eps, at_least_float32(param))
    return average / jnp.where(denominator == 0, 1, denominator)


def rounded_step(param: Leaf, step: Leaf, words: tuple[Any, ...]) -> Any:
    """A step in the dtype of a param that leads it, on average, where `step` would.

    The exact sum is rounded stochastically, and the step is the way there: `p + u` to
    nearest loses every `u` below half the spacing at `p`, however often it is added.

    That the mean is exact holds where the sum is between half and twice the param, since
    the way there then has so few digits that the dtype holds it. Beyond, in a step that
    nearly cancels the param say, the way is rounded to nearest, and the mean is off by up
    to `finfo(dtype).eps` of the step.

    Args:
        param: of any floating dtype.
        step: a float32 array for params narrower than that.
        words: what tells the noise of this leaf and step apart, see `random_bits`.

    Returns:
        `step` itself for params of 32 bits or more. Its derivative is that of `step`.
    """
    if not rounds(param.dtype):
        return cast(step, param.dtype)
    wide = cast(param, jnp.float32)
    there = cast(round_with(wide + step, param.dtype, words), jnp.float32)
    return cast(step + lax.stop_gradient(there - wide - step), param.dtype)


def every(slice_p: int, leaf: Leaf) -> Any:
    """Every `slice_p`-th entry, flat; for 1 the leaf as it is."""
    if slice_p == 1:
        return leaf
    flat = jnp.reshape(leaf, (math.prod(leaf.shape),))
    return lax.slice(flat, (0,), flat.shape, (slice_p,))


def _in_units(param: Leaf, h: Scalars, d: Any, moments: Moments, *, load: bool) -> Moments:
    """To or from what the state of a param with less range than float32 is kept in.

    At the start `d * g` is about 1e-6, its square 1e-12, and `s` grows with `d**2`; the
    smallest float16 is 6e-8 and the largest 65504. So `m` is kept in units of `d`, of `v`
    the root in units of `d`, and `s` as the average that it is, in units of `d**2 / d0`:
    all three then have about the size of the gradients.
    """
    if jnp.finfo(param.dtype).minexp <= jnp.finfo(jnp.float32).minexp:
        return moments
    m, v, s = moments
    unit = d * d / h.d0 / jnp.maximum(1 - h.beta3, 1e-4)
    if load:
        return Moments(m * d, (v * d) ** 2, s * unit)
    return Moments(m / d, _sqrt(v) / d, s / unit)


@jax.custom_jvp
def _sqrt(x: Any) -> Any:
    """The root, with a derivative of 0 rather than infinity at 0."""
    return jnp.sqrt(x)


@_sqrt.defjvp
def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    root = _sqrt(*primals)
    is_positive = root > 0
    slope = 0.5 / jnp.where(is_positive, root, 1)
    return root, jnp.where(is_positive, slope, 0) * tangents[0]
