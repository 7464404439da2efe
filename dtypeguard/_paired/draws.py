"""The samples that `jax.random` draws, which are as good on either side."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jax import lax

from .._leaves.types import Equation, Leaf
from .._lines.equations import is_of_sampler
from .evaluate import round_inwards
from .primitives import is_exact, is_inexact
from .values import Formats, Value


class Draws:
    """Tells which equations draw samples, and makes pairs of what they return.

    A sampler runs in the dtypes that the program has, since a program in narrow ones would
    ask it for those. Until they leave it, its values have no wide side. An equation is of a
    sampler if a function of `jax.random` makes it of keys, of samples and of fixed values.
    What depends on another value of the user's, such as a mean, is no draw.

    Args:
        formats: the dtypes of the paired program.
    """

    def __init__(self, formats: Formats):
        self._formats = formats
        # The values that no line rounds on their wide side, by identity, which this keeps.
        self._fixed: dict[int, Leaf] = {}

    def fix(self, value: Value) -> Value:
        """Remembers that no line rounds the wide side of a value."""
        self._fixed[id(value.narrow)] = value.narrow
        return value

    def inside(self) -> "Draws":
        """The same for a jaxpr inside the program, whose tracers go with it."""
        draws = Draws(self._formats)
        draws._fixed = dict(self._fixed)
        return draws

    def leave(self, others: "Draws", values: Sequence[Value]) -> None:
        """Keeps what is fixed among the results of a jaxpr that had others."""
        for value in filter(others._is_fixed, values):
            self.fix(value)

    def operands(
        self, stack: Sequence[Equation], known: Mapping[Leaf, Value]
    ) -> list[Value] | None:
        """The operands of an equation that draws; None for another one."""
        is_number = lambda var: hasattr(var, "val")
        used = [known[var] for var in stack[0].invars if not is_number(var)]
        is_drawn = all(map(self._is_fixed, used)) and is_of_sampler(stack)
        if not is_drawn or self._formats.products is not None:
            return None
        return [
            Value(jnp.asarray(var.val, var.aval.dtype)) if is_number(var) else known[var]
            for var in stack[0].invars
        ]

    def follow(self, eqn: Equation, values: Sequence[Value], made: Sequence[Value]) -> None:
        """Remembers what an equation makes of fixed values alone, if it rounds none."""
        operands, results = ([v.narrow for v in each] for each in (values, made))
        if all(map(self._is_fixed, values)) and is_exact(eqn, operands, results):
            for value in made:
                self.fix(value)

    def left(self, value: Value) -> Value:
        """A value outside of a sampler: the same sample on either side."""
        sample = value.narrow
        if value.wide is not None or not is_inexact(sample):
            return value
        narrow = round_inwards(sample, self._formats.written(sample.dtype))
        dtype = self._formats.widened(sample.dtype)
        return self.fix(Value(narrow, lax.convert_element_type(sample, dtype)))

    def _is_fixed(self, value: Value) -> bool:
        return value.wide is None or id(value.narrow) in self._fixed
