"""Prodigy as its authors run it, with a state that keeps its dtypes."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util

from .._guard.scope import without_x64
from .._leaves.arguments import check_number, check_rate, short
from .._leaves.dtypes import cast
from .._leaves.errors import warn_caller
from .._leaves.public import public
from .prodigy_leaf import (
    Moments,
    Scalars,
    direction,
    every,
    learn,
    rounded_step,
    store,
)
from .scalars import (
    at_least_float32,
    checked_inputs,
    increment,
    rate_at,
    real_leaves,
    tree_of,
)

_Scalar = Any  # a Python or NumPy number or a 0-d array, maybe traced
# Not a Python int: inject_hyperparams would make an array of it, and it decides shapes.
_EVERY_ENTRY = np.int32(1)


@public
class ProdigyState(NamedTuple):
    """State of `prodigy`: the fields of `optax.contrib.ProdigyState`, then two more.

    To continue from an `old` state of optax's Prodigy:
    `ProdigyState(*old, steps_taken=old.count, estim_lr_max=old.estim_lr)`.

    Attributes:
        exp_avg: average of `d * g`, in the dtype of each param; `()` for `beta1=0`.
        exp_avg_sq: average of `(d * g)**2`, likewise.
        grad_sum: weighted sum of the gradients, `s` in the paper, likewise; of every
            `slice_p`-th entry, flat, unless `slice_p` is 1.
        params0: the initial params, as `grad_sum`. A 0-d zero may stand for a param that
            was all zero, as in the authors' code and in states of older versions.
        estim_lr: the estimate `d`. Like the other floating scalars float32, or float64 if
            a param is.
        numerator_weighted: weighted sum of `<g, p0 - p>`, `r` in the paper.
        count: updates so far, int32. Schedules see this one.
        steps_taken: updates that took a step, int32. Bias correction sees this one.
        estim_lr_max: the largest estimate seen; above `estim_lr` only while
            `growth_rate` holds that back.
    """

    exp_avg: Any
    exp_avg_sq: Any
    grad_sum: Any
    params0: Any
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    # The name that optax gives it, though every tuple has a method of that name.
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    steps_taken: jax.Array
    estim_lr_max: jax.Array


@public
def prodigy(
    learning_rate: _Scalar | optax.Schedule = 1.0,
    betas: tuple[_Scalar, _Scalar] = (0.9, 0.999),
    beta3: _Scalar | None = None,
    eps: _Scalar = 1e-8,
    estim_lr0: _Scalar = 1e-6,
    estim_lr_coef: _Scalar = 1.0,
    weight_decay: _Scalar = 0.0,
    safeguard_warmup: bool = False,
    *,
    use_bias_correction: bool = True,
    growth_rate: _Scalar = math.inf,
    slice_p: Any = _EVERY_ENTRY,
    mask: Any | Callable[[Any], Any] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Adam that finds its learning rate by itself, and trains low precision as well.

    With the gradient `g`, `d` the estimate so far and `lr` the learning rate (times the
    bias correction `sqrt(1 - beta2**k) / (1 - beta1**k)`), one step is

        m = beta1 * m + (1 - beta1) * d * g
        v = beta2 * v + (1 - beta2) * (d * g)**2
        r = beta3 * r + (d / d0) * d * lr * <g, p0 - p>
        s = beta3 * s + (d / d0) * d * lr * g
        d = max(d, estim_lr_coef * r / |s|_1)
        p = p - lr * d_old * (m / (sqrt(v) + d * eps) + weight_decay * p)

    It differs from `optax.contrib.prodigy` where that differs from the authors' own code:

    - While every gradient so far is zero, and where the learning rate is 0 or below, there
      is no step and no decay and nothing in the state moves but `count`. (Optax: NaN for
      ever after one all-zero gradient.)
    - With `beta1=0` the step is `d * g` with the new `d`. (Optax: the old.)
    - `use_bias_correction`, `growth_rate` and `slice_p`. (Optax: always corrected, none,
      none. The authors' default is not to correct.)

    and in its precision. `d`, `r` and every sum over the params are in float32, float64 if
    a param is, and so is the arithmetic on narrower params; only what is stored and
    returned has their dtypes. A step of `d0` would vanish in the rounding of a 16-bit
    param, `p0 - p` would stay zero and `d` with it; so for params narrower than float32
    `p + u` is rounded stochastically: the update leads to a neighbour of the exact
    result, to each with the odds that make the mean exact. So is what the state keeps of
    them. Float16 cannot hold `d * g` or its square: the state of float16 params is in units
    of `d` (see `prodigy_leaf.py`).

    Sharded params: the sums `<g, p0 - p>` and `|s|_1` are the only communication, with
    `slice_p=1`. Flattening a sharded param for any other may gather it, and JAX refuses to
    where shardings are part of the types (`AxisType.Explicit`).

    Args:
        learning_rate: a factor on the estimate, or a schedule of the number of updates.
        betas: decay of the averages of the gradient and of its square.
        beta3: decay of `r` and `s`; `sqrt(beta2)` by default.
        eps: added to `sqrt(v)`, times `d`.
        estim_lr0: `d0`, the first estimate: small.
        estim_lr_coef: a factor on the estimate, for larger or smaller steps.
        weight_decay: decoupled decay, as AdamW's.
        safeguard_warmup: keep the learning rate and the bias correction out of `s`.
        use_bias_correction: correct for the averages that start at zero, as Adam does.
        growth_rate: the most by which `d` grows in a step, once it has left `d0`.
        slice_p: the estimate looks at every `slice_p`-th entry of a param: state for two
            copies of the params and two `slice_p`-ths instead of four (11 is the authors'
            choice where memory is short). An int: name it in `inject_hyperparams`'s
            `static_args` if you give one.
        mask: which params decay, a tree of bools with the structure of the params or a
            prefix of it, or a function of the params that returns one; all by default.

    Returns:
        The corresponding `optax.GradientTransformationExtraArgs`. The updates have the
        dtypes of the params, the state those of the state that came in. A param whose
        gradient is None is left alone.

    Raises:
        TypeError: if `slice_p` is no int or another argument no number, or (by `init` and
            `update`) if a param is not floating point.
        ValueError: if a number is out of range, or by `update`, without params or for
            updates in another tree or other shapes.

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
    beta1, beta2 = _checked_betas(betas, beta3)
    check_rate("prodigy", learning_rate, lambda x: x >= 0)
    for name, value, is_allowed, remedy in (
        ("eps", eps, lambda x: x >= 0, "write a number from 0 up"),
        ("estim_lr0", estim_lr0, lambda x: x > 0, "write a small number above 0"),
        ("estim_lr_coef", estim_lr_coef, lambda x: x > 0, "write a number above 0"),
        ("weight_decay", weight_decay, lambda _: True, "write a number"),
        ("growth_rate", growth_rate, lambda x: x >= 1, "write a number from 1 to math.inf"),
    ):
        check_number("prodigy", name, value, is_allowed, remedy)
    beta3 = beta2**0.5 if beta3 is None else beta3
    averages = not (isinstance(beta1, (int, float)) and beta1 == 0)
    decays = not (isinstance(weight_decay, (int, float)) and weight_decay == 0)
    slice_p = _checked(slice_p)

    def init(params):
        leaves, treedef = real_leaves(params, "prodigy")
        dtype = at_least_float32(*leaves)
        some_zeros = lambda leaf: jnp.zeros_like(every(slice_p, leaf))
        some_copied = lambda leaf: jnp.array(every(slice_p, leaf), copy=True)
        return ProdigyState(
            exp_avg=tree_of(treedef, jnp.zeros_like, leaves) if averages else (),
            exp_avg_sq=tree_of(treedef, jnp.zeros_like, leaves),
            grad_sum=tree_of(treedef, some_zeros, leaves),
            params0=tree_of(treedef, some_copied, leaves),
            estim_lr=jnp.array(estim_lr0, dtype),
            numerator_weighted=jnp.zeros((), dtype),
            count=jnp.zeros((), jnp.int32),
            steps_taken=jnp.zeros((), jnp.int32),
            estim_lr_max=jnp.array(estim_lr0, dtype),
        )

    def update(updates, state, params=None, **extra_args):
        del extra_args
        return without_x64(step, warn_caller, updates, state, params)

    def step(updates, state, params):
        leaves, treedef = checked_inputs("prodigy", updates, state, params, ProdigyState)
        each = treedef.flatten_up_to
        dtype = at_least_float32(*leaves)
        scalar = lambda value: cast(value, dtype)
        d, d_max = scalar(state.estim_lr), scalar(state.estim_lr_max)
        d0 = scalar(cast(estim_lr0, state.estim_lr.dtype))
        rate = rate_at(learning_rate, state.count, dtype)
        active = rate > 0
        steps_taken = increment(state.steps_taken)
        if use_bias_correction:
            complement = functools.partial(_one_minus_power, scalar(steps_taken))
            rate *= jnp.sqrt(complement(beta2)) / complement(beta1)
        weight = d / d0 * d * (1 if safeguard_warmup else rate)
        scalars = Scalars(
            d=d,
            d0=d0,
            beta1=scalar(beta1),
            beta1_rest=scalar(1 - beta1),
            beta2=scalar(beta2),
            beta2_rest=scalar(1 - beta2),
            beta3=scalar(beta3),
            weight=weight,
        )

        grads, params0 = each(updates), each(state.params0)
        exp_avg = each(state.exp_avg) if averages else [0.0 for _ in leaves]
        stored = list(map(Moments, exp_avg, each(state.exp_avg_sq), each(state.grad_sum)))
        learned = {
            i: learn(scalars, slice_p, leaves[i], grad, stored[i], params0[i])
            for i, grad in enumerate(grads)
            if grad is not None
        }
        toward = scalar(sum(scalar(part) for _, part, _ in learned.values()))
        length = scalar(sum(scalar(part) for _, _, part in learned.values()))

        r = scalar(beta3) * scalar(state.numerator_weighted) + d / d0 * d * rate * toward
        estimate = scalar(estim_lr_coef) * r / jnp.where(length == 0, 1, length)
        largest = jnp.maximum(d_max, estimate)
        first = jnp.where(d == d0, jnp.maximum(d, estimate), d)
        moves = active & (length != 0)
        new_d = jnp.where(moves, _bounded(largest, first, growth_rate), d)

        decaying = each(_whole(mask(params) if callable(mask) else mask, params))
        for i, (new, _, _) in learned.items():
            p, old = leaves[i], stored[i]
            own = lambda value, p=p: cast(value, at_least_float32(p))
            follows_g = own(new_d) * own(grads[i])
            average = (
                jnp.where(own(beta1) == 0, follows_g, new.m) if averages else follows_g
            )
            move = own(d * rate) * direction(p, new_d * scalar(eps), new, average)
            if decays and decaying[i]:
                move += own(scalar(weight_decay) * d * rate) * own(p)
            move = jnp.where(moves, -move, 0)
            grads[i] = rounded_step(p, move, (state.count, i))
            new = store(scalars, new_d, p, new, old, (state.count, i))
            stored[i] = Moments(*(jnp.where(active, a, b) for a, b in zip(new, old)))

        keep = lambda new, old: cast(jnp.where(moves, new, cast(old, new.dtype)), old.dtype)
        exp_avg, exp_avg_sq, grad_sum = (
            tree_util.tree_unflatten(
                treedef, [getattr(moments, field) for moments in stored]
            )
            for field in Moments._fields
        )
        return tree_util.tree_unflatten(treedef, grads), ProdigyState(
            exp_avg=exp_avg if averages else (),
            exp_avg_sq=exp_avg_sq,
            grad_sum=grad_sum,
            params0=state.params0,
            estim_lr=keep(new_d, state.estim_lr),
            numerator_weighted=keep(r, state.numerator_weighted),
            count=increment(state.count),
            steps_taken=keep(steps_taken, state.steps_taken),
            estim_lr_max=keep(largest, state.estim_lr_max),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _checked_betas(betas: Any, beta3: Any) -> tuple[Any, Any]:
    try:
        beta1, beta2 = betas
    except (TypeError, ValueError):
        raise TypeError(
            f"prodigy got betas={short(betas)}: write two numbers, such as (0.9, 0.999)."
        ) from None
    for name, beta in (("beta1", beta1), ("beta2", beta2), ("beta3", beta3)):
        if beta is not None:
            is_allowed = lambda x: 0 <= x < 1
            check_number("prodigy", name, beta, is_allowed, "write a number in [0, 1)")
    return beta1, beta2


def _checked(slice_p: Any) -> int:
    try:
        step = operator.index(slice_p)
    except TypeError as error:  # an array while it is traced, a float
        raise TypeError(
            f"prodigy got slice_p={slice_p!r}, which decides shapes: write an int. Under "
            'inject_hyperparams write inject_hyperparams(prodigy, static_args="slice_p").'
        ) from error
    if step < 1:
        raise ValueError(f"prodigy got slice_p={step}: write slice_p=1 or above.")
    return step


def _one_minus_power(exponent: Any, beta: Any) -> Any:
    """`1 - beta**exponent` to a few ulp; float32 leaves 4 digits of 1 - 0.999."""
    if isinstance(beta, (int, float)):
        if beta == 0:
            return jnp.ones_like(exponent)
        return -jnp.expm1(exponent * cast(math.log(beta), exponent.dtype))
    # An array may be 0, where the logarithm has no derivative.
    positive, beta = beta > 0, cast(beta, exponent.dtype)
    log = jnp.log(jnp.where(positive, beta, 1))
    return jnp.where(positive, -jnp.expm1(exponent * log), 1 - beta**exponent)


def _bounded(largest: Any, first: Any, growth: Any) -> Any:
    """`min(largest, first * growth)`; with no bound, without inf * 0 in its derivative."""
    if isinstance(growth, (int, float)) and math.isinf(growth):
        return largest  # without an infinity for jax_debug_infs to find
    growth = cast(growth, first.dtype)
    bounds = jnp.isfinite(growth)
    bound = first * jnp.where(bounds, growth, 1)
    return jnp.where(bounds, jnp.minimum(largest, bound), largest)


def _whole(mask: Any, params: Any) -> Any:
    """A mask with the structure of the params, from a prefix of it; None is all."""
    spread = lambda flag, below: tree_util.tree_map(lambda _: flag, below)
    return tree_util.tree_map(spread, True if mask is None else mask, params)
