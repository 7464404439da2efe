"""The record of what functions are compiled for, while a script runs.

Each difference between two calls is named: types with their lines, shapes, constants,
another tree, or a function that is new each time. Where nothing that is looked at differs,
nothing is said; nor where a package is called from another line, or two lines give other
trees.
"""

import dataclasses
import weakref
from collections.abc import Hashable, Sequence
from types import FrameType
from typing import Any

from .._leaves.key_path import KeyPath
from .._source.files import is_installed
from .._source.origin import Origin, release
from .call import CompilingCall, call_that_compiles
from .compilation import CallDifference, Compilation, call_differences, compilation_of
from .report import lines_of_differences

_OFTEN = 3  # functions of one code that are reported as one


@dataclasses.dataclass
class RecompiledFunction:
    """A function that was compiled more than once.

    Attributes:
        first: what it was compiled for at first.
        times: how often it was compiled.
        differences: between its calls, by path.
    """

    first: Compilation
    times: int = 1
    differences: dict[KeyPath, CallDifference] = dataclasses.field(default_factory=dict)

    def add(self, before: Compilation, after: Compilation) -> None:
        """Adds what differs between two of its calls."""
        self.times += 1
        for difference in call_differences(before, after):
            recorded = self.differences.get(difference.path)
            # A change of type says more than another shape.
            if recorded is None or (difference.type_change and not recorded.type_change):
                self.differences[difference.path] = difference


class Compilations:
    """Records what functions are compiled for."""

    def __init__(self):
        # By the identity of the function that JAX was given: it may have no hash.
        self._last: dict[int, tuple[weakref.ref[Any], Compilation]] = {}
        self._recompiled: dict[str, RecompiledFunction] = {}
        # How often a function of one code is new, at one line and for the same types.
        self._new: dict[Hashable, list[Compilation]] = {}

    def record(self, frame: FrameType) -> None:
        """Records the call that compiles, from a frame inside of it."""
        call = call_that_compiles(frame)
        if call is None:
            return
        compilation = compilation_of(call)
        release(call.outer_frames)
        if compilation is not None:
            self._add(call, compilation)

    def _add(self, call: CompilingCall, after: Compilation) -> None:
        function = call.cached
        key = id(function)
        reference, before = self._last.get(key, (None, None))
        self._last[key] = (weakref.ref(function), after)
        # A function that is gone may have had the same identity.
        if reference is None or before is None or reference() is not function:
            kind = (after.name, str(after.caller), after.leaf_types)
            self._new.setdefault(kind, []).append(after)
            return
        # Two lines may use a package, or give other trees, for two purposes.
        is_of_package = is_installed(after.code.co_filename)
        has_two_purposes = is_of_package or before.layout != after.layout
        if before.is_called_from(after.caller) or not has_two_purposes:
            recompiled = RecompiledFunction(before)
            recompiled = self._recompiled.setdefault(after.name, recompiled)
            recompiled.add(before, after)

    def origins(self) -> list[Origin | None]:
        """Returns the lines of the report: functions, their calls, their arguments."""
        origins: list[Origin | None] = []
        for function in self._changed():
            origins += [function.first.line, function.first.caller]
            for difference in function.differences.values():
                why = difference.why
                origins += [why.origin, why.cause, why.begun]
        for functions in self._new.values():
            origins.append(functions[0].line)
        return origins

    def lines(self, is_whole: bool = False) -> list[str]:
        """Returns the report; empty if no function was compiled again."""
        lines = []
        for function in self._changed():
            name = function.first.name
            times = function.times
            lines.append(f"dtypeguard run: {name} was compiled {times} times.")
            differences = list(function.differences.values())
            lines += lines_of_differences(differences, is_whole)
        for functions in self._new.values():
            times = len(functions)
            # A few may be meant: a function for each of some sizes, say.
            if times > _OFTEN:
                name = functions[0].name
                lines.append(
                    f"dtypeguard run: {name} was compiled {times} times, because it is a "
                    "function that is new each time. Write jax.jit once, outside of the "
                    "loop."
                )
        return lines

    def _changed(self) -> Sequence[RecompiledFunction]:
        """Returns the functions that were compiled again, those for types first."""
        changed = [x for x in self._recompiled.values() if x.differences]
        return sorted(changed, key=_place_in_report)


def _place_in_report(function: RecompiledFunction) -> tuple[bool, bool]:
    # The function that made a type stands before those that were given it.
    differences = function.differences.values()
    returns = any(difference.returned for difference in differences)
    retypes = any(difference.type_change for difference in differences)
    return not returns, not retypes
