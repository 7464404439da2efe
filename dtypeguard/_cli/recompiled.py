"""Finds the functions that were compiled again only because an argument changed its type.

Or because a Python number that is a constant of the program changed, or because the
function or an argument was a new object each time. `compiled.py` reads the calls.
"""

import itertools
import re
import traceback
import weakref
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import NamedTuple

from .._leaves.groups import FEW
from .._leaves.internals import COMPILING, STATEFUL
from .._leaves.rows import Type
from .._leaves.types import Function, Leaf
from .._lines.compiled import ALL_EQUATIONS, CompiledLines
from .._lines.fed import parameter
from .._lines.record import recorded
from .._source.origin import Origin, Why, callers, release
from .changes import (
    TypeChange,
    advice,
    may_begin_so,
    rows,
    told_before,
    users_line,
)
from .compiled import (
    Compiled,
    CompiledCall,
    LeafOfCall,
    call_of,
    compiled,
    eager,
    is_listed,
    line_of_jit,
    line_of_object,
    name_of,
    unwrapped,
)

# Calls of a function that are kept.
_MOST = 50
# How many constants are compiled before they are named: those that a library makes static,
# those that the user does, and functions of one code.
_OFTEN, _DECLARED, _NEW = 3, 5, 5


class Constants(NamedTuple):
    """What was another constant of the program in each of several calls.

    Attributes:
        path: of the leaf.
        values: the numbers, or the class of another object.
        is_object: whether it is no number, and equal to itself alone.
        begun: the line that made the first, or that makes them.
        most: how many are nothing to name.
        remedy: what to give in place of the numbers.
    """

    path: str
    values: list[str]
    is_object: bool
    begun: Origin | None
    most: int
    remedy: str


class RecompiledFunction(NamedTuple):
    """A function that was compiled again.

    Attributes:
        name: with its line.
        changes: of types, by path.
        constants: of the program, by path.
        times: how often it was compiled.
    """

    name: str
    changes: dict[str, TypeChange]
    constants: dict[str, Constants]
    times: list[str]


