"""One update of Prodigy: the steps that its docstring lists, in their order."""

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import tree_util

from .._leaves.dtypes import cast
from .._leaves.types import DType, Leaf, Params, Updates
from .prodigy_leaf import (
    Learned,
    Moments,
    Scalars,
    direction,
    learn,
    rounded_step,
    store,
)
from .prodigy_state import Options, ProdigyState, is_plain_zero
from .scalars import at_least_float32, checked_inputs, increment, rate_at


class _Shared(NamedTuple):
    """What all params have in common before any is looked at; scalars of one dtype.

    `rate` has the bias correction in it, and `active` tells whether it was above 0.
    """

    moments: Scalars
    rate: Any
    active: Any
    steps_taken: Any


class _Estimate(NamedTuple):
    """The estimate after all params have been looked at, and whether any is to move."""

    r: Any
    d: Any
    d_max: Any
    moves: Any


def step(
    options: Options, updates: Updates, state: ProdigyState, params: Params
) -> tuple[Any, ProdigyState]:
    """One update: looks at every param, finds the new estimate, moves every param."""
    leaves, treedef = checked_inputs("prodigy", updates, state, params, ProdigyState)
    each = treedef.flatten_up_to
    shared = _shared(options, state, at_least_float32(*leaves))
    grads, params0 = each(updates), each(state.params0)
    exp_avg = each(state.exp_avg) if options.averages else [0.0 for _ in leaves]
    stored = list(map(Moments, exp_avg, each(state.exp_avg_sq), each(state.grad_sum)))
    learned = {
        i: learn(shared.moments, options.slice_p, leaves[i], grad, stored[i], params0[i])
        for i, grad in enumerate(grads)
        if grad is not None
    }
    found = _estimate(options, state, shared, learned.values())
    decays = each(_whole(options.mask, params))
    for i, (new, _, _) in learned.items():
        words = (state.count, i)  # of the noise
        move = _move(options, shared, found, leaves[i], grads[i], new, decays[i])
        grads[i] = rounded_step(leaves[i], move, words)
        new = store(shared.moments, found.d, leaves[i], new, stored[i], grads[i], words)
        kept = (jnp.where(shared.active, *pair) for pair in zip(new, stored[i]))
        stored[i] = Moments(*kept)
    moments = zip(*stored) if stored else ((), (), ())
    trees = (tree_util.tree_unflatten(treedef, field) for field in moments)
    new_state = _new_state(options, state, shared, found, Moments(*trees))
    return tree_util.tree_unflatten(treedef, grads), new_state


def _shared(options: Options, state: ProdigyState, dtype: DType) -> _Shared:
    """The scalars of one step, in `dtype`: `d`, `lr`, the betas, `(d / d0) * d * lr`."""
    scalar = lambda value: cast(value, dtype)
    d = scalar(state.estim_lr)
    d0 = scalar(cast(options.estim_lr0, state.estim_lr.dtype))
    rate = rate_at(options.learning_rate, state.count, dtype)
    active = rate > 0
    steps_taken = increment(state.steps_taken)
    if options.use_bias_correction:
        complement = functools.partial(_one_minus_power, scalar(steps_taken))
        rate *= jnp.sqrt(complement(options.beta2)) / complement(options.beta1)
    weight = d / d0 * d * (1 if options.safeguard_warmup else rate)
    moments = Scalars(
        d=d,
        d0=d0,
        beta1=scalar(options.beta1),
        beta1_rest=scalar(1 - options.beta1),
        beta2=scalar(options.beta2),
        beta2_rest=scalar(1 - options.beta2),
        beta3=scalar(options.beta3),
        weight=weight,
    )
    return _Shared(moments, rate, active, steps_taken)


def _estimate(
    options: Options, state: ProdigyState, shared: _Shared, learned: Iterable[Learned]
) -> _Estimate:
    """`r`, and `d = max(d, estim_lr_coef * r / |s|_1)`, no larger than it may grow."""
    (d, d0, *_), rate = shared.moments, shared.rate
    scalar = lambda value: cast(value, d.dtype)
    learned = list(learned)
    toward = scalar(sum(scalar(leaf.toward) for leaf in learned))
    length = scalar(sum(scalar(leaf.length) for leaf in learned))
    r = shared.moments.beta3 * scalar(state.numerator_weighted) + d / d0 * d * rate * toward
    estimate = scalar(options.estim_lr_coef) * r / jnp.where(length == 0, 1, length)
    d_max = jnp.maximum(scalar(state.estim_lr_max), estimate)
    first = jnp.where(d == d0, jnp.maximum(d, estimate), d)
    moves = shared.active & (length != 0)
    new_d = jnp.where(moves, _bounded(d_max, first, options.growth_rate), d)
    return _Estimate(r, new_d, d_max, moves)


def _move(
    options: Options,
    shared: _Shared,
    found: _Estimate,
    param: Leaf,
    grad: Leaf,
    new: Moments,
    decays: bool,
) -> Any:
    """`-lr * d_old * (m / (sqrt(v) + d * eps) + weight_decay * p)`, before rounding."""
    d, dtype = shared.moments.d, found.d.dtype
    own = lambda value: cast(value, at_least_float32(param))
    average = own(found.d) * own(grad)
    if options.averages:
        average = jnp.where(own(shared.moments.beta1) == 0, average, new.m)
    move = own(d * shared.rate)
    move *= direction(param, found.d * cast(options.eps, dtype), new, average)
    if decays and not is_plain_zero(options.weight_decay):
        move += own(cast(options.weight_decay, dtype) * d * shared.rate) * own(param)
    return jnp.where(found.moves, -move, 0)


def _new_state(
    options: Options,
    state: ProdigyState,
    shared: _Shared,
    found: _Estimate,
    moments: Moments,
) -> ProdigyState:
    """What is kept: of the scalars the old ones, but for the count, where none moves."""

    def keep(new, old):
        return cast(jnp.where(found.moves, new, cast(old, new.dtype)), old.dtype)

    return ProdigyState(
        exp_avg=moments.m if options.averages else (),
        exp_avg_sq=moments.v,
        grad_sum=moments.s,
        params0=state.params0,
        estim_lr=keep(found.d, state.estim_lr),
        numerator_weighted=keep(found.r, state.numerator_weighted),
        count=increment(state.count),
        steps_taken=keep(shared.steps_taken, state.steps_taken),
        estim_lr_max=keep(found.d_max, state.estim_lr_max),
    )


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


def _whole(mask: Any, params: Params) -> Any:
    """A mask with the structure of the params, from a prefix of it; None is all."""
    mask = mask(params) if callable(mask) else mask
    spread = lambda flag, below: tree_util.tree_map(lambda _: flag, below)
    return tree_util.tree_map(spread, True if mask is None else mask, params)
