"""A method whose `self` may be its carry: that of a Flax struct, a registered dataclass."""

from collections.abc import Sequence
from typing import NamedTuple

from jax import tree_util

from .._leaves.types import Args, PyTree
from .carry import Carry
from .modules import is_in_place
from .returned import Items, is_alike, structure


class Method(NamedTuple):
    """The object of a method that is called with a carry by default, the argument after it."""

    carry: Carry
    instance: PyTree

    def is_carry(self, result: PyTree, values: Sequence[PyTree]) -> bool:
        """Whether the object comes back, and not the argument after it.

        Then the result or its first item has the type and the tree of the object, and
        neither the result nor an item could be that argument.
        """
        nodes = [result]
        if not self._is_another(result) and type(result) in (tuple, list):
            nodes += result
        returned = next(filter(self._is_another, nodes[:2]), None)
        if returned is None or structure(returned) != structure(self.instance):
            return False
        return not any(is_alike(values[0], node) for node in nodes)

    def remedy(self, result: PyTree) -> str:
        """What to write if the object is what comes back; empty if it does not."""
        which = ""
        if not self._is_another(result):
            items = Items(result)
            keys = [k for k, x in zip(items.keys, items.values) if self._is_another(x)]
            if not keys:
                return ""
            which = f", returned={keys[0]!r}" * (keys[0] != 0)
        return f'{self.carry.owner}(..., carry="self"{which})'

    def _is_another(self, value: PyTree) -> bool:
        return type(value) is type(self.instance)


def method_of(carry: Carry, args: Args) -> Method | None:
    """The method that a step is, if its object could be what it carries.

    None if the user has named a carry, or if the object is no tree or changes in place.
    """
    first = carry.names.by_position
    if not (carry.is_default and args and first and first[0].name == "self"):
        return None
    if carry.places[0].name == "self":  # the only one
        return None
    if is_in_place(args[0]) or tree_util.all_leaves([args[0]]):
        return None
    place = carry.names.place("self")
    assert place is not None
    return Method(carry._replace(places=(place,), is_default=False), args[0])


def explained(error: TypeError, method: Method | None, result: PyTree) -> TypeError:
    """An error about the carry in a result, which says how to carry `self` instead."""
    remedy = method and method.remedy(result)
    if not remedy:
        return error
    return TypeError(f"{error} If it is self that comes back: {remedy}.")
