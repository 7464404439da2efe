"""Leaves whose types changed between calls of a compiled function, and what to write."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from .._leaves.dtypes import fits, kind
from .._leaves.groups import (
    CAUSES,
    FEW,
    examples,
    grouped,
    of_holders,
    rows_of_causes,
)
from .._leaves.rows import Type, cast_text, columns, lost, return_as
from .._leaves.types import DType
from .._lines.fed import parameter
from .._source.origin import Origin, Why


class TypeChange(NamedTuple):
    """A leaf whose type changed from one call to another.

    Attributes:
        path: of the leaf.
        before: its type.
        after: its type.
        is_returned: whether the function itself gave it back so.
        why: the lines behind the type after, and behind the first.
        calls: the lines of the calls.
        is_unseen: whether a library keeps it where no guard sees it.
        is_rare: whether no other argument begins in its dtype, and several in the new one,
            or the params of which it is a state.
    """

    path: str
    before: Type
    after: Type
    is_returned: bool = False
    why: Why = Why()
    calls: str = ""
    is_unseen: bool = False
    is_rare: bool = False
    item: int | None = None

    @property
    def row(self) -> tuple[str, ...]:
        """It in columns."""
        origin, cause, first = self.why.places()
        made = origin if self.is_returned else origin and f"made at {origin}"
        if not (self.why.origin or self.why.begun):
            made = self.calls and f"called at {self.calls}"
        if self.begins_weak and first:  # which is the cause
            made, cause, first = first, made and f"promoted at {made}", cause
        return self.path, f"{self.before} -> {self.after}", made, cause, first

    @property
    def dtypes(self) -> tuple[DType, DType]:
        """The two types without weakness."""
        old, new = (jnp.dtype(x.name) for x in (self.before, self.after))
        return old, new

    @property
    def is_of_weak(self) -> bool:
        """Whether the leaf is weakly typed in one of the two calls alone."""
        old, new = self.dtypes
        return old == new

    @property
    def is_of_numbers(self) -> bool:
        """Whether the calls gave Python numbers, an int and a float."""
        are_weak = self.before.is_weak and self.after.is_weak
        return are_weak and not (self.is_returned or self.is_of_weak)

    @property
    def begins_weak(self) -> bool:
        """Whether a leaf came back strongly typed, and the line that made it is known."""
        is_made_strong = self.before.is_weak and not self.after.is_weak
        return is_made_strong and self.is_returned and self.why.begun is not None

    @property
    def lines(self) -> tuple[Origin | None, ...]:
        """The lines whose source is listed."""
        begun = (self.why.begun,) if self.begins_weak or self.is_rare else ()
        return *begun, *self.why.lines


def advice(changes: Sequence[TypeChange]) -> list[str]:
    """What to write; a sentence a line."""
    return list(dict.fromkeys(_sentences(changes)))


def may_begin_so(
    types: Mapping[str, Type], old: Type, new: Type, changed: Sequence[str]
) -> bool:
    """Whether leaves that change from one type to another may begin in the latter.

    They are the only ones of a call with the first, and more have the second, or all with
    the first are of the state of params with the second: `state['w'].mu` of `params['w']`.

    Args:
        types: of the leaves of the call, by path.
        old: the type of those leaves.
        new: the type that they change to.
        changed: their paths.
    """
    wide = [path for path, name in types.items() if name == new]
    params = [path.removeprefix(parameter(path)) for path in wide]

    def is_of_state(path: str) -> bool:
        inside = path.removeprefix(parameter(path))
        return any(param and param in inside and param != inside for param in params)

    narrow = [path for path, name in types.items() if name == old]
    is_rare = len(narrow) == len(changed) < len(wide) > 1
    return is_rare or all(map(is_of_state, narrow))


def told_before(changes: Sequence[TypeChange], name: str) -> Iterator[str]:
    """What a call before was given and gave back, a sentence for each cause."""
    cause = lambda x: (x.is_returned, x.before, x.after, x.why.origin)
    for group in grouped(changes, cause):
        first = group[0]
        path = first.path if len(group) == 1 else of_holders([x.path for x in group])
        given = f"The call of {name} before this one was given {path} as {first.before}"
        if first.is_returned:
            given += f" and gave {'it' if len(group) == 1 else 'them'} back"
        line = first.why.root
        place = f", at {line.users}" if line else ""
        yield f"{given}{'' if first.is_returned else ', this one'} as {first.after}{place}."


def rows(changes: Sequence[TypeChange], is_whole: bool) -> list[str]:
    """A row for each leaf, or one for the many of a cause; those with lines first."""
    cause = lambda x: users_line(x.why.root or x.why.begun)
    key = lambda x: (x.is_returned, x.before, x.after, cause(x))
    # What follows from another leaf is forced by the line that promotes that.
    promoted = {users_line(x.why.origin) for x in changes if x.why.cause}
    follows = lambda x: (
        not x.is_returned,
        x.why.cause is not None and users_line(x.why.cause) in promoted,
    )
    groups = grouped(sorted(changes, key=follows), key)
    paths = lambda group: [change.path for change in group]
    most, listed = (len(groups), float("inf")) if is_whole else (CAUSES, FEW)
    lines, _ = rows_of_causes(
        groups,
        lambda change: [change.row],
        lambda group: [(of_holders(paths(group)), *group[0].row[1:])],
        lambda group: f"  {', '.join(examples(paths(group)))}",
        most=most,
        listed=listed,
    )
    named = [line for group in groups[:most] for x in group for line in x.lines]
    users = dict.fromkeys(line.users for line in named if line)
    code = columns([(str(line), line.code) for line in users if line.code][: 2 * CAUSES])
    return [f"    {line}" for line in (*lines, *code)]


def users_line(line: Origin | None) -> str:
    """The line of the user's own that led to another; empty if there is none."""
    return str(line.users) if line else ""


