"""A plan: which work of a program is narrow, and what computes in another dtype.

The text that a plan is read from may have been changed by an editor.
"""

import dataclasses
import itertools
import operator
import os
import re
from collections.abc import Collection, Iterator
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
_FORM_OF_ENTRY = (
    'a function of a file, "model.py:norm", or an expression of it, "model.py:norm: x / y"'
)
# A file, a function and an expression. Python names a lambda `<lambda>`, and what is in a
# function `<locals>`.
_KEY_OF_ENTRY = re.compile(r"(.+?):\s*([\w.<>]+)\s*(?::\s*(.+?)\s*)?", re.DOTALL)
_WIDE_DTYPE = np.dtype("float32")

FilePath = str | os.PathLike[str]


class PlanError(ValueError):
    """A plan that cannot be used; the message says what to type."""


def _figure_field() -> Any:
    """Returns the field of a figure: plans of different figures are equal."""
    return dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True)
class PlanEntry:
    """A function or one of its expressions, with the dtype of its computation.

    Its figures are for a reader: a file has them as comments, which are not read again.
    The line of an equation has the same names.

    Attributes:
        place: the file, from the working directory or by its name, and the qualified name
            of the function: `"model.py:Attention.__call__"`.
        expression: the text of one expression; "" for all of the function.
        scope: of `jax.named_scope`; "" for all of them.
        dtype: what it computes in.
        error: the error of the program without the entry, as measured.
        share: of the work of the program, the part that it makes wide: of its
            multiply-adds, or of the equations that round in a program without products.
    """

    place: str
    expression: str = ""
    scope: str = ""
    dtype: np.dtype = _WIDE_DTYPE
    error: float | None = _figure_field()
    share: float | None = _figure_field()

    @property
    def key(self) -> str:
        """The function and the expression as a plan names them."""
        if not self.expression:
            return self.place
        return f"{self.place}: {self.expression}"

    def __str__(self) -> str:
        if not self.scope:
            return self.key
        return f"{self.key} in scope {self.scope}"

    def lines(self) -> list[str]:
        """Returns the entry as TOML, with its figures as a comment."""
        figures = []
        if self.error is not None:
            error = 100 * self.error
            figures.append(f"without it {error:.3g}% off")
        if self.share is not None:
            share = 100 * self.share
            figures.append(f"makes {share:.3g}% of the work wide")
        dtype = str(self.dtype)
        line = toml_line(self.key, dtype)
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
        share: the part of the work that is narrow; `PlanEntry` says what work is.
        measured: what was measured, such as "autocast(step), with the gradient inside".
    """

    narrow: np.dtype
    default: str = PRODUCTS
    entries: tuple[PlanEntry, ...] = ()
    loss_scale: float | None = None
    error: float | None = _figure_field()
    held_out: float | None = _figure_field()
    tolerance: float | None = None
    share: float | None = _figure_field()
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
        _check_choice("default", self.default, _DEFAULTS)

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
            if number is None:
                continue
            digits = f"{number:.4g}"
            # A loss is multiplied by the scale as it stands: no digit is left out.
            if key == "loss_scale":
                digits = float(number)
            lines.append(f"{key} = {digits}")
        by_scope = operator.attrgetter("scope")
        entries = sorted(self.entries, key=by_scope)
        for scope, entries_of_scope in itertools.groupby(entries, by_scope):
            table = "[entries]"
            if scope:
                table = f"[scope.{quoted(scope)}]"
            lines += ["", table]
            for entry in entries_of_scope:
                lines += entry.lines()
        return "\n".join([*lines, ""])

    def save(self, path: FilePath) -> None:
        """Writes the plan to a file."""
        # A plan is checked in: the same bytes on every system.
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(self.text())

    @classmethod
    def load(cls, path: FilePath) -> "Plan":
        """Reads a plan from a file.

        Raises:
            ValueError: if there is none, or it is of another version or damaged.
        """
        name = os.fspath(path)
        try:
            # An editor may have left what is TOML, and still no plan.
            data = read_toml(name, "version", _VERSION)
            return _plan_of_data(data)
        except FileNotFoundError:
            raise PlanError(
                f"{name} does not exist. `dtypeguard precision FILE.py:FUNCTION --out "
                f"{name}` writes a plan; the dtypes of autocast are bfloat16 and float16."
            ) from None
        except PlanError as error:
            raise PlanError(f"{name}: {error}") from None
        # A key may be unknown, and what should be a table may be a number.
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise PlanError(
                f"{name} is no plan that can be read: {error}. Write it anew with "
                "`dtypeguard precision --out`."
            ) from None


def _plan_of_data(data: dict[str, Any]) -> Plan:
    narrow = data.get("narrow")
    _check_choice("narrow", narrow, NARROW)
    for key in _NUMBER_KEYS:
        # A program may have been infinitely far off.
        number = data.get(key, 0.0)
        is_number = isinstance(number, (int, float))
        is_usable = is_number and number >= 0
        _require(is_usable, key, number, "a number from 0 up, or take the line out")
    del data["version"]
    dtype_of_key = data.pop("entries", {})
    table_of_scope = data.pop("scope", {})
    entries = list(entries_of(dtype_of_key))
    for scope, table in table_of_scope.items():
        entries += entries_of(table, scope)
    return Plan(entries=tuple(entries), **data)


def entries_of(dtype_of_key: Any, scope: str = "") -> Iterator[PlanEntry]:
    """Yields the entries of functions, and of expressions in them.

    Raises:
        ValueError: if a name or a dtype cannot be used.
    """
    for key, dtype in dtype_of_key.items():
        match = _KEY_OF_ENTRY.fullmatch(key)
        name = quoted(key)
        if match is None:
            raise PlanError(f"the plan has the entry {name}. Write {_FORM_OF_ENTRY}.")
        _check_choice(name, dtype, _PLAN_DTYPES)
        file, function, expression = match.groups("")
        place = f"{file}:{function}"
        entry_dtype = jnp.dtype(dtype)
        yield PlanEntry(place, expression, scope, entry_dtype)


def _check_choice(key: str, value: object, choices: Collection[str]) -> None:
    names = ", ".join(choices)
    form = f"one of {names}"
    _require(value in choices, key, value, form)


def _require(is_usable: bool, key: str, value: object, form: str) -> None:
    if is_usable:
        return
    # Quoted as Python does: the value may be of any type that TOML has.
    raise PlanError(f"the plan has {key} = {value!r}. Write {form}.")
