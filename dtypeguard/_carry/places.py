"""The places of a carry: among the arguments of a step, and among the items it returns."""

import dataclasses
import functools
import inspect
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax import tree_util

from .._leaves.arguments import shown
from .._leaves.dtypes import dtype_of, fits, is_weak
from .._leaves.rows import describe
from .._leaves.types import Args, Key, Kwargs, Leaf, PyTree, PyTreeDef, Step
from .modules import closed, is_in_place
from .split import DICTS

_Parameter = inspect.Parameter


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


class Names(NamedTuple):
    """The parameters of a step."""

    signature: inspect.Signature
    by_position: list[_Parameter]
    by_name: list[_Parameter]
    rest: str | None
    takes_any: bool

    @classmethod
    def of(cls, step: Step) -> "Names":
        """The parameters of any callable."""
        try:
            signature = _signature(step)
        except (TypeError, ValueError, RecursionError):  # a C function; wraps itself
            signature = inspect.signature(lambda *args, **kwargs: None)

        def of_kind(*kinds):
            return [p for p in signature.parameters.values() if p.kind in kinds]

        rest = of_kind(_Parameter.VAR_POSITIONAL)
        return cls(
            signature,
            of_kind(_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD),
            of_kind(_Parameter.KEYWORD_ONLY),
            rest[0].name if rest else None,
            bool(of_kind(_Parameter.VAR_KEYWORD)),
        )

    def at(self, position: int) -> str:
        """The name of the argument at a position."""
        if position < len(self.by_position):
            return self.by_position[position].name
        return f"{self.rest or 'args'}[{position - len(self.by_position)}]"

    def place(self, key: int | str) -> Place | None:
        """The argument with a name or at a position, as `places_of` counts; or None."""
        if isinstance(key, str):
            for parameter in (*self.by_position, *self.by_name):
                if parameter.name == key:
                    return self._place_of(parameter)
            return Place(key, None, key) if self.takes_any else None
        if key < 0:
            return None
        is_only = key == 0 and len(self.by_position) == self._first  # `self` alone
        position = key if is_only else key + self._first
        if position < len(self.by_position):
            return self._place_of(self.by_position[position])
        return None if self.rest is None else Place(self.at(position), position, None)

    @property
    def _first(self) -> int:
        """The position of the first parameter that counts."""
        return int(bool(self.by_position) and self.by_position[0].name in ("self", "cls"))

    def _place_of(self, p: _Parameter) -> Place:
        position = self.by_position.index(p) if p in self.by_position else None
        name = None if p.kind is p.POSITIONAL_ONLY else p.name
        return Place(p.name, position, name, p.default)

    def remedy(self, step: str) -> str:
        """What to write for the carry of a step instead of what it does not take."""
        names = [p.name for p in self.by_position[self._first :]]
        choices = [f'carry={number} or "{name}"' for number, name in enumerate(names)]
        choices += [f'carry="{p.name}"' for p in self.by_name]
        if choices:
            write = "one of " if len(choices) > 1 else ""
            return f"but {step} takes {self.signature}. Write {write}{', '.join(choices)}."
        if self.rest is not None:
            return "which is no position. Write that of the carry, such as carry=0."
        if self.takes_any:
            return f'but {step} takes {self.signature}. Write a name: carry="state".'
        return f"but {step} takes no arguments. A step takes its carry."


def _signature(step: Step) -> inspect.Signature:
    """The signature of a callable; of a wrapper its own, unless that passes arguments on.

    It does if it has `*args` or `**kwargs`, and what it names by position comes first in
    what it wraps.
    """
    inner = getattr(step, "__wrapped__", None)
    if inner is None or inspect.ismethod(step):
        return inspect.signature(step)
    is_shown = "__signature__" in getattr(step, "__dict__", ())
    is_object = callable(step) and not (inspect.isfunction(step) or inspect.isclass(step))
    if is_object and not is_shown:
        own = inspect.signature(step.__call__)
    else:
        own = inspect.signature(step, follow_wrapped=False)
    parameters = own.parameters.values()
    rest = {_Parameter.VAR_POSITIONAL, _Parameter.VAR_KEYWORD}
    if rest.isdisjoint(p.kind for p in parameters):
        return own
    passed = _signature(inner)
    names = [p.name for p in parameters if p.kind not in {*rest, _Parameter.KEYWORD_ONLY}]
    return passed if [*passed.parameters][: len(names)] == names else own


def places_of(
    owner: str, step: str, names: Names, carry: int | str | tuple[int | str, ...]
) -> tuple[Place, ...]:
    """The arguments of a step that `carry` names.

    Positions do not count a first parameter called `self` or `cls`, unless it is the only
    one: so the decorator works on a method, above or below `jit`.
    """
    asked = carry if isinstance(carry, tuple) else (carry,)
    is_number = lambda key: isinstance(key, int) and not isinstance(key, bool)
    if not asked or not all(isinstance(key, str) or is_number(key) for key in asked):
        raise TypeError(
            f"{owner} got carry={shown(carry)}. Write the position or the name of the "
            'argument that comes back, or a tuple of them: carry=0, carry="state", '
            'carry=("params", "opt_state").'
        )
    places = []
    for key in asked:
        place = names.place(key)
        if place is None:
            raise ValueError(f"{owner} got carry={key!r}, {names.remedy(step)}")
        places.append(place)
    labels = [place.label for place in places]
    if len(set(labels)) < len(labels):
        raise ValueError(
            f"{owner} got carry={shown(carry)}, which names an argument twice: "
            f"{', '.join(labels)}. Name each once."
        )
    return tuple(places)


def name_of_step(step: Step) -> str:
    """The name of a step in messages: its own, or that of its type."""
    inner = getattr(step, "func", step)  # of a partial function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__name__", type(inner).__name__)
    return "step" if name == "<lambda>" else name


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


def has_other_dtypes(before: PyTree, after: PyTree) -> bool:
    """Whether a leaf that has chosen its dtype has another one after a step."""
    old, new = (tree_util.tree_leaves(closed(tree)) for tree in (before, after))
    pairs = zip(old, new)
    return any(dtype_of(a) != dtype_of(b) for a, b in pairs if not is_weak(a))


def has_same_leaves(tree: PyTree, other: PyTree) -> bool:
    """Whether two trees of one structure hold the very same leaves."""
    leaves = map(tree_util.tree_leaves, (tree, other))
    return all(map(operator.is_, *leaves))


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
            return describe(self.result)
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
