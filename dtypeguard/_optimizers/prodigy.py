"""Prodigy without the faults of Optax's, with a state that keeps its dtypes.

Names and formulas are those of Algorithm 4 in the paper, with two changes that the authors'
code makes. The weight of a gradient in `r` and `s` is `lr * d**2 / d0` in place of
`(1 - beta3) * lr * d**2`: a factor leaves `r / |s|_1` as it is. And `eps` is multiplied by
the new `d`.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, tree_util
from jax.core import Tracer

from .._leaves.arguments import check_leaves, check_number, shown
from .._leaves.dtypes import cast, dtype_of, kind
from .._leaves.types import Leaf, Params, PyTree, PyTreeDef, public
from .arithmetic import (
    Scalar,
    at_least_float32,
    increment,
    one_minus_power,
    rounded_step,
    sqrt,
)
from .checked import (
    check_rate,
    checked_update,
    is_at_least_1,
    is_finite,
    is_non_negative,
    rate_at,
    real_params,
)
from .moments import (
    Moments,
    next_moments,
    operands_of_sum,
    read_moments,
    units_for,
    write_moments,
)

# `inject_hyperparams` would turn a Python int into an array, but it decides shapes.
_EVERY_ENTRY = np.int32(1)


@public
class ProdigyState(NamedTuple):
    """State of `prodigy`: the fields of `optax.contrib.ProdigyState`, then two more.

    To continue from an `old` state of optax's Prodigy:
    `ProdigyState(*old, steps_taken=old.count, estim_lr_max=old.estim_lr)`. This does not
    hold for float16 params, `beta1=0` and `slice_p` above 1: for these see
    `dtypeguard docs migrating`.

    Attributes:
        exp_avg: average of `d * g`, in the dtype of each param; `()` for `beta1=0`.
        exp_avg_sq: average of `(d * g)**2`, in the same dtypes.
        grad_sum: weighted sum of the gradients, `s` in the paper, in the same dtypes; with
            `slice_p` above 1, of every `slice_p`-th entry, as a flat array. For params of a
            smaller range than float32 (float16), these three are `m / d`, `sqrt(v) / d`,
            and `s` in units of `d**2 / d0 / max(1 - beta3, 1e-4)`.
        params0: the initial params, sliced like `grad_sum`. A 0-d zero may stand for a
            param that started at zero: the authors' code and older versions save it so.
        estim_lr: the estimate `d`. Like the other floating scalars, it is float32, or
            float64 if any param is.
        numerator_weighted: weighted sum of `<g, p0 - p>`, `r` in the paper.
        count: number of updates, int32. Schedules depend on it.
        steps_taken: number of updates that took a step, int32. Bias correction depends on
            it.
        estim_lr_max: the largest estimate so far; it exceeds `estim_lr` only while
            `growth_rate` holds `estim_lr` back.
    """

    exp_avg: Params
    exp_avg_sq: Params
    grad_sum: Params
    params0: Params
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    # Optax's name for it, although every tuple has a method of that name.
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    steps_taken: jax.Array
    estim_lr_max: jax.Array


@public
def prodigy(
    learning_rate: Scalar | optax.Schedule = 1.0,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    beta3: Scalar | None = None,
    eps: Scalar = 1e-8,
    estim_lr0: Scalar = 1e-6,
    estim_lr_coef: Scalar = 1.0,
    weight_decay: Scalar = 0.0,
    safeguard_warmup: bool = False,
    *,
    use_bias_correction: bool = True,
    growth_rate: Scalar = math.inf,
    slice_p: int | np.integer = _EVERY_ENTRY,
    mask: PyTree | Callable[[Params], PyTree] | None = None,
    seed: int | jax.Array | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Adam that estimates its own learning rate, and that trains in low precision too.

    Let `g` be the gradient, `d` the current estimate, and `lr` the learning rate times the
    bias correction `sqrt(1 - beta2**k) / (1 - beta1**k)`. One step is

        m = beta1 * m + (1 - beta1) * d * g
        v = beta2 * v + (1 - beta2) * (d * g)**2
        r = beta3 * r + (d / d0) * d * lr * <g, p0 - p>
        s = beta3 * s + (d / d0) * d * lr * g
        d = max(d, estim_lr_coef * r / |s|_1)
        p = p - lr * d_old * (m / (sqrt(v) + d * eps) + weight_decay * p)

    It follows the authors' code where `optax.contrib.prodigy` does not:

    - As long as every gradient has been zero, and wherever the learning rate is 0 or below,
      it takes no step, decays nothing, and changes nothing in the state but `count`. (In
      Optax one all-zero gradient turns everything into NaN for good.)
    - With `beta1=0` the step is `d * g` with the new `d`. (Optax uses the old `d`.)
    - It has `use_bias_correction`, `growth_rate` and `slice_p`. (Optax always corrects and
      has neither of the others. The defaults are Optax's: the authors do not correct by
      default, so `prodigy(use_bias_correction=False)` has their settings.)

    It also differs in precision. `d`, `r` and every sum over the params are float32, or
    float64 if any param is. Arithmetic on narrower params is float32 as well; only the
    state and the updates have the dtypes of the params. Round-to-nearest would lose a step
    of `d0` in a 16-bit param: `p0 - p` would stay zero, and `d` would never grow. For
    params narrower than float32, `p + u` is therefore rounded stochastically: the update
    leads to one of the two neighbours of the float32 result, with probabilities that make
    the mean exact. The state is rounded the same way. (Where a bfloat16 step more than
    halves or doubles a param, no update makes the mean exact; it is within 1 in 128 of the
    step. To avoid this, guard the optimizer with a [`dtypeguard.Policy`][] whose
    `compute_dtype` and `updates_dtype` are float32: the updates are then float32, and
    [`dtypeguard.apply_updates`][] rounds the sum.) Float16 cannot represent `d * g` or its
    square, so the state of float16 params is in units of `d` (see `ProdigyState`).

    With sharded params and `slice_p=1`, the sums `<g, p0 - p>` and `|s|_1` are the only
    communication. A larger `slice_p` flattens each param, which may gather a sharded one;
    JAX refuses to where shardings are part of the types (`AxisType.Explicit`).

    Args:
        learning_rate: a factor on the estimate, or a schedule of the number of updates.
        betas: decay rates of the averages of the gradient and of its square.
        beta3: decay rate of `r` and `s`; `sqrt(beta2)` by default.
        eps: added to `sqrt(v)`, times `d`.
        estim_lr0: `d0`, the first estimate; it should be small, but no less than 1.2e-38.
        estim_lr_coef: a factor on the estimate, for larger or smaller steps.
        weight_decay: decoupled weight decay, as in AdamW.
        safeguard_warmup: leaves the learning rate and the bias correction out of `s`.
        use_bias_correction: corrects for averages that start at zero, as Adam does.
        growth_rate: the largest factor by which `d` grows in one step, once it has left
            `d0`.
        slice_p: estimates from every `slice_p`-th entry of each param. The state then
            takes `2 + 2 / slice_p` copies of the params in place of 4; the authors use 11
            where memory is short. It must be an int: with `inject_hyperparams`, name it in
            `static_args`.
        mask: the params to decay: a tree of bools with the structure of the params or a
            prefix of it, or a function of the params that returns one. All by default.
        seed: distinguishes the noise of stochastic rounding, which otherwise depends on the
            number of updates, the leaf and the position alone. Members of a `vmap`, and
            several `prodigy` in one `multi_transform`, get the same noise unless each has
            its own seed: an int from 0 to 2**32 - 1, of Python or NumPy, or a 0-d integer
            array of JAX, which may be traced.

    Returns:
        The corresponding `optax.GradientTransformationExtraArgs`. The updates have the
        dtypes of the params, the new state those of the old state. A param whose gradient
        is None does not move.

    Raises:
        TypeError: if `slice_p` or `seed` is not an int, `mask` not of bools, or another
            argument not a number; by `init` and `update`, if a param is not floating point;
            by `update`, if the schedule does not return a number.
        ValueError: if a number is out of range, or not finite in float32; by `update`, if
            there are no params, or if the updates have another tree structure or other
            shapes.

    Example:
        >>> import dtypeguard, jax.numpy as jnp, optax
        >>> opt = dtypeguard.prodigy()
        >>> params = {"w": jnp.ones(3, jnp.bfloat16)}
        >>> state = opt.init(params)
        >>> for _ in range(100):
        ...     updates, state = opt.update(params, state, params)  # of 0.5 * |w|^2
        ...     params = optax.apply_updates(params, updates)
        >>> params["w"].dtype, state.exp_avg["w"].dtype, state.estim_lr.dtype
        (dtype(bfloat16), dtype(bfloat16), dtype('float32'))
        >>> bool(state.estim_lr > 0.01)
        True

    References:
        Mishchenko and Defazio, "Prodigy: An Expeditiously Adaptive Parameter-Free
        Learner", 2023, https://arxiv.org/abs/2306.06101: Algorithm 4, "Prodigy (Adam
        version)".
    """
    decay_rates = _checked_betas(betas, beta3)
    beta1, beta2, numerator_decay = decay_rates
    _check_numbers(eps=eps, estim_lr0=estim_lr0, estim_lr_coef=estim_lr_coef)
    _check_numbers(weight_decay=weight_decay, growth_rate=growth_rate)
    check_rate("prodigy", learning_rate, is_non_negative)
    if not callable(mask):
        _check_mask(mask)
    stride = _checked_slice(slice_p)
    seeds = () if seed is None else (_checked_seed(seed),)
    keeps_m = not _is_plain_zero(beta1)

    def init(params):
        params = real_params("prodigy", params)
        return _first_state(params, estim_lr0, stride, keeps_m)

    def step(updates, state, params):
        decays = _decayed_params(mask, weight_decay, params)
        # The dtype of the scalars. Each param is computed in its own.
        dtype = at_least_float32(params)
        params, treedef = tree_util.tree_flatten(params)
        updates = treedef.flatten_up_to(updates)
        first_params = treedef.flatten_up_to(state.params0)
        moments = _stored_moments(state, treedef, keeps_m)
        moving = [i for i, grad in enumerate(updates) if grad is not None]
        lr = rate_at("prodigy", learning_rate, state.count, dtype)
        is_active = lr > 0
        # Updates with a rate of 0 leave the averages alone, and their bias too.
        steps_taken = increment(state.steps_taken)
        if use_bias_correction:
            lr *= _bias_correction(beta1, beta2, cast(steps_taken, dtype))
        d = cast(state.estim_lr, dtype)
        # Rounded as the state rounds it: at first `d == d0` holds exactly.
        d0 = cast(cast(estim_lr0, state.estim_lr.dtype), dtype)
        d_squared = d / d0 * d  # in units of d0: the square alone may underflow
        weight = d_squared
        # The small rates of a warm-up would keep s small, and with it the estimate large.
        if not safeguard_warmup:
            weight *= lr

        new_moments = {}
        inner_product = jnp.zeros((), dtype)  # <g, p0 - p> over all params
        norm = jnp.zeros((), dtype)  # |s|_1
        for i in moving:
            param_dtype = at_least_float32(params[i])
            grad = cast(updates[i], param_dtype)
            change = cast(d, param_dtype) * grad
            units = units_for(params[i], d, d0, numerator_decay)
            old = read_moments(moments[i], units, param_dtype)
            weighted_grad = cast(weight, param_dtype) * _every(stride, grad)
            new_moments[i] = next_moments(old, change, weighted_grad, decay_rates)
            g, p, p0 = operands_of_sum(updates[i], params[i], first_params[i])
            moved = cast(p0, param_dtype) - cast(_every(stride, p), param_dtype)
            product = cast(_every(stride, g), param_dtype) * moved
            inner_product += cast(jnp.sum(product), dtype)
            norm += cast(jnp.sum(jnp.abs(new_moments[i].s)), dtype)

        # As long as every gradient has been zero, |s|_1 is zero too.
        is_moving = is_active & (norm != 0)
        r = cast(numerator_decay, dtype) * cast(state.numerator_weighted, dtype)
        r += d_squared * lr * inner_product
        estimate = cast(estim_lr_coef, dtype) * r / jnp.where(norm == 0, 1, norm)
        # The estimate may fall again; d, a lower bound of the distance, does not.
        largest_d = jnp.maximum(cast(state.estim_lr_max, dtype), estimate)
        # As long as d is d0, growth_rate does not hold it back.
        base = jnp.where(d == d0, jnp.maximum(d, estimate), d)
        new_d = jnp.where(is_moving, _bounded_d(largest_d, base, growth_rate), d)

        choose = functools.partial(jnp.where, is_active)

        def if_moving(new, old):
            chosen = jnp.where(is_moving, new, cast(old, new.dtype))
            return cast(chosen, old.dtype)

        for i in moving:
            param_dtype = at_least_float32(params[i])
            new_change = cast(new_d, param_dtype) * cast(updates[i], param_dtype)
            average = new_moments[i].m if keeps_m else new_change  # as the authors' code
            least_root = cast(new_d * cast(eps, dtype), param_dtype)
            direction = _direction(average, new_moments[i].v, least_root)
            change = cast(d * lr, param_dtype) * direction
            if decays[i]:
                decay = cast(weight_decay, dtype) * d * lr
                change += cast(decay, param_dtype) * cast(params[i], param_dtype)
            # Rounded to nearest, most steps of a bfloat16 param would be lost.
            noise = (*seeds, state.count, i)
            change = jnp.where(is_moving, -change, 0)
            updates[i] = rounded_step(params[i], change, noise)
            units = units_for(params[i], new_d, d0, numerator_decay)
            new = write_moments(new_moments[i], moments[i], units, updates[i], noise)
            moments[i] = tree_util.tree_map(choose, new, moments[i])

        return treedef.unflatten(updates), ProdigyState(
            exp_avg=treedef.unflatten([x.m for x in moments]) if keeps_m else (),
            exp_avg_sq=treedef.unflatten([x.v for x in moments]),
            grad_sum=treedef.unflatten([x.s for x in moments]),
            params0=state.params0,
            estim_lr=if_moving(new_d, state.estim_lr),
            numerator_weighted=if_moving(r, state.numerator_weighted),
            count=increment(state.count),
            steps_taken=if_moving(steps_taken, state.steps_taken),
            estim_lr_max=if_moving(largest_d, state.estim_lr_max),
        )

    return optax.GradientTransformationExtraArgs(init, checked_update("prodigy", step))


