"""The places of a carry: among the arguments of a step, and among the items it returns."""

import dataclasses
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax import tree_util

from .._leaves.arguments import shown
from .._leaves.dtypes import dtype_of, fits
from .._leaves.leaf_type import describe
from .._leaves.types import Args, Key, Kwargs, Leaf, PyTree, PyTreeDef, Step
from .modules import closed, is_in_place
from .split import DICTS

_Parameter = inspect.Parameter
_VARIADIC = (_Parameter.VAR_POSITIONAL, _Parameter.VAR_KEYWORD)


class Place(NamedTuple):
    """One argument: `params`, or `args[2]` if it has no name of its own."""

    label: str
    position: int | None  # None: keyword-only
    name: str | None  # None: positional-only
    default: PyTree = _Parameter.empty

    def take(self, args: Args, kwargs: Kwargs) -> PyTree:
        """The argument in a call, or its default, which may be `Parameter.empty`."""
        if self.position is not None and self.position < len(args):
            return args[self.position]
        return self.default if self.name is None else kwargs.get(self.name, self.default)

    def put(self, args: list[PyTree], kwargs: dict[str, PyTree], value: PyTree) -> None:
        """Replaces the argument in a call."""
        if self.position is not None and self.position < len(args):
            args[self.position] = value
        elif self.name is not None:
            kwargs[self.name] = value


class Names:
    """The parameters of a step."""

    def __init__(self, step: Step):
        self.step = _name_of(step)
        try:
            self.signature = _signature(step)
        except (TypeError, ValueError, RecursionError):  # a C function; wraps itself
            self.signature = inspect.signature(lambda *args, **kwargs: None)
        found = self.signature.parameters.values()
        self.named = {p.name: p for p in found if p.kind not in _VARIADIC}
        keyword_only = _Parameter.KEYWORD_ONLY
        self.by_position = [n for n, p in self.named.items() if p.kind is not keyword_only]
        self._rest = next((p.name for p in found if p.kind is p.VAR_POSITIONAL), None)
        self._takes_any = any(p.kind is p.VAR_KEYWORD for p in found)
        self._first = int(self.by_position[:1] in (["self"], ["cls"]))

    def at(self, position: int) -> str:
        """The name of the argument at a position."""
        if position < len(self.by_position):
            return self.by_position[position]
        return f"{self._rest or 'args'}[{position - len(self.by_position)}]"

    def places(
        self, owner: str, carry: int | str | tuple[int | str, ...]
    ) -> tuple[Place, ...]:
        """The arguments that `carry` names.

        Positions do not count a first parameter called `self` or `cls`, unless it is the
        only one: so the decorator works on a method, above or below `jit`.
        """
        places = []
        keys = carry if isinstance(carry, tuple) else (carry,)
        for key in keys or ((),):
            place = self._place(key)
            if place is None or place.label in [each.label for each in places]:
                raise ValueError(
                    f"{owner} got carry={shown(key)}, but {self.step} takes "
                    f"{self.signature}. Write the position or the name of the argument "
                    'that comes back, or a tuple of them: carry=0, carry="state", '
                    'carry=("params", "opt_state").'
                )
            places.append(place)
        return tuple(places)

    def _place(self, key: object) -> Place | None:
        """The argument with a name or at a position, as `places` counts; or None."""
        if type(key) is int:
            is_only = key == 0 and len(self.by_position) == self._first  # `self` alone
            position = key if is_only else key + self._first
            if key < 0 or position >= len(self.by_position):
                is_in_rest = key >= 0 and self._rest is not None
                return Place(self.at(position), position, None) if is_in_rest else None
            key = self.by_position[position]
        if not isinstance(key, str):
            return None
        parameter = self.named.get(key)
        if parameter is None:
            return Place(key, None, key) if self._takes_any else None
        position = self.by_position.index(key) if key in self.by_position else None
        name = None if parameter.kind is parameter.POSITIONAL_ONLY else key
        return Place(key, position, name, parameter.default)


def _name_of(step: Step) -> str:
    """The name of a step in messages: its own, or that of its type."""
    inner = getattr(step, "func", step)  # of a partial function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__name__", type(inner).__name__)
    return "step" if name == "<lambda>" else name


def _signature(step: Step) -> inspect.Signature:
    """The signature of a callable; of a wrapper its own, unless that passes arguments on.

    It does if it has `*args` or `**kwargs`, and what it names by position comes first in
    what it wraps.
    """
    inner = getattr(step, "__wrapped__", None)
    if inner is None or inspect.ismethod(step):
        return inspect.signature(step)
    call = step if inspect.isfunction(step) else step.__call__  # also of what `jit` returns
    own = inspect.signature(call, follow_wrapped=False)
    parameters = own.parameters.values()
    passed = _signature(inner)
    keyword_only = _Parameter.KEYWORD_ONLY
    names = [p.name for p in parameters if p.kind not in (*_VARIADIC, keyword_only)]
    is_passed_on = [*passed.parameters][: len(names)] == names
    return passed if is_passed_on and any(p.kind in _VARIADIC for p in parameters) else own


