"""The types of inputs, carry and outputs by path: grouped, and looked up in a lock."""

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

from .._leaves.dtypes import is_weak
from .._leaves.paths import parts
from .._leaves.types import Aval

Types = dict[str, str]
_INDEX = re.compile(r"\[\d+\]")
_NUMBER = re.compile(r"\d+")


class TypedLeaf(NamedTuple):
    """A leaf of the inputs, the carry or the outputs.

    Attributes:
        path: its path.
        name: its type, `bfloat16` or `weak float32`; both where it changes.
        value: its number in the graph, of a leaf of the carry that of the input.
        made: of a leaf of the carry, the number of the output; else that of the value.
    """

    path: str
    name: str
    value: int
    made: int

    def after(self, other: "TypedLeaf") -> "TypedLeaf":
        """The leaf of a carry that comes back as another one."""
        name = self.name if self.name == other.name else f"{self.name} -> {other.name}"
        return self._replace(name=name, made=other.made)


def typed_leaf(path: str, value: int, aval: Aval) -> TypedLeaf:
    """A leaf, with the type of its value in the graph."""
    return TypedLeaf(path, f"{'weak ' * is_weak(aval)}{aval.dtype}", value, value)


_Rest = tuple[str, ...]  # of a path


def grouped(leaves: Iterable[TypedLeaf]) -> Types:
    """Types by path: one line for all below a node that are alike.

    Numbers are `*`: `params['layer_3'][0]` is `params['layer_*'][*]`. Indices stay where
    no two of them hold the same, as in `(params, opt_state)`.
    """
    found: Types = {}

    def visit(prefix: str, below: list[tuple[_Rest, str]]) -> None:
        names = {name for _, name in below}
        ending = {name for rest, name in below if not rest}
        if ending or (prefix and len(names) == 1):
            found[prefix] = ", ".join(sorted(ending or names))
        if prefix and len(names) == 1:
            return
        inside: dict[str, list[tuple[_Rest, str]]] = {}
        for rest, name in below:
            if rest:
                inside.setdefault(rest[0], []).append((rest[1:], name))
        shapes = [frozenset((_folded(r), name) for r, name in x) for x in inside.values()]
        is_kept = len(inside) > 1 and len({*shapes}) == len(shapes)
        merged: dict[str, list[tuple[_Rest, str]]] = {}
        for part, children in inside.items():
            is_same = not prefix or (is_kept and _INDEX.fullmatch(part))
            merged.setdefault(part if is_same else fold(part), []).extend(children)
        for part, children in merged.items():
            visit(prefix + part, children)

    visit("", [(_split(leaf.path), leaf.name) for leaf in leaves])
    return found


def fold(path: str) -> str:
    """A path, or a part of one, with `*` for numbers."""
    return _NUMBER.sub("*", path)


def _folded(rest: _Rest) -> _Rest:
    return tuple(map(fold, rest))


def _split(path: str) -> _Rest:
    first, *rest = parts(path) or [path]
    if first == "result" and rest:  # its items differ, and are few
        first, *rest = first + rest[0], *rest[1:]
    return (first, *rest)


def covering(types: Iterable[str], path: str) -> tuple[str, str]:
    """The path in a lock that covers a leaf, and the rest of the leaf's; "" for none."""
    raw = _split(path)
    for size in range(len(raw), 0, -1):
        head = "".join(raw[:size])
        if fit := [each for each in types if _pattern(each).fullmatch(head)]:
            return min(fit, key=lambda each: each.count("*")), "".join(raw[size:])
    return "", path


@functools.lru_cache(10_000)
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.escape(path).replace(r"\*", r"(\d+|\*)"))
