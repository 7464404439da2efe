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
from .._leaves.types import Aval, Equation, Jaxpr, Leaf
from .._numbers.evaluate import as_dtype
from .._numbers.primitives import is_inexact
from .decide import Types, own_dtype

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
        # The operands and the results that have derivatives.
        self._moving, self._left = (
            [n for n, x in enumerate(avals) if is_inexact(x)]
            for avals in (self._given, self._made)
        )

    def results(self, inner: Jaxpr, values: Sequence[Leaf]) -> list[Leaf]:
        """Its results, by what it computes."""
        primal = lambda *arrays: as_function(inner)(*arrays)
        if self._eqn.primitive.name == "custom_jvp_call":
            function = jax.custom_jvp(primal)
            function.defjvp(self._tangents)
        else:
            function = jax.custom_vjp(primal)
            known: Types = []  # of what the backward pass is given
            dtypes = [own_dtype(values[n]) for n in self._moving]
            forward = functools.partial(self._forward, known)
            function.defvjp(forward, functools.partial(self._backward, known, dtypes))
        return function(*values)

    def _own(self, *arrays: Leaf) -> tuple[list[Leaf], list[Leaf]]:
        """The results of the function that have derivatives, and all, as it stands."""
        made = bind(self._eqn, arrays, self._eqn.params)
        return [made[n] for n in self._left], made

    def _tangents(
        self, primals: Sequence[Leaf], tangents: Sequence[Leaf]
    ) -> tuple[list[Leaf], list[Leaf]]:
        count = len(self._made)

        def rule(primals, tangents):
            every = _of_all(self._given, tangents)
            _, moved, made = jax.jvp(self._own, primals, every, has_aux=True)
            return made, moved

        jaxpr = jax.make_jaxpr(rule)(self._given, [self._given[n] for n in self._moving])
        arrays = [*primals, *(tangents[n] for n in self._moving)]
        made, _ = self._emit(jaxpr, arrays, self._known)
        results = self._settled(made[:count])
        pairs = zip(made[count:], self._left)
        moved = [as_dtype(x, results[n].dtype) for x, n in pairs]
        return results, _of_all(self._made, moved)

    @functools.cached_property
    def _passes(self) -> tuple[Jaxpr, Jaxpr]:
        """The forward and the backward pass of a rule."""
        trees = []

        def forward(*arrays):
            _, back, made = jax.vjp(self._own, *arrays, has_aux=True)
            kept, tree = tree_util.tree_flatten(back)
            trees.append(tree)
            return made, kept

        def backward(kept, moved):
            derivatives = trees[0].unflatten(kept)(moved)
            return [derivatives[n] for n in self._moving]

        first = jax.make_jaxpr(forward)(*self._given)
        given = first.out_avals[len(self._made) :], [self._made[n] for n in self._left]
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


def _of_all(avals: Sequence[Aval], derivatives: Sequence[Leaf]) -> list[Leaf]:
    """The derivatives of all values, of those that have some."""
    moved = iter(derivatives)
    none = lambda aval: np.zeros(aval.shape, jax.dtypes.float0)
    return [next(moved) if is_inexact(aval) else none(aval) for aval in avals]


def bind(eqn: Equation, operands: Sequence[Leaf], params: dict[str, Any]) -> list[Leaf]:
    """The results of an equation with these parameters."""
    bound = eqn.primitive.get_bind_params(params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    made = eqn.primitive.bind(*functions, *operands, **params)
    return [*made] if eqn.primitive.multiple_results else [made]
