"""Which arguments of a step come back, and where they are in a call and in its result."""

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

from .._leaves.arguments import shown
from .._leaves.types import Args, Key, Kwargs, PyTree, Step
from .items import Items, ReturnedCarry, has_structure_of, is_alike
from .modules import objects_by_path
from .places import Names, Place, is_unregistered
from .split import ObjectSnapshot


@dataclasses.dataclass(frozen=True)
class Carry:
    """Which arguments of a step come back, and as which items of its result."""

    owner: str  # the public function that asks
    names: Names  # of the parameters of the step
    places: tuple[Place, ...]  # the arguments that come back
    returned: tuple[Key, ...] | None = None  # the items that they come back as
    is_one: bool = True  # whether the user named one argument and not a tuple
    is_default: bool = False  # whether the user named neither an argument nor an item
    bound: object = None  # the object of a bound method

    @property
    def step(self) -> str:
        """The name of the step in messages."""
        return self.names.step

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of each carry in a report: a prefix of its paths."""
        labels = [place.label for place in self.places]
        return tuple(labels)

    def with_label(self, label: str) -> "Carry":
        """Returns this carry of one argument with another label."""
        (place,) = self.places
        labelled = place._replace(label=label)
        return dataclasses.replace(self, places=(labelled,))

    def without_arguments(self) -> "Carry":
        """Returns a carry of nothing but objects that the step changes in place."""
        return dataclasses.replace(self, places=(), is_one=False, is_default=False)

    def take(self, args: Args, kwargs: Kwargs) -> tuple[PyTree, ...]:
        """Returns the carries of a call, or their defaults."""
        values = []
        for place in self.places:
            value = place.take(args, kwargs)
            values.append(value)
            # Not None, which is a carry like any other.
            if value is inspect.Parameter.empty:
                raise TypeError(
                    f"{self.step} was called without {place.label}, which {self.owner} "
                    "carries: give it that as well."
                )
            if is_unregistered(value):
                name = type(value).__name__
                raise TypeError(
                    f"{self.step} was called with a {name}, which is no tree to JAX, and "
                    "nothing in it can be guarded: "
                    f"jax.tree_util.register_dataclass({name}) makes it one."
                )
        return tuple(values)

    def put(
        self,
        args: Args,
        kwargs: Kwargs,
        values: Sequence[PyTree],
    ) -> tuple[Args, Kwargs]:
        """Returns the arguments of a call with other carries."""
        new_args = list(args)
        new_kwargs = dict(kwargs)
        for place, value in zip(self.places, values):
            place.put(new_args, new_kwargs, value)
        return tuple(new_args), new_kwargs

    def object_snapshots(self, args: Args, kwargs: Kwargs) -> list[ObjectSnapshot]:
        """Returns snapshots of the Flax NNX objects among the arguments, each once.

        A step changes them in place, so that they come back in any case.
        """
        # A bound method hides its object from the arguments.
        arguments = [("self", self.bound)]
        for position, value in enumerate(args):
            name = self.names.at(position)
            arguments.append((name, value))
        # `**kwargs` may hold the name of a parameter that is taken by position alone.
        arguments.extend(kwargs.items())
        snapshots: dict[int, ObjectSnapshot] = {}
        for name, value in arguments:
            for path, node in objects_by_path(value).items():
                label = name + path
                snapshot = ObjectSnapshot(label, node)
                snapshots.setdefault(id(node), snapshot)
        return list(snapshots.values())

    def find(
        self,
        result: PyTree,
        values: Sequence[PyTree],
        in_place: bool = False,
    ) -> ReturnedCarry:
        """Locates the carry in the result of a step by the rule of `jax.lax`.

        One carry is the whole result if that has its tree; otherwise the carries are the
        first items. A step need not return what it changes in place.

        Args:
            result: what the step returned.
            values: the carries that came in.
            in_place: whether the step has objects to change in place. A carry by default
                need not come back then.

        Raises:
            TypeError: if the result has too few items, or other ones than the first have
                the trees of the carries.
        """
        every_number = range(len(values))
        if self.returned is not None:
            items = Items(result)
            # Two carries cannot come back as one item.
            indices_of_keys: list[int] = []
            for key in self.returned:
                index = items.index(key)
                if index is None or index in indices_of_keys:
                    raise self._no_such_items(items, values)
                indices_of_keys.append(index)
            return ReturnedCarry(result, every_number, items, indices_of_keys)
        is_match = has_structure_of
        if self.is_default and in_place and not objects_by_path(values[0]):
            # The first argument may be a batch, and a loss of its structure is no carry.
            is_match = is_alike
        if self.is_one and is_match(values[0], result):
            return ReturnedCarry(result)
        items = Items(result)
        # What the step changes in place may stay out of its result.
        required = []
        for number, value in enumerate(values):
            objects = objects_by_path(value)
            if not objects:
                required.append(number)
        if self.is_default and in_place:
            required = []
        # A step may return its objects along with the other carries, or leave them all out.
        for numbers in (every_number, required):
            trees = [values[number] for number in numbers]
            if items.begin_with(trees, is_match):
                indices = range(len(numbers))
                return ReturnedCarry(result, numbers, items, indices)
        if items.indices_of_structures(values):
            raise self._no_such_items(items, values)
        return self._find_of_another_tree(items, values, required)

    def _find_of_another_tree(
        self,
        items: Items,
        values: Sequence[PyTree],
        required: Sequence[int],
    ) -> ReturnedCarry:
        """Returns where carries are whose trees have changed, for a message about that."""
        carry_type = None
        if self.is_one:
            carry_type = type(values[0])
        # Of a carry that is a tuple, a changed result is a tuple as well: it is the carry,
        # unless its first item is of the carry's type.
        first_type = type(items.first)
        has_carry_first = items.are_ordered and first_type is carry_type
        if type(items.result) is carry_type and not has_carry_first:
            return ReturnedCarry(items.result)
        num_required = len(required)
        if items.are_ordered and len(items.values) >= num_required:
            indices = range(num_required)
            return ReturnedCarry(items.result, required, items, indices)
        raise self._no_such_items(items, values)

    def ambiguity(self, returned: ReturnedCarry, carry: PyTree) -> str:
        """Returns a question if a later item is like the carry; "" if none is."""
        items = returned.items
        # The user has said which item it is, or there is but one.
        if items is None or not returned.indices or not self.is_one or self.returned:
            return ""
        label = self.labels[0]
        first_key = items.keys[0]
        for key, item in zip(items.keys, items.values):
            # A step for `scan` may return its carry twice.
            if item is items.first:
                continue
            if is_alike(carry, item):
                summary = items.summary()
                return (
                    f"{self.step} returned {summary}. {self.owner} takes item "
                    f"{first_key!r} for the new {label} and casts it, but item {key!r} "
                    f"could be {label} as well. Write {self.owner}(..., returned={key!r}) "
                    f"if it is, and returned={first_key!r} if not."
                )
        return ""

    def _no_such_items(self, items: Items, values: Sequence[PyTree]) -> TypeError:
        summary = items.summary()
        message = f"{self.step} returned {summary}"
        if self.returned is not None:
            written = self._as_written(self.returned)
            message += f"; returned={written} names another item"
        carries = " and ".join(self.labels)
        if len(items.keys) < len(values):
            labels = ", ".join(self.labels)
            return TypeError(
                f"{message}, and not the new {carries}. Write return {labels}."
            )
        # Any items do for an example of what to write.
        indices = items.indices_of_structures(values)
        if not indices:
            indices = range(len(values))
        keys = [items.keys[i] for i in indices]
        example = self._as_written(keys)
        return TypeError(
            f"{message}. Say which of them the new {carries} is: "
            f"{self.owner}(..., returned={example})."
        )

    def _as_written(self, keys: Sequence[Key]) -> str:
        if self.is_one:
            return repr(keys[0])
        written = tuple(keys)
        return repr(written)


def carry_of(
    owner: str,
    step: Step,
    carry: int | str | tuple[int | str, ...] = 0,
    returned: Any = None,
) -> Carry:
    """Returns which arguments of a step come back, and as which items of its result.

    Args:
        owner: the public function that asks.
        step: the step.
        carry: the arguments, by position or name.
        returned: the items, by index, key or name of a field; None: by the rule of
            `Carry.find`.
    """
    if not callable(step) or isinstance(step, type):
        step_text = shown(step)
        raise TypeError(
            f"{owner} got {step_text}. Give it a step: a function that takes its carry "
            "and returns it. (For an optimizer there are dtypeguard.guard and "
            "dtypeguard.testing.check_contract.)"
        )
    names = Names(step)
    places = names.places(owner, carry)
    is_one = not isinstance(carry, tuple)
    is_default = False
    if is_one and carry == 0:
        is_default = returned is None
    if returned is not None and not isinstance(returned, tuple):
        returned = (returned,)
    if returned is not None and len(returned) != len(places):
        raise ValueError(
            f"{owner} got carry={carry!r} and returned={returned!r}: one is "
            f"{len(places)} long and the other {len(returned)}. Write as many of both."
        )
    # Not by `inspect.ismethod`: a bound method of an Equinox module is a module itself.
    bound = getattr(step, "__self__", None)
    return Carry(owner, names, places, returned, is_one, is_default, bound)
