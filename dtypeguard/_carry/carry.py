"""Takes the carry of a step out of a call and its result, and repeats the call."""

import functools
import inspect
import types
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from jax import tree_util

from .._leaves.arguments import shown
from .._leaves.types import Args, Function, Key, Kwargs, Leaf, PyTree, PyTreeDef, Step
from .modules import gathered, objects, spread
from .places import (
    Items,
    Names,
    Place,
    ReturnedCarry,
    is_alike,
    is_unregistered,
    structure,
)
from .split import HeldTree, SplitTree


class Carry(NamedTuple):
    """Which arguments of a step come back, and as which items of its result."""

    owner: str  # the public function that asks
    step: str  # its name in messages
    places: tuple[Place, ...]  # the arguments that come back
    returned: tuple[Key, ...] | None  # the items that they come back as
    is_one: bool  # whether the user named one argument and not a tuple
    is_default: bool  # whether the user named neither an argument nor an item
    names: Names
    bound: object = None  # of a bound method

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of each carry in a report: a prefix of its paths."""
        return tuple(place.label for place in self.places)

    def called(self, *labels: str) -> "Carry":
        """The same carry with other labels."""
        places = [place._replace(label=x) for place, x in zip(self.places, labels)]
        return self._replace(places=tuple(places))

    def take(self, args: Args, kwargs: Kwargs) -> tuple[PyTree, ...]:
        """The carries of a call, or their defaults."""
        values = tuple(place.take(args, kwargs) for place in self.places)
        none = inspect.Parameter.empty
        missing = [p.label for p, value in zip(self.places, values) if value is none]
        if missing:
            raise TypeError(
                f"{self.step} was called with {len(args)} arguments by position and "
                f"{', '.join(kwargs) or 'none'} by name: give it {', '.join(missing)} as "
                f"well, which {self.owner} carries."
            )
        for name in (type(value).__name__ for value in values if is_unregistered(value)):
            raise TypeError(
                f"{self.step} was called with a {name}, which is no tree to JAX, and "
                f"nothing in it can be guarded: jax.tree_util.register_dataclass({name}) "
                "makes it one."
            )
        return values

    def held(self, args: Args, kwargs: Kwargs) -> list[HeldTree]:
        """The Flax NNX objects among the arguments, which come back in any case."""
        given = [("self", self.bound)] if self.bound is not None else []
        given += [(self.names.at(number), arg) for number, arg in enumerate(args)]
        given += kwargs.items()
        found: dict[int, HeldTree] = {}
        for name, arg in given:
            for path, node in objects(arg).items():
                if id(node) not in found:
                    found[id(node)] = HeldTree(name + path, node)
        return list(found.values())

    def put(
        self, args: Args, kwargs: Kwargs, values: tuple[PyTree, ...]
    ) -> tuple[Args, Kwargs]:
        """The arguments of a call with other carries."""
        given, named = list(args), dict(kwargs)
        for place, value in zip(self.places, values):
            place.put(given, named, value)
        return tuple(given), named

    def find(
        self, result: PyTree, values: Sequence[PyTree], in_place: bool = False
    ) -> ReturnedCarry:
        """Locates the carry in the result of a step; raises `TypeError` if it is not sure.

        The step need not return carries that hold objects which it changes in place, nor,
        if it changes any, its first argument. If no item has the tree of the carry, it is
        the likelier one, for a message about the tree that changed.
        """
        structures, every = [structure(value) for value in values], range(len(values))
        # Where a step changes other arguments in place, its first argument is a carry only
        # by default, and may be a batch: no loss of the same structure is meant by it.
        is_sure = not (self.is_default and in_place) or bool(objects(values[0]))
        is_meant = lambda item: is_sure or is_alike(values[0], item)
        may_be_whole = self.returned is None and self.is_one
        if may_be_whole and structure(result) == structures[0] and is_meant(result):
            return ReturnedCarry(result)
        items = Items(result)
        if self.returned is not None:
            named = [items.index(key) for key in self.returned]
            found = [index for index in named if index is not None]
            if len({*found}) < len(values):
                raise TypeError(self._no_such_items(items, structures))
            return ReturnedCarry(result, items, found, every)
        ordered = len(items.keys) if isinstance(result, (tuple, list)) else 0
        have = lambda numbers: (
            len(numbers) <= ordered
            and all(
                structure(item) == structures[n] for n, item in zip(numbers, items.values)
            )
        )
        if have(every) and is_meant(items.values[0]):
            return ReturnedCarry(result, items, every, every)
        rest = [number for number in every if not objects(values[number])]
        if not rest or (self.is_default and in_place):
            return ReturnedCarry(result, items, (), ())
        if len(rest) < len(values) and have(rest):
            return ReturnedCarry(result, items, range(len(rest)), rest)
        if not items.like(structures):  # for a message about the tree that changed
            first = type(items.values[0]) if ordered else None
            if may_be_whole and type(result) is type(values[0]) is not first:
                return ReturnedCarry(result)
            if ordered >= len(rest):
                return ReturnedCarry(result, items, range(len(rest)), every)
        raise TypeError(self._no_such_items(items, structures))

    def self_remedy(self, args: Args, result: PyTree) -> str:
        """What to write if the `self` of a method is what comes back; "" if it is not."""
        is_method = self.is_default and args and self.names.at(0) == "self"
        if not is_method or self.places[0].name == "self":  # the only one
            return ""
        if tree_util.all_leaves([args[0]]):  # of a class that is no tree
            return ""
        items, is_self = Items(result), lambda value: type(value) is type(args[0])
        keys = [key for key, item in zip(items.keys, items.values) if is_self(item)]
        if is_self(result):
            return f'{self.owner}(..., carry="self")'
        which = f", returned={keys[0]!r}" if keys and keys[0] != 0 else ""
        return f'{self.owner}(..., carry="self"{which})' if keys else ""

    def ambiguity(self, found: ReturnedCarry, carry: PyTree) -> str:
        """What to ask if another item than the first is like the carry; "" if none is."""
        items = found.items
        if items is None or not found.indices or not self.is_one or self.returned:
            return ""
        taken, *others = zip(items.keys, items.values)
        is_other = lambda item: item is not taken[1] and is_alike(carry, item)
        also = [key for key, item in others if is_other(item)]
        if not also:
            return ""
        (name,), listed = self.labels, " and ".join(map(repr, also))
        return (
            f"{self.step} returned {items.summary()}. {self.owner} takes item {taken[0]!r} "
            f"for the new {name} and casts it, but item {listed} could be {name} as well. "
            f"Write {self.owner}(..., returned={also[0]!r}) if it is, and "
            f"returned={taken[0]!r} if not."
        )

    def _no_such_items(self, items: Items, structures: list[PyTreeDef]) -> str:
        carried = " and ".join(self.labels)
        text = f"{self.step} returned {items.summary()}"
        if self.returned is not None:
            text += f"; returned={self._as_given(self.returned)} names another item"
        count = len(structures)
        if len(items.keys) < count:
            return (
                f"{text}, and not the new {carried}. Write return {', '.join(self.labels)}."
            )
        # The items that look like the carry, or else the first ones.
        keys = tuple(items.keys[i] for i in items.like(structures) or range(count))
        return (
            f"{text}. Say which of them the new {carried} is: "
            f"{self.owner}(..., returned={self._as_given(keys)})."
        )

    def _as_given(self, keys: tuple[Key, ...]) -> str:
        return repr(keys[0] if self.is_one and len(keys) == 1 else keys)


def carry_of(
    owner: str,
    step: Step,
    carry: int | str | tuple[int | str, ...] = 0,
    returned: Any = None,
) -> Carry:
    """Which arguments of a step come back, and as which items of its result."""
    if not callable(step) or isinstance(step, type):
        raise TypeError(
            f"{owner} got {shown(step)}. Give it a step: a function that takes its carry "
            "and returns it. (For an optimizer there are dtypeguard.guard and "
            "dtypeguard.testing.check_contract.)"
        )
    names = Names(step)
    places = names.places(owner, carry)
    is_one = not isinstance(carry, tuple)
    if returned is not None and not isinstance(returned, tuple):
        returned = (returned,)
    if returned is not None and len(returned) != len(places):
        raise ValueError(
            f"{owner} got carry={carry!r} and returned={returned!r}: one is "
            f"{len(places)} long and the other {len(returned)}. Write as many of both."
        )
    return Carry(
        owner,
        names.step,
        places,
        returned,
        is_one,
        is_default=carry == 0 and is_one and returned is None,
        names=names,
        bound=getattr(step, "__self__", None) if inspect.ismethod(step) else None,
    )


class _Hole:
    """A placeholder for one carry in the arguments of a call."""

    def __init__(self, number: int):
        self.number = number


# Outside the carry, such a number may decide what is traced. A constant promotes like an
# argument.
_NUMBERS = (bool, int, float, complex)


class Call:
    """A call of a step that can be repeated with other arrays.

    It carries the arguments that come back and the Flax NNX objects among all arguments, of
    which a repeated call gets copies.
    """

    def __init__(
        self,
        step: Step,
        carry: Carry,
        args: Args,
        kwargs: Kwargs,
        *,
        static: Collection[type] = _NUMBERS,
        in_place: bool = True,
    ):
        self._step = step
        self._carry = carry
        self._values = carry.take(args, kwargs)
        self._spread = spread if in_place else lambda tree: tree
        inside = carry.held(self._values, {}) if in_place else []
        known = {id(each.node) for each in inside}
        held = carry.held(args, kwargs) if in_place else []
        held = [each for each in held if id(each.node) not in known]
        self._is_in_place = bool(inside or held)
        self._objects = {id(x.node): len(self._values) + n for n, x in enumerate(held)}
        self.names = (*carry.labels, *(each.label for each in held))
        given = (*self._values, *(each.node for each in held))
        self.carried = [SplitTree(self._spread(value)) for value in given]
        holes = tuple(map(_Hole, range(len(self._values))))
        rest = carry.put(args, kwargs, holes)
        is_held = lambda node: id(node) in self._objects
        if held:
            make_hole = lambda x: _Hole(self._objects[id(x)]) if is_held(x) else x
            rest = tree_util.tree_map(make_hole, rest, is_leaf=is_held)
        self.rest = SplitTree(rest, static)

    def bind(
        self, carried: Sequence[Sequence[Leaf]], others: Sequence[Leaf]
    ) -> tuple[Function, list[PyTree]]:
        """The call with other arrays."""
        trees = [parts.merged(arrays) for parts, arrays in zip(self.carried, carried)]
        given, rest = gathered((trees, self.rest.merged(others)))
        fill = lambda leaf: given[leaf.number] if isinstance(leaf, _Hole) else leaf
        args, kwargs = tree_util.tree_map(fill, rest)
        step = self._step
        if id(self._carry.bound) in self._objects:
            owner = given[self._objects[id(self._carry.bound)]]
            step = types.MethodType(getattr(step, "__func__"), owner)  # noqa: B009
        return functools.partial(step, *args, **kwargs), given

    def returned(
        self, result: PyTree, given: Sequence[PyTree]
    ) -> tuple[list[SplitTree], SplitTree]:
        """What comes back for each carry, and the other results."""
        found = self._carry.find(result, self._values, self._is_in_place)
        after = list(given)
        for number, value in zip(found.carried, found.values):
            after[number] = value
        returned = [SplitTree(self._spread(value)) for value in after]
        return returned, SplitTree(self._spread(found.others))

    def run(
        self, carried: Sequence[Sequence[Leaf]], others: Sequence[Leaf]
    ) -> list[SplitTree]:
        """Makes the call with these arrays; returns what comes back for each carry."""
        call, given = self.bind(carried, others)
        return self.returned(call(), given)[0]
