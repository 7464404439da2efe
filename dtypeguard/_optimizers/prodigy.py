"""Prodigy without the faults of Optax's, with a state that keeps its dtypes."""

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

from .._guard.x64 import call_with_x64_of_inputs
from .._leaves.arguments import check_leaves, check_number, check_rate, is_finite, shown
from .._leaves.dtypes import cast, dtype_of, kind
from .._leaves.types import Leaf, Params, PyTree, public
from .._source.warn import warn_caller
from .arithmetic import (
    Scalar,
    at_least_float32,
    check_inputs,
    from_units,
    increment,
    narrowed,
    one_minus_power,
    only_summed,
    rate_at,
    real_params,
    rounded_step,
    sqrt,
    to_units,
    units,
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
            its own seed: an int from 0 to 2**32 - 1, or a 0-d integer array.

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
        Learner", 2023, https://arxiv.org/abs/2306.06101: "Prodigy (Adam version)".
    """
    try:
        beta1, beta2 = betas
    except (TypeError, ValueError):
        raise TypeError(
            f"prodigy got betas={shown(betas)}: write two numbers, such as (0.9, 0.999)."
        ) from None
    numbers = beta1, beta2, 0 if beta3 is None else beta3, eps, estim_lr0
    numbers = *numbers, estim_lr_coef, weight_decay, growth_rate
    for (name, allowed), value in zip(_ALLOWED.items(), numbers):
        check_number("prodigy", name, value, *allowed)
    check_rate("prodigy", learning_rate, _ALLOWED["eps"][0])
    mask = mask if callable(mask) else _checked_mask(mask)
    beta3 = beta2**0.5 if beta3 is None else beta3
    every = functools.partial(_every, _checked_slice(slice_p))
    averages = not _is_plain_zero(beta1)
    seeds = () if seed is None else (_checked_seed(seed),)

    def init(params):
        params = real_params("prodigy", params)
        dtype = at_least_float32(params)
        return ProdigyState(
            exp_avg=tree_util.tree_map(jnp.zeros_like, params) if averages else (),
            exp_avg_sq=tree_util.tree_map(jnp.zeros_like, params),
            grad_sum=tree_util.tree_map(lambda p: jnp.zeros_like(every(p)), params),
            params0=tree_util.tree_map(lambda p: jnp.array(every(p), copy=True), params),
            estim_lr=jnp.array(cast(estim_lr0, dtype)),
            numerator_weighted=jnp.zeros((), dtype),
            count=jnp.zeros((), jnp.int32),
            steps_taken=jnp.zeros((), jnp.int32),
            estim_lr_max=jnp.array(cast(estim_lr0, dtype)),
        )

    def update(updates, state, params=None, **extra_args):
        del extra_args
        return call_with_x64_of_inputs(step, warn_caller, updates, state, params)

    def step(updates, state, params):
        params = check_inputs("prodigy", updates, state, params, ProdigyState)
        ps, treedef = tree_util.tree_flatten(params)
        each, tree_of = treedef.flatten_up_to, treedef.unflatten
        gs, p0s = each(updates), each(state.params0)
        ms: list[Leaf] = each(state.exp_avg) if averages else [0.0 for _ in ps]
        vs, ss = each(state.exp_avg_sq), each(state.grad_sum)
        moving = [i for i, g in enumerate(gs) if g is not None]

        # The scalars of this step: all of one dtype, and cast to that of each param below.
        dtype = at_least_float32(params)
        scalar = lambda value: cast(value, dtype)
        d, d0 = scalar(state.estim_lr), scalar(cast(estim_lr0, state.estim_lr.dtype))
        lr = rate_at("prodigy", learning_rate, state.count, dtype)
        is_active = lr > 0
        steps_taken = increment(state.steps_taken)
        if use_bias_correction:
            k = scalar(steps_taken)
            lr *= jnp.sqrt(one_minus_power(beta2, k)) / one_minus_power(beta1, k)
        weight = d / d0 * d * (1 if safeguard_warmup else lr)
        b1, rest1 = scalar(beta1), scalar(1 - beta1)  # exact only before it is rounded
        b2, rest2 = scalar(beta2), scalar(1 - beta2)
        b3 = scalar(beta3)

        # The moments of each param, and its shares of `<g, p0 - p>` and `|s|_1`.
        moments, toward, length = {}, [], []
        for i in moving:
            p, g, p0 = ps[i], gs[i], p0s[i]
            own = functools.partial(cast, dtype=at_least_float32(p))
            own_d, own_g = own(d), own(g)  # cast once, so that derivatives are rounded once
            old_units = units(p.dtype, own_d, own(d0), own(b3))
            m, v, s = from_units(old_units, own(ms[i]), own(vs[i]), own(ss[i]))
            m = own(b1) * m + own(rest1) * (own_d * own_g)
            v = own(b2) * v + own(rest2) * (own_d * own_g) ** 2
            s = own(b3) * s + own(weight) * every(own_g)
            moments[i] = m, v, s
            g, p, p0 = only_summed(g, p, p0)
            toward.append(jnp.sum(own(every(g)) * (own(p0) - own(every(p)))))
            length.append(jnp.sum(jnp.abs(s)))

        # The new estimate.
        toward, length = (scalar(sum(map(scalar, terms))) for terms in (toward, length))
        r = b3 * scalar(state.numerator_weighted) + d / d0 * d * lr * toward
        estimate = scalar(estim_lr_coef) * r / jnp.where(length == 0, 1, length)
        d_max = jnp.maximum(scalar(state.estim_lr_max), estimate)
        base = jnp.where(d == d0, jnp.maximum(d, estimate), d)
        moves = is_active & (length != 0)
        new_d = jnp.where(moves, _bounded(d_max, base, growth_rate), d)

        # The update of each param, and its moments as the state holds them.
        flags = _checked_mask(mask(params)) if callable(mask) else mask
        spread = lambda flag, below: tree_util.tree_map(lambda _: flag, below)
        decays = each(tree_util.tree_map(spread, True if flags is None else flags, params))
        for i in moving:
            p, g, (m, v, s) = ps[i], gs[i], moments[i]
            own = functools.partial(cast, dtype=at_least_float32(p))
            average = own(new_d) * own(g)
            if averages:
                average = jnp.where(own(b1) == 0, average, m)
            scale = sqrt(v) + own(new_d * scalar(eps))
            scale = jnp.where(scale == 0, 1, scale)  # if v has underflowed and eps is 0
            move = own(d * lr) * (average / scale)
            if decays[i] and not _is_plain_zero(weight_decay):
                move += own(scalar(weight_decay) * d * lr) * own(p)
            noise = (*seeds, state.count, i)
            gs[i] = rounded_step(p, jnp.where(moves, -move, 0), noise)
            new_units = units(p.dtype, own(new_d), own(d0), own(b3))
            old = ms[i], vs[i], ss[i]
            new = narrowed(to_units(new_units, m, v, s), old, gs[i], noise)
            ms[i], vs[i], ss[i] = (jnp.where(is_active, *pair) for pair in zip(new, old))

        def kept(new, old):  # where nothing moves
            return cast(jnp.where(moves, new, cast(old, new.dtype)), old.dtype)

        return tree_of(gs), ProdigyState(
            exp_avg=tree_of(ms) if averages else state.exp_avg,
            exp_avg_sq=tree_of(vs),
            grad_sum=tree_of(ss),
            params0=state.params0,
            estim_lr=kept(new_d, state.estim_lr),
            numerator_weighted=kept(r, state.numerator_weighted),
            count=increment(state.count),
            steps_taken=kept(steps_taken, state.steps_taken),
            estim_lr_max=kept(d_max, state.estim_lr_max),
        )

    return optax.GradientTransformationExtraArgs(init, update)


_DECAY = (lambda x: 0 <= x < 1), "write a number in [0, 1)"
_TINY = float(np.finfo(np.float32).tiny)  # XLA flushes smaller ones to 0
_ALLOWED = {
    **dict.fromkeys(("beta1", "beta2", "beta3"), _DECAY),
    "eps": ((lambda x: x >= 0 and is_finite(x)), "write a number from 0 up"),
    "estim_lr0": (
        (lambda x: x >= _TINY and is_finite(x)),
        "write a small number above 0, such as 1e-6",
    ),
    "estim_lr_coef": ((lambda x: x > 0 and is_finite(x)), "write a number above 0"),
    "weight_decay": (is_finite, "write a finite number"),
    "growth_rate": (
        (lambda x: x >= 1 and (is_finite(x) or x == math.inf)),
        "write a number from 1 to 3e38, or math.inf",
    ),
}


def _every(slice_p: int, leaf: Leaf) -> Leaf:
    """Every `slice_p`-th entry as a flat array; for 1 the leaf itself."""
    if slice_p == 1:
        return leaf
    flat = jnp.reshape(leaf, (math.prod(jnp.shape(leaf)),))
    return lax.slice(flat, (0,), flat.shape, (slice_p,))


def _bounded(largest: jax.Array, base: jax.Array, growth: Scalar) -> jax.Array:
    """`min(largest, base * growth)`, whose derivative has no inf * 0 if growth is inf."""
    if isinstance(growth, (int, float)) and math.isinf(growth):
        return largest  # without an infinity that jax_debug_infs would find
    growth = cast(growth, base.dtype)
    is_bound = jnp.isfinite(growth)
    bound = base * jnp.where(is_bound, growth, 1)
    return jnp.where(is_bound, jnp.minimum(largest, bound), largest)


def _checked_mask(mask: PyTree) -> PyTree:
    is_flag = lambda leaf: kind(dtype_of(leaf)) == "bool" and np.ndim(leaf) == 0
    remedy = "Write True for each param to decay and False for the others, or mask=None."
    check_leaves("prodigy takes bools in mask", "mask", mask, is_flag, remedy)
    return mask


def _is_plain_zero(value: Scalar) -> bool:
    """Whether a hyperparameter is always 0; an array may change between calls."""
    return isinstance(value, (int, float)) and value == 0


def _checked_slice(slice_p: int | np.integer) -> int:
    if isinstance(slice_p, Tracer) or kind(dtype_of(slice_p)) != "int":
        raise TypeError(
            f"prodigy got slice_p={slice_p!r}, which decides shapes: write an int. Under "
            'inject_hyperparams write inject_hyperparams(prodigy, static_args="slice_p").'
        )
    check_number("prodigy", "slice_p", slice_p, lambda x: x >= 1, "write 1 or above")
    return operator.index(slice_p)


def _checked_seed(seed: int | jax.Array) -> np.uint32 | jax.Array:
    remedy = "write an int from 0 to 2**32 - 1, a 0-d integer array, or None"
    if kind(dtype_of(seed)) != "int":
        raise TypeError(f"prodigy got seed={shown(seed)}: {remedy}.")
    is_int = isinstance(seed, (int, np.integer))
    is_allowed = lambda x: 0 <= x < 2**32 or not is_int
    check_number("prodigy", "seed", int(seed) if is_int else seed, is_allowed, remedy)
    return np.uint32(seed) if is_int else seed
