"""Casts as they are written in source, and what they lose."""

from collections.abc import Iterable

import jax.numpy as jnp

from .dtypes import bits, kind
from .key_path import joined
from .types import DType


def dtype_text(dtype: DType) -> str:
    """Returns a dtype as it is written in source."""
    if kind(dtype) == "bool":
        return "bool"
    return f"jnp.{dtype}"


def cast_text(dtype: DType, text: str = "x") -> str:
    """Returns a cast as it is written in source: `x.astype(jnp.float32)`."""
    return f"{text}.astype({dtype_text(dtype)})"


def return_as(dtype: DType, new_dtype: DType) -> str:
    """Returns the advice to return a leaf named x in its old dtype, and the loss."""
    kinds = (kind(new_dtype), kind(dtype))
    text = "x"
    if kinds == ("float", "int"):
        text = "jnp.round(x)"
    elif kinds[0] == "complex" and kinds[1] != "complex":
        text = "jnp.real(x)"
    cast = cast_text(dtype, text)
    return f"return {cast}{lost(new_dtype, dtype)}"


def lost(source: DType, target: DType) -> str:
    """Returns the loss of a cast, in brackets; empty if it only rounds a float."""
    source_kind = kind(source)
    target_kind = kind(target)
    loss = ""
    # What a float rounds is told once, for all casts of a message.
    if source_kind == "complex" and target_kind != "complex":
        loss = "the imaginary part is lost"
    elif source_kind != "bool" and target_kind == "bool":
        loss = "all but 0 becomes True"
    elif source_kind == "float" and target_kind == "int":
        loss = "the fraction is lost"
    elif source_kind == "int" and target_kind == "int":
        if not jnp.can_cast(source, target):
            loss = "numbers out of range wrap"
    elif source_kind == "int":
        # The leading bit of a mantissa is not stored, and a sign bit counts no further.
        exact_bits = jnp.finfo(target).nmant + 1
        if jnp.iinfo(source).bits - 1 > exact_bits:
            loss = f"integers beyond 2**{exact_bits} are rounded"
    if not loss:
        return ""
    return f" ({loss})"


def rounding_sentence(dtypes: Iterable[DType]) -> str:
    """Returns a line about casts to dtypes, of which some may round; empty if none does."""
    names = set()
    for dtype in dtypes:
        if 0 < bits(dtype) <= 16:
            names.add(str(dtype))
    if not names:
        return ""
    narrow = joined(sorted(names))
    measures = "dtypeguard.audit_precision measures what that loses."
    return f"A cast to {narrow} rounds: {measures}"
