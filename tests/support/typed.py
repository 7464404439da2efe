"""What a type checker sees of guarded factories: signatures. `.ci/run` checks types."""

from typing import TYPE_CHECKING

import optax

from dtypeguard import Policy, guard


def make(rate: float, *, b1: float = 1) -> optax.GradientTransformation:
    """A factory of one's own."""
    return optax.adam(rate, b1)


if TYPE_CHECKING:
    from typing import reveal_type

    reveal_type(
        guard(make),
        expected_text="(rate: float, *, b1: float = 1) -> GradientTransformationExtraArgs",
    )
    reveal_type(
        guard(policy=Policy())(make),
        expected_text="(rate: float, *, b1: float = 1) -> GradientTransformationExtraArgs",
    )
    reveal_type(
        guard(policy=Policy())(optax.adam(1e-3)),
        expected_text="GradientTransformationExtraArgs",
    )
    reveal_type(
        guard(optax.MultiSteps(optax.adam(1e-3), 2), policy=Policy()),
        expected_text="GradientTransformationExtraArgs",
    )
