"""Reads the text of a plan, which an editor may have changed."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .entries import DEFAULTS, PRODUCTS, VERSION, PlanEntry, PlanError, quoted

_NARROW = "bfloat16", "float16"
_DTYPES = "float32", *_NARROW
NUMBERS = "tolerance", "error", "held_out", "share", "loss_scale"
_KEYS = {"narrow", "default", "measured", "entries", "scope", *NUMBERS}


def fields_of(text: str, name: str) -> dict[str, Any]:
    """The fields of the plan in a text.

    Args:
        text: TOML.
        name: of its file, for messages.

    Raises:
        ValueError: if it is none; says what to write.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{name} is no TOML: {error}.") from None
    tables = _tables(name, data)
    version = data.pop("version", None)
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
    default = data.get("default", PRODUCTS)
    if default not in DEFAULTS:
        raise PlanError(
            f"{name} has default = {default!r}. Write one of {', '.join(DEFAULTS)}."
        )
    return {
        "narrow": _read_dtype(name, "narrow", data.get("narrow"), _NARROW),
        "default": default,
        "entries": (*_entries(name, tables),),
        "measured": str(data.get("measured", "")),
        **{key: _number(name, key, data.get(key)) for key in NUMBERS},
    }


def _number(name: str, key: str, value: object) -> float | None:
    if value is None or (type(value) in (int, float) and value >= 0):  # pyright: ignore[reportOperatorIssue]: a number
        return value  # pyright: ignore[reportReturnType]: as was checked
    raise PlanError(f"{name} has {key} = {value!r}. Write a number from 0 on, or nothing.")


class _Table(NamedTuple):
    """Entries of a text.

    Attributes:
        title: what stands above them.
        scope: their scope, or None.
        entries: what each key has.
    """

    title: str
    scope: str | None
    entries: Mapping[str, Any]


def _tables(name: str, data: Mapping[str, Any]) -> list[_Table]:
    """The tables of entries, of which an editor may have made others."""
    scopes = data.get("scope", {})
    if not isinstance(scopes, Mapping):
        raise PlanError(f"{name} has scope = {scopes!r}. Write a table: [scope.NAME].")
    of_scopes = [_Table(f"[scope.{quoted(key)}]", key, x) for key, x in scopes.items()]
    tables = [_Table("[entries]", None, data.get("entries", {})), *of_scopes]
    for title, scope, entries in tables:
        if not isinstance(entries, Mapping):
            right = "[entries]" if scope is None else "[scope.NAME], and entries below it"
            raise PlanError(f"{name}: {scope or 'entries'} is no table. Write {right}.")
        if scope is not None and not scope.strip():
            raise PlanError(
                f"{name} has {title}, a scope without a name. Write [entries] for all "
                "scopes, or the name of a jax.named_scope."
            )
        for key in (key for key in entries if key == "version" or key in _KEYS):
            raise PlanError(
                f"{name} has {key} below {title}, where it is an entry. Write it above "
                "[entries] and all scopes."
            )
        for key in (key for key, x in entries.items() if isinstance(x, Mapping)):
            right = f"[scope.{quoted(key if scope is None else f'{scope}.{key}')}]"
            raise PlanError(
                f"{name} has a table {quoted(key)} below {title}. Quote a name with dots: "
                f"{right}."
            )
    return tables


def _entries(name: str, tables: Sequence[_Table]) -> Iterator[PlanEntry]:
    for table in tables:
        yield from entries_of(name, table.entries, table.scope)


def entries_of(
    name: str, given: Mapping[str, Any], scope: str | None = None
) -> Iterator[PlanEntry]:
    """Entries by the function, or the expression, that each is for.

    Args:
        name: of what has them, for messages.
        given: their dtypes.
        scope: the `jax.named_scope` that they are for; None for all.

    Raises:
        ValueError: if a name or a dtype is none.
    """
    for key, value in given.items():
        dtype = _read_dtype(name, quoted(key), value, _DTYPES)
        file, _, rest = key.partition(":")
        function, _, expression = (x.strip() for x in rest.partition(":"))
        if not all(x.strip("<>").isidentifier() for x in function.split(".")):
            raise PlanError(
                f"{name} has the entry {quoted(key)}. Write a function of a file, "
                '"model.py:norm", or an expression of it, "model.py:norm: x / y".'
            )
        yield PlanEntry(f"{file}:{function}", expression or None, scope, dtype)


def _read_dtype(name: str, key: str, value: object, allowed: Sequence[str]) -> np.dtype:
    if not isinstance(value, str) or value not in allowed:
        raise PlanError(f"{name} has {key} = {value!r}. Write one of {', '.join(allowed)}.")
    return jnp.dtype(value)
