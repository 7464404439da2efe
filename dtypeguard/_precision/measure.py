"""What a paired program says of its lines of source: errors, shares, and the fix."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.types import Function, Leaf, PyTree
from .pair import Paired

# How much of the squared error the smallest set of lines may leave.
_LEFT = 0.1


class Measures:
    """A paired program on some inputs, compiled once.

    Attributes:
        lines: how many lines of source round.
        exact: the float outputs of the program in wide types.
        by_output: the error of each of them as written, relative to its norm.
        total: the root mean square of these.

    Args:
        paired: the program.
        arrays: its inputs.
    """

    def __init__(self, paired: Paired, arrays: Sequence[Leaf]):
        self._arrays = list(arrays)

        def wide(amounts, arrays):
            values = paired(amounts, arrays)
            return [v.wide for v in values if v.wide is not None]

        # The first trace numbers the lines.
        jax.eval_shape(wide, jax.ShapeDtypeStruct((1,), np.float32), self._arrays)
        self.lines = len(paired.lines)
        self._wide = wide
        self._run = _compiled(wide, self._amounts(()), self._arrays)
        self.exact = self._run(self._amounts(()), self._arrays)
        norms = [float(_norm(x)) for x in self.exact]
        self._norms = [norm if np.isfinite(norm) and norm > 0 else 1.0 for norm in norms]
        self.by_output = self._error_by_output(range(self.lines))
        self.total = _root_mean_square(self.by_output)

    def error(self, rounding: Sequence[int]) -> float:
        """The error of the program if these lines round and the others are wide."""
        return _root_mean_square(self._error_by_output(rounding))

    @property
    def temporaries(self) -> int:
        """The bytes of temporary memory of the program that measures an error."""
        analysis: Any = self._run.memory_analysis()
        return analysis.temp_size_in_bytes

    def alone(self, line: int) -> float:
        """The error of the program if only this line rounds."""
        return self.error([line])

    def left(self, wide: Sequence[int]) -> float:
        """The share of the squared error that is left if these lines are wide."""
        if not self.total:
            return 0.0
        error = self.error([line for line in range(self.lines) if line not in set(wide)])
        return 1.0 if not np.isfinite(error) else (error / self.total) ** 2

    def shares(self) -> np.ndarray:
        """The share of each line in the squared error, to first order; NaN without one.

        They come from one derivative, half way between the wide program and the program as
        written, and add up to 1 as far as first order holds. A `while_loop` has no
        derivative backwards, and a square root at 0 none that is finite.
        """
        none = np.full(self.lines, np.nan)
        if not (self.total and np.isfinite(self.total)):
            return none
        scale = [1 / (norm * norm) for norm in self._norms]

        def derivative(amounts, arrays, written, exact):
            errors = [w - e for w, e in zip(written, exact)]

            def along(amounts):
                parts = zip(self._wide(amounts, arrays), errors, scale)
                return sum(jnp.real(jnp.vdot(e, x)) * s for x, e, s in parts)

            square = sum(jnp.real(jnp.vdot(e, e)) * s for e, s in zip(errors, scale))
            return jax.grad(along)(amounts) / square

        written = self._run(self._amounts(range(self.lines)), self._arrays)
        half = jnp.full((self.lines,), 0.5, np.float32)
        inputs = half, self._arrays, written, self.exact
        try:
            found = _compiled(derivative, *inputs)(*inputs)
        except ValueError:  # of a while_loop
            return none
        found = np.asarray(found, np.float64)
        return found if np.isfinite(found).all() else none

    def fix(self, order: Sequence[int], tolerance: float | None) -> list[int]:
        """A small set of lines that is worth computing wider, in the given order.

        Starting with all lines wide, lines round again, the least important first, as long
        as the error stays within bounds.

        Args:
            order: the lines, the most important first.
            tolerance: the error that is allowed; by default the one that leaves a tenth of
                the squared error, or any finite one if that is not finite.
        """
        bound = _LEFT**0.5 * self.total if tolerance is None else tolerance
        rounding: list[int] = []

        def admit(lines: Sequence[int]) -> None:
            error = self.error([*rounding, *lines])
            if np.isfinite(error) and error <= bound:
                rounding.extend(lines)
            elif len(lines) > 1:
                middle = len(lines) // 2
                admit(lines[:middle])
                admit(lines[middle:])

        if self.total > bound or not np.isfinite(self.total):
            admit(list(reversed(order)))
            return [line for line in order if line not in set(rounding)]
        return []

    def _amounts(self, rounding: Sequence[int]) -> Leaf:
        amounts = np.zeros(self.lines, np.float32)
        amounts[list(rounding)] = 1
        return jnp.asarray(amounts)

    def _error_by_output(self, rounding: Sequence[int]) -> list[float]:
        made = self._run(self._amounts(rounding), self._arrays)
        errors = (float(_distance(x, e)) for x, e in zip(made, self.exact))
        found = [error / norm for error, norm in zip(errors, self._norms)]
        return [error if np.isfinite(error) else np.inf for error in found]


def _compiled(function: Function, *args: PyTree) -> jax.stages.Compiled:
    """A function compiled quickly: it runs some dozen times on arguments of these types."""
    lowered = jax.jit(function).lower(*args)
    if jax.default_backend() != "cpu":
        return lowered.compile()
    return lowered.compile({"xla_backend_optimization_level": "0"})


@jax.jit
def _norm(x: Leaf) -> Leaf:
    largest = jnp.max(jnp.abs(x), initial=0)
    safe = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    return safe * jnp.sqrt(jnp.sum(jnp.square(jnp.abs(x / safe))))


@jax.jit
def _distance(x: Leaf, exact: Leaf) -> Leaf:
    return _norm(x - exact)


def _root_mean_square(errors: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0
