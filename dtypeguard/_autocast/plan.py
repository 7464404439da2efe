"""A plan: which work of a program is narrow, and what computes in another dtype."""

import dataclasses
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._leaves.arguments import shown
from .._leaves.dtypes import kind
from .._leaves.public import public
from .._leaves.types import DType

PRODUCTS, FLOW, ALL = DEFAULTS = "products", "flow", "all"
_VERSION = 1
_NARROW = "bfloat16", "float16"
_DTYPES = "float32", "float64", *_NARROW
_NUMBERS = "tolerance", "error", "held_out", "share", "loss_scale"
_KEYS = {"narrow", "default", "measured", "entries", "scope", *_NUMBERS}
_FIGURES = {
    "error": "without it {} off",
    "held_out": "on held-out inputs {}",
    "share": "makes {} of the multiply-adds wide",
}
_PERCENT = r"(-?[\d.e+-]+)%"


class PlanError(ValueError):
    """A plan that cannot be used; the message says what to type."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A function, or an expression of it, that computes in a dtype of its own.

    Attributes:
        place: the file, relative to the root of its project, and the qualified name of the
            function: `"model.py:Attention.__call__"`.
        expression: the text of one expression; None for all of the function.
        scope: of `jax.named_scope`, if only what is computed in that is meant.
        dtype: what it computes in.
        error: the error of the program without the entry, as measured.
        held_out: the same on inputs that the search had not seen.
        share: of the multiply-adds of the program, the part that it makes wide.
    """

    place: str
    expression: str | None = None
    scope: str | None = None
    dtype: np.dtype = dataclasses.field(default_factory=lambda: np.dtype("float32"))
    error: float | None = None
    held_out: float | None = None
    share: float | None = None

    @property
    def key(self) -> str:
        """The function and the expression as a plan names them."""
        return self.place if self.expression is None else f"{self.place}: {self.expression}"

    def __str__(self) -> str:
        return f"{self.key}{f' in scope {self.scope}' if self.scope else ''}"


@public
@dataclasses.dataclass(frozen=True)
class Plan:
    """Which work of a program is narrow, and which lines compute in another dtype.

    A plan is text that a review reads: `save` writes it as TOML, and `load` reads it.

    Attributes:
        narrow: the dtype of what is narrow: bfloat16 or float16.
        default: what is narrow where no entry says more. "products": matrix products and
            convolutions, and all else is as written. "flow": what stands between such
            products as well. "all": all floating values.
        entries: the functions and expressions with a dtype of their own.
        loss_scale: what to multiply the loss by where gradients leave the range of
            float16; None if nothing has to.
        error: how far the program by this plan was off, as measured.
        held_out: the same on inputs that the search had not seen.
        tolerance: the error that was allowed.
        share: the part of the multiply-adds that is narrow.
        measured: what was measured: "grad(autocast(loss))" or "autocast(step)".
    """

    narrow: np.dtype
    default: str = PRODUCTS
    entries: tuple[Entry, ...] = ()
    loss_scale: float | None = None
    error: float | None = None
    held_out: float | None = None
    tolerance: float | None = None
    share: float | None = None
    measured: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "narrow", narrow_dtype(self.narrow))
        if self.default not in DEFAULTS:
            raise PlanError(
                f"Plan got default={self.default!r}. Write one of {', '.join(DEFAULTS)}."
            )

    @classmethod
    def of(cls, dtype: DType) -> "Plan":
        """The plan without a measurement: products in a dtype, all else as written.

        Raises:
            TypeError: if it is no floating dtype of at most 32 bits.
        """
        return cls(dtype)

    def text(self) -> str:
        """The plan as TOML."""
        figures = {name: getattr(self, name) for name in _NUMBERS}
        lines = [
            "# What computes in which dtype, for dtypeguard.autocast. A key is a function "
            "of a file,",
            "# or one expression in it. Figures are those of the measurement.",
            f"version = {_VERSION}",
            f"narrow = {_quoted(str(self.narrow))}",
            f"default = {_quoted(self.default)}",
            *([f"measured = {_quoted(self.measured)}"] if self.measured else []),
            *(f"{name} = {x:.4g}" for name, x in figures.items() if x is not None),
        ]
        entries = sorted(self.entries, key=lambda each: each.scope or "")
        for scope, group in groupby(entries, key=lambda each: each.scope):
            lines += ["", f"[scope.{_quoted(scope)}]" if scope else "[entries]"]
            for entry in group:
                lines += _comment(entry)
                lines.append(f"{_quoted(entry.key)} = {_quoted(str(entry.dtype))}")
        return "\n".join([*lines, ""])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a file."""
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(self.text())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Reads a plan from a file.

        Raises:
            ValueError: if there is none, or it is of another version or damaged.
        """
        name = os.fspath(path)
        try:
            with open(name, encoding="utf-8-sig") as file:
                text = file.read()
        except FileNotFoundError:
            raise PlanError(
                f"{name} does not exist. `dtypeguard plan FILE.py:FUNCTION --out {name}` "
                "writes a plan, and so does report.plan.save."
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"{name} cannot be read: {error}.") from None
        return parsed(text, name)


