"""The record of what functions are compiled for, while a script runs.

Each difference between two calls is named: types with their lines, shapes, constants,
another tree, or a function that is new each time. Where nothing that is looked at differs,
nothing is said; nor where a package is called from another line, or two lines give other
trees.
"""

import dataclasses
from collections.abc import Hashable
from types import FrameType

from .._source.files import is_installed
from .._source.origin import Origin, Why
from .call import call_that_compiles
from .difference import CallDifference, Compilation, call_differences, compilation_of
from .report import lines_of_differences

_OFTEN = 3  # functions of one code that are reported as one


@dataclasses.dataclass
class RecompiledFunction:
    """A function that was compiled more than once.

    Attributes:
        first: what it was compiled for at first.
        times: how often it was compiled.
        differences: between its calls, one of each kind at a path; empty if it is new each
            time.
    """

    first: Compilation
    times: int = 1
    differences: dict[Hashable, CallDifference] = dataclasses.field(default_factory=dict)

    def add(self, before: Compilation, after: Compilation) -> None:
        """Adds what differs between two of its calls."""
        self.times += 1
        for difference in call_differences(before, after):
            kind = (difference.path, difference.types is None)
            self.differences.setdefault(kind, difference)

    def lines(self, is_whole: bool) -> list[str]:
        """Returns what is said of it."""
        headline = f"dtypeguard run: {self.first.name} was compiled {self.times} times"
        if not self.differences:
            return [
                f"{headline}, because it is a function that is new each time. Write "
                "jax.jit once, outside of the loop."
            ]
        lines = lines_of_differences(self.differences.values(), is_whole)
        return [f"{headline}.", *lines]

    @property
    def origins(self) -> list[Origin | Why | None]:
        """The lines of source in its report."""
        origins: list[Origin | Why | None] = [self.first.line, self.first.caller]
        for difference in self.differences.values():
            origins.append(difference.why)
        return origins

    @property
    def is_maker(self) -> bool:
        """Whether it gives back an argument in another type itself."""
        return any(difference.returned for difference in self.differences.values())


class Compilations:
    """Records what functions are compiled for."""

    def __init__(self):
        # By the identity of the function that JAX was given: it may have no hash.
        self._last: dict[int, Compilation] = {}
        self._recompiled: dict[str, RecompiledFunction] = {}
        # Functions of one code that are new, at one line and for the same types.
        self._new: dict[Hashable, RecompiledFunction] = {}

    def record(self, frame: FrameType) -> None:
        """Records the call that compiles, from a frame inside of it."""
        call = call_that_compiles(frame)
        if call is None:
            return
        after = compilation_of(call)
        if after is None:
            return
        key = id(call.cached)
        before = self._last.get(key)
        self._last[key] = after
        # A function that is gone may have had the same identity.
        if before is None or before.cached() is not call.cached:
            types = [part.leaf_type for part in after.parts.values()]
            kind = (after.name, after.caller, *after.parts, *types)
            new = RecompiledFunction(after, times=0)
            function = self._new.setdefault(kind, new)
            function.times += 1
            return
        # Two lines may use a package, or give other trees, for two purposes.
        is_of_package = is_installed(after.line.file)
        has_two_purposes = is_of_package or before.layout != after.layout
        if before.caller == after.caller or not has_two_purposes:
            recompiled = RecompiledFunction(before)
            function = self._recompiled.setdefault(after.name, recompiled)
            function.add(before, after)

    def functions(self) -> list[RecompiledFunction]:
        """Returns the functions that were compiled again, the culprits first."""
        functions = []
        for function in self._recompiled.values():
            if function.differences:
                functions.append(function)
        for function in self._new.values():
            # A few may be meant: a function for each of some sizes, say.
            if function.times > _OFTEN:
                functions.append(function)
        return sorted(functions, key=lambda function: not function.is_maker)
