"""Emits functions with derivatives of their own, and what newer releases hold otherwise.

Their rules are emitted by the plan as well, where an outer gradient runs them.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import custom_derivatives, tree_util
from jax.interpreters import ad

from .._leaves.types import Equation, Function, Leaf
from .._program.graph import Stack
from .._source.files import is_users
from .inside import Inner, evaluated, leading
from .loops import InsideLoops
from .reach import Variables
from .values import Value, ValueType, cast, is_float

_FLOAT0 = jax.dtypes.float0


class Custom(InsideLoops):
    """Emits all equations, `custom_jvp` and `custom_vjp` among them."""

    def custom_jvp(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        types, own = [value.type for value in values], eqn.params["call_jaxpr"]
        inner = self.inner(own, stack, types, leading(eqn, reached))
        if not inner.is_changed and not _is_of_users(own):
            return self.bound(eqn, values, [inner], {})
        _, derivative = _functions(eqn)
        rule = self.derivative(derivative, eqn, stack, types, inner)
        return self.of_function(with_jvp(inner, rule), values, inner)

    def custom_vjp(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        types = [value.type for value in values]
        own = eqn.params["call_jaxpr"]
        inner = self.inner(own, stack, types, leading(eqn, reached))
        _, forward, backward = _functions(eqn)
        count = len(eqn.outvars)

        def run(*arrays):
            pairs = [x for array in arrays for x in (array, True)]
            made = forward.call_wrapped(*pairs)
            *_, sources = eqn.params["out_trees"]()
            results, kept = made[len(made) - count :], iter(made[: len(made) - count])
            if not isinstance(sources, (tuple, list)):
                return results, [*kept]
            # What the backward pass keeps of the operands is not returned again.
            return results, [next(kept) if x is None else arrays[x] for x in sources]

        def back(kept, cotangents):
            made = backward.call_wrapped(*kept, *cotangents)
            # JAX 0.12 returns what is logged as well.
            is_pair = isinstance(made, tuple) and isinstance(made[0], list)
            return made[0] if is_pair else made

        return self.with_vjp(eqn, stack, values, inner, run, back)

    def with_vjp(
        self,
        eqn: Equation,
        stack: Stack,
        values: list[Value],
        inner: Inner,
        run: Function,
        back: Function,
    ) -> list[Value]:
        """The results of a function with the derivative of these two functions.

        Args:
            eqn: its equation.
            stack: with those around it.
            values: its operands.
            inner: what it computes.
            run: the results of its operands, and what is kept, as the program has them.
            back: the cotangents of what is kept and those of the results.
        """
        types = [value.type for value in values]
        written = [var.aval.dtype for var in eqn.invars]
        outs = [var.aval.dtype for var in eqn.outvars]
        tree: list[Any] = []

        @jax.custom_vjp
        def function(*arrays):
            return evaluated(inner.jaxpr, arrays)

        def forward(*arrays):
            def flat(*arrays):
                results, kept = run(*arrays)
                leaves, treedef = tree_util.tree_flatten(kept)
                is_array = [hasattr(x, "dtype") for x in leaves]
                others = [None if is_a else x for x, is_a in zip(leaves, is_array)]
                tree[:3] = treedef, is_array, others
                return [*results, *(x for x, is_a in zip(leaves, is_array) if is_a)]

            given = [Value(x, *kind[1:]) for x, kind in zip(arrays, types)]
            made, avals = self.traced(flat, given, written, stack)
            results = _cast(made[: len(outs)], inner.types)
            kept = [value.array for value in made[len(outs) :]]
            tree[3:] = [[value.type for value in made[len(outs) :]]]
            return results, (kept, [jnp.zeros((), x.dtype) for x in avals[len(outs) :]])

        def backward(residuals, cotangents):
            kept, markers = residuals

            def flat(*arrays):
                leaves, rest = iter(arrays[: len(kept)]), arrays[len(kept) :]
                treedef, is_array, others, _ = tree
                merged = [next(leaves) if a else x for a, x in zip(is_array, others)]
                made = back(tree_util.tree_unflatten(treedef, merged), [*rest])
                return [_instantiated(x, var.aval) for x, var in zip(made, eqn.invars)]

            given = [Value(x, *kind[1:]) for x, kind in zip(kept, tree[3])]
            given += map(Value, cotangents)
            dtypes = [*(x.dtype for x in markers), *outs]
            made, _ = self.traced(flat, given, dtypes, stack)
            return tuple(
                cast(value.array, kind.dtype)
                if jnp.issubdtype(d, np.inexact)
                else np.zeros(np.shape(value.array), _FLOAT0)
                for value, kind, d in zip(made, types, written)
            )

        function.defvjp(forward, backward)
        return self.of_function(function, values, inner)

    def of_function(
        self, function: Function, values: Sequence[Value], inner: Inner
    ) -> list[Value]:
        made = function(*(value.array for value in values))
        return [Value(x, *kind[1:]) for x, kind in zip(made, inner.types)]

    def derivative(
        self,
        derivative: Any,
        eqn: Equation,
        stack: Stack,
        types: Sequence[ValueType],
        inner: Inner,
    ) -> Function:
        """The rule of a `custom_jvp`, emitted by the plan."""
        written = [var.aval.dtype for var in eqn.invars]
        moving = [n for n, var in enumerate(eqn.invars) if is_float(var.aval)]

        def flat(*arrays):
            primals, given = arrays[: len(written)], iter(arrays[len(written) :])
            tangents = [
                next(given)
                if n in moving
                else custom_derivatives.zero_from_primal(x, symbolic_zeros=True)
                for n, x in enumerate(primals)
            ]
            made = derivative.call_wrapped(*primals, *tangents)
            count = len(made) // 2
            return [*made[:count], *map(_instantiated, made[count:], made[:count])]

        def rule(primals, tangents):
            given = [Value(x, *kind[1:]) for x, kind in zip(primals, types)]
            given += [Value(tangents[n]) for n in moving]
            dtypes = [*written, *(written[n] for n in moving)]
            made, _ = self.traced(flat, given, dtypes, stack)
            count = len(inner.types)
            results = _cast(made[:count], inner.types)
            moved = _cast(made[count:], inner.types)
            return results, [
                x if is_float(y) else np.zeros(np.shape(y), _FLOAT0)
                for x, y in zip(moved, results)
            ]

        return rule

    def traced(
        self,
        function: Function,
        values: Sequence[Value],
        dtypes: Sequence[Any],
        stack: Stack,
    ) -> tuple[list[Value], list[Any]]:
        """The results of a function that is traced in these dtypes, by the plan."""
        avals = [
            jax.typeof(v.array).update(dtype=d, weak_type=False)
            for v, d in zip(values, dtypes)
        ]
        jaxpr = jax.make_jaxpr(function)(*avals)
        leads = [False] * len(jaxpr.out_avals)
        reached = self.reached(jaxpr, stack, leads)
        return self.run(jaxpr, values, stack, reached), [*jaxpr.out_avals]


def with_jvp(inner: Inner, rule: Function) -> Function:
    function = jax.custom_jvp(lambda *arrays: evaluated(inner.jaxpr, arrays))
    function.defjvp(rule)
    return function


def _functions(eqn: Equation) -> Sequence[Any]:
    """The function and the rules of an equation."""
    bound = eqn.primitive.get_bind_params(dict(eqn.params))
    return bound[0] if isinstance(bound, tuple) else bound["subfuns"]


def _is_of_users(jaxpr: Any) -> bool:
    """Whether a function is none of JAX's own."""
    about = getattr(getattr(jaxpr, "jaxpr", jaxpr), "debug_info", None)
    return is_users(getattr(about, "func_filename", None) or "")


def _cast(values: Sequence[Value], types: Sequence[ValueType]) -> list[Leaf]:
    return [
        cast(value.array, kind.dtype) if is_float(value.array) else value.array
        for value, kind in zip(values, types)
    ]


def _instantiated(value: Any, like: Any) -> Any:
    """A derivative as an array, where a rule may give a symbolic zero."""
    aval = getattr(value, "aval", None)
    is_zero = isinstance(value, (ad.Zero, custom_derivatives.SymbolicZero))
    if not is_zero and value is not None and getattr(value, "dtype", None) != _FLOAT0:
        return value
    shape = (like if aval is None else aval).shape
    dtype = getattr(like, "dtype", like)
    return jnp.zeros(shape, dtype if jnp.issubdtype(dtype, np.inexact) else np.float32)


Custom.rules = {
    **InsideLoops.rules,
    "custom_jvp_call": Custom.custom_jvp,
    "custom_vjp_call": Custom.custom_vjp,
}
