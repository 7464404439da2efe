"""Which gradients are narrow in a program of which some lines are wide."""

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import jax

from .._leaves.types import Leaf
from .._lines.equations import Chain, calls_of, is_backward
from .._program.graph import Stack
from .._numbers import primitives

# The identities of an equation and of those that contain it, inside out.
Key = tuple[int, ...]


def key_of(stack: Stack) -> Key:
    return tuple(map(id, stack))


@dataclasses.dataclass(frozen=True)
class PlainValue:
    """A value of a plain run.

    Attributes:
        array: its value.
        meant: of a constant, the exact one; None for what is computed.
        is_wide: whether it, or what it is made of, is wider than the program has it.
        is_fixed: whether no line rounds it: a constant, an input, a sample. See `Draws`.
        is_sample: whether it is a sample in a dtype of the program.
        is_due: whether it is part of the gradient of a narrow value, to be rounded once
            all parts are added.
    """

    array: Leaf
    meant: Leaf = None
    is_wide: bool = False
    is_fixed: bool = False
    is_sample: bool = False
    is_due: bool = False


jax.tree_util.register_pytree_node(
    PlainValue,
    lambda v: ((v.array, v.meant), (v.is_wide, v.is_fixed, v.is_sample, v.is_due)),
    lambda marks, arrays: PlainValue(*arrays, *marks),
)


class Gradients:
    """Which gradients are narrow where lines of the source are wide.

    A gradient has the dtype of what it is the gradient of. Which value that is, the call
    and its shape tell.

    Args:
        calls: the number of the call of each equation: see `Plain.calls`.
    """

    def __init__(self, calls: Mapping[Key, int]):
        self._calls = calls
        self._takes, self._returns = _Noted(), _Noted()

    def note(
        self, stack: Stack, given: Sequence[PlainValue], made: Sequence[PlainValue]
    ) -> None:
        """Notes what a forward equation takes and returns, wide or not."""
        call = self._calls.get(key_of(stack))
        for known, values in ((self._takes, given), (self._returns, made)):
            for value in values:
                if primitives.is_inexact(value.array):
                    place = call, value.array.shape
                    known[place] = value.is_wide or known.get(place, False)

    def is_of_taken(self, stack: Stack, value: PlainValue) -> bool:
        """Whether what a backward equation makes is the gradient of a narrow value."""
        place = self._calls.get(key_of(stack)), value.array.shape
        return value.is_wide and not self._takes.get(place, True)

    def is_of_returned(self, stack: Stack, value: PlainValue) -> bool:
        """Whether what a backward equation is given is the gradient of a narrow value."""
        place = self._calls.get(key_of(stack)), value.array.shape
        return value.is_wide and not self._returns.get(place, True)


_Noted = dict[tuple[int | None, tuple[int, ...]], bool]


def numbered_calls(order: Mapping[Key, Stack]) -> dict[Key, int]:
    """The numbers of the calls on the user's lines that lead to each equation.

    An equation of a backward pass has that of the last forward call on its line whose
    backward pass has not begun. Equations that follow each other are of one call; one
    that is met again after others begins another.
    """
    found, forward = dict[Key, int](), collections.defaultdict[Chain, list[int]](list)
    current = dict[tuple[Chain, bool], tuple[int, set[object]]]()
    last, numbers = None, itertools.count()
    for key, stack in order.items():
        eqn, way = stack[0], (calls_of(stack), is_backward(stack))
        shapes = (getattr(var.aval, "shape", ()) for var in (*eqn.invars, *eqn.outvars))
        looks = eqn.primitive.name, *shapes
        if way not in current or (way != last and looks in current[way][1]):
            number = next(numbers)
            if not way[1]:
                forward[way[0]].append(number)
            elif forward[way[0]]:
                number = forward[way[0]].pop()
            current[way] = number, set()
        number, seen = current[way]
        seen.add(looks)
        found[key], last = number, way
    return found
