"""Emits functions with rules of derivatives of their own, both sides of them by the plan.

A rule is traced as JAX applies it, in the dtypes as written, where an outer derivative asks
for it: run as its primal, a function would have another derivative, without a word.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._carry.tracing import make_jaxpr_with_aux
from .._leaves.compat import as_function
from .._leaves.types import Aval, DType, Equation, Function, Jaxpr, Leaf
from .._numbers.evaluate import as_dtype, bind
from .._program.jaxprs import Arrays
from .decide import PlannedTypes, avals_of, dtype_or_none

# Emits a jaxpr, of its arguments and the types of the first ones.
_Emitted = tuple[list[Leaf], PlannedTypes]
Emit = Callable[[Jaxpr, Arrays, PlannedTypes], _Emitted]


class OwnRule:
    """The rule of derivatives of an equation, by a plan.

    Args:
        eqn: the equation.
        inner: the jaxpr that runs in place of its function.
        emit: emits the jaxpr of a rule.
        operand_types: the types of its operands.
    """

    def __init__(
        self, eqn: Equation, inner: Jaxpr, emit: Emit, operand_types: PlannedTypes
    ):
        self._eqn = eqn
        self._inner = inner
        self._emit = emit
        self._operand_types = operand_types
        self._residual_types: PlannedTypes = []
        self._operands = avals_of(eqn.invars)

    def function(self) -> Function:
        """Returns the function of the jaxpr with this rule."""
        function: Any = as_function(self._inner)
        if self._eqn.primitive.name == "custom_jvp_call":
            function = jax.custom_jvp(function)
            function.defjvp(self._jvp)
        else:
            function = jax.custom_vjp(function)
            function.defvjp(self._forward, self._backward)
        return function

    def _as_written(self, *arrays: Leaf) -> list[Leaf]:
        return bind(self._eqn, arrays, self._eqn.params)

    def _jvp(self, primals, tangents):
        rule = functools.partial(jax.jvp, self._as_written)
        operand_tangents = _types_of_tangents(self._operands)
        jaxpr = jax.make_jaxpr(rule)(self._operands, operand_tangents)
        arrays = [*primals, *tangents]
        outputs, _ = self._emit(jaxpr, arrays, self._operand_types)
        results = self._inner.out_avals
        count = len(results)
        # JAX asks for tangents in the dtypes of the results.
        result_tangents = _types_of_tangents(results)
        tangents = in_types(outputs[count:], result_tangents)
        primals = in_types(outputs[:count], results)
        return primals, tangents

    @functools.cached_property
    def _passes(self) -> tuple[Jaxpr, Jaxpr]:
        """The forward and the backward pass of a rule."""

        def forward(*arrays):
            results, back = jax.vjp(self._as_written, *arrays)
            # A function that JAX returns for the backward pass is a tree: its leaves are
            # residuals.
            residuals, structure = tree_util.tree_flatten(back)
            return (results, residuals), structure

        first, structure = make_jaxpr_with_aux(forward, *self._operands)

        def backward(residuals, cotangents):
            back = tree_util.tree_unflatten(structure, residuals)
            return back(cotangents)

        results = avals_of(self._eqn.outvars)
        residuals = first.out_avals[len(results) :]
        cotangents = _types_of_tangents(results)
        second = jax.make_jaxpr(backward)(residuals, cotangents)
        return first, second

    def _forward(self, *arrays):
        forward, _ = self._passes
        outputs, types = self._emit(forward, arrays, self._operand_types)
        results = self._inner.out_avals
        count = len(results)
        # JAX traces the forward pass first.
        self._residual_types = types[count:]
        residuals = outputs[count:]
        primals = in_types(outputs[:count], results)
        return primals, residuals

    def _backward(self, residuals, cotangents):
        arrays = [*residuals, *cotangents]
        _, backward = self._passes
        derivatives, _ = self._emit(backward, arrays, self._residual_types)
        # JAX asks for the derivative in the dtype of the operand.
        tangents = _types_of_tangents(self._inner.in_avals)
        return tuple(in_types(derivatives, tangents))


def _types_of_tangents(avals: Sequence[Any]) -> list[Aval]:
    """Returns the types of derivatives: JAX's float0 of what has none."""
    return [aval.to_tangent_aval() for aval in avals]


def in_types(values: Arrays, avals: Sequence[Aval]) -> list[Leaf]:
    """Returns values in the dtypes of some types."""
    dtypes = map(dtype_or_none, avals)
    return list(map(to_dtype, values, dtypes))


def to_dtype(array: Leaf, dtype: DType) -> Leaf:
    """Returns an array, or a number of a jaxpr, in a dtype."""
    if dtype_or_none(array) == dtype:
        return array
    if isinstance(array, jax.Array):
        return as_dtype(array, dtype)
    number = np.asarray(array)
    return jnp.asarray(number.astype(dtype))
