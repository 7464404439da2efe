"""Emits functions with rules of derivatives of their own, both sides of them by the plan.

A rule is traced as JAX applies it, in the dtypes as written, where an outer derivative asks
for it: run as its primal, a function would have another derivative, without a word.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, tree_util

from .._leaves.compat import as_function
from .._leaves.types import Aval, DType, Equation, Function, Jaxpr, Leaf
from .._numbers.evaluate import bind, of_mesh
from .._program.jaxprs import Arrays
from .decide import PlannedTypes, avals_of, dtype_or_none

# The results of a jaxpr, and their types.
Emitted = tuple[list[Leaf], PlannedTypes]


@dataclasses.dataclass
class OwnRule:
    """The rule of derivatives of an equation, by a plan.

    Attributes:
        eqn: the equation.
        inner: the jaxpr that runs in place of its function.
        emit: emits the jaxpr of a rule, of its arguments and the types of the first ones.
        operand_types: the types of its operands.
    """

    eqn: Equation
    inner: Jaxpr
    emit: Callable[..., Emitted]
    operand_types: PlannedTypes

    def function(self) -> Function:
        """Returns the function of the jaxpr with this rule."""
        function: Any = as_function(self.inner)
        if self.eqn.primitive.name == "custom_jvp_call":
            function = jax.custom_jvp(function)
            function.defjvp(self._jvp)
        else:
            function = jax.custom_vjp(function)
            function.defvjp(self._forward, self._backward)
        return function

    def _as_written(self, *arrays):
        return bind(self.eqn.primitive, arrays, self.eqn.params)

    def _jvp(self, primals, tangents):
        rule = functools.partial(jax.jvp, self._as_written)
        operands = avals_of(self.eqn.invars)
        operand_tangents = _types_of_tangents(operands)
        jaxpr = jax.make_jaxpr(rule)(operands, operand_tangents)
        arrays = [*primals, *tangents]
        results, result_tangents = self._first_pass(jaxpr, arrays)
        # JAX asks for tangents in the dtypes of the results.
        tangent_types = _types_of_tangents(self.inner.out_avals)
        return results, in_types(result_tangents, tangent_types)

    def _forward(self, *arrays):
        operands = avals_of(self.eqn.invars)
        rule = functools.partial(jax.vjp, self._as_written)
        trace = jax.make_jaxpr(rule, return_shape=True)
        jaxpr, outputs = trace(*operands)
        # A function that JAX returns for the backward pass is a tree: its leaves are
        # residuals, here their types.
        structure = tree_util.tree_structure(outputs)
        _, self._back = tree_util.tree_unflatten(structure, jaxpr.out_avals)
        return self._first_pass(jaxpr, arrays)

    def _first_pass(self, jaxpr: Jaxpr, arrays: Arrays) -> tuple[Arrays, Arrays]:
        """Emits a jaxpr that returns more than the results of the function."""
        outputs, types = self.emit(jaxpr, arrays, self.operand_types)
        avals = self.inner.out_avals
        count = len(avals)
        self._residual_types = types[count:]
        return in_types(outputs, avals), outputs[count:]

    def _backward(self, residuals, cotangents):
        # JAX has traced the forward pass before.
        def backward(back, cotangents):
            return back(cotangents)

        results = avals_of(self.eqn.outvars)
        cotangent_types = _types_of_tangents(results)
        trace = jax.make_jaxpr(backward)
        jaxpr = trace(self._back, cotangent_types)
        arrays = [*residuals, *cotangents]
        derivatives, _ = self.emit(jaxpr, arrays, self._residual_types)
        # JAX asks for the derivative in the dtype of the operand.
        tangent_types = _types_of_tangents(self.inner.in_avals)
        return tuple(in_types(derivatives, tangent_types))


def _types_of_tangents(avals: Sequence[Any]) -> list[Aval]:
    """Returns the types of derivatives: JAX's float0 of what has none."""
    return [aval.to_tangent_aval() for aval in avals]


def in_types(values: Arrays, avals: Sequence[Aval]) -> list[Leaf]:
    """Returns values in the dtypes of some types, or of variables."""
    results = []
    for value, aval in zip(values, avals):
        dtype = dtype_or_none(aval)
        results.append(to_dtype(value, dtype))
    return results


def to_dtype(array: Leaf, dtype: DType) -> Leaf:
    """Returns an array, or a number of a jaxpr, in a dtype."""
    if dtype_or_none(array) == dtype:
        return array
    if isinstance(array, jax.Array):
        return converted(array, dtype)
    return jnp.asarray(array, dtype)


def converted(array: Leaf, dtype: DType, weak_type: bool = False) -> Leaf:
    """Returns an array in a dtype, converted under its own mesh."""
    # No public function makes a weak type, and the cast of one would count as the user's
    # own in an autocast around this one.
    with of_mesh(array):
        return lax.convert_element_type_p.bind(
            array, new_dtype=dtype, weak_type=weak_type, sharding=None
        )