class Recompiled:
    """Records what functions are compiled for."""

    def __init__(self):
        self._found: dict[str, RecompiledFunction] = {}
        self._earlier = weakref.WeakKeyDictionary[Function, list[Compiled]]()
        self._reordered: dict[str, tuple[list[str], list[str]]] = {}
        self._reshaped: dict[str, tuple[str, str, str, str]] = {}
        self._new: dict[tuple[CodeType, int], tuple[int, str]] = {}
        self._eager: dict[tuple[str, str, tuple[object, ...]], int] = {}
        self._left = ALL_EQUATIONS

    def record(self, frame: FrameType) -> None:
        """Records the call that compiles, if a frame inside of it belongs to one."""
        call = call_of(itertools.chain([frame], callers(frame)))
        if call is None:
            return
        try:
            if is_listed(call):
                self._record(call)
            elif found := eager(call):
                self._eager[found] = self._eager.get(found, 0) + 1
        finally:
            release(call.callers)

    def lines(self, is_whole: bool = False) -> list[str]:
        """The report; empty if no function was compiled again for its types.

        Args:
            is_whole: whether to list every leaf.
        """
        changed, lines = self.changed(), list[str]()
        if changed:
            n = len(changed)
            lines.append(
                f"dtypeguard run: {n} function{'s were' if n > 1 else ' was'} compiled "
                "again only because the type of an argument changed."
            )
        for function in changed:
            changes = list(function.changes.values())
            lines += [f"  {function.name}", *rows(changes, is_whole)]
        lines += advice([change for each in changed for change in each.changes.values()])
        return [*lines, *self._of_constants()]

    def changed(self) -> list[RecompiledFunction]:
        """The functions that were compiled again for the types of their arguments.

        The one that made a type is named before those that were given it.
        """
        changed = [each for each in self._found.values() if each.changes]
        is_given = lambda each: not any(x.is_returned for x in each.changes.values())
        return sorted(changed, key=is_given)

    def before(self, error: BaseException) -> tuple[list[str], list[str]]:
        """What a call before gave back in another type, and what to write.

        Both are empty unless that was a call of the function in which the error was
        raised: with the types of that call the function has no error.
        """
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        compiling = [n for n, x in enumerate(frames) if x.f_code.co_name in COMPILING]
        for call in (call_of(frames[number::-1]) for number in compiling):
            if call is None or call.key not in self._earlier:
                continue
            now, values = compiled(call)
            before, paths = _nearest(self._earlier[call.key], now) or (now, [])
            types = [path for path in paths if not before.leaves[path].is_static]
            changes = _explained(call, before, now, values, types)
            changes = [x for x in changes if not (x.before.is_key or x.is_of_weak)]
            if changes:
                told = told_before(changes, name_of(call.function))
                unknown = lambda x: x._replace(why=x.why._replace(origin=None))
                steps = (x if x.is_unseen else unknown(x) for x in changes)
                return [*told], advice([*steps])  # any step may have given them back
        return [], []

    def _of_constants(self) -> list[str]:
        """What is said of functions that were compiled for anything but a type."""
        lines = [
            f"dtypeguard run: {name} was compiled again because leaves came in another "
            f"order: {_some(before)} then {_some(now)}. Keep one order."
            for name, (before, now) in self._reordered.items()
        ]
        lines += [
            f"dtypeguard run: {name} was compiled again because of a shape: {path} is "
            f"{before} then {now}{caller and f', at {caller}'}. No type changed."
            for name, (path, before, now, caller) in self._reshaped.items()
            if name not in self._found
        ]
        for function in self._found.values():
            times = len(function.times)
            for each in function.constants.values():
                values = list(dict.fromkeys(each.values))
                begin = f"dtypeguard run: {function.name} was compiled {times} times: "
                if each.is_object:
                    made = f", made at {each.begun}" if each.begun else ""
                    lines.append(
                        f"{begin}{each.path} is another {values[0]} each time, which "
                        f"equals none before{made}. {each.remedy}."
                    )
                elif len(values) >= each.most or values[-1].endswith("]"):
                    some = ", ".join(values[:4]) + ", ..." * (len(values) > 4)
                    some += f" (begins at {each.begun})" if each.begun else ""
                    remedy = f"{each.remedy}, jnp.asarray({values[0]})."
                    lines.append(f"{begin}{each.path} is {some}. {remedy}")
        for (name, place, _), times in self._eager.items():
            if times >= _NEW:
                lines.append(
                    f"dtypeguard run: the {name} at {place} was compiled {times} times, "
                    "because its functions are new each time. Call what has it under "
                    "jax.jit."
                )
        for times, name in self._new.values():
            if times >= _NEW:
                lines.append(
                    f"dtypeguard run: {name} was compiled {times} times, because it was a "
                    "new function each time. Write jax.jit once, outside of the loop."
                )
        return lines

    def _record(self, call: CompiledCall) -> None:
        now, values = compiled(call)
        earlier = self._earlier.get(call.key)
        if earlier is None:
            earlier = self._earlier.setdefault(call.key, [])
            self._is_new(call, now)
        least = _nearest(earlier, now)
        if now.program is not None:
            self._left -= now.program.size
        if self._left < 0 or len(earlier) >= _MOST:
            now = now._replace(program=None)
        del earlier[: len(earlier) - _MOST]
        earlier.append(now)
        name = name_of(call.function)
        if least is None:
            same = (x for x in earlier[-2::-1] if _is_reordered(x, now))
            for before in itertools.islice(same, 1):
                orders = list(before.leaves), list(now.leaves)
                self._reordered.setdefault(name, orders)
            for path, old in itertools.islice(_reshaped(earlier[-2::-1], now), 1):
                shapes = _shaped(old), _shaped(now.leaves[path])
                self._reshaped.setdefault(name, (path, *shapes, now.caller))
        if least is None or not least[1]:
            return
        before, paths = least
        found = self._found.setdefault(name, RecompiledFunction(name, {}, {}, []))
        found.times.extend([now.caller] * (2 - bool(found.times)))
        types = [path for path in paths if not before.leaves[path].is_static]
        for change in _explained(call, before, now, values, types):
            # With another constant it is another program, but for what came back.
            if len(types) == len(paths) or change.is_returned:
                found.changes.setdefault(change.path, change)
        for path in paths:
            if path not in types:
                is_object = not before.leaves[path].shown
                most = _OFTEN if call.wrapper else _DECLARED
                begun, remedy = before.begun.get(path), _remedy(path, call)
                if is_object:
                    begun, remedy = line_of_object(call, path), _once(values[path], call)
                about = is_object, begun, most, remedy
                first = Constants(path, [], *about)
                known = found.constants.setdefault(path, first)
                pair = before.leaves[path], now.leaves[path]
                known.values.extend(map(_constant, pair))

    def _is_new(self, call: CompiledCall, now: Compiled) -> None:
        """Counts a function that is made anew for each call."""
        code = getattr(unwrapped(call.function), "__code__", None)
        if code is None:
            return
        types = tuple(now.leaves.items())
        structure = re.sub(" at 0x[0-9a-f]+", "", str(now.rest[1:]))
        about = code, hash((structure, types, now.caller))  # which keeps no tree alive
        times, name = self._new.get(about, (0, ""))
        name = name or name_of(call.function, line_of_jit(call) if call.callers else "")
        self._new[about] = times + 1, name


def _nearest(
    earlier: Sequence[Compiled], now: Compiled
) -> tuple[Compiled, list[str]] | None:
    """The call before in whose leaves the fewest types or constants were others."""
    pairs = ((before, _changed(before, now)) for before in reversed(earlier))
    alike = [(before, paths) for before, paths in pairs if paths is not None]
    return min(alike, key=lambda pair: len(pair[1]), default=None)


