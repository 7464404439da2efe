"""The one trial of a remedy: what it changes is traced again with it, on types alone."""

import contextlib
import io
import re
import warnings
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax import tree_util

from .._carry.split import SplitTree
from .._guard.guard_step import guard_step
from .._leaves.dtypes import dtype_of, is_weak, kind
from .._leaves.types import Aval, DType, Function, Leaf, PyTree
from .._lines.body import Body, difference
from .._lines.monitored import RECORD
from .._program.graph import open_jaxpr

# True if the types agree, False if they do not, None if that is not known.
Outcome = bool | None


def begins(body: Body, first: Mapping[int, Aval]) -> Outcome:
    """Whether leaves of a carry, by their places, come back as they are to begin."""
    types = [*map(_type, SplitTree(body.inputs[body.carry or 0]).arrays)]
    was = _returned(body, body.function, types)
    types = [first.get(number, leaf) for number, leaf in enumerate(types)]
    now = _returned(body, body.function, types)
    if not isinstance(now, list):
        return now
    # What else differs is as it was, and another remedy mends it.
    others = was if isinstance(was, list) else now
    return all(
        not difference(old, new)
        or (is_weak(old) if number in first else not difference(new, others[number]))
        for number, (old, new) in enumerate(zip(types, now))
    )


def is_guarded(body: Body, places: Sequence[int]) -> Outcome:
    """Whether leaves of a carry come back as they begin if a guard is around the body."""
    types = [*map(_type, SplitTree(body.inputs[body.carry or 0]).arrays)]
    if any(is_weak(types[place]) for place in places):
        return False  # a guard leaves what JAX promotes in a loop
    now = _returned(body, guard_step(body.function, carry=body.carry or 0), types)
    if not isinstance(now, list):
        return now
    return not any(difference(types[place], now[place]) for place in places)


def branches_begin(
    bodies: Mapping[str, Body], kept: str, places: Sequence[int], to: DType
) -> Outcome:
    """Whether branches agree if what one of them hands on has another dtype."""
    known = [_operand(bodies[kept], place) for place in places]
    operands = [operand for operand in known if operand is not None]
    if len(operands) < len(places):
        return None
    found = []
    for body in bodies.values():
        leaves, tree = tree_util.tree_flatten(body.inputs)
        types = [*map(_type, leaves)]
        for number in operands:
            types[number] = jax.ShapeDtypeStruct(types[number].shape, to)
        results = _traced(body.function, tree.unflatten(types))
        if not isinstance(results, list):
            return results and None
        found.append([results[place].dtype for place in places])
    return all(types == found[0] for types in found)


def _returned(body: Body, function: Function, first: Sequence[Aval]) -> "_Results":
    """The types of the carry that a body returns for another first one."""
    inputs, position = list(body.inputs), body.carry or 0
    inputs[position] = SplitTree(inputs[position]).merged(first)
    of_pair = lambda *given: function(*given)[0]
    return _traced(of_pair if body.is_pair else function, inputs)


_Results = list[Aval] | bool | None


def _traced(function: Function, given: Sequence[PyTree]) -> _Results:
    """The types that a function returns, True if it returns nothing.

    False if it raises over types; None if for another reason, which tells nothing.
    """
    parts = SplitTree(tuple(given))
    run = lambda arrays: SplitTree(function(*parts.merged(arrays))).arrays
    try:
        silent = contextlib.redirect_stdout(io.StringIO())
        with RECORD.unseen(), silent, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has printed and warned before
            return jax.eval_shape(run, [*map(_type, parts.arrays)]) or True
    except Exception as error:
        text = str(error)
        is_of_types = isinstance(error, (TypeError, ValueError, AssertionError))
        needs_values = isinstance(error, _OF_VALUES) or "Tracer" in text
        return False if is_of_types and not needs_values and _TYPE.search(text) else None


_OF_VALUES = jax.errors.JAXTypeError, jax.errors.JAXIndexError
_TYPE = re.compile(r"\b(?:bool|(?:u?int|b?float|complex|bf|f|i|u|c)\d+|dtype|integer)\b")


def _operand(body: Body, place: int) -> int | None:
    """The operand that a branch returns as it is, by its place; None if it is none."""
    if not body.jaxprs:
        return None
    jaxpr, count = open_jaxpr(body.jaxprs[0]), len(tree_util.tree_leaves(body.inputs))
    operands = jaxpr.invars[len(jaxpr.invars) - count :]
    result = jaxpr.outvars[place]
    return next((n for n, operand in enumerate(operands) if operand is result), None)


def _type(leaf: Leaf) -> jax.ShapeDtypeStruct:
    """The type of an array or a number, weak if it is."""
    dtype = dtype_of(leaf)
    dtype = leaf.dtype if kind(dtype) is None else jax.dtypes.canonicalize_dtype(dtype)
    with contextlib.suppress(TypeError):  # older releases have no weak ones
        return jax.ShapeDtypeStruct(np.shape(leaf), dtype, weak_type=is_weak(leaf))
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype)
