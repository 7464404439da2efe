"""Emits functions with derivatives of their own.

Their rules are emitted by the plan as well, where an outer gradient runs them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import custom_derivatives
from jax.interpreters import ad

from .._leaves.compat import as_function
from .._leaves.types import Aval, DType, Equation, Function, Jaxpr, Leaf
from .._numbers.nodes import Node
from .._program.graph import Stack
from .._program.meshes import as_dtype
from .._source.files import is_users
from .decide import Types, ValueType, dtype_of, is_float

# Emits a jaxpr, of its arguments, what is known of them and the equations around it.
Emit = Callable[[Jaxpr, Sequence[Leaf], Types, Stack], tuple[list[Leaf], Types]]

_FLOAT0 = jax.dtypes.float0


def custom_jvp(
    emit: Emit,
    node: Node,
    values: Sequence[Leaf],
    inner: Jaxpr,
    given: Types,
    made: Types,
) -> list[Leaf]:
    """The results of a function with a `custom_jvp`.

    Args:
        emit: emits its rule.
        node: its equation.
        values: its operands.
        inner: what it computes.
        given: what is known of the operands.
        made: what is known of the results.
    """
    eqn = node.eqn
    _, derivative = _functions(eqn)
    written = [var.aval.dtype for var in eqn.invars]
    moving = [n for n, var in enumerate(eqn.invars) if is_float(var.aval)]

    def flat(*arrays):
        primals, tangents = arrays[: len(written)], iter(arrays[len(written) :])
        every = [
            next(tangents)
            if n in moving
            else custom_derivatives.zero_from_primal(x, symbolic_zeros=True)
            for n, x in enumerate(primals)
        ]
        results = derivative.call_wrapped(*primals, *every)
        count = len(results) // 2
        return [*results[:count], *map(_instantiated, results[count:], results[:count])]

    def rule(primals, tangents):
        arrays = [*primals, *(tangents[n] for n in moving)]
        types = [*given, *(ValueType(dtype_of(tangents[n])) for n in moving)]
        dtypes = [*written, *(written[n] for n in moving)]
        results, _, _ = _traced(emit, flat, arrays, types, dtypes, node.stack)
        count = len(made)
        primals, moved = (_cast(x, made) for x in (results[:count], results[count:]))
        return primals, [
            x if is_float(y) else np.zeros(np.shape(y), _FLOAT0)
            for x, y in zip(moved, primals)
        ]

    function = jax.custom_jvp(lambda *arrays: as_function(inner)(*arrays))
    function.defjvp(rule)
    return [*function(*values)]


def custom_vjp(
    emit: Emit,
    node: Node,
    values: Sequence[Leaf],
    inner: Jaxpr,
    given: Types,
    made: Types,
) -> list[Leaf]:
    """The results of a function with a `custom_vjp`; see `custom_jvp`."""
    eqn = node.eqn
    _, forward, backward = _functions(eqn)
    written = [var.aval.dtype for var in eqn.invars]
    outs = [var.aval.dtype for var in eqn.outvars]
    count = len(outs)
    # What is known of what is kept, and the dtypes that it was written in.
    of_kept: list[Any] = []

    def run(*arrays):
        pairs = [x for array in arrays for x in (array, True)]
        results = forward.call_wrapped(*pairs)
        *_, sources = eqn.params["out_trees"]()
        kept = iter(results[: len(results) - count])
        if isinstance(sources, (tuple, list)):
            # What the backward pass keeps of the operands is not returned again.
            kept = [next(kept) if x is None else arrays[x] for x in sources]
        return [*results[len(results) - count :], *kept]

    def back(*arrays):
        moved = backward.call_wrapped(*arrays)
        # JAX 0.12 returns what is logged as well.
        is_pair = isinstance(moved, tuple) and isinstance(moved[0], list)
        pairs = zip(moved[0] if is_pair else moved, eqn.invars)
        return [_instantiated(x, var.aval) for x, var in pairs]

    def primal_and_kept(*arrays):
        traced = _traced(emit, run, arrays, given, written, node.stack)
        results, types, avals = traced
        of_kept[:] = types[count:], [x.dtype for x in avals[count:]]
        return _cast(results[:count], made), results[count:]

    def cotangents(kept, others):
        types = [*of_kept[0], *(ValueType(dtype_of(x)) for x in others)]
        arrays, dtypes = [*kept, *others], [*of_kept[1], *outs]
        moved, _, _ = _traced(emit, back, arrays, types, dtypes, node.stack)
        return tuple(
            _as(x, kind.dtype)
            if jnp.issubdtype(d, np.inexact)
            else np.zeros(np.shape(x), _FLOAT0)
            for x, kind, d in zip(moved, given, written)
        )

    function = jax.custom_vjp(lambda *arrays: as_function(inner)(*arrays))
    function.defvjp(primal_and_kept, cotangents)
    return [*function(*values)]


def _traced(
    emit: Emit,
    function: Function,
    arrays: Sequence[Leaf],
    types: Types,
    dtypes: Sequence[DType],
    stack: Stack,
) -> tuple[list[Leaf], Types, list[Aval]]:
    """The results of a function that is traced in these dtypes, by the plan.

    Returns:
        The results, what is known of them, and their abstract values as written.
    """
    avals = [jax.typeof(x).update(dtype=d, weak_type=False) for x, d in zip(arrays, dtypes)]
    jaxpr = jax.make_jaxpr(function)(*avals)
    return *emit(jaxpr, arrays, types, stack), [*jaxpr.out_avals]


def is_of_users(jaxpr: Jaxpr) -> bool:
    """Whether a function is none of JAX's own."""
    about = getattr(getattr(jaxpr, "jaxpr", jaxpr), "debug_info", None)
    return is_users(getattr(about, "func_filename", None) or "")


def _functions(eqn: Equation) -> Sequence[Any]:
    """The function and the rules of an equation."""
    bound = eqn.primitive.get_bind_params(dict(eqn.params))
    return bound[0] if isinstance(bound, tuple) else bound["subfuns"]


def _cast(values: Sequence[Leaf], types: Types) -> list[Leaf]:
    pairs = zip(values, types)
    return [_as(x, kind.dtype) if is_float(x) else x for x, kind in pairs]


def _as(array: Leaf, dtype: DType) -> Leaf:
    return as_dtype(jnp.asarray(array), dtype)


def _instantiated(value: Any, like: Any) -> Any:
    """A derivative as an array, where a rule may give a symbolic zero."""
    aval = getattr(value, "aval", None)
    is_zero = isinstance(value, (ad.Zero, custom_derivatives.SymbolicZero))
    if not is_zero and value is not None and getattr(value, "dtype", None) != _FLOAT0:
        return value
    shape = (like if aval is None else aval).shape
    dtype = getattr(like, "dtype", like)
    return jnp.zeros(shape, dtype if jnp.issubdtype(dtype, np.inexact) else np.float32)
