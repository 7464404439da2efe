"""A leaf whose type changed between two calls of a compiled function, and what to write."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from .._leaves.dtypes import fits
from .._leaves.rows import cast_text, lost, return_as
from .._leaves.types import DType
from .._source.origin import Origin, Why

_WEAK = " (weak)"


class TypeChange(NamedTuple):
    """A leaf whose type changed from one call to another.

    Attributes:
        path: of the leaf.
        before: its type.
        after: its type.
        is_returned: whether the function itself gave it back so.
        origin: the line that gave it the type.
        cause: the line that forced that.
        begun: the line that made it weakly typed.
        calls: the lines of the calls.
        is_unseen: whether a library keeps it where no guard sees it.
    """

    path: str
    before: str
    after: str
    is_returned: bool = False
    origin: Origin | None = None
    cause: Origin | None = None
    begun: Origin | None = None
    calls: str = ""
    is_unseen: bool = False

    @property
    def row(self) -> tuple[str, ...]:
        """It in columns."""
        begun = self.begun if self.before.endswith("(weak)") else None
        origin, cause, first = Why(self.origin, self.cause, begun).places()
        made = origin if self.is_returned else origin and f"made at {origin}"
        if not (self.origin or begun):
            made = self.calls and f"called at {self.calls}"
        return self.path, f"{self.before} -> {self.after}", made, cause, first

    @property
    def dtypes(self) -> tuple[DType, DType]:
        """The two types without weakness."""
        old, new = (jnp.dtype(x.removesuffix(_WEAK)) for x in (self.before, self.after))
        return old, new

    @property
    def is_of_weak(self) -> bool:
        """Whether the leaf is weakly typed in one of the two calls alone."""
        old, new = self.dtypes
        return old == new


def advice(changes: Sequence[TypeChange]) -> list[str]:
    """What to write; a sentence a line."""
    return list(dict.fromkeys(_sentences(changes)))


def is_key(type_name: str) -> bool:
    """Whether a type is that of random keys."""
    return type_name.startswith("key<")


def _sentences(changes: Sequence[TypeChange]) -> Iterator[str]:
    keys = [x for x in changes if is_key(x.before) or is_key(x.after)]
    changes = [x for x in changes if x not in keys]
    if keys:
        yield "Make all keys alike: jax.random.key(seed), of one implementation."
    for change in changes:
        old, new = change.dtypes
        if change.before.endswith(_WEAK) and not change.is_of_weak:
            yield f"Start {change.path} as {new}: jnp.asarray(x, jnp.{new})."
        elif change.is_returned and not fits(new, old):  # which a guard refuses
            start = f"Start {change.path} as {new}{lost(old, new)}"
            yield f"{start}, or {return_as(old, new)}."
    if any(change.is_of_weak for change in changes):
        yield (
            "Weak types come from Python numbers: give jax.Arrays from the first call on, "
            "such as dtypeguard.strong(state)."
        )
    others = [x for x in changes if not (x.is_of_weak or x.before.endswith(_WEAK))]
    castable = [x for x in others if fits(*x.dtypes[::-1])]
    for change in castable:
        if change.is_unseen and change.origin:
            place, cast = change.origin.users, cast_text(change.dtypes[0])
            yield f"No guard sees {change.path}: cast what {place} writes to it, {cast}."
    castable = [x for x in castable if not x.is_unseen]
    if any(change.is_returned or change.origin is None for change in castable):
        yield (
            "Where a step gives back another dtype than it was given: "
            "dtypeguard.guard_step(step), or dtypeguard.guard(opt) for an optimizer."
        )
