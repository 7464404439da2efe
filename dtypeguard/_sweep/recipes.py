"""What the catalogue cannot find out by itself: arguments, variants, unusual inputs.

Everything here is keyed by a name, so that what another Optax release lacks is not used
there, and an optimizer new to it that speaks Optax's usual words needs no line here.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util

from .._leaves.types import Leaf, Params, PyTree, Updates


def is_matrix(tree: PyTree) -> Any:
    """A mask: True for leaves of two or more axes."""
    return tree_util.tree_map(lambda leaf: np.ndim(leaf) > 1, tree)


def _matrix_label(tree: PyTree) -> Any:
    return tree_util.tree_map(lambda leaf: "ab"[np.ndim(leaf) > 1], tree)


def _double(updates: Updates, params: Params) -> Any:
    del params
    return tree_util.tree_map(lambda update: 2 * update, updates)


def _every_second(step: Leaf) -> Any:
    return step % 2 == 0


def _norm(tree: PyTree) -> Any:
    squares = [jnp.sum(jnp.square(leaf)) for leaf in tree_util.tree_leaves(tree)]
    return jnp.sqrt(sum(squares))


def _schedule() -> Any:
    return optax.exponential_decay(1e-3, transition_steps=10, decay_rate=0.9)


# A value for a parameter of this name, whatever the factory: a function of no arguments,
# since some must be made under the x64 flag of the configuration.
ARGUMENTS: dict[str, Callable[[], Any]] = {
    "accumulation_steps": lambda: 2,
    "adv_optimizer": lambda: optax.sgd(0.05),
    "clipping": lambda: 0.1,
    "decay": lambda: 0.9,
    "eta": lambda: 0.01,
    "every_k_schedule": lambda: 2,
    "f": lambda: _double,
    "gamma": lambda: 0.55,
    "inner_factory": lambda: optax.adam,
    "key": lambda: 0,
    "l2_norm_clip": lambda: 1.0,
    "learning_rate": lambda: 1e-3,
    "mask": lambda: is_matrix,
    "max_backtracking_steps": lambda: 5,
    "max_consecutive_errors": lambda: 2,
    "max_delta": lambda: 1.0,
    "max_linesearch_steps": lambda: 5,
    "max_norm": lambda: 1.0,
    "measure": lambda: _norm,
    "measure_name": lambda: "norm",
    "measures": lambda: {"norm": _norm},
    "noise_multiplier": lambda: 0.1,
    "param_labels": lambda: _matrix_label,
    "seed": lambda: 0,
    "should_transform_fn": lambda: _every_second,
    "should_update_fn": lambda: _every_second,
    "slow_step_size": lambda: 0.5,
    "step_size": lambda: 0.1,
    "step_size_fn": _schedule,
    "sync_period": lambda: 2,
    "threshold": lambda: 1.0,
    "transforms": lambda: {"a": optax.adam(1e-3), "b": optax.sgd(1e-3)},
} | dict.fromkeys(
    ("base_optimizer", "fast_optimizer", "inner", "opt", "optimizer", "tx"),
    lambda: optax.adam(1e-3),
)

# Parameters that are given a value even where the factory has a default for them: it is
# one that makes it fail (`add_noise` wants one of `key` and `seed`).
ALWAYS = frozenset({"key"})


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How one factory is called and fed, where its parameters' names do not say it.

    Args:
        build: called with the factory; makes the optimizer. None goes by names.
        shapes: the shape of every param.
        to_params: makes what `init` takes out of a plain tree of params.
        to_grads: makes what `update` takes out of a plain tree of NumPy gradients.
    """

    build: Callable[[Any], Any] | None = None
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(
        default_factory=lambda: {"w": (4, 3), "b": (3,)}
    )
    to_params: Callable[[Any], Any] = lambda params: params
    to_grads: Callable[[Any], Any] = lambda grads: grads


def _per_example(grads: Updates) -> Any:
    return tree_util.tree_map(lambda g: np.stack([0.5 * g, 1.5 * g]), grads)


def _lookahead_params(params: Params) -> Any:
    return optax.LookaheadParams(fast=params, slow=params)


def _process(process: Any) -> Any:
    average = optax.stateless(
        lambda grads, _: tree_util.tree_map(lambda g: jnp.mean(g, axis=0), grads)
    )
    return process(optax.identity(), average, optax.adam(1e-3))


def _scale_by_muon(scale_by_muon: Any) -> Any:
    if not hasattr(optax.contrib, "MuonDimensionNumbers"):
        return scale_by_muon()
    axes = optax.contrib.MuonDimensionNumbers()
    return scale_by_muon(weight_dimension_numbers={"w": axes, "v": axes})


def _monitor_in_its_stride(monitor: Any) -> Any:
    norm_ema = optax.measure_with_ema(_norm, decay=0.9)
    opt = monitor({"norm": _norm, "norm_ema": norm_ema})
    return optax.GradientTransformationExtraArgs(
        lambda params: opt.update(params, opt.init(params))[1], opt.update
    )


_PER_EXAMPLE = Recipe(to_grads=_per_example)
_AGGREGATING = "optax.experimental.aggregating"

