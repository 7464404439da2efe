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


# By the kinds of both dtypes. What a float rounds is told once, for all casts of a message.
_LOSSES = {
    ("complex", "int"): "the imaginary part and the fraction are lost",
    ("complex", "float"): "the imaginary part is lost",
    ("complex", "bool"): "the imaginary part is lost",
    ("float", "int"): "the fraction is lost",
    ("float", "bool"): "all but 0 becomes True",
    ("int", "bool"): "all but 0 becomes True",
}


def lost(source: DType, target: DType) -> str:
    """Returns the loss of a cast, in brackets; empty if it only rounds a float."""
    if kind(source) == "int":
        loss = _loss_of_int(source, target)
    else:
        loss = _LOSSES.get((kind(source) or "", kind(target) or ""))
    return f" ({loss})" if loss else ""


def _loss_of_int(source: DType, target: DType) -> str | None:
    if kind(target) == "int":
        has_range = jnp.can_cast(source, target)
        return None if has_range else "numbers out of range wrap"
    if kind(target) in ("float", "complex"):
        # The leading bit of a mantissa is not stored.
        exact_bits = jnp.finfo(target).nmant + 1
        sign_bits = 1
        if jnp.iinfo(source).bits - sign_bits > exact_bits:
            return f"integers beyond 2**{exact_bits} are rounded"
        return None
    return _LOSSES.get(("int", kind(target) or ""))


def rounding_sentence(dtypes: Iterable[DType]) -> str:
    """Returns a line about casts to dtypes, of which some may round; empty if none does."""
    # A dict: each name once, in the order in which they come.
    narrow_names = {str(dtype): None for dtype in dtypes if 0 < bits(dtype) <= 16}
    if not narrow_names:
        return ""
    names = joined(list(narrow_names))
    measures = "dtypeguard.audit_precision measures what that loses."
    return f"A cast to {names} rounds: {measures}"
