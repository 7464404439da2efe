"""A program with some of its wide lines in the narrow dtype: what that would cost."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.dtypes import bits
from .._leaves.types import Equation, Jaxpr, Leaf
from .._program.graph import Stack
from .evaluate import evaluate, own_dtype, round_to
from .finite import Finite
from .pair import Paired
from .primitives import is_inexact
from .python_numbers import PythonNumbers
from .values import Formats, Line, Value

Plan = Mapping[tuple[int, ...], int]


class Mended(Paired):
    """A program as written, of which some equations can be computed narrow.

    It has no wide values beside its own. The number of a line is that of a set of sources
    here, and the equations that these make wide round what they are given and return.

    Args:
        closed_jaxpr: the program.
        narrow: the dtype to round to.
        plan: the sources of equations, as the bits of an integer. The key has the identity
            of the equation, and of those that contain it.
    """

    def __init__(self, closed_jaxpr: Jaxpr, narrow: np.dtype, plan: Plan):
        super().__init__(closed_jaxpr, Formats(np.dtype("float32")), PythonNumbers())
        self.masks = sorted(set(plan.values()))
        self.lines = [Line(None) for _ in self.masks]
        numbers = {mask: number for number, mask in enumerate(self.masks)}
        self._plan = {key: numbers[mask] for key, mask in plan.items()}
        self._narrow = narrow

    def __call__(
        self, amounts: Leaf, arrays: Sequence[Leaf], finite: Finite | None = None
    ) -> list[Value]:
        values = super().__call__(amounts, arrays, finite)
        return [v._replace(wide=v.narrow) if is_inexact(v.narrow) else v for v in values]

    def _given(self, array: Leaf, number: int | None) -> Value:
        return Value(array if hasattr(array, "dtype") else jnp.asarray(array))

    def _literal(self, var: Leaf, stack: Sequence[Equation]) -> Value:
        return Value(jnp.asarray(var.val, var.aval.dtype))

    def _of_sampler(self, stack: Stack, known: Mapping[Leaf, Value]) -> None:
        """A sampler computes like all else."""

    def _outside(self, value: Value) -> Value:
        return value

    def _equation(
        self, eqn: Equation, values: list[Value], stack: Sequence[Equation]
    ) -> Sequence[Value]:
        if eqn.primitive.name == "reduce_precision":  # of which Paired makes two values
            return self._paired(eqn, values, self._own(eqn, values), stack)
        return super()._equation(eqn, values, stack)

    def _paired(
        self,
        eqn: Equation,
        values: Sequence[Value],
        narrow: Sequence[Leaf],
        stack: Sequence[Equation],
    ) -> list[Value]:
        number = self._plan.get(tuple(map(id, stack)))
        if number is None:
            return [Value(x) for x in narrow]
        rounds = self._does_round(number)

        def switched(x: Leaf) -> Leaf:
            is_float = jnp.issubdtype(x.dtype, np.floating)
            if not is_float or bits(x.dtype) <= bits(self._narrow):
                return x
            return lax.select(rounds, round_to(x, self._narrow), x)

        operands = [switched(v.narrow) for v in values]
        made = evaluate(eqn, operands, own_dtype)
        return [Value(switched(x)) for x in made]
