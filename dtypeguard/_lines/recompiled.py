"""Why a function was compiled again: two calls side by side, with the lines behind it.

Each difference is named: types with their lines, shapes, constants, the structure, or a
function that is new each time. Where nothing that is looked at differs, that is said.
"""

import itertools
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import jax.numpy as jnp

from .._leaves.dtypes import fits, kind
from .._leaves.groups import CAUSES, FEW, and_more, grouped, of_holders, parameter
from .._leaves.rows import Type, cast_text, columns, lost, return_as
from .._source.origin import Why, callers, origin_of_frames, release
from .compiling import Compiled, CompilingCall, call_of, compiled

# Calls of a function that are kept; constants and functions of one code that are told what
# to write for; values and leaves that are shown.
_MOST, _OFTEN, _SHOWN = 50, 3, 4


class TypeChange(NamedTuple):
    """A leaf whose type changed from one call to another.

    Attributes:
        path: of the leaf.
        before: its type.
        after: its type.
        why: the lines behind the type after, and behind the first.
        is_returned: whether the function itself gave it that type.
        item: of the returned tuple that it is, if that is certain.
        called: the line of the call.
    """

    path: str
    before: Type
    after: Type
    why: Why
    is_returned: bool
    item: int | None
    called: str

    @property
    def facts(self) -> list[tuple[str, str, str]]:
        """What it begins as and becomes, each with its line; what is to be edited first."""
        begins = f"begins as {self.before}", self.why.begun
        becomes = f"becomes {self.after}", self.why.origin
        cause = f"because of {self.after}", self.why.cause
        weak_first = begins, becomes, cause
        order = weak_first if self.before.is_weak else (becomes, cause, begins)
        lines = {x.place: (text, x.place, x.users.code) for text, x in reversed(order) if x}
        return [*reversed(lines.values())] or [("called", self.called, "")]


class Recompiled:
    """A function that was compiled more than once.

    Attributes:
        name: with its line.
        times: how often it was compiled.
        types: the leaves that changed their types, by path.
        others: what else differed, by path: two shapes or constants, and the line.
        remedies: what to write for constants.
        unknown: what is equal where nothing differs.
    """

    def __init__(self, name: str):
        self.name, self.times, self.unknown = name, 1, ""
        self.types: dict[str, TypeChange] = {}
        self.others: dict[str, tuple[str, str]] = {}
        self.remedies: dict[str, str] = {}

    def text(self, is_whole: bool) -> list[str]:
        """Its lines in the report."""
        key = lambda x: (x.before, x.after, x.is_returned, *x.facts)
        groups = grouped(self.types.values(), key)
        most = len(groups) + len(self.others) if is_whole else CAUSES
        lines = list[str]()
        for group in groups[:most]:
            paths = [x.path for x in group]
            is_few = len(paths) <= FEW or is_whole
            name = ", ".join(paths) if is_few else of_holders(paths)
            lines.append(f"  {name}  {group[0].before} -> {group[0].after}")
            lines += [f"    {line}" for line in columns(group[0].facts)]
        lines += and_more(len(groups[most:]))
        rows = [(path, *about) for path, about in self.others.items()]
        lines += [f"  {line}" for line in columns(rows[:most])]
        lines += and_more(len(rows[most:]), "difference")
        lines += [self.unknown] if self.unknown else []
        advice = dict.fromkeys([*_advice([*self.types.values()]), *self.remedies.values()])
        return [*lines, *advice]

    def compare(self, call: CompilingCall, before: Compiled, now: Compiled) -> None:
        """Adds what differs between two of its calls."""
        self.times += 1
        differing = [x for x in _paths(before, now) if _differ(before, now, x)]
        both = before.leaves.keys() & now.leaves
        retyped = [x for x in differing if x in both and before.shape(x) == now.shape(x)]
        for change in [_change(before, now, path) for path in retyped]:
            # With another constant it is another program, but for what came back.
            if change.is_returned or retyped == differing:
                self.types.setdefault(change.path, change)
        is_object = lambda path: path in now.statics and now.statics[path].is_object
        first, *objects = [*filter(is_object, differing), ""]
        for path in differing:
            if path in self.types or path in objects:
                continue
            static = now.statics.get(path) or before.statics.get(path)
            line = origin_of_frames(static.lines) if static else None
            place = f"called at {now.caller}" if now.caller else ""
            place = f"made at {line.users}" if line else place
            text = f"{before.described(path)} -> {now.described(path)}"
            if static and path == first:
                text = f"another {static.shown} each time"
                self.remedies[path] = f"Make {parameter(path)} once, before the calls."
            self.others.setdefault(path, (text, place))
            is_number = static is not None and static.is_number
            if is_number and (self.times > _OFTEN or path in now.leaves):
                value = self.others[path][0].partition(" -> ")[0]
                self.remedies[path] = _array_for(path, call, value)
        if not differing:
            self.unknown = _unknown([*before.leaves], [*now.leaves])


def _some(values: Sequence[str]) -> str:
    return ", ".join(values[:_SHOWN]) + ", ..." * (len(values) > _SHOWN)


def _unknown(old: Sequence[str], new: Sequence[str]) -> str:
    """What is said of calls whose leaves and constants are equal."""
    if old != new:
        order = f"{_some(old)}, then {_some(new)}. Keep one order."
        return f"  Leaves came in another order: {order}"
    return (
        "  The cause is not known: types, shapes, paths and what is seen of constants are "
        "equal. Devices and shardings are not compared."
    )


