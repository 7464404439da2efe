"""Why a function was compiled again: two calls side by side, with the lines behind it.

Each difference is named: types with their lines, shapes, constants, the structure, or a
function that is new each time. Where nothing that is looked at differs, that is said.
"""

import itertools
import traceback
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import jax.numpy as jnp

from .._leaves.dtypes import fits, kind
from .._leaves.groups import CAUSES, FEW, and_more, grouped, of_holders
from .._leaves.internals import COMPILING
from .._leaves.rows import Type, cast_text, columns, lost, return_as
from .._source.origin import Origin, Why, callers, release
from .compiling import Compiled, CompilingCall, Given, call_of, compiled
from .fed import parameter

# Calls of a function that are kept; constants, functions of one code, and eager loops that
# are told what to write for; values and leaves that are shown.
_MOST, _OFTEN, _SHOWN = 50, 3, 4


class TypeChange(NamedTuple):
    """A leaf whose type changed from one call to another.

    Attributes:
        path: of the leaf.
        before: its type.
        after: its type.
        why: the lines behind the type after, and behind the first.
        is_returned: whether the function itself gave it back so.
        is_rare: whether it may begin in the new type, as what is around it does.
        item: of the returned tuple that it is.
        called: the line of the call.
    """

    path: str
    before: Type
    after: Type
    why: Why = Why()
    is_returned: bool = False
    is_rare: bool = False
    item: int | None = None
    called: str = ""

    @property
    def is_of_weak(self) -> bool:
        """Whether the leaf is weakly typed in one of the two calls alone."""
        return self.before.name == self.after.name

    @property
    def facts(self) -> list[tuple[str, str, str]]:
        """What it begins as and becomes, each with its line; what is to be edited first."""
        begins = f"begins as {self.before}", self.why.begun
        becomes = f"becomes {self.after}", self.why.origin
        cause = f"because of {self.after}", self.why.cause
        is_first = self.is_rare or self.before.is_weak
        order = (begins, becomes, cause) if is_first else (becomes, cause, begins)
        lines = {x.place: (text, x.place, x.users.code) for text, x in reversed(order) if x}
        return [*reversed(lines.values())]


class Recompiled:
    """A function that was compiled more than once.

    Attributes:
        name: with its line.
        times: how often it was compiled.
        types: the leaves that changed their types, by path.
        others: what else differed, by path: two shapes, or all values of a constant.
        lines: those that made the constants, or the calls with other shapes, by path.
        remedies: what to write for constants.
        unknown: what is equal where nothing differs.
    """

    def __init__(self, name: str):
        self.name, self.times, self.unknown = name, 1, ""
        self.types: dict[str, TypeChange] = {}
        self.others: dict[str, list[str]] = {}
        self.lines: dict[str, str] = {}
        self.remedies: dict[str, str] = {}

    def text(self, is_whole: bool) -> list[str]:
        """Its lines in the report."""
        key = lambda x: (x.before, x.after, x.is_returned, *x.facts)
        groups = grouped(self.types.values(), key)
        shown = groups if is_whole else groups[:CAUSES]
        lines = list[str]()
        for group in shown:
            paths = [x.path for x in group]
            is_few = len(paths) <= FEW or is_whole
            name = ", ".join(paths) if is_few else of_holders(paths)
            lines.append(f"  {name}  {group[0].before} -> {group[0].after}")
            facts = group[0].facts or [("called", group[0].called, "")]
            lines += [f"    {line}" for line in columns(facts)]
        lines += and_more(len(groups) - len(shown))
        rows = [
            (path, _some(values), self.lines[path]) for path, values in self.others.items()
        ]
        most = len(rows) if is_whole else CAUSES
        lines += [f"  {line}" for line in columns(rows[:most])]
        lines += and_more(len(rows[most:]), "difference")
        return [*lines, self.unknown] if self.unknown else lines


_ONCE = "Write jax.jit once, outside of the loop.", "Call what has it under jax.jit."


