"""A plan: which work of a program is narrow, and what computes in another dtype.

The text that a plan is read from may have been changed by an editor.
"""

import dataclasses
import math
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._leaves.arguments import shown
from .._leaves.toml import quoted, toml_line
from .._leaves.types import public

PRODUCTS, ALL = DEFAULTS = "products", "all"
_VERSION = 1
_MEASURED = "error", "held_out"  # which may be infinite
_NUMBER_KEYS = "tolerance", *_MEASURED, "share", "loss_scale"
NARROW = "bfloat16", "float16"
_PLAN_DTYPES = "float32", *NARROW
_KEYS = {"version", "narrow", "default", "measured", "entries", "scope", *_NUMBER_KEYS}
_WIDE_DTYPE = np.dtype("float32")


class PlanError(ValueError):
    """A plan that cannot be used; the message says what to type."""


@dataclasses.dataclass(frozen=True)
class PlanEntry:
    """A function, or an expression of it, that computes in a dtype of its own.

    Its figures are for a reader: a file has them as comments, which are not read again.

    Attributes:
        place: the file, from the working directory or by its name, and the qualified name
            of the function: `"model.py:Attention.__call__"`.
        expression: the text of one expression; None for all of the function.
        scope: of `jax.named_scope`, if only what is computed in that is meant.
        dtype: what it computes in.
        error: the error of the program without the entry, as measured.
        share: of the multiply-adds of the program, the part that it makes wide.
    """

    place: str
    expression: str | None = None
    scope: str | None = None
    dtype: np.dtype = _WIDE_DTYPE
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
        texts = "without it {:.3g}% off", "makes {:.3g}% of the multiply-adds wide"
        pairs = zip(texts, (self.error, self.share))
        parts = [text.format(100 * x) for text, x in pairs if x is not None]
        above = [f"# {', '.join(parts)}"] if parts else []
        return [*above, f"{quoted(self.key)} = {quoted(str(self.dtype))}"]


@public
@dataclasses.dataclass(frozen=True)
class Plan:
    """Which work of a program is narrow, and which lines compute in another dtype.

    A plan is text that a review reads: `save` writes it as TOML, and `load` reads it.

    Attributes:
        narrow: the dtype of what is narrow: bfloat16 or float16.
        default: what is narrow where no entry says more. "products": matrix products and
            convolutions, and all else is as written. "all": all floating values.
        entries: the functions and expressions with a dtype of their own.
        loss_scale: what to multiply the loss by where gradients leave the range of
            float16; None if nothing has to.
        error: how far the program by this plan was off, as measured.
        held_out: the same on inputs that the search had not seen.
        tolerance: the error that was allowed.
        share: the part of the multiply-adds that is narrow.
        measured: what was measured, such as "autocast(step), with the gradient inside".
    """

    narrow: np.dtype
    default: str = PRODUCTS
    entries: tuple[PlanEntry, ...] = ()
    loss_scale: float | None = None
    error: float | None = dataclasses.field(default=None, compare=False)
    held_out: float | None = dataclasses.field(default=None, compare=False)
    tolerance: float | None = None
    share: float | None = dataclasses.field(default=None, compare=False)
    measured: str = ""

    def __post_init__(self) -> None:
        try:
            narrow = str(jnp.dtype(self.narrow))
        except TypeError:
            narrow = ""
        if narrow not in NARROW:
            raise TypeError(
                f"autocast got {shown(self.narrow)}, which is no narrow floating dtype. "
                "Write jnp.bfloat16, jnp.float16, a dtypeguard.Plan or the path of one."
            )
        object.__setattr__(self, "narrow", jnp.dtype(narrow))
        if self.default not in DEFAULTS:
            raise PlanError(
                f"Plan got default={self.default!r}. Write one of {', '.join(DEFAULTS)}."
            )

    def text(self) -> str:
        """The plan as TOML."""
        figures = {name: getattr(self, name) for name in _NUMBER_KEYS}
        # A loss is multiplied by the scale as it stands.
        form = lambda name, x: float(x) if name == "loss_scale" else f"{x:.4g}"
        by_scope = sorted(self.entries, key=lambda each: each.scope or "")
        lines = [
            "# What computes in which dtype, for dtypeguard.autocast. A key is a function "
            "of a file,",
            "# or one expression in it. Figures are those of the measurement.",
            f"version = {_VERSION}",
            toml_line("narrow", str(self.narrow)),
            toml_line("default", self.default),
            *([toml_line("measured", self.measured)] if self.measured else []),
            *(f"{n} = {form(n, x)}" for n, x in figures.items() if x is not None),
        ]
        for scope, group in groupby(by_scope, key=lambda each: each.scope):
            lines += ["", f"[scope.{quoted(scope)}]" if scope else "[entries]"]
            for entry in group:
                lines += entry.lines()
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
                data = tomllib.loads(file.read())
        except FileNotFoundError:
            raise PlanError(
                f"{name} does not exist. `dtypeguard precision FILE.py:FUNCTION --out "
                f"{name}` writes a plan; the dtypes of autocast are bfloat16 and float16."
            ) from None
        except (OSError, ValueError) as error:
            raise PlanError(f"{name} is no plan that can be read: {error}.") from None
        return cls(**_plan_fields(name, data))


def _plan_fields(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """The fields of a plan.

    Raises:
        ValueError: if it is none; says what to write.
    """
    if (version := data.get("version")) != _VERSION:
        raise PlanError(
            f"{name} has version {version!r}, and this dtypeguard reads version "
            f"{_VERSION}. Write the plan anew with `dtypeguard precision --out`."
        )
    if unknown := sorted(data.keys() - _KEYS):
        raise PlanError(
            f"{name} has {unknown[0]!r}, which is no part of a plan. Entries stand under "
            f"[entries] or [scope.NAME]; the other keys are {', '.join(sorted(_KEYS))}."
        )
    return {
        "narrow": _one_of(name, "narrow", data.get("narrow"), NARROW),
        "default": _one_of(name, "default", data.get("default", PRODUCTS), DEFAULTS),
        "entries": (*_all_entries(name, data),),
        "measured": str(data.get("measured", "")),
        **{key: _figure(name, key, data[key]) for key in _NUMBER_KEYS if key in data},
    }


def _figure(name: str, key: str, value: Any) -> float:
    is_number = type(value) in (int, float)  # in Python, true is a number as well
    may_be = math.inf if key in _MEASURED else None
    if not is_number or not (value == may_be or 0 <= value <= sys.float_info.max):
        raise PlanError(
            f"{name} has {key} = {value!r}. Write a finite number from 0 up, or take the "
            "line out."
        )
    return float(value)


def _all_entries(name: str, data: Mapping[str, Any]) -> Iterator[PlanEntry]:
    """The entries of all tables."""
    scopes = data.get("scope", {})
    pairs = scopes.items() if isinstance(scopes, Mapping) else [(" ", scopes)]
    for scope, entries in ((None, data.get("entries", {})), *pairs):
        if not isinstance(entries, Mapping) or (scope is not None and not scope.strip()):
            title = "entries" if scope is None else f"scope.{scope}".strip(" .")
            raise PlanError(
                f"{name} has {title} = {entries!r}, which is no table of "
                "entries. Write [entries], or [scope.NAME] with the name of a "
                "jax.named_scope, and entries below it."
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
        dtype = jnp.dtype(_one_of(name, quoted(key), value, _PLAN_DTYPES))
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
