"""The types of inputs, carry and outputs by path, grouped."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .._leaves.dtypes import is_weak
from .._leaves.groups import parts
from .._leaves.types import Aval

Types = dict[str, str]
_INDEX = re.compile(r"\[\d+\]")
_NUMBER = re.compile(r"\d+")


class _Leaf(NamedTuple):
    path: str
    name: str
    value: int
    made: int


class TypedLeaf(_Leaf):
    """A leaf of the inputs, the carry or the outputs.

    Attributes:
        path: its path.
        name: its type, `bfloat16` or `weak float32`; both where it changes.
        value: its number in the graph, of a leaf of the carry that of the input.
        made: of a leaf of the carry, the number of the output; else that of the value.
    """

    __slots__ = ()

    def __new__(cls, path: str, value: int, avals: Sequence[Aval]):
        """Reads the type of a value of the graph."""
        aval = avals[value]
        name = f"{'weak ' * is_weak(aval)}{aval.dtype}"
        return super().__new__(cls, path, name, value, value)

    def after(self, other: "TypedLeaf") -> "TypedLeaf":
        """The leaf of a carry that comes back as another one."""
        name = self.name if self.name == other.name else f"{self.name} -> {other.name}"
        return self._replace(name=name, made=other.made)


Parts = tuple[str, ...]


class Folding:
    """Folds the numbers in paths: `params['layer_3'][0]` is `params['layer_*'][*]`.

    Indices stay where no two of them hold the same, as in `(params, opt_state)`.

    Args:
        leaves: all leaves, by path and type.
    """

    def __init__(self, leaves: Iterable[tuple[str, str]]):
        self._kept: set[Parts] = set()
        below: dict[Parts, dict[str, set[Parts]]] = {}
        for path, name in leaves:
            raw = _split(path)
            for size in range(1, len(raw)):
                rest = tuple(_NUMBER.sub("*", part) for part in raw[size + 1 :])
                if _INDEX.fullmatch(raw[size]):
                    children = below.setdefault(raw[:size], {})
                    children.setdefault(raw[size], set()).add((*rest, name))
        for node, children in below.items():
            shapes = [frozenset(each) for each in children.values()]
            if len(shapes) > 1 and len(set(shapes)) == len(shapes):
                self._kept.update((*node, child) for child in children)

    def parts(self, path: str) -> Parts:
        """The parts of a path, folded."""
        raw = _split(path)
        return (
            raw[0],
            *(
                part if raw[: number + 2] in self._kept else _NUMBER.sub("*", part)
                for number, part in enumerate(raw[1:])
            ),
        )


def _split(path: str) -> Parts:
    first, *rest = parts(path) or [path]
    if first == "result" and rest:  # its items differ, and are few
        first, *rest = first + rest[0], *rest[1:]
    return (first, *rest)


def grouped(leaves: Iterable[tuple[str, str]]) -> Types:
    """Types by path: one line for all below a node that are alike."""
    leaves = list(leaves)
    folding = Folding(leaves)
    types: dict[Parts, set[str]] = {}
    for path, name in leaves:
        types.setdefault(folding.parts(path), set()).add(name)
    found: Types = {}

    def visit(prefix: Parts, below: Mapping[Parts, set[str]]) -> None:
        names = {", ".join(sorted(each)) for each in below.values()}
        if prefix and len(names) == 1:
            found["".join(prefix)] = names.pop()
            return
        size = len(prefix) + 1
        for part in dict.fromkeys(path[:size] for path in below):
            if part == prefix:  # a leaf beside longer paths
                found["".join(part)] = ", ".join(sorted(below[part]))
            else:
                visit(part, {p: t for p, t in below.items() if p[:size] == part})

    visit((), types)
    return found


def covering(types: Mapping[str, object], parts: Parts, path: str) -> str | None:
    """The path in `types` that covers a leaf, however that folded it."""
    raw = _split(path)
    for way in (parts, (raw[0], *(_NUMBER.sub("*", part) for part in raw[1:])), raw):
        for size in range(len(way), 0, -1):
            if "".join(way[:size]) in types:
                return "".join(way[:size])
    return None
