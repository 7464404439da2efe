"""Entries of a plan, and the text that a plan is read from, which an editor may change."""

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

PRODUCTS, ALL = DEFAULTS = "products", "all"
VERSION = 1
NUMBERS = "tolerance", "error", "held_out", "share", "loss_scale"
_NARROW = "bfloat16", "float16"
_DTYPES = "float32", *_NARROW
_KEYS = {"version", "narrow", "default", "measured", "entries", "scope", *NUMBERS}
_FLOAT32 = np.dtype("float32")


class PlanError(ValueError):
    """A plan that cannot be used; the message says what to type."""


@dataclasses.dataclass(frozen=True)
class PlanEntry:
    """A function, or an expression of it, that computes in a dtype of its own.

    Its figures are for a reader: a file has them as comments, which are not read again.

    Attributes:
        place: the file, relative to the root of its project, and the qualified name of the
            function: `"model.py:Attention.__call__"`.
        expression: the text of one expression; None for all of the function.
        scope: of `jax.named_scope`, if only what is computed in that is meant.
        dtype: what it computes in.
        error: the error of the program without the entry, as measured.
        share: of the multiply-adds of the program, the part that it makes wide.
    """

    place: str
    expression: str | None = None
    scope: str | None = None
    dtype: np.dtype = _FLOAT32
    error: float | None = dataclasses.field(default=None, compare=False)
    share: float | None = dataclasses.field(default=None, compare=False)

    @property
    def key(self) -> str:
        """The function and the expression as a plan names them."""
        return self.place if self.expression is None else f"{self.place}: {self.expression}"

    def __str__(self) -> str:
        return f"{self.key}{f' in scope {self.scope}' if self.scope else ''}"

    def lines(self) -> list[str]:
        """The entry as TOML, with its figures as a comment."""
        figures = {
            "without it {} off": self.error,
            "makes {} of the multiply-adds wide": self.share,
        }
        known = {text: x for text, x in figures.items() if x is not None}
        parts = [text.format(f"{100 * x:.3g}%") for text, x in known.items()]
        above = [f"# {', '.join(parts)}"] if parts else []
        return [*above, f"{quoted(self.key)} = {quoted(str(self.dtype))}"]


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def fields_of(text: str, name: str) -> dict[str, Any]:
    """The fields of the plan in a text.

    Raises:
        ValueError: if it is none; says what to write.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{name} is no TOML: {error}.") from None
    entries = [*_entries(name, data)]
    version = data.get("version")
    if version != VERSION:
        raise PlanError(
            f"{name} has version {version!r}, and this dtypeguard reads version "
            f"{VERSION}. Write the plan anew with `dtypeguard precision --out`."
        )
    if unknown := sorted(data.keys() - _KEYS):
        raise PlanError(
            f"{name} has {unknown[0]!r}, which is no part of a plan. Entries stand under "
            f"[entries] or [scope.NAME]; the other keys are {', '.join(sorted(_KEYS))}."
        )
    figures = {key: data.get(key) for key in NUMBERS}
    for key, value in figures.items():
        if value is not None and not (type(value) in (int, float) and value >= 0):
            raise PlanError(
                f"{name} has {key} = {value!r}. Write a number from 0 on, or nothing."
            )
    default = data.get("default", PRODUCTS)
    return {
        "narrow": jnp.dtype(_one_of(name, "narrow", data.get("narrow"), _NARROW)),
        "default": _one_of(name, "default", default, DEFAULTS),
        "entries": (*entries,),
        "measured": str(data.get("measured", "")),
        **figures,
    }


def _entries(name: str, data: Mapping[str, Any]) -> Iterator[PlanEntry]:
    """The entries of all tables."""
    scopes = data.get("scope", {})
    if not isinstance(scopes, Mapping):
        raise PlanError(f"{name} has scope = {scopes!r}. Write a table: [scope.NAME].")
    for scope, entries in ((None, data.get("entries", {})), *scopes.items()):
        title = "[entries]" if scope is None else f"[scope.{quoted(scope)}]"
        if not isinstance(entries, Mapping) or (scope is not None and not scope.strip()):
            raise PlanError(
                f"{name} has {title}, which is no table of entries with a name. Write "
                "[entries], or [scope.NAME] with the name of a jax.named_scope, and "
                "entries below it."
            )
        yield from entries_of(name, entries, scope)


def entries_of(
    name: str, given: Mapping[str, Any], scope: str | None = None
) -> Iterator[PlanEntry]:
    """Entries by the function, or the expression, that each is for.

    Raises:
        ValueError: if a name or a dtype is none.
    """
    for key, value in given.items():
        dtype = jnp.dtype(_one_of(name, quoted(key), value, _DTYPES))
        file, _, rest = key.partition(":")
        function, _, expression = (x.strip() for x in rest.partition(":"))
        if not all(x.strip("<>").isidentifier() for x in function.split(".")):
            raise PlanError(
                f"{name} has the entry {quoted(key)}. Write a function of a file, "
                '"model.py:norm", or an expression of it, "model.py:norm: x / y".'
            )
        yield PlanEntry(f"{file}:{function}", expression or None, scope, dtype)


def _one_of(name: str, key: str, value: object, allowed: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise PlanError(f"{name} has {key} = {value!r}. Write one of {', '.join(allowed)}.")
    return value
