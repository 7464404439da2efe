"""What the catalogue cannot find by itself: arguments and variants.

Everything here is keyed by a name: a name that another Optax release lacks goes unused
there, and a new optimizer with Optax's usual parameters needs no line here.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import tree_util

from dtypeguard._leaves.types import Optimizer, Params, PyTree, Updates
from dtypeguard._sweep.inputs import PARAMS

Factory = Callable[..., Any]  # of an optimizer, or of a function that makes one


def is_matrix(tree: PyTree) -> PyTree:
    """A mask: True for leaves of two or more axes."""
    return tree_util.tree_map(lambda leaf: np.ndim(leaf) > 1, tree)


def _matrix_label(tree: PyTree) -> PyTree:
    return tree_util.tree_map(lambda leaf: "ab"[np.ndim(leaf) > 1], tree)


def _norm(tree: PyTree) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in tree_util.tree_leaves(tree)))


def _schedule() -> optax.Schedule:
    return optax.exponential_decay(1e-3, transition_steps=10, decay_rate=0.9)


# What makes a value for a parameter of this name, whatever the factory. Some values must be
# made under the x64 flag of the configuration.
_VALUES: tuple[tuple[str, Callable[[], object]], ...] = (
    ("key seed", lambda: 0),
    ("accumulation_steps every_k_schedule sync_period", lambda: 2),
    ("max_consecutive_errors", lambda: 2),
    ("max_backtracking_steps max_linesearch_steps", lambda: 5),
    ("learning_rate", lambda: 1e-3),
    ("eta", lambda: 0.01),
    ("clipping noise_multiplier step_size", lambda: 0.1),
    ("slow_step_size", lambda: 0.5),
    ("gamma", lambda: 0.55),
    ("decay", lambda: 0.9),
    ("l2_norm_clip max_delta max_norm threshold", lambda: 1.0),
    ("step_size_fn", _schedule),
    ("base_optimizer fast_optimizer inner opt optimizer tx", lambda: optax.adam(1e-3)),
    ("adv_optimizer", lambda: optax.sgd(0.05)),
    ("inner_factory", lambda: optax.adam),
    ("transforms", lambda: {"a": optax.adam(1e-3), "b": optax.sgd(1e-3)}),
    ("f", lambda: lambda updates, params: tree_util.tree_map(lambda u: 2 * u, updates)),
    ("mask", lambda: is_matrix),
    ("measure", lambda: _norm),
    ("measure_name", lambda: "norm"),
    ("measures", lambda: {"norm": _norm}),
    ("param_labels", lambda: _matrix_label),
    ("should_transform_fn should_update_fn", lambda: lambda step: step % 2 == 0),
)
ARGUMENTS = {name: make for names, make in _VALUES for name in names.split()}

# Parameters that get a value although the factory has a default, which makes it fail:
# `add_noise` needs one of `key` and `seed`.
ALWAYS = frozenset({"key"})


def _process(process: Factory) -> Optimizer:
    average = optax.stateless(
        lambda grads, _: tree_util.tree_map(lambda g: jnp.mean(g, axis=0), grads)
    )
    return process(optax.identity(), average, optax.adam(1e-3))


def _scale_by_muon(scale_by_muon: Factory) -> Optimizer:
    if not hasattr(optax.contrib, "MuonDimensionNumbers"):
        return scale_by_muon()
    axes = optax.contrib.MuonDimensionNumbers()
    return scale_by_muon(weight_dimension_numbers={"w": axes, "v": axes})


def _monitor_in_its_stride(monitor: Factory) -> Optimizer:
    opt = monitor({"norm": _norm, "norm_ema": optax.measure_with_ema(_norm, decay=0.9)})
    return optax.GradientTransformationExtraArgs(
        lambda params: opt.update(params, opt.init(params))[1], opt.update
    )


def _chained(chain: Factory) -> Optimizer:
    return chain(optax.zero_nans(), optax.clip(1.0), optax.adamw(1e-3))


def _accumulated_chain(multi_steps: Factory) -> Optimizer:
    return multi_steps(_chained(optax.chain), 2)


def _scheduled(factory: Factory) -> Optimizer:
    return factory(_schedule())


def _with(*args: Any, **kwargs: Any) -> Callable[[Factory], Optimizer]:
    return lambda factory: factory(*args, **kwargs)


_AGGREGATING = "optax.experimental.aggregating"

# By the id of an entry: a factory, or a variant of one that gives other dtypes.
BUILDERS: dict[str, Callable[[Factory], Optimizer]] = {
    "optax.MultiSteps[chain]": _accumulated_chain,
    "optax.adafactor[factored,momentum]": _with(
        1e-3, min_dim_size_to_factor=2, momentum=0.9
    ),
    "optax.adam[mu_dtype=bf16]": _with(1e-3, mu_dtype=jnp.bfloat16),
    "optax.adam[schedule]": _scheduled,
    "optax.adamw[mask]": _with(1e-3, mask=is_matrix),
    "optax.chain": lambda chain: chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "optax.chain[zero_nans,clip,adamw]": _chained,
    "optax.chain[reduce_on_plateau]": lambda chain: chain(
        optax.adam(1e-3), optax.contrib.reduce_on_plateau()
    ),
    "optax.ema[accumulator_dtype=bf16]": _with(0.9, accumulator_dtype=jnp.bfloat16),
    "optax.freeze": _with({"w": True, "b": False}),
    "optax.fromage[schedule]": _scheduled,
    "optax.inject_hyperparams[sgd,schedule]": lambda inject: inject(optax.sgd)(
        learning_rate=_schedule()
    ),
    "optax.lbfgs[backtracking]": lambda lbfgs: lbfgs(
        linesearch=optax.scale_by_backtracking_linesearch(5)
    ),
    "optax.lbfgs[fixed]": _with(1e-3, linesearch=None),
    "optax.lion[mu_dtype=bf16]": _with(1e-3, mu_dtype=jnp.bfloat16),
    "optax.lookahead[reset_state]": lambda lookahead: lookahead(
        optax.adam(1e-3), sync_period=2, slow_step_size=0.5, reset_state=True
    ),
    "optax.monitor[second step]": _monitor_in_its_stride,
    "optax.named_chain": lambda chain: chain(
        ("clip", optax.clip(1.0)), ("adam", optax.adam(1e-3))
    ),
    "optax.rmsprop[centered,momentum]": _with(1e-3, centered=True, momentum=0.9),
    "optax.scale_by_learning_rate": _with(1e-3),
    "optax.selective_transform": lambda select: select(
        optax.adam(1e-3), freeze_mask={"w": True, "b": False}
    ),
    "optax.sgd[momentum]": _with(1e-3, momentum=0.9),
    "optax.sgd[nesterov,schedule]": lambda sgd: sgd(
        _schedule(), momentum=0.9, nesterov=True
    ),
    "optax.contrib.prodigy[weight_decay]": _with(weight_decay=1e-2),
    "optax.contrib.sam[opaque]": lambda sam: sam(
        optax.adam(1e-3), optax.sgd(0.05), opaque_mode=True
    ),
    "optax.contrib.scale_by_muon": _scale_by_muon,
    "optax.contrib.schedule_free[state_dtype=bf16]": lambda schedule_free: schedule_free(
        optax.sgd(1e-3), learning_rate=1e-3, b1=0.9, state_dtype=jnp.bfloat16
    ),
    "dtypeguard.fromage[schedule]": _scheduled,
    "dtypeguard.multi_steps[zero_nans,clip,adamw]": _accumulated_chain,
    "dtypeguard.multi_steps[lbfgs]": lambda multi_steps: multi_steps(optax.lbfgs(), 2),
    f"{_AGGREGATING}.average_incrementally_updates": _with(
        per_elt_axis=0, accumulation_steps=2
    ),
    f"{_AGGREGATING}.process": _process,
}

# What the catalogue finds and builds, but no loop could run, for reasons other than dtypes.
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

# What does not accept the float64 of `jax_explicit_x64_dtypes="allow"`, bare or guarded.
_NOISE = "jax.random.normal does not trace in float64 with x64 off"
NO_EXPLICIT_FLOAT64: dict[str, str] = {
    "optax.MultiSteps": "it makes zeros by eval_shape, where such a float64 is a float32",
    "optax.add_noise": _NOISE,
    "optax.noisy_sgd": _NOISE,
    "optax.contrib.differentially_private_aggregate": _NOISE,
    "optax.contrib.dpsgd": _NOISE,
}
_PER_EXAMPLE = {"w": np.ones((2, 4, 3)), "b": np.ones((2, 3))}
_OF_EXAMPLES = (
    "optax.dpsgd",
    "optax.differentially_private_aggregate",
    "optax.contrib.dpsgd",
    "optax.contrib.differentially_private_aggregate",
    f"{_AGGREGATING}.add_mean_variance_to_opt",
    f"{_AGGREGATING}.average_incrementally_updates",
    f"{_AGGREGATING}.average_per_element_updates",
    f"{_AGGREGATING}.process",
)
# Params and gradients, by the name of an optimizer of Optax's that takes no plain tree, or
# gradients of examples.
RECIPES: dict[str, tuple[Params, Updates]] = {
    "optax.lookahead": (optax.LookaheadParams(fast=PARAMS, slow=PARAMS), PARAMS),
    "optax.contrib.scale_by_muon": ({"w": np.ones((4, 3)), "v": np.ones((3, 5))}, None),
    **dict.fromkeys(_OF_EXAMPLES, (PARAMS, _PER_EXAMPLE)),
}
