"""Entries of a plan, and what is written above them."""

import dataclasses
import json

import numpy as np

PRODUCTS, ALL = DEFAULTS = "products", "all"
VERSION = 1
# The figures of an entry, as its comment says them.
_FIGURES = {
    "error": "without it {} off",
    "held_out": "on held-out inputs {}",
    "share": "makes {} of the multiply-adds wide",
}


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
        held_out: the same on inputs that the search had not seen.
        share: of the multiply-adds of the program, the part that it makes wide.
    """

    place: str
    expression: str | None = None
    scope: str | None = None
    dtype: np.dtype = _FLOAT32
    error: float | None = dataclasses.field(default=None, compare=False)
    held_out: float | None = dataclasses.field(default=None, compare=False)
    share: float | None = dataclasses.field(default=None, compare=False)

    @property
    def key(self) -> str:
        """The function and the expression as a plan names them."""
        return self.place if self.expression is None else f"{self.place}: {self.expression}"

    def __str__(self) -> str:
        return f"{self.key}{f' in scope {self.scope}' if self.scope else ''}"

    def lines(self) -> list[str]:
        """The entry as TOML, with its figures as a comment."""
        known = {key: getattr(self, key) for key in _FIGURES}
        percents = {key: f"{100 * x:.3g}%" for key, x in known.items() if x is not None}
        parts = [_FIGURES[key].format(x) for key, x in percents.items()]
        above = [f"# {', '.join(parts)}"] if parts else []
        return [*above, f"{quoted(self.key)} = {quoted(str(self.dtype))}"]


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