def _first_state(params: Params, d0: Scalar, stride: int, keeps_m: bool) -> ProdigyState:
    def sliced_copy(param):
        return jnp.copy(_every(stride, param))

    m = ()
    if keeps_m:
        m = tree_util.tree_map(jnp.zeros_like, params)
    # Copies: the params and the state may be donated together.
    params0 = tree_util.tree_map(sliced_copy, params)
    dtype = at_least_float32(params)
    d0 = cast(d0, dtype)
    return ProdigyState(
        exp_avg=m,
        exp_avg_sq=tree_util.tree_map(jnp.zeros_like, params),
        grad_sum=tree_util.tree_map(jnp.zeros_like, params0),
        params0=params0,
        estim_lr=jnp.array(d0),
        numerator_weighted=jnp.zeros((), dtype),
        count=jnp.zeros((), jnp.int32),
        steps_taken=jnp.zeros((), jnp.int32),
        estim_lr_max=jnp.array(d0),
    )


def _stored_moments(
    state: ProdigyState,
    treedef: PyTreeDef,
    keeps_m: bool,
) -> list[Moments]:
    """Returns the moments of each param as the state holds them."""
    v = treedef.flatten_up_to(state.exp_avg_sq)
    s = treedef.flatten_up_to(state.grad_sum)
    m = [0.0 for _ in v]
    if keeps_m:
        m = treedef.flatten_up_to(state.exp_avg)
    return list(map(Moments, m, v, s))


