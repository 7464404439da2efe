"""Why a function was compiled again: two calls side by side, with the lines behind it.

Each difference is named: types with their lines, shapes, constants, another tree, or a
function that is new each time. Where nothing that is looked at differs, nothing is said;
nor where a package is called from another line, or two lines give other trees.
"""

import itertools
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

from .._leaves.cast_text import cast_text, lost, return_as
from .._leaves.dtypes import fits, kind
from .._leaves.leaf_type import LeafType
from .._leaves.table import CAUSES, FEW, and_more, columns, grouped
from .._source.files import is_installed
from .._source.origin import Origin, Why, callers, release
from .._tracebacks.path_text import of_holders, parameter
from .compiling import Compiled, call_of, compiled

_OFTEN = 3  # functions of one code that are told to be one

_GUARD = (
    "Where a step gives back another dtype than it was given: "
    "dtypeguard.guard_step(step{}), or dtypeguard.guard(opt) for an optimizer."
)
_WEAK = (
    "Weak types come from Python numbers: give jax.Arrays from the first call on, such as "
    "dtypeguard.strong(state)."
)
_NEW = "it is a function that is new each time. Write jax.jit once, outside of the loop."


class CallDifference(NamedTuple):
    """What differs between two calls of a function."""

    path: str
    text: str  # what it was and what it is: `bfloat16 -> float32`
    facts: list[tuple[str, str, str]]  # what is to be edited first
    advice: str
    why: Why = Why()
    is_returned: bool = False  # whether the function itself gave it that type
    is_type: bool = False  # and nothing else


class Recompiled:
    """A function that was compiled more than once, and what differs between its calls."""

    def __init__(self, now: Compiled):
        self.name, self.times = now.name, 1
        self.line, self.caller = now.line, now.caller
        self.differences: dict[str, CallDifference] = {}
        # Of what it returns, by the names of the parameters that come back there.
        self.items: dict[str, int | None] = {}

    def text(self, is_whole: bool) -> list[str]:
        """Its lines in the report, types first."""
        found = sorted(self.differences.values(), key=lambda x: not x.is_type)
        groups = grouped(found, lambda x: (x.text, *x.facts))
        most, lines = len(groups) if is_whole else CAUSES, list[str]()
        for group in groups[:most]:
            paths = [x.path for x in group]
            is_few = len(paths) <= FEW or is_whole
            name = ", ".join(paths) if is_few else of_holders(paths)
            lines.append(f"  {name}  {group[0].text}")
            lines += [f"    {line}" for line in columns(group[0].facts)]
        lines += and_more(len(groups) - len(groups[:most]))
        guarded = dict.fromkeys(parameter(x.path) for x in found if x.advice == _GUARD)
        items = [*map(self.items.get, guarded)]
        is_plain = None in items or "self" in guarded or items == [0]
        options = f", carry={(*guarded,)!r}, returned={(*items,)}" * (not is_plain)
        advice = sorted({x.advice: 0 for x in found if x.advice}, key=_GUARD.__eq__)
        return [*lines, *(x.replace("{}", options) for x in advice)]

    def compare(self, before: Compiled, now: Compiled) -> None:
        """Adds what differs between two of its calls."""
        self.times += 1
        self.items |= {parameter(x): each.item for x, each in before.returned.items()}
        if before.tree != now.tree:
            there = CallDifference("arguments", "of another tree", _called(now), "")
            self.differences.setdefault("", there)
            return
        changed = [x for x, y in now.parts.items() if y.known != before.parts[x].known]
        retyped = [x for x in changed if before.parts[x].is_retyped(now.parts[x])]
        objects = [x for x in changed if now.parts[x].is_object]
        for path in changed:
            found = _of_type(before, now, path) if path in retyped else None
            # With another constant it is another program, but for what came back.
            if found is None or not (found.is_returned or len(retyped) == len(changed)):
                if path in objects[1:]:  # in one that is new
                    continue
                found = _of_other(before, now, path)
            known = self.differences.get(path)
            if known is None or found.is_type > known.is_type:
                self.differences[path] = found


def _of_type(before: Compiled, now: Compiled, path: str) -> CallDifference:
    """The change of a leaf's type, with its lines."""
    old, new = before.parts[path].known[0], now.parts[path].known[0]
    begun, back = before.why(path).root, before.returned.get(path)
    is_returned = back is not None and back.type == new
    if begun is None and old.weak and path == parameter(path):
        begun = before.caller
    why = back.why if back and is_returned else now.why(path, before)
    why = why._replace(begun=begun)
    begins = f"begins as {old.without_shape}", begun
    name = new.without_shape
    rest = (f"becomes {name}", why.origin), (f"because of {name}", why.cause)
    order = (begins, *rest) if old.weak else (*rest, begins)
    lines = {x.place: (text, x.place, x.users.code) for text, x in reversed(order) if x}
    facts = [*reversed(lines.values())] or _called(now)
    advice = _advice_for_leaf(path, old, new, why, is_returned)
    text = f"{old.without_shape} -> {name}"
    return CallDifference(path, text, facts, advice, why, is_returned, True)