def _sentences(changes: Sequence[TypeChange]) -> Iterator[str]:
    keys = [x for x in changes if x.before.is_key or x.after.is_key]
    changes = [x for x in changes if x not in keys]
    if keys:
        yield "Make all keys alike: jax.random.key(seed), of one implementation."
    for change in changes:
        old, new = change.dtypes
        place = users_line(change.why.begun)
        start = f"At {place} start" if place else "Start"
        start = f"{start} {change.path} as {new}"
        if change.is_of_numbers and place and kind(old) == "int":
            yield f"At {place} give {change.path} as a Python float, such as 1.0 for 1."
        elif change.before.is_weak and not change.is_of_weak:
            yield f"{start}: jnp.asarray(x, jnp.{new})."
        elif change.is_returned and not fits(new, old):  # which a guard refuses
            yield f"{start}{lost(old, new)}, or {return_as(old, new)}."
    if any(change.is_of_weak for change in changes):
        yield (
            "Weak types come from Python numbers: give jax.Arrays from the first call on, "
            "such as dtypeguard.strong(state)."
        )
    others = [x for x in changes if not (x.is_of_weak or x.before.is_weak)]
    castable = [x for x in others if fits(*x.dtypes[::-1])]
    for change in castable:
        if change.is_unseen and change.why.origin:
            place, cast = change.why.origin.users, cast_text(change.dtypes[0])
            yield f"No guard sees {change.path}: cast what {place} writes to it, {cast}."
    castable = [x for x in castable if not x.is_unseen]
    rare = [x for x in castable if x.is_rare and x.why.begun]
    groups = grouped(rare, lambda x: (users_line(x.why.begun), x.after))
    for group in groups if len(groups) == 1 else ():  # a model is meant as it is
        path = of_holders([x.path for x in group]) if len(group) > 1 else group[0].path
        yield f"At {users_line(group[0].why.begun)} begin {path} as {group[0].after}."
    is_given = not any(change.is_returned for change in changes)
    for change in castable if is_given else ():
        if change.why.origin:
            yield f"Cast it at {change.why.origin.users}: {cast_text(change.dtypes[0])}."
    if any(change.is_returned or change.why.origin is None for change in castable):
        yield (
            "Where a step gives back another dtype than it was given: "
            f"dtypeguard.guard_step(step{_options(castable)}), or dtypeguard.guard(opt) "
            "for an optimizer."
        )


def _options(changes: Sequence[TypeChange]) -> str:
    """What to tell a guard of a step, if its carry is not only its first argument."""
    items = {parameter(x.path): x.item for x in changes if x.is_returned}
    is_clear = all(items.get(parameter(x.path)) == x.item is not None for x in changes)
    if not is_clear or "self" in items or [*items.values()] in ([], [0]):
        return ""
    names, places = ([*x] for x in (items, items.values()))
    if len(items) == 1:
        return f", carry={names[0]!r}, returned={places[0]}"
    return f", carry={tuple(names)}, returned={tuple(places)}"
