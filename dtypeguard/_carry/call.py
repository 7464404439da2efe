"""Splits a call of a step into its carried arrays, its other arrays and the rest."""

import functools
import types
from collections.abc import Collection, Sequence

from jax import tree_util

from .._leaves.types import Args, Function, Kwargs, Leaf, PyTree, Step
from .carry import Carry
from .modules import gathered, spread
from .split import SplitTree


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
        self._args = args
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
        found = self._carry.find(result, self._values, self._is_in_place, self._args)
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
