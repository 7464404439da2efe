"""Tells calls of a jitted step that keep their types, and need no guard."""

import dataclasses
import operator
from collections.abc import Sequence

import jax
from jax import tree_util
from jax.core import Tracer

from .._carry.items import ReturnedCarry
from .._carry.places import Place
from .._leaves.types import Args, Aval, Key, Kwargs, Leaf, PyTree, PyTreeDef, Step

_CarryTypes = list[Aval]

# A comprehension would take twice as long. That counts: a jitted call of ten arrays takes
# no more than ten microseconds.
_type_of_array = operator.attrgetter("aval")

_Jitted = type(jax.jit(lambda: None))

# What another tree, or a leaf that is no JAX array, raises.
_NOT_ALIKE = (AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclasses.dataclass(frozen=True)
class StableCarry:
    """A carry that a jitted step gave back in its types.

    In calls with such a carry nothing changes in place, because `jit` gives a step copies
    of all containers. If it comes back in its types again, there is nothing to cast.

    Attributes:
        places: of the carries among the arguments.
        keys: of the carries in the result; None if that is the carry.
        treedef: the structure of a list of the carries.
        types: of their leaves, none of them weak.
    """

    places: Sequence[Place]
    keys: Sequence[Key] | None
    treedef: PyTreeDef
    types: _CarryTypes

    def types_in_call(self, args: Args, kwargs: Kwargs) -> _CarryTypes | None:
        """Returns the types of the carry in a call; None if the call needs a guard."""
        try:
            types = self._types([place.take(args, kwargs) for place in self.places])
        except _NOT_ALIKE:
            return None
        # Two equal lists of the same objects are compared at once.
        if types != self.types and has_weak_type(types):
            return None
        return types

    def is_kept(self, types: _CarryTypes, result: PyTree) -> bool:
        """Returns whether the carry in a result has these types."""
        try:
            if self.keys is None:
                return self._types([result]) == types
            return self._types([result[key] for key in self.keys]) == types
        except _NOT_ALIKE:
            return False

    def _types(self, carries: list[PyTree]) -> _CarryTypes:
        return list(map(_type_of_array, self.treedef.flatten_up_to(carries)))


def has_weak_type(types: Sequence[Aval]) -> bool:
    """Returns whether one of the types is weak."""
    return any(getattr(aval, "weak_type", False) for aval in types)


def copies_containers(step: Step) -> bool:
    """Returns whether a step works on copies of its containers, as those of `jax.jit` do.

    A step of another library's `jit` may change an object in place, as `nnx.jit` does.
    """
    return isinstance(step, _Jitted)


def stable_carry(
    places: Sequence[Place],
    carries: Sequence[PyTree],
    returned: ReturnedCarry,
) -> StableCarry | None:
    """Returns the record of a call of a jitted step that gave back all carries unchanged.

    None if a call like it may need a guard: of a weak type, of a NumPy array, in a trace.
    """
    keys: list[Key] | None = None
    if returned.items is not None:
        if not isinstance(returned.result, (tuple, list, dict)):
            return None  # of which no item can be taken quickly
        keys = list(returned.indices)
        if isinstance(returned.result, dict):
            keys = [returned.items.keys[i] for i in returned.indices]
    leaves, treedef = tree_util.tree_flatten(list(carries))
    if len(returned.numbers) < len(places) or not all(map(_is_concrete_array, leaves)):
        return None
    types = [_type_of_array(leaf) for leaf in leaves]
    if has_weak_type(types):
        return None
    return StableCarry(places, keys, treedef, types)


def _is_concrete_array(leaf: Leaf) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)
