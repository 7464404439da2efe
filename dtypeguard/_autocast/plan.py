"""A plan: which work of a program is narrow, and what computes in another dtype."""

import dataclasses
import os
from itertools import groupby

import jax.numpy as jnp
import numpy as np

from .._leaves.arguments import shown
from .._leaves.dtypes import kind
from .._leaves.types import DType, public
from .entries import (
    DEFAULTS,
    NUMBERS,
    PRODUCTS,
    VERSION,
    PlanEntry,
    PlanError,
    fields_of,
    quoted,
)


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
        measured: what was measured: "grad(autocast(loss))" or "autocast(step)".
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
        figures = {name: getattr(self, name) for name in NUMBERS}
        # A loss is multiplied by the scale as it stands.
        form = lambda name, x: repr(float(x)) if name == "loss_scale" else f"{x:.4g}"
        by_scope = sorted(self.entries, key=lambda each: each.scope or "")
        lines = [
            "# What computes in which dtype, for dtypeguard.autocast. A key is a function "
            "of a file,",
            "# or one expression in it. Figures are those of the measurement.",
            f"version = {VERSION}",
            f"narrow = {quoted(str(self.narrow))}",
            f"default = {quoted(self.default)}",
            *([f"measured = {quoted(self.measured)}"] if self.measured else []),
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
                text = file.read()
        except FileNotFoundError:
            raise PlanError(
                f"{name} does not exist. `dtypeguard precision FILE.py:FUNCTION --out "
                f"{name}` writes a plan, and so does report.plan.save."
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"{name} cannot be read: {error}.") from None
        return cls(**fields_of(text, name))


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
