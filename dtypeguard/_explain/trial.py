"""The one trial of a remedy: what it changes is traced again with it, on types alone."""

import contextlib
import io
import re
import warnings
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from .._carry.split import SplitTree
from .._leaves.dtypes import dtype_of, is_weak, kind
from .._leaves.types import Aval, Function, Leaf, PyTree
from .._lines.body import Body, difference
from .._lines.monitored import RECORD

# True if the types agree, False if they do not, None if that is not known.
Outcome = bool | None


def begins(body: Body, first: Mapping[int, Aval]) -> Outcome:
    """Whether leaves of a carry, by their places, come back as they are to begin."""
    types = [*map(_type, SplitTree(body.inputs[body.carry or 0]).arrays)]
    was = _returned(body, types)
    types = [first.get(number, leaf) for number, leaf in enumerate(types)]
    now = _returned(body, types)
    if not isinstance(now, list):
        return now
    # What else differs is as it was, and another remedy mends it.
    others = was if isinstance(was, list) else now
    return all(
        not difference(old, new)
        or (is_weak(old) if number in first else not difference(new, others[number]))
        for number, (old, new) in enumerate(zip(types, now))
    )


def _returned(body: Body, first: Sequence[Aval]) -> "_Results":
    """The types of the carry that a body returns for another first one."""
    inputs, position = list(body.inputs), body.carry or 0
    inputs[position] = SplitTree(inputs[position]).merged(first)
    of_pair = lambda *given: body.function(*given)[0]
    return _traced(of_pair if body.is_pair else body.function, inputs)


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


def _type(leaf: Leaf) -> jax.ShapeDtypeStruct:
    """The type of an array or a number, weak if it is."""
    dtype = dtype_of(leaf)
    dtype = leaf.dtype if kind(dtype) is None else jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype, weak_type=is_weak(leaf))
