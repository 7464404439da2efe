"""Casts as they are written in source, and what they lose."""

from collections.abc import Iterable, Mapping

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
    return f"return {cast_text(dtype, text)}{lost(new_dtype, dtype)}"


# By the kinds of both dtypes. What a float rounds is told once, for all casts of a message.
_LOSSES: Mapping[object, str] = {
    ("complex", "int"): "the imaginary part and the fraction are lost",
    ("complex", "float"): "the imaginary part is lost",
    ("complex", "bool"): "the imaginary part is lost",
    ("float", "int"): "the fraction is lost",
    ("float", "bool"): "all but 0 becomes True",
    ("int", "bool"): "all but 0 becomes True",
}


def lost(source: DType, target: DType) -> str:
    """Returns the loss of a cast, in brackets; empty if it only rounds a float."""
    loss = _LOSSES.get((kind(source), kind(target)))
    if kind(source) == "int" and loss is None:
        loss = _loss_of_int(source, target)
    if loss is None:
        return ""
    return f" ({loss})"


def _loss_of_int(source: DType, target: DType) -> str | None:
    if kind(target) == "int":
        if not jnp.can_cast(source, target):
            return "numbers out of range wrap"
    elif kind(target) in ("float", "complex"):
        # The leading bit of a mantissa is not stored.
        exact_bits = jnp.finfo(target).nmant + 1
        sign_bits = 1
        number_bits = jnp.iinfo(source).bits - sign_bits
        if number_bits > exact_bits:
            return f"integers beyond 2**{exact_bits} are rounded"
    return None


def rounding_sentence(dtypes: Iterable[DType]) -> str:
    """Returns a line about casts to dtypes, of which some may round; empty if none does."""
    names = []
    for dtype in dtypes:
        if 0 < bits(dtype) <= 16 and str(dtype) not in names:
            names.append(str(dtype))
    if not names:
        return ""
    measures = "dtypeguard.audit_precision measures what that loses."
    return f"A cast to {joined(names)} rounds: {measures}"