class Compilations:
    """Records what functions are compiled for."""

    def __init__(self):
        self._earlier: dict[int, tuple[Any, list[Compiled]]] = {}
        self._found: dict[str, Recompiled] = {}
        self._new: dict[tuple[object, ...], list[str]] = {}

    def record(self, frame: FrameType) -> None:
        """Records the call that compiles, if a frame inside of it belongs to one."""
        call = call_of(itertools.chain([frame], callers(frame)))
        if call is None:
            return
        try:
            if call.is_listed:
                self._record(call)
        finally:
            release(call.callers)

    def _record(self, call: CompilingCall) -> None:
        now, name = compiled(call), call.name
        ref, earlier = self._earlier.get(id(call.key), (None, []))
        if ref is None or ref() is not call.key:
            self._earlier[id(call.key)] = weakref.ref(call.key), [now]
            types = hash(tuple(now.leaves.items()))
            self._new.setdefault((name, str(now.caller), types), []).append(name)
            return
        # Compared with the last of the calls from which it differs least.
        differing = lambda x: sum(_differ(x, now, path) for path in _paths(x, now))
        before = min(reversed(earlier), key=differing)
        self._found.setdefault(name, Recompiled(name)).compare(call, before, now)
        del earlier[: len(earlier) + 1 - _MOST]
        earlier.append(now)

    def lines(self, is_whole: bool = False) -> list[str]:
        """The report; empty if no function was compiled again."""
        lines = list[str]()
        for each in self.changed():
            lines.append(f"dtypeguard run: {each.name} was compiled {each.times} times.")
            lines += each.text(is_whole)
        for name, *others in self._new.values():
            if len(others) >= _OFTEN:
                lines.append(
                    f"dtypeguard run: {name} was compiled {len(others) + 1} times, because "
                    "it is a function that is new each time. Write jax.jit once, outside "
                    "of the loop."
                )
        return lines

    def changed(self) -> list[Recompiled]:
        """The functions that were compiled again, those for types first.

        The one that made a type is named before those that were given it.
        """

        def rank(each: Recompiled) -> int:
            made = any(change.is_returned for change in each.types.values())
            return 0 if made else 1 if each.types else 2

        return sorted(self._found.values(), key=rank)


def _paths(before: Compiled, now: Compiled) -> list[str]:
    return [*{**before.leaves, **now.leaves, **before.statics, **now.statics}]


def _differ(before: Compiled, now: Compiled, path: str) -> bool:
    """Whether two calls differ in a leaf or in a constant."""
    if before.leaves.get(path) != now.leaves.get(path):
        return True
    old, new = before.statics.get(path), now.statics.get(path)
    return old is not new if old is None or new is None else not old.is_same(new)


def _change(before: Compiled, now: Compiled, path: str) -> TypeChange:
    """The change of a leaf's type, with its lines."""
    old, new = before.leaves[path][0], now.leaves[path][0]
    back = before.returned.get(path)
    is_returned = back is not None and back.type == new
    why, item = (back.why, back.item) if is_returned else (now.why(path), None)
    begun = before.why(path).root
    if begun is None and old.is_weak and path == parameter(path):
        begun = before.caller
    why = why._replace(begun=begun)
    return TypeChange(path, old, new, why, is_returned, item, str(now.caller or ""))


def _array_for(path: str, call: CompilingCall, value: str) -> str:
    """What to do about a number that is a constant of the program."""
    begin = f"{path} is a constant of the program: "
    if not call.wrapper:  # an array is no static argument
        begin += f"take {parameter(path)} out of static_argnums (or static_argnames), and "
    elif call.wrapper == "equinox" and "." in path:  # where an array is a parameter
        begin += f"pass it to {call.name.partition(' ')[0]} as an argument, and "
    return f"{begin}give an array, jnp.asarray({value})."


def _advice(changes: Sequence[TypeChange]) -> Iterator[str]:
    """What to write; a sentence a line."""
    if any(x.before.is_key or x.after.is_key for x in changes):
        yield "Make all keys alike: jax.random.key(seed), of one implementation."
    guarded = []
    for x in changes:
        if x.before.is_key or x.after.is_key:
            continue
        old, new = (jnp.dtype(each.name) for each in (x.before, x.after))
        place = x.why.begun and x.why.begun.users
        begin = f"At {place} begin" if place else "Begin"
        is_of_numbers = x.before.is_weak and x.after.is_weak and not x.is_returned
        if old == new:
            yield (
                "Weak types come from Python numbers: give jax.Arrays from the first call "
                "on, such as dtypeguard.strong(state)."
            )
        elif is_of_numbers and place and kind(old) == "int":
            yield f"At {place} give {x.path} as a Python float, such as 1.0 for 1."
        elif x.before.is_weak:
            yield f"{begin} {x.path} as {new}: jnp.asarray(x, jnp.{new})."
        elif not fits(new, old):  # which a guard refuses
            if x.is_returned:
                loses = f"{lost(old, new)}, or {return_as(old, new)}."
                yield f"{begin} {x.path} as {new}{loses}"
        elif x.is_returned or x.why.origin is None:
            guarded.append(x)
        else:
            yield f"Cast it at {x.why.origin.users}: {cast_text(old)}."
    if guarded:
        yield (
            "Where a step gives back another dtype than it was given: "
            f"dtypeguard.guard_step(step{_options(guarded)}), or dtypeguard.guard(opt) "
            "for an optimizer."
        )


def _options(changes: Sequence[TypeChange]) -> str:
    """What to tell a guard of a step, if its carry is not only its first argument."""
    returned = [x for x in changes if x.is_returned]
    items = {parameter(x.path): x.item for x in returned}
    items |= {parameter(x.path): x.item for x in returned if x.item is not None}
    names, places = tuple(items), tuple(items.values())
    if None in places or "self" in items or places in ((), (0,)):
        return ""
    return f", carry={names!r}, returned={places}"