def _some(values: Sequence[str]) -> str:
    return ", ".join(values[:_SHOWN]) + ", ..." * (len(values) > _SHOWN)


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
            elif call.loop and call.callers:
                name = f"the {call.loop} at {call.caller}"
                self._new.setdefault((name,), []).append(name)
        finally:
            release(call.callers)

    def lines(self, is_whole: bool = False) -> list[str]:
        """The report; empty if no function was compiled again."""
        lines = list[str]()
        for each in self.changed():
            again = f"was compiled {each.times} times"
            lines.append(f"dtypeguard run: {each.name} {again}.")
            lines += each.text(is_whole)
            lines += dict.fromkeys(
                [*advice([*each.types.values()]), *each.remedies.values()]
            )
        for names in self._new.values():
            if len(names) > _OFTEN:
                is_loop = names[0].startswith("the ")
                what = "its functions are" if is_loop else "it is a function that is"
                lines.append(
                    f"dtypeguard run: {names[0]} was compiled {len(names)} times, because "
                    f"{what} new each time. {_ONCE[is_loop]}"
                )
        return lines

    def changed(self) -> list[Recompiled]:
        """The functions that were compiled again, those for types first.

        The one that made a type is named before those that were given it.
        """

        def rank(each: Recompiled) -> int:
            made = any(change.is_returned for change in each.types.values())
            return 0 if made else 1 if each.types else 2

        return sorted((x for x in self._found.values() if x.times > 1), key=rank)

    def before(self, error: BaseException) -> tuple[list[str], list[str]]:
        """What a call before gave back in another type, and what to write.

        Both are empty unless that was a call of the function in which the error was
        raised: with the types of that call the function has no error.
        """
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        for number, frame in enumerate(frames):
            is_compiling = frame.f_code.co_name in COMPILING
            call = call_of(frames[number::-1]) if is_compiling else None
            earlier = self._of(call.key) if call else []
            if call is None or not earlier:
                continue
            now, given = compiled(call)
            changes = _type_changes(call, _nearest(earlier, now), now, given)
            changes = [x for x in changes if not (x.before.is_key or x.is_of_weak)]
            if changes:
                # Any step may have given them back.
                steps = [x._replace(why=x.why._replace(origin=None)) for x in changes]
                return [*_told_before(changes, call.name)], advice(steps)
        return [], []

    def _of(self, key: Any) -> list[Compiled]:
        """The earlier calls of a function."""
        ref, calls = self._earlier.get(id(key), (None, []))
        return calls if ref is not None and ref() is key else []

    def _record(self, call: CompilingCall) -> None:
        now, given = compiled(call)
        earlier = self._of(call.key)
        name = call.name
        if not earlier:
            self._earlier[id(call.key)] = weakref.ref(call.key), earlier
            types = hash(tuple(now.leaves.items()))
            self._new.setdefault((name, str(now.caller), types), []).append(name)
        else:
            found = self._found.setdefault(name, Recompiled(name))
            found.times += 1
            _compare(found, call, _nearest(earlier, now), now, given)
        del earlier[: len(earlier) + 1 - _MOST]
        earlier.append(now)


def _nearest(earlier: Sequence[Compiled], now: Compiled) -> Compiled:
    """The last of the calls before from which this one differs least."""

    def differs(before: Compiled) -> int:
        pairs = (before.leaves, now.leaves), (before.statics, now.statics)
        return sum(
            1 for old, new in pairs for path in {*old} | {*new} if _differ(old, new, path)
        )

    return min(reversed(earlier), key=differs)