def _changed(before: Compiled, now: Compiled) -> list[str] | None:
    """The leaves whose types or constants changed; None if anything else did."""
    if before.rest != now.rest or before.leaves.keys() != now.leaves.keys():
        return None
    paths = [path for path, leaf in now.leaves.items() if leaf != before.leaves[path]]
    pairs = [(before.leaves[path], now.leaves[path]) for path in paths]
    return paths if all(_is_known(*pair) for pair in pairs) else None


def _reshaped(
    earlier: Sequence[Compiled], now: Compiled
) -> Iterator[tuple[str, LeafOfCall]]:
    """The leaves of calls that differ from another in shapes alone, as they were."""
    for before in earlier:
        if before.rest == now.rest and before.leaves.keys() == now.leaves.keys():
            pairs = [(path, old, now.leaves[path]) for path, old in before.leaves.items()]
            if all(old._replace(shape=new.shape) == new for _, old, new in pairs):
                yield from ((path, old) for path, old, new in pairs if old != new)


def _is_reordered(before: Compiled, now: Compiled) -> bool:
    """Whether a call has the leaves of another one in another order."""
    is_same = before.rest[0] == now.rest[0] and before.leaves == now.leaves
    return is_same and list(before.leaves) != list(now.leaves)


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:FEW]) + ", ..." * (len(paths) > FEW)


def _is_known(old: LeafOfCall, new: LeafOfCall) -> bool:
    """Whether a change of a leaf is one that is listed."""
    if not old.is_static:
        if old.type.is_key or new.type.is_key:  # one of raw numbers has another shape
            return not new.is_static
        return not new.is_static and old.shape == new.shape
    if old.shown and old.type.name != "bool":
        return bool(new.shown) or not (new.is_static or new.shape)
    return new.is_static and old.type == new.type and old.has_identity


def _shaped(leaf: LeafOfCall) -> str:
    return f"{leaf.type}[{','.join(map(str, leaf.shape))}]"


def _remedy(path: str, call: CompiledCall) -> str:
    """What to do about a number that is a constant of the program."""
    if not call.wrapper:  # an array is no static argument
        out = f"take {parameter(path)} out of static_argnums (or static_argnames) and "
        return f"A static argument is a constant of the program: {out}give an array"
    text = "A Python number is a constant of the program: give an array"
    if call.wrapper == "equinox" and "." in path:
        name = name_of(call.function).partition(" ")[0]
        text = "A Python number is a constant of the program, and an array in a module "
        text += f"is a parameter: pass it to {name} as an argument"
    return text


def _once(value: Leaf, call: CompiledCall) -> str:
    """What to do about an object that is a constant of the program."""
    name = name_of(call.function).partition(" ")[0]
    if hasattr(value, "lower") and hasattr(value, "__wrapped__"):  # a jitted function
        return f"Make it once, or take jax.jit out: {name} is compiled as a whole"
    return "Make it once, or define __eq__ and __hash__"


def _constant(leaf: LeafOfCall) -> str:
    return (leaf.shown or leaf.type.name) if leaf.is_static else f"{leaf.type.name}[]"


def _explained(
    call: CompiledCall,
    before: Compiled,
    now: Compiled,
    values: dict[str, Leaf],
    paths: Sequence[str],
) -> list[TypeChange]:
    """The leaves of a call that changed their types, with their lines."""
    calls = " then ".join(dict.fromkeys(filter(None, (before.caller, now.caller))))
    program, lines, returned = before.program, None, {}
    if program is not None:
        lines = CompiledLines(program, call.jaxpr, values)
        fed = {path: (now.positions[path], values[path]) for path in paths}
        returned = program.returned(fed)
    changes = []
    changed: dict[tuple[Type, Type], list[str]] = {}
    of_call = {path: x.type for path, x in before.leaves.items() if not x.is_static}
    for path in paths:
        types = before.leaves[path].type, now.leaves[path].type
        changed.setdefault(types, []).append(path)
    for path in paths:
        old, new = before.leaves[path], now.leaves[path]
        is_unseen = call.wrapper in STATEFUL and path.startswith("state_vals")
        is_returned, begun, why = path in returned, before.begun.get(path), Why()
        if lines is not None and is_returned:
            why = lines.of_result(returned[path], path, old.type)
            begun = _first(before, path) or begun
        elif lines is not None:
            made = recorded(values[path]).root
            is_in_call = users_line(made) in (before.caller, now.caller)
            why = Why() if is_in_call else Why(made)
        pair = old.type, new.type
        is_rare = why.cause is not None and may_begin_so(of_call, *pair, changed[pair])
        why = why._replace(begun=begun)
        about = path, old.type, new.type, is_returned, why, calls, is_unseen, is_rare
        item = program and is_returned and program.item_of(returned[path])
        changes.append(TypeChange(*about, item=item if type(item) is int else None))
    return changes


def _first(before: Compiled, path: str) -> Origin | None:
    """The line that made a leaf of a call, if it is not the call itself."""
    made = before.made.get(path)
    line = made.why().root if made else None
    return None if users_line(line) == before.caller else line
