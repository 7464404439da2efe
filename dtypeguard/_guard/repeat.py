"""Calls of a guarded `jax.jit` that need nothing but the call itself."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax import tree_util
from jax.core import Tracer

from .._carry.carry import Carry
from .._leaves.compat import x64_enabled
from .._leaves.types import Args, Aval, Key, Kwargs, Leaf, PyTree

_Jitted = type(jax.jit(lambda: None))
_AVAL = operator.attrgetter("aval")
_Pick = Callable[[list[Leaf]], Iterable[Leaf]]
_Flatten = Callable[[PyTree], list[Leaf]]


@dataclasses.dataclass(eq=False, slots=True)
class Repeat:
    """A recorded call whose carry kept its types; calls like it skip the guard.

    In such a call nothing is cast and nothing changes in place: `jit` hands the step copies
    of all containers. Where the carry comes back in its types again, the result of the bare
    step is that of the guarded one.

    Attributes:
        aval: reads the abstract value of a leaf.
        leaves: flattens arguments of the same structure; else raises.
        carried: picks those of the leaves that are carried.
        types: the Python types of all leaves. None is a tracer.
        results: flattens a result of the same structure; else raises.
        returned: picks those of its leaves that come back for the carry.
        way: the keys that lead to one array of the result; None if there are none.
        avals: the abstract values of the leaves that are carried.
        weak: if one of these is weakly typed, all on which it depends whether it stays so.
        sharding: that of this array in the last call with these `avals`. JAX makes one for
            each output of each compiled program, unless the user gives it: whatever else
            has it was made by the same program, and has the same types.
    """

    aval: Callable[[Leaf], Aval]
    leaves: _Flatten
    carried: _Pick
    types: set[type]
    results: _Flatten
    returned: _Pick
    way: tuple[Key, ...] | None
    avals: list[Aval]
    weak: tuple[Any, ...] | None
    sharding: object = None

    def carry_of(self, args: Args, kwargs: Kwargs) -> list[Aval] | None:
        """The abstract values of the carry in another call; None if it needs a guard.

        They are `self.avals` if they are equal and nothing is traced.
        """
        try:
            leaves = self.leaves((args, kwargs))
            avals = [*map(self.aval, self.carried(leaves))]
            is_same = avals == self.avals
            if self.weak is not None:
                is_same = is_same and self.weak == _around(leaves)
            is_like = is_same or not any(map(_is_weak, avals))
        except (AttributeError, TypeError, ValueError):  # another tree, or no JAX arrays
            return None
        # Without jit, a step could change the caller's containers.
        if not is_like or jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]: set by JAX at import
            return None
        return self.avals if is_same and {*map(type, leaves)} == self.types else avals

    def is_kept(self, avals: list[Aval], result: PyTree) -> bool:
        """Whether a carry comes back in its types."""
        array: Leaf = None
        try:
            if avals is self.avals and self.way is not None:
                array = functools.reduce(operator.getitem, self.way, result)
                if array.sharding is self.sharding:
                    return True
            is_kept = [*map(self.aval, self.returned(self.results(result)))] == avals
        except (AttributeError, LookupError, TypeError, ValueError):
            return False
        # The user may have chosen the sharding of a committed array.
        if is_kept and not getattr(array, "committed", True):
            self.sharding = array.sharding
        return is_kept


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
    carry = [leaves[i] for i in carried]
    aval, avals, weak = _reader(carry), [*map(_AVAL, carry)], None
    if any(map(_is_weak, avals)):
        if not all(isinstance(leaf, jax.Array) for leaf in leaves):
            return None  # a static argument may decide what stays weak
        weak = _around(leaves)
    pick, pick_returned = map(_pick, (carried, returned))
    flatten, flatten_result = treedef.flatten_up_to, made_def.flatten_up_to
    types, way = {*map(type, leaves)}, _way(result)
    return Repeat(
        aval, flatten, pick, types, flatten_result, pick_returned, way, avals, weak
    )


def _places(tree: PyTree, marks: Sequence[object]) -> list[int]:
    """Which marks the leaves of a tree are; a KeyError if one is none of them."""
    places = {id(mark): place for place, mark in enumerate(marks)}
    return [places[id(leaf)] for leaf in tree_util.tree_leaves(tree)]


def _reader(arrays: Sequence[Leaf]) -> Callable[[Leaf], Aval]:
    """Reads abstract values: of arrays of one type three times as fast as `_AVAL`."""
    types = {*map(type, arrays)}
    getter = getattr(types.pop(), "aval", None) if len(types) == 1 else None
    return getattr(getter, "fget", _AVAL)  # that of a property


def _way(tree: PyTree) -> tuple[Key, ...] | None:
    """The keys that lead to an array through containers of Python; None if there is none.

    The array of any other node may be one that the node made of what JAX gave it.
    """
    if isinstance(tree, jax.Array):
        return ()
    is_list = type(tree) in (tuple, list)
    items = enumerate(tree) if is_list else tree.items() if type(tree) is dict else ()
    ways = ((key, _way(item)) for key, item in items)
    return next(((key, *way) for key, way in ways if way is not None), None)


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
