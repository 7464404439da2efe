"""The params and gradients that an optimizer is fed; those that a few of Optax's need."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import optax
from jax import tree_util

from .._leaves.types import Params, Updates


def sample(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Params of these shapes, with values between -1 and 1."""
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    return {
        name: np.sin(np.arange(1.0, 1 + sizes[name])).reshape(shape)
        for name, shape in shapes.items()
    }


def slopes(params: Params) -> Updates:
    """The gradients of `Entry.loss`."""
    return tree_util.tree_map(lambda param: param - 1, params)


PARAMS = sample({"w": (4, 3), "b": (3,)})


class Recipe(NamedTuple):
    """What one optimizer is fed."""

    params: Params = PARAMS
    grads: Callable[[Params], Updates] = slopes


def _per_example(params: Params) -> Updates:
    stack = lambda slope: np.stack([0.5 * slope, 1.5 * slope])
    return tree_util.tree_map(stack, slopes(params))


PER_EXAMPLE = Recipe(grads=_per_example)
_AGGREGATING = "optax.experimental.aggregating"
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
# By the name of an optimizer of Optax's that takes no plain tree, or gradients of examples.
RECIPES: dict[str, Recipe] = {
    "optax.lookahead": Recipe(
        params=optax.LookaheadParams(fast=PARAMS, slow=PARAMS),
        grads=lambda params: slopes(params.fast),
    ),
    "optax.contrib.scale_by_muon": Recipe(sample({"w": (4, 3), "v": (3, 5)})),
    **dict.fromkeys(_OF_EXAMPLES, PER_EXAMPLE),
}
