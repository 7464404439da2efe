"""What Prodigy is told and what it remembers."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._leaves.public import public
from .._leaves.types import Leaf, Params
from .prodigy_leaf import every
from .scalars import at_least_float32, real_leaves, tree_of


class Options(NamedTuple):
    """The arguments of `prodigy`, checked."""

    learning_rate: Any
    beta1: Any
    beta2: Any
    beta3: Any
    eps: Any
    estim_lr0: Any
    estim_lr_coef: Any
    weight_decay: Any
    safeguard_warmup: bool
    use_bias_correction: bool
    growth_rate: Any
    slice_p: int
    mask: Any

    @property
    def averages(self) -> bool:
        """Whether the gradient is averaged: not where `beta1` is a plain 0."""
        return not is_plain_zero(self.beta1)


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
    params0: Leaf
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    # The name that optax gives it, though every tuple has a method of that name.
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    steps_taken: jax.Array
    estim_lr_max: jax.Array


def first_state(options: Options, params: Params) -> ProdigyState:
    """The state of `init`; its shapes do not hang on the values of the params."""
    leaves, treedef = real_leaves(params, "prodigy")
    dtype = at_least_float32(*leaves)
    some = functools.partial(every, options.slice_p)
    some_zeros = lambda leaf: jnp.zeros_like(some(leaf))
    copied = lambda leaf: jnp.array(some(leaf), copy=True)
    return ProdigyState(
        exp_avg=tree_of(treedef, jnp.zeros_like, leaves) if options.averages else (),
        exp_avg_sq=tree_of(treedef, jnp.zeros_like, leaves),
        grad_sum=tree_of(treedef, some_zeros, leaves),
        params0=tree_of(treedef, copied, leaves),
        estim_lr=jnp.array(options.estim_lr0, dtype),
        numerator_weighted=jnp.zeros((), dtype),
        count=jnp.zeros((), jnp.int32),
        steps_taken=jnp.zeros((), jnp.int32),
        estim_lr_max=jnp.array(options.estim_lr0, dtype),
    )


def is_plain_zero(value: Any) -> bool:
    """Whether a hyperparameter is 0 for good: an array may be another number later."""
    return isinstance(value, (int, float)) and value == 0
