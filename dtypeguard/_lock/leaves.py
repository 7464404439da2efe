"""The types of inputs, carry and outputs by path, grouped."""

import re
from collections.abc import Iterable, Mapping

from .._leaves.dtypes import is_weak
from .._leaves.types import Leaf

Types = dict[str, str]
_SEGMENT = re.compile(r"\[[^\]]*\]|\.[^.\[]+|[^.\[]+")
_NUMBER = re.compile(r"\d+")


def type_in_lock(leaf: Leaf) -> str:
    """The type of a leaf: `bfloat16`, `weak float32`."""
    return f"{'weak ' * is_weak(leaf)}{leaf.dtype}"


def folded(path: str) -> tuple[str, ...]:
    """The parts of a path, `params['layer_3'][0]` as `params`, `['layer_*']`, `[*]`."""
    first, *rest = _SEGMENT.findall(path) or [path]
    if first == "result" and rest:  # its items differ, and are few
        first, *rest = first + rest[0], *rest[1:]
    return (first, *(_NUMBER.sub("*", part) for part in rest))


def grouped(leaves: Iterable[tuple[str, str]]) -> Types:
    """Types by path: one line for all below a node that are alike."""
    types: dict[tuple[str, ...], set[str]] = {}
    for path, name in leaves:
        types.setdefault(folded(path), set()).add(name)
    found: Types = {}

    def visit(prefix: tuple[str, ...], below: Mapping[tuple[str, ...], set[str]]) -> None:
        names = {", ".join(sorted(each)) for each in below.values()}
        if prefix and (len(names) == 1 or tuple(below) == (prefix,)):
            found["".join(prefix)] = names.pop()
            return
        parts = dict.fromkeys(path[: len(prefix) + 1] for path in below)
        for part in parts:
            if part == prefix:  # a leaf beside longer paths
                found["".join(part)] = ", ".join(sorted(below[part]))
            else:
                size = len(part)
                visit(part, {p: t for p, t in below.items() if p[:size] == part})

    visit((), types)
    return found


def covering(types: Types, path: str) -> str | None:
    """The path in `types` that covers a leaf."""
    parts = folded(path)
    prefixes = ("".join(parts[:size]) for size in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in types), None)
