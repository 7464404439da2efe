"""Prodigy as its authors run it, with a state that keeps its dtypes."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import optax

from .._guard.x64 import without_x64
from .._leaves.arguments import check_number, check_rate, shown
from .._leaves.errors import warn_caller
from .._leaves.public import public
from .prodigy_state import Options, first_state
from .prodigy_step import step

_Scalar = Any  # a Python or NumPy number or a 0-d array, maybe traced
# Not a Python int: inject_hyperparams would make an array of it, and it decides shapes.
_EVERY_ENTRY = np.int32(1)


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
    them. (No update in bfloat16 does so where a step more than halves or doubles a param:
    there the mean is within 1 in 128 of the step. With `compute_dtype` and `updates_dtype`
    float32 in the [`dtypeguard.Policy`][] of a guard around it, the updates are float32 and
    [`dtypeguard.apply_updates`][] rounds the sum itself.) Float16 cannot hold `d * g` or
    its square: the state of float16 params is in units of `d` (see `prodigy_leaf.py`).

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
    options = Options(
        learning_rate=learning_rate,
        beta1=beta1,
        beta2=beta2,
        beta3=beta2**0.5 if beta3 is None else beta3,
        eps=eps,
        estim_lr0=estim_lr0,
        estim_lr_coef=estim_lr_coef,
        weight_decay=weight_decay,
        safeguard_warmup=safeguard_warmup,
        use_bias_correction=use_bias_correction,
        growth_rate=growth_rate,
        slice_p=_checked(slice_p),
        mask=mask,
    )

    def init(params):
        return first_state(options, params)

    def update(updates, state, params=None, **extra_args):
        del extra_args
        of_these = functools.partial(step, options)
        return without_x64(of_these, warn_caller, updates, state, params)

    return optax.GradientTransformationExtraArgs(init, update)


def _checked_betas(betas: Any, beta3: Any) -> tuple[Any, Any]:
    try:
        beta1, beta2 = betas
    except (TypeError, ValueError):
        raise TypeError(
            f"prodigy got betas={shown(betas)}: write two numbers, such as (0.9, 0.999)."
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
