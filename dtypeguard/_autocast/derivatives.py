"""Emits functions with rules of derivatives of their own, both sides of them by the plan.

A rule is traced as JAX applies it, in the dtypes as written, where an outer derivative asks
for it: run as its primal, a function would have another derivative, without a word.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import tree_util

from .._leaves.compat import as_function
from .._leaves.types import Equation, Jaxpr, Leaf
from .._numbers.evaluate import as_dtype
from .._numbers.primitives import is_inexact
from .decide import Types, dtype_of

# Emits a jaxpr, of its arguments and what is known of the first ones.
Emit = Callable[[Jaxpr, Sequence[Leaf], Types], tuple[list[Leaf], Types]]


class OwnRule:
    """A function with a rule of derivatives of its own.

    Args:
        eqn: its equation.
        emit: emits what its rule computes.
        known: what is known of its operands.
        settled: its results in the dtypes in which they leave.
    """

    def __init__(
        self,
        eqn: Equation,
        emit: Emit,
        known: Types,
        settled: Callable[[Sequence[Leaf]], list[Leaf]],
    ):
        self._eqn, self._emit, self._known, self._settled = eqn, emit, known, settled
        self._given, self._made = ([v.aval for v in x] for x in (eqn.invars, eqn.outvars))
        of_kind = lambda avals, inexact: [
            n for n, x in enumerate(avals) if is_inexact(x) == inexact
        ]
        # The operands and the results that have derivatives, and the other results.
        self._moving = of_kind(self._given, True)
        self._left, self._fixed = (of_kind(self._made, x) for x in (True, False))

    def results(self, inner: Jaxpr, values: Sequence[Leaf]) -> list[Leaf]:
        """Its results, by what it computes."""
        primal = lambda *arrays: as_function(inner)(*arrays)
        if self._eqn.primitive.name == "custom_jvp_call":
            function = jax.custom_jvp(primal)
            function.defjvp(self._tangents)
        else:
            function = jax.custom_vjp(primal)
            known: Types = []  # of what the backward pass is given
            dtypes = [dtype_of(values[n]) for n in self._moving]
            forward = functools.partial(self._forward, known)
            function.defvjp(forward, functools.partial(self._backward, known, dtypes))
        return function(*values)

    def _own(self, arrays: Sequence[Leaf]) -> tuple[Callable[..., Any], list[Leaf]]:
        """The function as it stands, of the operands that have derivatives; and these.

        It returns the results that have derivatives, and the others.
        """

        def function(*moving):
            every = {**dict(enumerate(arrays)), **dict(zip(self._moving, moving))}
            made = bind(self._eqn, [*every.values()], self._eqn.params)
            return [made[n] for n in self._left], [made[n] for n in self._fixed]

        return function, [arrays[n] for n in self._moving]

    def _in_order(self, moving: Sequence[Leaf], fixed: Sequence[Leaf]) -> list[Leaf]:
        """All results, of those that have derivatives and the others."""
        made = {**dict(zip(self._left, moving)), **dict(zip(self._fixed, fixed))}
        return [made[n] for n in range(len(made))]

    def _tangents(
        self, primals: Sequence[Leaf], tangents: Sequence[Leaf]
    ) -> tuple[list[Leaf], list[Leaf]]:
        count = len(self._made)

        def rule(primals, tangents):
            made, moved, fixed = jax.jvp(*self._own(primals), tangents, has_aux=True)
            return self._in_order(made, fixed), moved

        jaxpr = jax.make_jaxpr(rule)(self._given, [self._given[n] for n in self._moving])
        arrays = [*primals, *(tangents[n] for n in self._moving)]
        made, _ = self._emit(jaxpr, arrays, self._known)
        results = self._settled(made[:count])
        zeros = [np.zeros(results[n].shape, jax.dtypes.float0) for n in self._fixed]
        pairs = zip(made[count:], self._left)
        moved = [as_dtype(x, results[n].dtype) for x, n in pairs]
        return results, self._in_order(moved, zeros)

    @functools.cached_property
    def _passes(self) -> tuple[Jaxpr, Jaxpr]:
        """The forward and the backward pass of a rule."""
        trees = []

        def forward(*arrays):
            function, moving = self._own(arrays)
            made, back, fixed = jax.vjp(function, *moving, has_aux=True)
            kept, tree = tree_util.tree_flatten(back)
            trees.append(tree)
            return self._in_order(made, fixed), kept

        first = jax.make_jaxpr(forward)(*self._given)
        given = first.out_avals[len(self._made) :], [self._made[n] for n in self._left]
        backward = lambda kept, moved: trees[0].unflatten(kept)(moved)
        return first, jax.make_jaxpr(backward)(*given)

    def _forward(self, known: Types, *arrays):
        made, types = self._emit(self._passes[0], arrays, self._known)
        count = len(self._made)
        known[:] = types[count:]
        return self._settled(made[:count]), made[count:]

    def _backward(self, known: Types, dtypes: Sequence[Any], kept, cotangents):
        arrays = [*kept, *(cotangents[n] for n in self._left)]
        moved, _ = self._emit(self._passes[1], arrays, known)
        made = dict(zip(self._moving, map(as_dtype, moved, dtypes)))
        return (*(made.get(n) for n in range(len(self._given))),)


def bind(eqn: Equation, operands: Sequence[Leaf], params: dict[str, Any]) -> list[Leaf]:
    """The results of an equation with these parameters."""
    bound = eqn.primitive.get_bind_params(params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    made = eqn.primitive.bind(*functions, *operands, **params)
    return [*made] if eqn.primitive.multiple_results else [made]
