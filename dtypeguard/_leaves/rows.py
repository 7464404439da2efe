"""Leaves by path, and the lines of a message that describe them."""

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import tree_util

from .dtypes import kind
from .types import DType, Leaf, PyTree


def paths(tree: PyTree) -> list[str]:
    """The path of every leaf of a tree as `jax.tree_util.keystr` prints it."""
    return [tree_util.keystr(path) for path, _ in tree_util.tree_flatten_with_path(tree)[0]]


def by_path(tree: PyTree) -> dict[str, Leaf]:
    """The leaves of a tree, by path."""
    pairs = tree_util.tree_flatten_with_path(tree)[0]
    return {tree_util.keystr(path): leaf for path, leaf in pairs}


def count(rows: Sequence[object]) -> str:
    """`1 leaf`, `2 leaves`."""
    return "1 leaf" if len(rows) == 1 else f"{len(rows)} leaves"


def dtype_text(dtype: DType) -> str:
    """A dtype as it is written in source."""
    return "bool" if str(dtype) == "bool" else f"jnp.{dtype}"


def cast_text(dtype: DType, text: str = "x") -> str:
    """A cast as it is written in source: `x.astype(jnp.float32)`."""
    return f"{text}.astype({dtype_text(dtype)})"


def return_as(dtype: DType, new_dtype: DType) -> str:
    """What to write for a leaf named x, to return it as it was, and what that loses."""
    was, kinds = kind(dtype), (kind(dtype), kind(new_dtype))
    text = "jnp.real(x)" if kinds[1] == "complex" and was != "complex" else "x"
    text = "jnp.round(x)" if kinds == ("int", "float") else text
    return f"return {cast_text(dtype, text)}{lost(new_dtype, dtype)}"


def lost(source: DType, target: DType) -> str:
    """What a cast loses, in brackets, but for what a float rounds; empty if nothing."""
    kinds = kind(source), kind(target)
    is_whole = kinds[1] == "int"
    if kinds == ("int", "int"):
        (low, high), (least, most) = (
            (i.min, i.max) for i in map(jnp.iinfo, (source, target))
        )
        return " (numbers out of range wrap)" * (low < least or high > most)
    if kinds[0] == "int" and kinds[1] in ("float", "complex"):
        exact = jnp.finfo(target).nmant + 1
        is_wider = jnp.iinfo(source).bits - 1 > exact
        return f" (integers beyond 2**{exact} are rounded)" * is_wider
    if kinds[0] == "complex" and kinds[1] != "complex":
        return f" (the imaginary part{' and the fraction are' * is_whole or ' is'} lost)"
    if kinds[0] != "bool" and kinds[1] == "bool":
        return " (all but 0 becomes True)"
    return " (the fraction is lost)" * (kinds == ("float", "int"))


_NARROW = re.compile(r"bfloat16|float(16|[4-8]_\w+)")


def rounding(types: Iterable[str]) -> str:
    """A line about casts to these types, of which some may round; empty if none does."""
    names = dict.fromkeys(match[0] for match in map(_NARROW.match, types) if match)
    measures = "rounds: dtypeguard.audit_precision measures what that loses."
    return f"A cast to {' and '.join(names)} {measures}" if names else ""


def shown_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, except those that its `repr` leaves out."""
    names = (field.name for field in dataclasses.fields(value) if field.repr)
    return {name: getattr(value, name) for name in names}


def percent(value: float) -> str:
    """A share of 1 with two digits, as reports print it."""
    if math.isinf(value):
        return "inf"
    text = f"{100 * value:.0f}%" if value >= 0.1 else f"{100 * value:.2g}%"
    return "0%" if text == "-0%" else text
