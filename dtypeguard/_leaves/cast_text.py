"""Casts as they are written in source, and what they lose."""

from collections.abc import Iterable

import jax.numpy as jnp

from .dtypes import bits, kind
from .key_path import joined
from .types import DType


def dtype_text(dtype: DType) -> str:
    """Returns a dtype as it is written in source."""
    return "bool" if kind(dtype) == "bool" else f"jnp.{dtype}"


def cast_text(dtype: DType, text: str = "x") -> str:
    """Returns a cast as it is written in source: `x.astype(jnp.float32)`."""
    return f"{text}.astype({dtype_text(dtype)})"


def return_as(dtype: DType, new_dtype: DType) -> str:
    """Returns the advice to return a leaf named x in its old dtype, and the loss."""
    text = "x"
    if kind(new_dtype) == "complex" and kind(dtype) != "complex":
        text = "jnp.real(x)"
    elif kind(new_dtype) == "float" and kind(dtype) == "int":
        text = "jnp.round(x)"
    return f"return {cast_text(dtype, text)}{lost(new_dtype, dtype)}"


def lost(source: DType, target: DType) -> str:
    """Returns the loss of a cast, in brackets; empty if it only rounds a float."""
    loss = _loss_of_cast(kind(source), kind(target), source, target)
    return f" ({loss})" if loss else ""


def _loss_of_cast(
    source_kind: str | None, target_kind: str | None, source: DType, target: DType
) -> str:
    if source_kind == "complex" and target_kind == "int":
        return "the imaginary part and the fraction are lost"
    if source_kind == "complex" and target_kind != "complex":
        return "the imaginary part is lost"
    if target_kind == "bool":
        return "" if source_kind == "bool" else "all but 0 becomes True"
    if source_kind == "float" and target_kind == "int":
        return "the fraction is lost"
    if source_kind == "int" and target_kind == "int":
        has_range = jnp.can_cast(source, target)
        return "" if has_range else "numbers out of range wrap"
    if source_kind == "int" and target_kind in ("float", "complex"):
        exact_bits = jnp.finfo(target).nmant + 1
        is_exact = jnp.iinfo(source).bits - 1 <= exact_bits
        return "" if is_exact else f"integers beyond 2**{exact_bits} are rounded"
    return ""


def rounding_sentence(dtypes: Iterable[DType]) -> str:
    """Returns a line about casts to dtypes, of which some may round; empty if none does."""
    names: list[str] = []
    for dtype in dtypes:
        if kind(dtype) == "float" and bits(dtype) <= 16 and str(dtype) not in names:
            names.append(str(dtype))
    if not names:
        return ""
    return (
        f"A cast to {joined(names)} rounds: dtypeguard.audit_precision measures what that "
        "loses."
    )