def _called(now: Compiled) -> list[tuple[str, str, str]]:
    return [("called", str(now.caller or ""), "")]


def _of_other(before: Compiled, now: Compiled, path: str) -> CallDifference:
    """Another shape or constant, and the line that made it or called."""
    old, new = before.parts[path], now.parts[path]
    text, advice = f"{old.shown} -> {new.shown}", ""
    # What the call itself gives back is to be changed where it begins.
    line = None if new.type else now.why(path).root or before.why(path).root
    facts = [("made", line.place, line.users.code)] if line else _called(now)
    if new.is_object:
        text = f"another {new.shown} each time"
        advice = f"Make {parameter(path)} once, before the calls."
    elif new.known[0] in (int, float) and "[" not in path:  # not a part of a shape
        advice = (
            f"{path} is a constant, of which each compiles anew: trace it, as "
            f"jnp.asarray({old.shown})."
        )
    return CallDifference(path, text, facts, advice, Why(line))


def _advice_for_leaf(
    path: str, old: LeafType, new: LeafType, why: Why, is_returned: bool
) -> str:
    """What to write for a leaf that changed its type."""
    before, after = old.dtype, new.dtype
    if kind(before) is None or kind(after) is None:  # random keys
        return ""
    place = why.begun and why.begun.users
    begin = f"At {place} begin {path} as {after}" if place else f"Begin {path} as {after}"
    if before == after:
        return _WEAK
    if old.weak:
        return f"{begin}: jnp.asarray(x, jnp.{after})."
    if not fits(after, before):  # which a guard refuses
        loses = f"{lost(before, after)}, or {return_as(before, after)}."
        return f"{begin}{loses}" * is_returned
    if is_returned or why.origin is None:
        return _GUARD
    return f"Cast it at {why.origin.users}: {cast_text(before)}."


class Compilations:
    """Records what functions are compiled for."""

    def __init__(self):
        self._last: dict[int, tuple[Any, Compiled]] = {}
        self._found: dict[str, Recompiled] = {}
        # Of one code and for the same types, how often, and the line.
        self._new: dict[tuple[object, ...], list[Recompiled]] = {}

    def record(self, frame: FrameType) -> None:
        """Records the call that compiles, if a frame inside of it belongs to one."""
        call = call_of(itertools.chain([frame], callers(frame)))
        if call is None:
            return
        now = compiled(call)
        release(call.callers)
        if now is None:
            return
        ref, before = self._last.get(id(call.key), (None, None))
        if before is not None and ref is not None and ref() is call.key:
            is_elsewhere = str(before.caller) != str(now.caller)
            is_others = is_installed(now.code.co_filename) or before.tree != now.tree
            if not (is_elsewhere and is_others):
                self._found.setdefault(now.name, Recompiled(now)).compare(before, now)
        else:
            types = tuple((path, x.known) for path, x in now.parts.items() if x.type)
            self._new.setdefault((now.name, str(now.caller), types), []).append(
                Recompiled(now)
            )
        self._last[id(call.key)] = weakref.ref(call.key), now

    def origins(self) -> list[Origin | None]:
        """The lines of the report: of the functions, their calls, and their arguments."""
        origins = []
        for function in self.changed():
            origins += [function.line, function.caller]
            for difference in function.differences.values():
                why = difference.why
                origins += [why.origin, why.cause, why.begun]
        for functions in self._new.values():
            origins.append(functions[0].line)
        return origins

    def lines(self, is_whole: bool = False) -> list[str]:
        """The report; empty if no function was compiled again."""
        lines, begin = list[str](), "dtypeguard run:"
        for each in self.changed():
            lines.append(f"{begin} {each.name} was compiled {each.times} times.")
            lines += each.text(is_whole)
        often, why = [x for x in self._new.values() if len(x) > _OFTEN], f"because {_NEW}"
        lines += [f"{begin} {x[0].name} was compiled {len(x)} times, {why}" for x in often]
        return lines

    def changed(self) -> Sequence[Recompiled]:
        """The functions that were compiled again, those for types first.

        The one that made a type is named before those that were given it.
        """

        def rank(each: Recompiled) -> tuple[bool, bool]:
            found = [*each.differences.values()]
            return not any(x.is_returned for x in found), not any(x.is_type for x in found)

        return sorted((x for x in self._found.values() if x.differences), key=rank)