def is_unregistered(value: object) -> bool:
    """Whether it is a dataclass that JAX treats as a leaf."""
    is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_dataclass and tree_util.all_leaves([value])


def structure(tree: PyTree) -> PyTreeDef:
    """The structure of a tree in which a Flax NNX object is a node without leaves."""
    return tree_util.tree_structure(closed(tree))


def is_alike(before: PyTree, after: PyTree) -> bool:
    """Whether a guard could cast one tree to the types of the other."""
    old, new = (tree_util.tree_leaves(closed(tree)) for tree in (before, after))
    same = structure(before) == structure(after)
    return same and bool(old) and all(map(_is_alike_leaf, old, new))


def _is_alike_leaf(old: Leaf, new: Leaf) -> bool:
    source, target = dtype_of(new), dtype_of(old)
    if source is None or target is None:
        return source is target
    return np.shape(old) == np.shape(new) and fits(source, target)


class Items:
    """The items of a result: a tuple, a dict or any other node of a tree."""

    def __init__(self, result: PyTree):
        self.result = result
        if type(result) in (tuple, list):  # quick: eager steps pay for this in every call
            self.keys, self.values = [*range(len(result))], list(result)
            return
        if type(result) in DICTS:
            # As JAX does, but JAX 0.4.25 gives the values of a defaultdict other keys.
            self.keys = sorted(result)
            self.values = [result[key] for key in self.keys]
            return
        if is_in_place(result):
            self.keys, self.values = [], []
            return
        inside = lambda node: node is not result
        pairs, self._treedef = tree_util.tree_flatten_with_path(result, is_leaf=inside)
        # If the result is a leaf, its path is empty.
        self.keys = [_key(path[0], i) for i, (path, _) in enumerate(pairs) if path]
        self.values = [item for path, item in pairs if path]

    def index(self, key: Key) -> int | None:
        """The index of the item that an int, a key or the name of a field asks for."""
        number = type(key) is int and isinstance(self.result, (tuple, list))
        if number and -len(self.values) <= key < len(self.values):
            return key % len(self.values)
        return self.keys.index(key) if key in self.keys else None

    def like(self, structures: list[PyTreeDef]) -> list[int] | None:
        """The indices of the first item of each structure, if these are different items."""
        own = [structure(value) for value in self.values]
        if any(wanted not in own for wanted in structures):
            return None
        indices = [own.index(wanted) for wanted in structures]
        return indices if len(set(indices)) == len(indices) else None

    def replaced(self, new: Mapping[int, PyTree]) -> PyTree:
        """The result in its own type, with other items at some indices, if any."""
        if all(self.values[i] is value for i, value in new.items()):
            return self.result
        if type(self.result) in DICTS:  # which keep their order
            return self.result | {self.keys[i]: value for i, value in new.items()}
        values = [new.get(i, value) for i, value in enumerate(self.values)]
        if type(self.result) in (tuple, list):
            return type(self.result)(values)
        return tree_util.tree_unflatten(self._treedef, values)

    def summary(self) -> str:
        """What it is, for a message: `a dict with the items 'loss', 'state'`."""
        if not self.keys:
            return "None" if self.result is None else describe(self.result)
        keys = ", ".join(map(repr, self.keys))
        return f"a {type(self.result).__name__} with the items {keys}"


class ReturnedCarry(NamedTuple):
    """The place of the carry in the result of a step."""

    result: PyTree
    items: Items | None = None  # None if the carry is the whole result
    indices: Sequence[int] = ()  # of the carry among the items
    # Which of the carries these are: an object that a step changes in place may be missing.
    carried: Sequence[int] = (0,)

    @property
    def values(self) -> tuple[PyTree, ...]:
        """The new carry, as the step returned it."""
        if self.items is None:
            return (self.result,)
        return tuple(self.items.values[i] for i in self.indices)

    @property
    def others(self) -> tuple[PyTree, ...]:
        """The other results."""
        if self.items is None:
            return ()
        if not self.items.keys:
            return (self.result,)
        values = enumerate(self.items.values)
        return tuple(value for number, value in values if number not in self.indices)

    def put(self, new: Sequence[PyTree]) -> PyTree:
        """The result with other values for the carry; itself if nothing changes."""
        if self.items is None:
            return new[0]
        return self.items.replaced(dict(zip(self.indices, new)))


def _key(entry: object, number: int) -> Key:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return number