def _direction(average: jax.Array, v: jax.Array, least_root: jax.Array) -> jax.Array:
    """Returns `average / (sqrt(v) + least_root)`."""
    scale = sqrt(v) + least_root
    # v may have underflowed where eps is 0.
    scale = jnp.where(scale == 0, 1, scale)
    return average / scale


def _bias_correction(beta1: Scalar, beta2: Scalar, k: jax.Array) -> jax.Array:
    """Returns the factor for averages that start at zero, after `k` steps.

    It is that of Adam as at the end of section 2 of Kingma and Ba, 2015:
    https://arxiv.org/abs/1412.6980.
    """
    weight_of_v = one_minus_power(beta2, k)
    factor = jnp.sqrt(weight_of_v)
    weight_of_m = one_minus_power(beta1, k)
    return factor / weight_of_m


def _bounded_d(largest: jax.Array, base: jax.Array, growth_rate: Scalar) -> jax.Array:
    """Returns `min(largest, base * growth_rate)`."""
    if isinstance(growth_rate, (int, float)) and math.isinf(growth_rate):
        return largest  # without an infinity that jax_debug_infs would find
    grown = base * cast(growth_rate, base.dtype)
    return jnp.minimum(largest, grown)


def _every(stride: int, leaf: Leaf) -> Leaf:
    """Returns every `stride`-th entry as a flat array; for 1 the leaf itself."""
    if stride == 1:
        return leaf
    flat = jnp.ravel(leaf)
    return lax.slice(flat, (0,), flat.shape, (stride,))


