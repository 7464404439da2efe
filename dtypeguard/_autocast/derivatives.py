"""Emits functions with rules of derivatives of their own, both sides of them by the plan.

A rule is traced as JAX applies it, in the dtypes as written, where an outer derivative asks
for it: run as its primal, a function would have another derivative, without a word.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import tree_util

from .._carry.tracing import make_jaxpr_with_aux
from .._leaves.compat import as_function
from .._leaves.types import Aval, DType, Equation, Jaxpr, Leaf
from .._numbers.evaluate import as_dtype, bind
from .._numbers.primitives import is_inexact
from .decide import PlannedTypes, dtype_or_none

# Emits a jaxpr, of its arguments and the types of the first ones.
Emit = Callable[[Jaxpr, Sequence[Leaf], PlannedTypes], tuple[list[Leaf], PlannedTypes]]
# Brings the results of an equation to the dtypes in which they leave it.
SettleResults = Callable[[Sequence[Leaf]], list[Leaf]]


class OwnRule:
    """A function with a rule of derivatives of its own.

    Args:
        eqn: its equation.
        emit: emits the jaxpr of a rule.
        operand_types: the types of its operands.
        settle: brings its results to the dtypes in which they leave.
    """

    def __init__(
        self, eqn: Equation, emit: Emit, operand_types: PlannedTypes, settle: SettleResults
    ):
        self._eqn = eqn
        self._emit = emit
        self._operand_types = operand_types
        self._settle = settle
        self._operands: list[Aval] = [var.aval for var in eqn.invars]
        self._results: list[Aval] = [var.aval for var in eqn.outvars]
        # The places of the operands and of the results that have derivatives.
        self._active = _inexact_places(self._operands)
        self._active_results = _inexact_places(self._results)
        self._operand_dtypes: list[DType] = []
        self._residual_types: PlannedTypes = []

    def call(self, inner: Jaxpr, values: Sequence[Leaf]) -> list[Leaf]:
        """Returns the results of a jaxpr in place of the primal, with the rule."""

        def primal(*arrays):
            return as_function(inner)(*arrays)

        if self._eqn.primitive.name == "custom_jvp_call":
            function = jax.custom_jvp(primal)
            function.defjvp(self._jvp)
            return function(*values)
        self._operand_dtypes = [dtype_or_none(values[place]) for place in self._active]
        function = jax.custom_vjp(primal)
        function.defvjp(self._forward, self._backward)
        return function(*values)

    def _as_written(self, *arrays: Leaf) -> tuple[list[Leaf], list[Leaf]]:
        """Returns the results that have derivatives, and all results."""
        results = bind(self._eqn, arrays, self._eqn.params)
        return [results[place] for place in self._active_results], results

    def _jvp(
        self, primals: Sequence[Leaf], tangents: Sequence[Leaf]
    ) -> tuple[list[Leaf], list[Leaf]]:
        def rule(primals, active_tangents):
            every = _with_zeros(self._operands, active_tangents)
            _, moved, results = jax.jvp(self._as_written, primals, every, has_aux=True)
            return results, moved

        active_avals = [self._operands[place] for place in self._active]
        jaxpr = jax.make_jaxpr(rule)(self._operands, active_avals)
        arrays = [*primals, *(tangents[place] for place in self._active)]
        outputs, _ = self._emit(jaxpr, arrays, self._operand_types)
        count = len(self._results)
        results = self._settle(outputs[:count])
        # JAX asks for tangents in the dtypes of the results.
        moved: list[Leaf] = []
        for tangent, place in zip(outputs[count:], self._active_results):
            moved.append(as_dtype(tangent, results[place].dtype))
        return results, _with_zeros(self._results, moved)

    @functools.cached_property
    def _passes(self) -> tuple[Jaxpr, Jaxpr]:
        """The forward and the backward pass of a rule."""

        def forward(*arrays):
            _, back, results = jax.vjp(self._as_written, *arrays, has_aux=True)
            # A function that JAX returns for the backward pass is a tree: its leaves are
            # residuals.
            residuals, structure = tree_util.tree_flatten(back)
            return (results, residuals), structure

        first, structure = make_jaxpr_with_aux(forward, *self._operands)

        def backward(residuals, cotangents):
            derivatives = tree_util.tree_unflatten(structure, residuals)(cotangents)
            return [derivatives[place] for place in self._active]

        residuals = first.out_avals[len(self._results) :]
        cotangents = [self._results[place] for place in self._active_results]
        return first, jax.make_jaxpr(backward)(residuals, cotangents)

    def _forward(self, *arrays):
        outputs, types = self._emit(self._passes[0], arrays, self._operand_types)
        count = len(self._results)
        # JAX traces the forward pass first.
        self._residual_types = types[count:]
        return self._settle(outputs[:count]), outputs[count:]

    def _backward(self, residuals, cotangents):
        active_cotangents = [cotangents[place] for place in self._active_results]
        arrays = [*residuals, *active_cotangents]
        derivatives, _ = self._emit(self._passes[1], arrays, self._residual_types)
        # None is no cotangent: of an integer, or where the rule gives none.
        every: list[Leaf] = [None for _ in self._operands]
        for place, derivative, dtype in zip(
            self._active, derivatives, self._operand_dtypes
        ):
            # JAX asks for the derivative in the dtype of the operand.
            every[place] = as_dtype(derivative, dtype)
        return tuple(every)


def _inexact_places(avals: Sequence[Aval]) -> list[int]:
    return [place for place, aval in enumerate(avals) if is_inexact(aval)]


def _with_zeros(avals: Sequence[Aval], active: Sequence[Leaf]) -> list[Leaf]:
    """Returns the derivatives of all values, with zeros of integers."""
    derivatives: list[Leaf] = []
    remaining = iter(active)
    for aval in avals:
        if is_inexact(aval):
            derivatives.append(next(remaining))
        else:
            # JAX takes no other tangent of an integer.
            derivatives.append(np.zeros(aval.shape, jax.dtypes.float0))
    return derivatives
