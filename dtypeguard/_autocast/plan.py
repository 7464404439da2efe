"""A plan: which work of a program is narrow, and what computes in another dtype.

The text that a plan is read from may have been changed by an editor.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._leaves.arguments import shown
from .._leaves.types import public
from .toml import quoted, read_toml, toml_line

PRODUCTS = "products"
ALL = "all"
_DEFAULTS = (PRODUCTS, ALL)
_VERSION = 1
_NUMBER_KEYS = ("tolerance", "error", "held_out", "share", "loss_scale")
NARROW = ("bfloat16", "float16")
_PLAN_DTYPES = ("float32", *NARROW)
_KEYS = {"version", "narrow", "default", "measured", "entries", "scope", *_NUMBER_KEYS}
# A file, a function and an expression. Python names a lambda `<lambda>`, and what is in a
# function `<locals>`.
_KEY_OF_ENTRY = re.compile(r"(.+?):\s*([\w.<>]+)\s*(?::\s*(.+?)\s*)?", re.DOTALL)
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
        if self.expression is None:
            return self.place
        return f"{self.place}: {self.expression}"

    def __str__(self) -> str:
        if not self.scope:
            return self.key
        return f"{self.key} in scope {self.scope}"

    def lines(self) -> list[str]:
        """Returns the entry as TOML, with its figures as a comment."""
        figures: list[str] = []
        if self.error is not None:
            error = 100 * self.error
            figures.append(f"without it {error:.3g}% off")
        if self.share is not None:
            share = 100 * self.share
            figures.append(f"makes {share:.3g}% of the multiply-adds wide")
        dtype = quoted(str(self.dtype))
        line = f"{quoted(self.key)} = {dtype}"
        if not figures:
            return [line]
        comment = ", ".join(figures)
        return [f"# {comment}", line]


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
        # A name and a scalar type are dtypes as well; the field is a dtype always.
        object.__setattr__(self, "narrow", jnp.dtype(narrow))
        if self.default not in _DEFAULTS:
            raise PlanError(
                f"Plan got default={self.default!r}. Write one of {', '.join(_DEFAULTS)}."
            )

    def text(self) -> str:
        """The plan as TOML."""
        lines = [
            "# What computes in which dtype, for dtypeguard.autocast. A key is a function "
            "of a file,",
            "# or one expression in it. Figures are those of the measurement.",
            f"version = {_VERSION}",
            toml_line("narrow", str(self.narrow)),
            toml_line("default", self.default),
        ]
        if self.measured:
            lines.append(toml_line("measured", self.measured))
        for key in _NUMBER_KEYS:
            number = getattr(self, key)
            if number is not None:
                # A loss is multiplied by the scale as it stands: no digit is left out.
                digits = float(number) if key == "loss_scale" else f"{number:.4g}"
                lines.append(f"{key} = {digits}")
        title = ""
        for entry in sorted(self.entries, key=lambda entry: entry.scope or ""):
            table = f"[scope.{quoted(entry.scope)}]" if entry.scope else "[entries]"
            if table != title:
                lines += ["", table]
            title = table
            lines += entry.lines()
        return "\n".join([*lines, ""])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a file."""
        # A plan is checked in: the same bytes on every system.
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
            data = read_toml(name, "version", _VERSION)
        except FileNotFoundError:
            raise PlanError(
                f"{name} does not exist. `dtypeguard precision FILE.py:FUNCTION --out "
                f"{name}` writes a plan; the dtypes of autocast are bfloat16 and float16."
            ) from None
        except (OSError, ValueError) as error:
            raise PlanError(
                f"{name} is no plan that can be read: {error}. Write it anew with "
                "`dtypeguard precision --out`."
            ) from None
        return _plan_of_data(name, data)


def _plan_of_data(name: str, data: dict[str, Any]) -> Plan:
    unknown = sorted(data.keys() - _KEYS)
    if unknown:
        raise PlanError(
            f"{name} has {unknown[0]!r}, which is no part of a plan. Entries stand under "
            f"[entries] or [scope.NAME]; the other keys are {', '.join(sorted(_KEYS))}."
        )
    entries = list(entries_of(name, data.get("entries", {})))
    for scope, dtype_of_key in _table(name, data.get("scope", {})).items():
        entries.extend(entries_of(name, dtype_of_key, scope))
    numbers: dict[str, Any] = {}
    for key in _NUMBER_KEYS:
        if key in data:
            numbers[key] = _figure(name, key, data[key])
    return Plan(
        narrow=jnp.dtype(_one_of(name, "narrow", data.get("narrow"), NARROW)),
        default=_one_of(name, "default", data.get("default", PRODUCTS), _DEFAULTS),
        entries=tuple(entries),
        measured=str(data.get("measured", "")),
        **numbers,
    )


def _figure(name: str, key: str, value: Any) -> float:
    # A program may have been infinitely far off.
    if isinstance(value, (int, float)) and value >= 0:
        return float(value)
    raise PlanError(
        f"{name} has {key} = {value!r}. Write a number from 0 up, or take the line out."
    )


def _table(name: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise PlanError(
        f"{name} has {value!r} in place of a table of entries. Write [entries], or "
        "[scope.NAME] with the name of a jax.named_scope, and entries below it."
    )


def entries_of(
    name: str, dtype_of_key: Any, scope: str | None = None
) -> Iterator[PlanEntry]:
    """Yields the entries of functions, and of expressions in them.

    Raises:
        ValueError: if a name or a dtype cannot be used.
    """
    for key, value in _table(name, dtype_of_key).items():
        dtype = jnp.dtype(_one_of(name, quoted(key), value, _PLAN_DTYPES))
        match = _KEY_OF_ENTRY.fullmatch(key)
        if match is None:
            raise PlanError(
                f"{name} has the entry {quoted(key)}. Write a function of a file, "
                '"model.py:norm", or an expression of it, "model.py:norm: x / y".'
            )
        file, function, expression = match.groups()
        yield PlanEntry(f"{file}:{function}", expression, scope, dtype)


def _one_of(name: str, key: str, value: object, allowed: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(allowed)
        raise PlanError(f"{name} has {key} = {value!r}. Write one of {choices}.")
    return value
