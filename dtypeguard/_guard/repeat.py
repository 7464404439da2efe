"""Calls of a guarded `jax.jit` that need nothing but the call itself."""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax import tree_util
from jax.core import Tracer

from .._carry.carry import Carry
from .._leaves.compat import x64_enabled
from .._leaves.types import Args, Aval, Kwargs, Leaf, PyTree

_Jitted = type(jax.jit(lambda: None))
_AVAL = operator.attrgetter("aval")
_Pick = Callable[[list[Leaf]], Iterable[Leaf]]
_Flatten = Callable[[PyTree], list[Leaf]]


class Repeat(NamedTuple):
    """A recorded call whose carry kept its types; calls like it skip the guard.

    In such a call nothing is cast and nothing changes in place: `jit` hands the step copies
    of all containers. Where the carry comes back in its types again, the result of the bare
    step is that of the guarded one.
    """

    aval: Callable[[Leaf], Aval]
    leaves: _Flatten
    carried: _Pick
    results: _Flatten
    returned: _Pick
    avals: list[Aval]
    weak: tuple[Any, ...] | None

    def carry_of(self, args: Args, kwargs: Kwargs) -> list[Aval] | None:
        """The abstract values of the carry in another call; None if it needs a guard."""
        try:
            leaves = self.leaves((args, kwargs))
            if self.weak is not None and self.weak == _around(leaves):
                avals, is_like = self.avals, True
            else:
                avals = [*map(self.aval, self.carried(leaves))]
                is_known = self.weak is None and avals == self.avals
                is_like = is_known or not any(map(_is_weak, avals))
        except (AttributeError, TypeError, ValueError):  # another tree, or no JAX arrays
            return None
        # Without jit, a step could change the caller's containers.
        return avals if is_like and not jax.config.jax_disable_jit else None  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import

    def is_kept(self, avals: list[Aval], result: PyTree) -> bool:
        """Whether a carry comes back in its types."""
        try:
            return [*map(self.aval, self.returned(self.results(result)))] == avals
        except (AttributeError, TypeError, ValueError):
            return False


def repeat_of(
    step: object, carry: Carry, args: Args, kwargs: Kwargs, result: PyTree
) -> Repeat | None:
    """Records a call in which nothing was cast.

    None if a call has to look further: the step is no `jax.jit`, the call is traced, or the
    carry has other leaves than arrays.
    """
    if not isinstance(step, _Jitted) or carry.bound is not None:
        return None
    leaves, treedef = tree_util.tree_flatten((args, kwargs))
    made, made_def = tree_util.tree_flatten(result)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return None
    try:  # with marks for arrays, some nodes cannot be built
        marks, made_marks = [[object() for _ in each] for each in (leaves, made)]
        given = carry.take(*tree_util.tree_unflatten(treedef, marks))
        found = carry.find(tree_util.tree_unflatten(made_def, made_marks), given).values
        carried, returned = _places(given, marks), _places(found, made_marks)
    except Exception:
        return None
    are_arrays = all(isinstance(leaves[i], jax.Array) for i in carried)
    if not are_arrays or len(carried) != len(returned):
        return None
    arrays = [leaves[i] for i in carried]
    aval, avals, weak = _reader(arrays), [*map(_AVAL, arrays)], None
    if any(map(_is_weak, avals)):
        if not all(isinstance(leaf, jax.Array) for leaf in leaves):
            return None  # a static argument may decide what stays weak
        weak = _around(leaves)
    pick, pick_returned = map(_pick, (carried, returned))
    flatten, flatten_result = treedef.flatten_up_to, made_def.flatten_up_to
    return Repeat(aval, flatten, pick, flatten_result, pick_returned, avals, weak)


def _places(tree: PyTree, marks: Sequence[object]) -> list[int]:
    """Which marks the leaves of a tree are; a KeyError if one is none of them."""
    places = {id(mark): place for place, mark in enumerate(marks)}
    return [places[id(leaf)] for leaf in tree_util.tree_leaves(tree)]


def _reader(arrays: Sequence[Leaf]) -> Callable[[Leaf], Aval]:
    """Reads abstract values: of arrays of one type three times as fast as `_AVAL`."""
    types = {*map(type, arrays)}
    getter = getattr(types.pop(), "aval", None) if len(types) == 1 else None
    return getattr(getter, "fget", _AVAL)  # that of a property


def _pick(numbers: Sequence[int]) -> _Pick:
    """A function that picks the items of a list with these numbers; quick for a range."""
    first, last = (numbers[0], numbers[-1] + 1) if numbers else (0, 0)
    if [*numbers] == [*range(first, last)]:
        return operator.itemgetter(slice(first, last))
    return operator.itemgetter(*numbers)


def _is_weak(aval: Aval) -> bool:
    return getattr(aval, "weak_type", False)


def _around(leaves: Sequence[Leaf]) -> tuple[Any, ...]:
    flag = jax.config.jax_numpy_dtype_promotion  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import
    return x64_enabled(), flag, [*map(_AVAL, leaves)]