def parsed(text: str, name: str) -> Plan:
    """The plan in a text.

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
    version = data.pop("version", None)
    if version != _VERSION:
        raise PlanError(
            f"{name} has version {version!r}, and this dtypeguard reads version "
            f"{_VERSION}. Write the plan anew with `dtypeguard plan`."
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
    return Plan(
        narrow=_read_dtype(name, "narrow", data.get("narrow"), _NARROW),
        default=default,
        entries=(*_entries(name, data, _comments(text)),),
        measured=str(data.get("measured", "")),
        **{key: _number(name, key, data.get(key)) for key in _NUMBERS},
    )


def _number(name: str, key: str, value: object) -> float | None:
    if value is not None and type(value) not in (int, float):
        raise PlanError(f"{name} has {key} = {value!r}. Write a number, or nothing.")
    return value  # pyright: ignore[reportReturnType]: as was checked


def _entries(
    name: str, data: Mapping[str, Any], figures: Mapping[tuple[str | None, str], Any]
) -> Iterator[Entry]:
    scopes = data.get("scope", {})
    if not isinstance(scopes, Mapping):
        raise PlanError(f"{name} has scope = {scopes!r}. Write a table: [scope.NAME].")
    tables = {None: data.get("entries", {}), **scopes}
    for scope, table in tables.items():
        if not isinstance(table, Mapping):
            right = "[entries]" if scope is None else "[scope.NAME], and entries below it"
            raise PlanError(f"{name}: {scope or 'entries'} is no table. Write {right}.")
        for key, value in table.items():
            dtype = _read_dtype(name, _quoted(key), value, _DTYPES)
            file, _, rest = key.partition(":")
            function, _, expression = rest.partition(": ")
            if not function:
                raise PlanError(
                    f"{name} has the entry {_quoted(key)}. Write a function of a file, "
                    '"model.py:norm", or an expression of it, "model.py:norm: x / y".'
                )
            place, about = f"{file}:{function.strip()}", figures.get((scope, key), {})
            yield Entry(place, expression.strip() or None, scope, dtype, **about)


def _read_dtype(name: str, key: str, value: object, allowed: Sequence[str]) -> np.dtype:
    if not isinstance(value, str) or value not in allowed:
        raise PlanError(f"{name} has {key} = {value!r}. Write one of {', '.join(allowed)}.")
    return jnp.dtype(value)


def _comment(entry: Entry) -> list[str]:
    known = {key: getattr(entry, key) for key in _FIGURES}
    parts = [
        _FIGURES[key].format(f"{100 * x:.3g}%") for key, x in known.items() if x is not None
    ]
    return [f"# {', '.join(parts)}"] if parts else []


def _comments(text: str) -> dict[tuple[str | None, str], dict[str, float]]:
    """The figures that stand above entries, by scope and key."""
    found: dict[tuple[str | None, str], dict[str, float]] = {}
    patterns = {key: re.escape(x).replace(r"\{\}", _PERCENT) for key, x in _FIGURES.items()}
    scope, above = None, ""
    for line in text.splitlines():
        try:
            table = tomllib.loads(line)
        except tomllib.TOMLDecodeError:  # a part of a text of several lines
            continue
        if line.startswith("["):
            scope = next(iter(table.get("scope", {})), None)
        elif line.startswith('"'):
            key = next(iter(table))
            hits = {name: re.search(x, above) for name, x in patterns.items()}
            numbers = {name: float(x[1]) / 100 for name, x in hits.items() if x}
            found[scope, key] = numbers
        above = line if line.startswith("#") else ""
    return found


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def narrow_dtype(dtype: DType) -> np.dtype:
    """A dtype for what is narrow, checked.

    Raises:
        TypeError: if it is no floating dtype, or not a narrow one.
    """
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or kind(found) != "float" or found.itemsize != 2:
        raise TypeError(
            f"autocast got {shown(dtype)}, which is no narrow floating dtype. Write "
            "jnp.bfloat16, jnp.float16, a dtypeguard.Plan or the path of one."
        )
    return found
