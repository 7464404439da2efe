"""Leaves whose types changed between calls of a compiled function, and what to write."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from .._leaves.dtypes import fits
from .._leaves.groups import CAUSES, FEW, and_more, examples, grouped, of_holders
from .._leaves.rows import cast_text, columns, lost, return_as
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
        begun: the line that made it as it was.
        calls: the lines of the calls.
        is_unseen: whether a library keeps it where no guard sees it.
        is_rare: whether no other argument begins in its dtype, and several in the new one.
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
    is_rare: bool = False

    @property
    def row(self) -> tuple[str, ...]:
        """It in columns."""
        origin, cause, first = Why(self.origin, self.cause, self.begun).places()
        made = origin if self.is_returned else origin and f"made at {origin}"
        if not (self.origin or self.begun):
            made = self.calls and f"called at {self.calls}"
        if self.begins_weak and first:  # which is the cause
            made, cause, first = first, made and f"promoted at {made}", cause
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

    @property
    def begins_weak(self) -> bool:
        """Whether a leaf came back strongly typed, and the line that made it is known."""
        is_made_strong = self.before.endswith(_WEAK) and not self.after.endswith(_WEAK)
        return is_made_strong and self.is_returned and self.begun is not None

    @property
    def lines(self) -> tuple[Origin | None, ...]:
        """The lines whose source is listed."""
        begun = (self.begun,) if self.begins_weak or self.is_rare else ()
        return *begun, self.origin, self.cause


def advice(changes: Sequence[TypeChange]) -> list[str]:
    """What to write; a sentence a line."""
    return list(dict.fromkeys(_sentences(changes)))


def told_before(changes: Sequence[TypeChange], name: str) -> Iterator[str]:
    """What a call before was given and gave back, a sentence for each cause."""
    for group in grouped(changes, lambda x: (x.is_returned, x.before, x.after, x.origin)):
        first = group[0]
        path = first.path if len(group) == 1 else of_holders([x.path for x in group])
        given = f"The call of {name} before this one was given {path} as {first.before}"
        if first.is_returned:
            given += f" and gave {'it' if len(group) == 1 else 'them'} back"
        line = first.cause or first.origin
        place = f", at {line.users}" if line else ""
        yield f"{given}{'' if first.is_returned else ', this one'} as {first.after}{place}."


def rows(changes: Sequence[TypeChange], is_whole: bool) -> list[str]:
    """A row for each leaf, or one for the many of a cause; those with lines first."""
    cause = lambda x: users_line(x.cause or x.origin or x.begun)
    key = lambda x: (x.is_returned, x.before, x.after, cause(x))
    # What follows from another leaf is forced by the line that promotes that.
    promoted = {users_line(x.origin) for x in changes if x.cause}
    follows = lambda x: (
        not x.is_returned,
        x.cause is not None and users_line(x.cause) in promoted,
    )
    groups = grouped(sorted(changes, key=follows), key)
    shown = groups if is_whole else groups[:CAUSES]
    made: list[tuple[str, ...]] = []
    below: dict[int, str] = {}
    for group in shown:
        if is_whole or len(group) <= FEW:
            made += [change.row for change in group]
            continue
        paths = [change.path for change in group]
        made.append((of_holders(paths), *group[0].row[1:]))
        below[len(made) - 1] = f"      {', '.join(examples(paths))}"
    lines = []
    for number, line in enumerate(columns(made)):
        lines += [f"    {line}", *([below[number]] if number in below else [])]
    more = [f"    {text}" for text in and_more(len(groups) - len(shown))]
    named = [line for group in shown for x in group for line in x.lines]
    users = dict.fromkeys(line.users for line in named if line)
    code = columns([(str(line), line.code) for line in users if line.code][: 2 * CAUSES])
    return [*lines, *more, *(f"    {line}" for line in code)]


def users_line(line: Origin | None) -> str:
    """The line of the user's own that led to another; empty if there is none."""
    return str(line.users) if line else ""


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
    rare = [x for x in castable if x.is_rare and x.begun]
    groups = grouped(rare, lambda x: (users_line(x.begun), x.after))
    for group in groups if len(groups) == 1 else ():  # a model is meant as it is
        path = of_holders([x.path for x in group]) if len(group) > 1 else group[0].path
        yield f"At {users_line(group[0].begun)} begin {path} as {group[0].after}."
    is_given = not any(change.is_returned for change in changes)
    for change in castable if is_given else ():
        if change.origin:
            yield f"Cast it at {change.origin.users}: {cast_text(change.dtypes[0])}."
    if any(change.is_returned or change.origin is None for change in castable):
        yield (
            "Where a step gives back another dtype than it was given: "
            "dtypeguard.guard_step(step), or dtypeguard.guard(opt) for an optimizer."
        )