def _decayed_params(
    mask: PyTree | Callable[[Params], PyTree],
    weight_decay: Scalar,
    params: Params,
) -> list[bool]:
    """Returns for each leaf of the params whether it decays."""
    if callable(mask):
        mask = mask(params)
        _check_mask(mask)
    if mask is None:
        mask = True
    may_decay = not _is_plain_zero(weight_decay)

    def flags_below(flag, subtree):
        return tree_util.tree_map(lambda _: flag and may_decay, subtree)

    # The mask may be a prefix of the tree: one flag for a subtree.
    flags = tree_util.tree_map(flags_below, mask, params)
    return tree_util.tree_leaves(flags)


def _is_plain_zero(value: Scalar) -> bool:
    """Returns whether a hyperparameter is always 0; an array may change between calls."""
    if isinstance(value, (int, float)):
        return value == 0
    return False


def _checked_betas(
    betas: tuple[Scalar, Scalar],
    beta3: Scalar | None,
) -> tuple[Scalar, Scalar, Scalar]:
    try:
        beta1, beta2 = betas
    except (TypeError, ValueError):
        raise TypeError(
            f"prodigy got betas={shown(betas)}: write two numbers, such as (0.9, 0.999)."
        ) from None
    _check_numbers(beta1=beta1, beta2=beta2)
    # The paper has the root and no `beta3`.
    numerator_decay: Scalar = beta2**0.5 if beta3 is None else beta3
    _check_numbers(beta3=numerator_decay)
    return beta1, beta2, numerator_decay


