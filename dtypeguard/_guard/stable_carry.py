"""Tells calls of a jitted step that keep their types, and need no guard."""

import dataclasses
import operator
from collections.abc import Sequence

import jax
from jax import tree_util

from .._carry.items import ReturnedCarry
from .._carry.places import Place
from .._leaves.types import Args, Aval, Key, Kwargs, PyTree, PyTreeDef, Step

# Mapped in C: a comprehension would take twice as long, and a jitted call of ten arrays
# takes no more than ten microseconds.
_type_of_array = operator.attrgetter("aval")
_weakness = operator.attrgetter("weak_type")

_Jitted = type(jax.jit(lambda: None))

# What another tree, or a leaf that is no JAX array, raises.
_NOT_ALIKE = (AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclasses.dataclass(frozen=True)
class StableCarry:
    """Where a jitted step takes its carry and returns it.

    In calls with such a carry nothing changes in place, because `jit` gives a step copies
    of all containers. If it comes back in its types, there is nothing to cast.

    Attributes:
        places: of the carries among the arguments.
        keys: of the carries in the result; None if that is the carry.
        treedef: the structure of a list of the carries.
    """

    places: Sequence[Place]
    keys: Sequence[Key] | None
    treedef: PyTreeDef

    def types_in_call(self, args: Args, kwargs: Kwargs) -> list[Aval] | None:
        """Returns the types of the carry in a call; None if one is weak or no array's."""
        try:
            carries = [place.take(args, kwargs) for place in self.places]
            types = self._types(carries)
            if any(map(_weakness, types)):
                return None
            return types
        except _NOT_ALIKE:
            return None

    def is_kept(self, types: list[Aval], result: PyTree) -> bool:
        """Returns whether the carry in a result has these types."""
        try:
            carries = [result]
            if self.keys is not None:
                carries = [result[key] for key in self.keys]
            # Lists of the same objects, as of the last call's results, are equal at once.
            return self._types(carries) == types
        except _NOT_ALIKE:
            return False

    def _types(self, carries: list[PyTree]) -> list[Aval]:
        leaves = self.treedef.flatten_up_to(carries)
        return list(map(_type_of_array, leaves))


def stable_carry(
    step: Step, places: Sequence[Place], returned: ReturnedCarry, args: Args, kwargs: Kwargs
) -> StableCarry | None:
    """Returns the record of a call that gave back its carry unchanged.

    None if a call like it may need a guard: of a step that is not jitted, or is so by
    another library, as by `nnx.jit`, whose steps change objects in place.
    """
    if not isinstance(step, _Jitted):
        return None
    # Another node may give other items in brackets than JAX finds in it.
    if returned.items is not None and not isinstance(returned.result, (tuple, list, dict)):
        return None
    carries = [place.take(args, kwargs) for place in places]
    treedef = tree_util.tree_structure(carries)
    stable = StableCarry(places, returned.keys, treedef)
    types = stable.types_in_call(args, kwargs)
    if types is None:
        return None
    if stable.is_kept(types, returned.result):
        return stable
    return None