def _differ(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> bool:
    """Whether two calls differ in a leaf or in a constant."""
    if path not in old or path not in new:
        return True
    pair = old[path], new[path]
    is_static = hasattr(pair[0], "is_same")
    return not pair[0].is_same(pair[1]) if is_static else pair[0] != pair[1]


def _compare(
    found: Recompiled, call: CompilingCall, before: Compiled, now: Compiled, given: Given
) -> None:
    """Adds to a function what differs between two of its calls."""
    statics = [
        path
        for path in {**before.statics, **now.statics}
        if _differ(before.statics, now.statics, path)
    ]
    reshaped = [
        path
        for path in {**before.leaves, **now.leaves}
        if path not in statics and _shape(before, path) != _shape(now, path)
    ]
    changes = _type_changes(call, before, now, given)
    for change in changes:
        # With another constant it is another program, but for what came back.
        if change.is_returned or not (statics or reshaped):
            found.types.setdefault(change.path, change)
        else:
            reshaped.append(change.path)
    called = f"called at {now.caller}" if now.caller else ""
    for path in reshaped:
        shapes = f"{_described(before, path)} -> {_described(now, path)}"
        found.others.setdefault(path, [shapes])
        found.lines.setdefault(path, called)
    objects = [x for x in statics if x in now.statics and now.statics[x].is_object]
    for path in [x for x in statics if x not in objects] + objects[:1]:
        values = found.others.setdefault(path, [])
        pair = [_described(x, path) for x in (before, now)]
        values += [x for x in pair if x not in values]
        if path in objects:
            line = given.line_of_object(path)
            values[:] = [f"another {now.statics[path].shown} each time"]
            found.remedies[path] = f"Make {parameter(path)} once, before the calls."
        else:
            line = now.numbers.get(path) or before.numbers.get(path)
            if len(values) > _OFTEN or (values[-1].endswith("]") and path in now.leaves):
                found.remedies[path] = _array_for(path, call, values[0])
        found.lines.setdefault(path, f"made at {line.users}" if line else called)
    if not (statics or reshaped or changes):
        is_reordered = [*before.leaves] != [*now.leaves]
        found.unknown = (
            f"  Leaves came in another order: {_some([*before.leaves])}, then "
            f"{_some([*now.leaves])}. Keep one order."
            if is_reordered
            else "  The cause is not known: types, shapes, paths and what is seen of "
            "constants are equal. Devices and shardings are not compared."
        )


def _shape(of: Compiled, path: str) -> tuple[int, ...] | None:
    is_key = path in of.leaves and of.leaves[path][0].is_key
    return () if is_key else of.leaves[path][1] if path in of.leaves else None


def _described(of: Compiled, path: str) -> str:
    if path in of.statics:
        return of.statics[path].shown
    if path not in of.leaves:
        return "(absent)"
    type_, shape = of.leaves[path]
    return f"{type_.name}[{','.join(map(str, shape))}]{' (weak)' * type_.is_weak}"


def _array_for(path: str, call: CompilingCall, value: str) -> str:
    """What to do about a number that is a constant of the program."""
    begin = f"{path} is a constant of the program: "
    if not call.wrapper:  # an array is no static argument
        begin += f"take {parameter(path)} out of static_argnums (or static_argnames), and "
    elif call.wrapper == "equinox" and "." in path:  # where an array is a parameter
        begin += f"pass it to {call.name.partition(' ')[0]} as an argument, and "
    return f"{begin}give an array, jnp.asarray({value})."


def _type_changes(
    call: CompilingCall, before: Compiled, now: Compiled, given: Given
) -> list[TypeChange]:
    """The leaves of a call that changed their types alone, with their lines."""
    types = {path: type_ for path, (type_, _) in before.leaves.items()}
    paths = [
        path
        for path, (type_, _) in now.leaves.items()
        if path in types
        and types[path] != type_
        and _shape(before, path) == _shape(now, path)
    ]
    changes = []
    for path in paths:
        old, new = types[path], now.leaves[path][0]
        returned, why, item = before.returned.get(path, (None, Why(), None))
        is_returned = returned == new
        if not is_returned:
            made = now.made.get(path)
            why, item = Why(made.why().root if made else now.numbers.get(path)), None
            if why.origin and _is_called(why.origin, before, now):
                why = Why()
        begun = before.numbers.get(path)
        if path in before.made:
            begun = before.made[path].why().root
            begun = None if begun and _is_called(begun, before, before) else begun
        elif begun is None and old.is_weak and path == parameter(path):
            begun = before.caller
        is_rare = why.cause is not None and _may_begin_so(types, old, new, paths)
        why = why._replace(begun=begun)
        about = path, old, new, why, is_returned, is_rare, item
        changes.append(TypeChange(*about, str(now.caller or "")))
    return changes


def _is_called(line: Origin, *calls: Compiled) -> bool:
    """Whether a line is that of one of the calls."""
    return any(x.caller and str(line.users) == str(x.caller) for x in calls)


def _may_begin_so(
    types: Mapping[str, Type], old: Type, new: Type, changed: Sequence[str]
) -> bool:
    """Whether leaves of one type that all change to another may begin in that.

    Several others have the new type, or each belongs to one of them, as the state of a
    parameter does: `state['w'].mu` of `params['w']`.
    """
    narrow = [path for path, type_ in types.items() if type_ == old]
    wide = [path.removeprefix(parameter(path)) for path, x in types.items() if x == new]
    owned = lambda path: any(
        x and x in path and not path.endswith(f"{parameter(path)}{x}") for x in wide
    )
    is_rare = {*narrow} <= {*changed} and 1 < len(wide) > len(narrow)
    return is_rare or all(map(owned, narrow))


def _told_before(changes: Sequence[TypeChange], name: str) -> Iterator[str]:
    """What a call before was given and gave back, a sentence for each cause."""
    cause = lambda x: (x.is_returned, x.before, x.after, x.why.root)
    for group in grouped(changes, cause):
        first, paths = group[0], [x.path for x in group]
        path = first.path if len(group) == 1 else of_holders(paths)
        given = f"The call of {name} before this one was given {path} as {first.before}"
        if first.is_returned:
            given += f" and gave {'it' if len(group) == 1 else 'them'} back"
        line = first.why.root
        place = f", at {line.users}" if line else ""
        yield f"{given}{'' if first.is_returned else ', this one'} as {first.after}{place}."


def advice(changes: Sequence[TypeChange]) -> list[str]:
    """What to write; a sentence a line."""
    return list(dict.fromkeys(_sentences(changes)))


def _sentences(changes: Sequence[TypeChange]) -> Iterator[str]:
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
        if x.is_of_weak:
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
    rare = grouped([x for x in guarded if x.is_rare and x.why.begun], lambda x: x.why.begun)
    for group in rare if len(rare) == 1 else ():  # a model is meant as it is
        paths = [x.path for x in group]
        path = of_holders(paths) if len(paths) > 1 else paths[0]
        yield f"At {group[0].why.begun.users} begin {path} as {group[0].after}."
    if guarded:
        yield (
            "Where a step gives back another dtype than it was given: "
            f"dtypeguard.guard_step(step{_options(guarded)}), or dtypeguard.guard(opt) "
            "for an optimizer."
        )


def _options(changes: Iterable[TypeChange]) -> str:
    """What to tell a guard of a step, if its carry is not only its first argument."""
    items = {parameter(x.path): x.item for x in changes if x.is_returned}
    is_clear = all(items.get(parameter(x.path)) == x.item is not None for x in changes)
    if not is_clear or "self" in items or [*items.values()] in ([], [0]):
        return ""
    names, places = ([*x] for x in (items, items.values()))
    if len(items) == 1:
        return f", carry={names[0]!r}, returned={places[0]}"
    return f", carry={tuple(names)}, returned={tuple(places)}"