def _is_decay_rate(number: float) -> bool:
    return 0 <= number < 1


def _is_normal(number: float) -> bool:
    # XLA flushes smaller numbers to 0.
    info = np.finfo(np.float32)
    return number >= float(info.tiny) and is_finite(number)


def _is_uint32(number: float) -> bool:
    return 0 <= number < 2**32


_DECAY_RATE = (_is_decay_rate, "write a number in [0, 1)")
# What each hyperparameter may be, and what to write in place of anything else.
_ALLOWED = {
    "beta1": _DECAY_RATE,
    "beta2": _DECAY_RATE,
    "beta3": _DECAY_RATE,
    "eps": (is_non_negative, "write a number from 0 up"),
    "estim_lr0": (_is_normal, "write a small number above 0, such as 1e-6"),
    "estim_lr_coef": (_is_normal, "write a number above 0"),
    "weight_decay": (is_finite, "write a finite number"),
    "growth_rate": (is_at_least_1, "write a number from 1 to 3e38, or math.inf"),
}


def _check_numbers(**hyperparameters: Scalar) -> None:
    for name, value in hyperparameters.items():
        is_allowed, remedy = _ALLOWED[name]
        check_number("prodigy", name, value, is_allowed, remedy)


def _check_mask(mask: PyTree) -> None:
    remedy = "Write True for each param to decay and False for the others, or mask=None."
    check_leaves("prodigy takes bools in mask", "mask", mask, _is_flag, remedy)


def _is_flag(leaf: Leaf) -> bool:
    if np.ndim(leaf) > 0:
        return False
    return kind(dtype_of(leaf)) == "bool"


def _checked_slice(slice_p: int | np.integer) -> int:
    if isinstance(slice_p, Tracer) or kind(dtype_of(slice_p)) != "int":
        raise TypeError(
            f"prodigy got slice_p={slice_p!r}, which decides shapes: write an int. Under "
            'inject_hyperparams write inject_hyperparams(prodigy, static_args="slice_p").'
        )
    check_number("prodigy", "slice_p", slice_p, is_at_least_1, "write 1 or above")
    return operator.index(slice_p)


def _checked_seed(seed: int | jax.Array) -> np.uint32 | jax.Array:
    remedy = "write an int from 0 to 2**32 - 1, a 0-d integer array of JAX, or None"
    if kind(dtype_of(seed)) != "int":
        raise TypeError(f"prodigy got seed={shown(seed)}: {remedy}.")
    check_number("prodigy", "seed", seed, _is_uint32, remedy)
    if isinstance(seed, jax.Array):
        return seed
    return np.uint32(seed)
