"""What a step carries: taken out of a call and out of its result, and put back."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from jax import tree_util

from .._leaves.arguments import short
from .._leaves.functions import is_transformation
from .._leaves.rows import describe
from .places import Place, name_of_step, places_of


class Carry(NamedTuple):
    """Which arguments of a step come back, and as which items of its result.

    Attributes:
        owner: who asks, for messages: `guard_step`.
        step: what the step is called in messages.
        places: the arguments that come back.
        returned: the items that they come back as, as many; None for the default, which
            `take_result` tells.
        is_one: whether one argument was named, and no tuple of them.
    """

    owner: str
    step: str
    places: tuple[Place, ...]
    returned: tuple[Any, ...] | None
    is_one: bool

    @property
    def labels(self) -> tuple[str, ...]:
        """What each carry is called in a report: its path goes on from that."""
        return tuple(place.label for place in self.places)

    def take(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """What a call carries in, a default where it is left out.

        Raises:
            TypeError: if it gives no such argument, and it has no default.
        """
        values = tuple(place.take(args, kwargs) for place in self.places)
        none = inspect.Parameter.empty
        missing = [p.label for p, value in zip(self.places, values) if value is none]
        if missing:
            raise TypeError(
                f"{self.step} was called with {len(args)} arguments by position and "
                f"{', '.join(kwargs) or 'none'} by name: give it {', '.join(missing)} as "
                f"well, which {self.owner} carries."
            )
        return values

    def put(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], values: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with other values for what it carries."""
        given, named = list(args), dict(kwargs)
        for place, value in zip(self.places, values):
            place.put(given, named, value)
        return tuple(given), named

    def take_result(self, result: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a step gave back of its carry.

        Args:
            result: all that it returned.
            values: what it was given, as `take` tells.

        Returns:
            The items that `returned` names. By default one carry is the whole result where
            that has its tree, and the first item otherwise; a tuple of carries is the
            first items in its order.

        Raises:
            TypeError: if there are no such items; tells which there are.
        """
        if self._is_whole(result, values):
            return (result,)
        items = _Items(result)
        return tuple(items.values[i] for i in self._indices(items, values))

    def put_result(self, result: Any, values: tuple[Any, ...], new: tuple[Any, ...]) -> Any:
        """A result with other values for what it gave back, and in its own type.

        Args:
            result: all that the step returned.
            values: what it was given.
            new: as many values as `take_result` gives; where they are those, `result` is
                returned as it is.
        """
        if self._is_whole(result, values):
            return new[0]
        items = _Items(result)
        return items.replaced(dict(zip(self._indices(items, values), new)))

    def _is_whole(self, result: Any, values: tuple[Any, ...]) -> bool:
        if not self.is_one or self.returned is not None:
            return False
        carry, structure = values[0], tree_util.tree_structure
        if structure(result) == structure(carry):
            return True
        # From here on something is wrong unless the first item is the carry, and the
        # message is about the likelier of the two.
        if type(result) is not type(carry):
            return False
        items = _Items(result)
        first = items.values[0] if isinstance(result, (tuple, list)) and result else None
        has_the_carry = any(structure(item) == structure(carry) for item in items.values)
        return not has_the_carry and type(first) is not type(carry)

    def _indices(self, items: "_Items", values: tuple[Any, ...]) -> list[int]:
        returned = self.returned
        if returned is None:
            is_ordered = isinstance(items.result, (tuple, list))
            returned = range(len(self.places)) if is_ordered else ()
        indices = [items.index(key) for key in returned]
        found = [i for i in indices if i is not None]
        if len(set(found)) < len(self.places) or self._stands_elsewhere(items, values):
            raise TypeError(self._no_such_items(items, values))
        return found

    def _stands_elsewhere(self, items: "_Items", values: tuple[Any, ...]) -> bool:
        """Whether the first items are not the carry, and others have its tree.

        A step that returns its loss first would be told of a changed tree, else.
        """
        if self.returned is not None:
            return False
        structures = [tree_util.tree_structure(value) for value in values]
        first = [tree_util.tree_structure(x) for x in items.values[: len(values)]]
        if first == structures:
            return False
        fitting = [items.like(structure) for structure in structures]
        return None not in fitting and len(set(fitting)) == len(fitting)

    def _no_such_items(self, items: "_Items", values: tuple[Any, ...]) -> str:
        carried = " and ".join(self.labels)
        if items.result is None:
            return f"{self.step} returned None. Write return {', '.join(self.labels)}."
        text = f"{self.step} returned {items.summary()}"
        if self.returned is not None:
            text += f"; returned={self._as_given(self.returned)} names another item"
        # Those that look like the carry, and failing that the first.
        structures = [tree_util.tree_structure(value) for value in values]
        fitting = [items.like(structure) for structure in structures]
        if None in fitting or len(set(fitting)) < len(fitting):
            fitting = items.keys[: len(fitting)]
        if len(fitting) < len(self.places):
            return (
                f"{text}, and not the new {carried}. Write return {', '.join(self.labels)}."
            )
        return (
            f"{text}. Say which of them the new {carried} is: "
            f"{self.owner}(..., returned={self._as_given(tuple(fitting))})."
        )

    def _as_given(self, keys: tuple[Any, ...]) -> str:
        return repr(keys[0] if self.is_one and len(keys) == 1 else keys)


# What does for an optimizer what these do for a step.
_OF_AN_OPTIMIZER = {
    "guard_step": "dtypeguard.guard(optimizer)",
    "audit_step": "dtypeguard.audit(optimizer, params)",
    "check_step": "dtypeguard.testing.check_contract(optimizer)",
}


def carry_of(
    owner: str,
    step: Any,
    carry: int | str | tuple[int | str, ...] = 0,
    returned: Any = None,
) -> Carry:
    """Which arguments of a step come back, and as which items of its result.

    Args:
        owner: the name of the public function that asks, for messages.
        step: any callable.
        carry: the argument that comes back by position or name, or a tuple of them.
        returned: the item of the result that it comes back as: an int, a key of a dict or
            the name of a field; or a tuple of as many as `carry` has.

    Raises:
        TypeError: if `step` or `carry` is nothing of the kind.
        ValueError: if the step has no such argument, or `returned` has another length.
    """
    if is_transformation(step):
        raise TypeError(
            f"{owner} got {short(step)}, which is an optimizer. Write "
            f"{_OF_AN_OPTIMIZER[owner]}."
        )
    if not callable(step) or isinstance(step, type):
        raise TypeError(
            f"{owner} got {short(step)}. Give it a step: a function that takes its carry "
            "and returns it."
        )
    places = places_of(owner, step, carry)
    is_one = not isinstance(carry, tuple)
    if returned is not None and not isinstance(returned, tuple):
        returned = (returned,)
    if returned is not None and len(returned) != len(places):
        raise ValueError(
            f"{owner} got carry={carry!r} and returned={returned!r}: one is "
            f"{len(places)} long and the other {len(returned)}. Write as many of both."
        )
    return Carry(owner, name_of_step(step), places, returned, is_one)


def items_of(result: Any) -> list[tuple[Any, Any]]:
    """What `returned` can name of a result, each with its key."""
    items = _Items(result)
    return [*zip(items.keys, items.values)]


class _Items:
    """The items of a result, of a tuple, a dict or any other node of a tree."""

    def __init__(self, result: Any):
        self.result = result
        if type(result) in (tuple, list):  # eager steps pay for this at every call
            self.keys, self.values = [*range(len(result))], list(result)
            return
        inside = lambda node: node is not result
        pairs, self._treedef = tree_util.tree_flatten_with_path(result, is_leaf=inside)
        # A leaf is no node: it has a path of no keys.
        self.keys = [_key(path[0], i) for i, (path, _) in enumerate(pairs) if path]
        self.values = [item for path, item in pairs if path]

    def index(self, key: Any) -> int | None:
        """Where the item stands that an int, a key or a field's name asks for."""
        number = type(key) is int and isinstance(self.result, (tuple, list))
        if number and -len(self.values) <= key < len(self.values):
            return key % len(self.values)
        return self.keys.index(key) if key in self.keys else None

    def like(self, structure: Any) -> Any:
        """The key of the first item with a structure; None if there is none."""
        for key, value in zip(self.keys, self.values):
            if tree_util.tree_structure(value) == structure:
                return key
        return None

    def replaced(self, new: dict[int, Any]) -> Any:
        """The result with other items at some indices."""
        if all(self.values[i] is value for i, value in new.items()):
            return self.result
        if type(self.result) is dict:  # which keeps its order
            return self.result | {self.keys[i]: value for i, value in new.items()}
        values = [new.get(i, value) for i, value in enumerate(self.values)]
        if type(self.result) in (tuple, list):
            return type(self.result)(values)
        return tree_util.tree_unflatten(self._treedef, values)

    def summary(self) -> str:
        """What it is, for a message: `a dict with the items 'loss', 'state'`."""
        if not self.keys:
            return describe(self.result)
        keys = ", ".join(map(repr, self.keys))
        return f"a {type(self.result).__name__} with the items {keys}"


def _key(entry: Any, number: int) -> Any:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return number