RECIPES: dict[str, Recipe] = {
    "optax.chain": Recipe(
        lambda chain: chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    ),
    "optax.named_chain": Recipe(
        lambda chain: chain(("clip", optax.clip(1.0)), ("adam", optax.adam(1e-3)))
    ),
    "optax.freeze": Recipe(lambda freeze: freeze({"w": True, "b": False})),
    "optax.lookahead": Recipe(to_params=_lookahead_params),
    "optax.scale_by_learning_rate": Recipe(lambda scale: scale(1e-3)),
    "optax.selective_transform": Recipe(
        lambda select: select(optax.adam(1e-3), freeze_mask={"w": True, "b": False})
    ),
    "optax.contrib.differentially_private_aggregate": _PER_EXAMPLE,
    "optax.contrib.dpsgd": _PER_EXAMPLE,
    "optax.contrib.scale_by_muon": Recipe(
        _scale_by_muon, shapes={"w": (4, 3), "v": (3, 5)}
    ),
    f"{_AGGREGATING}.add_mean_variance_to_opt": _PER_EXAMPLE,
    f"{_AGGREGATING}.average_incrementally_updates": Recipe(
        lambda average: average(per_elt_axis=0, accumulation_steps=2),
        to_grads=_per_example,
    ),
    f"{_AGGREGATING}.average_per_element_updates": _PER_EXAMPLE,
    f"{_AGGREGATING}.process": Recipe(_process, to_grads=_per_example),
}
# Where they were before they moved to optax.contrib.
RECIPES["optax.differentially_private_aggregate"] = _PER_EXAMPLE
RECIPES["optax.dpsgd"] = _PER_EXAMPLE

# Found, built, and still nothing that a loop could run: no matter of dtypes.
LEFT_OUT: dict[str, str] = {
    f"{_AGGREGATING}.get_per_element_mean_and_sum_sq_diff_grads": (
        "returns a pair in place of updates; swept inside add_mean_variance_to_opt"
    ),
    "optax.measure_with_ema": (
        "returns a measurement in place of updates; swept inside monitor"
    ),
    "optax.monitor": (
        "its first update adds to the tree of its state; swept from the second on"
    ),
}

# What does not take the float64 of `jax_explicit_x64_dtypes="allow"`, bare or guarded.
_NOISE = "jax.random.normal does not trace in float64 with x64 off"
NO_EXPLICIT_FLOAT64: dict[str, str] = {
    "optax.MultiSteps": "it makes zeros by eval_shape, where such a float64 is a float32",
    "optax.add_noise": _NOISE,
    "optax.noisy_sgd": _NOISE,
    "optax.contrib.differentially_private_aggregate": _NOISE,
    "optax.contrib.dpsgd": _NOISE,
}

# Other ways to call a factory that is in the catalogue: a state or an update of other
# dtypes than its plain call makes.
VARIANTS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "optax.MultiSteps": {
        "chain": lambda multi_steps: multi_steps(
            optax.chain(optax.zero_nans(), optax.clip(1.0), optax.adamw(1e-3)), 2
        ),
    },
    "optax.adafactor": {
        "factored,momentum": lambda adafactor: adafactor(
            1e-3, min_dim_size_to_factor=2, momentum=0.9
        ),
    },
    "optax.adam": {
        "mu_dtype=bf16": lambda adam: adam(1e-3, mu_dtype=jnp.bfloat16),
        "schedule": lambda adam: adam(_schedule()),
    },
    "optax.adamw": {"mask": lambda adamw: adamw(1e-3, mask=is_matrix)},
    "optax.chain": {
        "zero_nans,clip,adamw": lambda chain: chain(
            optax.zero_nans(), optax.clip(1.0), optax.adamw(1e-3)
        ),
        "reduce_on_plateau": lambda chain: chain(
            optax.adam(1e-3), optax.contrib.reduce_on_plateau()
        ),
    },
    "optax.ema": {
        "accumulator_dtype=bf16": lambda ema: ema(0.9, accumulator_dtype=jnp.bfloat16),
    },
    "optax.fromage": {"schedule": lambda fromage: fromage(_schedule())},
    "optax.inject_hyperparams": {
        "sgd,schedule": lambda inject: inject(optax.sgd)(learning_rate=_schedule()),
    },
    "optax.lbfgs": {
        "backtracking": lambda lbfgs: lbfgs(
            linesearch=optax.scale_by_backtracking_linesearch(5)
        ),
        "fixed": lambda lbfgs: lbfgs(1e-3, linesearch=None),
    },
    "optax.lion": {"mu_dtype=bf16": lambda lion: lion(1e-3, mu_dtype=jnp.bfloat16)},
    "optax.lookahead": {
        "reset_state": lambda lookahead: lookahead(
            optax.adam(1e-3), sync_period=2, slow_step_size=0.5, reset_state=True
        ),
    },
    "optax.monitor": {"second step": _monitor_in_its_stride},
    "optax.rmsprop": {
        "centered,momentum": lambda rmsprop: rmsprop(1e-3, centered=True, momentum=0.9),
    },
    "optax.sgd": {
        "momentum": lambda sgd: sgd(1e-3, momentum=0.9),
        "nesterov,schedule": lambda sgd: sgd(_schedule(), momentum=0.9, nesterov=True),
    },
    "optax.contrib.prodigy": {
        "weight_decay": lambda prodigy: prodigy(weight_decay=1e-2),
    },
    "optax.contrib.sam": {
        "opaque": lambda sam: sam(optax.adam(1e-3), optax.sgd(0.05), opaque_mode=True),
    },
    "optax.contrib.schedule_free": {
        "state_dtype=bf16": lambda schedule_free: schedule_free(
            optax.sgd(1e-3), learning_rate=1e-3, b1=0.9, state_dtype=jnp.bfloat16
        ),
    },
    "dtypeguard.fromage": {"schedule": lambda fromage: fromage(_schedule())},
    "dtypeguard.multi_steps": {
        "zero_nans,clip,adamw": lambda multi_steps: multi_steps(
            optax.chain(optax.zero_nans(), optax.clip(1.0), optax.adamw(1e-3)), 2
        ),
        "lbfgs": lambda multi_steps: multi_steps(optax.lbfgs(), 2),
    },
}
