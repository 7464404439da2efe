"""The lines of source behind what changed. They are looked for after a check has failed.

A change of type goes on to all that uses a value. The cause is the first call in the
program that computes otherwise and takes nothing of one before. A call that takes what it
took, and computes otherwise, is a cause wherever it stands.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .._lines.equations import Written
from .._source.origin import Origin, origin_at
from .._source.syntax import casts_in, expression, renamed_before, returned
from .compare import OUTPUTS, Differences, FunctionChange, LeafChange
from .computations import CAST, IN_ORDER, Computation, LockEntry, function_name
from .step import Function, TracedStep


class LockCause(NamedTuple):
    """A line that changed, or an input.

    Attributes:
        lines: where it is now; several if the lock does not tell them apart.
        function: that contains it; None of an input.
        change: what this function computes otherwise.
        leaves: the inputs, carry or outputs that change their types there.
        kinds: of the entries that these lines themselves change.
    """

    lines: Sequence[Origin]
    function: Function | None
    change: FunctionChange | None = None
    leaves: Sequence[LeafChange] = ()
    kinds: frozenset[str] = frozenset()


class Causes(NamedTuple):
    """The causes of differences, and what changed only because of them."""

    causes: list[LockCause]
    functions: list[tuple[Function, Origin | None]]
    leaves: list[LeafChange]


def causes(found: Differences, now: TracedStep) -> Causes:
    """Finds the lines behind differences."""
    return _Search(found, now).run()


class _Search:
    def __init__(self, found: Differences, now: TracedStep):
        self._found, self._now = found, now
        self._changes = {x.function: x for x in found.functions}
        self._all = [computation for _, computation in now.computations]
        self._function = {id(x): function for function, x in now.computations}
        self._maker = {value: x for x in self._all for value in x.gives}
        self._takers: dict[int, list[Computation]] = {}
        for each in self._all:
            for value in each.takes:
                self._takers.setdefault(value, []).append(each)
        self._by_chain = {(x.chain, x.is_backward): x for x in self._all}
        self._reached: set[int] = set()

    def run(self) -> Causes:
        found: list[LockCause] = []
        leaves: list[LeafChange] = []
        given: dict[Origin, list[LeafChange]] = {}
        for change in self._found.leaves:
            values = [] if change.table == OUTPUTS else [x.value for x in change.leaves]
            takers = [taker for value in values for taker in self._takers.get(value, ())]
            went_in, goes_in = (
                x.partition(" -> ")[0] for x in (change.before, change.after)
            )
            if takers and went_in and went_in != goes_in:
                first = min(takers, key=lambda x: x.number)
                given.setdefault(self._line(first), []).append(change)
                self._reach(takers)
        found += [
            LockCause([line], None, leaves=changes) for line, changes in given.items()
        ]
        so: dict[Function, Origin | None] = {}
        blamed: dict[Function, list[Computation]] = {}
        for each in self._all:
            function = self._function[id(each)]
            change = self._changes.get(function)
            if change is None or not self._is_changed(each, change):
                continue
            is_reached = id(each) in self._reached
            if is_reached and (each.is_backward or not _is_own(each, change)):
                so.setdefault(function, self._line(each))
                continue
            blamed.setdefault(function, []).append(each)
            if function not in so:
                self._reach([each])
                if not _is_own(each, change):
                    for value in self._widened(each, change):
                        self._reach(self._takers.get(value, ()))
        own: list[LockCause] = []
        for function, computations in blamed.items():
            cause = self._cause(function, computations)
            own.append(cause)
            if cause.function != function:
                so = {function: self._line(computations[0]), **so}
        found = own + found  # a line may change what is given, by what makes it
        known = {x.function for x in found}
        for change in self._found.functions:
            if change.function in known or change.function in so:
                continue
            # It only computes less: no call of it tells more.
            inside = [x for f, x in self._now.computations if f == change.function]
            if any(id(each) in self._reached for each in inside):
                so[change.function] = self._line(inside[0])
            else:
                lines = [self._line(each) for each in inside[-1:]]
                found.append(LockCause(lines, change.function, change))
        others: dict[Origin | None, list[LeafChange]] = {}
        for change in self._found.leaves:
            if any(change in cause.leaves for cause in found):
                continue
            made = [self._maker[x.made] for x in change.leaves if x.made in self._maker]
            if found and (not made or any(id(x) in self._reached for x in made)):
                leaves.append(change)
            else:
                line = self._line(made[-1]) if made else None
                others.setdefault(line, []).append(change)
        found += [LockCause([x] if x else [], None, leaves=y) for x, y in others.items()]
        known.update(x.function for x in found)
        places = {str(line) for cause in found for line in cause.lines}
        is_so = lambda function, line: function not in known and str(line) not in places
        so = {function: line for function, line in so.items() if is_so(function, line)}
        return Causes(found, list(so.items()), leaves)

    def _is_changed(self, computation: Computation, change: FunctionChange) -> bool:
        """Whether a call computes otherwise, as far as the lock tells."""
        for entry in set(change.added).intersection(computation.entries):
            kind = entry.kind
            if entry not in change.before:
                return True
            if kind not in IN_ORDER:
                if computation.is_move:
                    continue  # which may have been there before as well
                return True
            # In order: the same number of calls tells which of them it is.
            now = [
                (e.text, each)
                for each in self._all
                if self._function[id(each)] == change.function
                for e in each.entries
                if e.kind == kind
            ]
            before = [e.text for e in change.before if e.kind == kind]
            pairs = zip(now, before)
            if len(now) != len(before) or any(
                text != old and each is computation for (text, each), old in pairs
            ):
                return True
        return False

    def _reach(self, start: Iterable[Computation]) -> None:
        """Marks computations, and all that takes what they give."""
        left = list(start)
        while left:
            each = left.pop()
            if id(each) in self._reached:
                continue
            self._reached.add(id(each))
            left += [taker for value in each.gives for taker in self._takers.get(value, ())]
            derivative = self._by_chain.get((each.chain, True))
            left += [derivative] if derivative else []

    def _cause(self, function: Function, computations: list[Computation]) -> LockCause:
        change = self._changes[function]
        # Calls that compute so and did before are told apart by no lock.
        lines = {each: self._line_of(each, change) for each in computations}
        first = lines[computations[0]]
        others = (f for f in self._changes if f != function and f[1] == first.function)
        is_own = _is_own(computations[0], change)
        if not is_own and (other := next(others, None)) is not None:  # that left out a cast
            return LockCause([first], other, self._changes[other])
        added = (e for x in computations for e in x.entries if e in change.added)
        kinds = frozenset(entry.kind for entry in added)
        return LockCause([*dict.fromkeys(lines.values())], function, change, (), kinds)

    def _line_of(self, computation: Computation, change: FunctionChange) -> Origin:
        is_own = _is_own(computation, change)
        line = self._line if is_own else lambda x: self._line_behind(x, change)
        return line(computation)

    def _line(self, computation: Computation) -> Origin:
        """The line of the call itself."""
        code, instruction = computation.chain[0]
        node = expression(code, instruction)
        line = getattr(node, "lineno", None)
        if line is None:
            origin = Written(computation.stack).origin
            line = origin.users.line if origin else code.co_firstlineno
        return origin_at(code.co_filename, line, function_name(code))

    def _line_behind(self, first: Computation, change: FunctionChange) -> Origin:
        """The line that assigns the operand whose type changed, if a cast was left out."""
        values = self._widened(first, change)
        types = {str(first.takes[value].dtype) for value in values}
        without = {f for f, x in self._changes.items() if _casts_from(types, x.removed)}
        without.difference_update(self._with_idle_cast(first))
        used: Origin | None = None
        for code, instruction in first.chain:
            node = expression(code, instruction)
            if self._function_of(code) not in without or node is None:
                continue
            names = [x.id for x in ast.walk(node) if isinstance(x, ast.Name)]
            before = (renamed_before(code.co_filename, x, node.lineno) for x in names)
            line = next(filter(None, before), None)
            place = origin_at(code.co_filename, line or node.lineno, function_name(code))
            used = used or place
            if line is not None:
                return place
            if code.co_name != "<lambda>":  # which is given its operands
                return used
        makers = [self._maker[value] for value in values if value in self._maker]
        for code in [code for maker in makers for code, _ in maker.chain]:
            node = returned(code)
            if node is not None and self._function_of(code) in without:
                return origin_at(code.co_filename, node.lineno, function_name(code))
        return used or self._line(first)

    def _function_of(self, code: object) -> Function | None:
        found = (f for f, each in self._now.computations if each.code is code)
        return next(found, None)

    def _with_idle_cast(self, first: Computation) -> Iterator[Function | None]:
        """The functions that cast what a call gives, with a cast that does nothing now."""
        chains = [call for each in self._all for call in each.chain]
        for code, instruction in first.chain:
            called = expression(code, instruction)
            for cast in casts_in(code) if called is not None else ():
                is_idle = all(
                    expression(*call) is not cast for call in chains if call[0] is code
                )
                if is_idle and any(node is called for node in ast.walk(cast.func)):
                    yield self._function_of(code)

    def _widened(self, computation: Computation, change: FunctionChange) -> list[int]:
        """The operands of a type that the lock does not have there."""
        types: set[str] = set()
        for entry in set(change.added).intersection(computation.entries):
            before = [_operands(x) for x in change.removed if x.kind == entry.kind]
            types |= _operands(entry) - frozenset.intersection(*before or [frozenset()])
        takes = computation.takes.items()
        return [value for value, aval in takes if str(aval.dtype) in types]


def _casts_from(types: Iterable[str], entries: Iterable[LockEntry]) -> bool:
    """Whether a cast of values of these types is among some entries."""
    starts = tuple(f"{each} -> " for each in types)
    return any(x.kind == CAST and x.text.startswith(starts) for x in entries)


def _operands(entry: LockEntry) -> frozenset[str]:
    """The types that a line of a lock takes."""
    takes = re.split(r" -> | in |, precision ", entry.text)[0]
    return frozenset(x.strip() for x in re.split(r" @ |, ", takes))


def _is_own(computation: Computation, change: FunctionChange) -> bool:
    """Whether a call takes what it took, and computes otherwise."""
    return any(
        entry in change.added
        and any(
            x.kind == entry.kind and _operands(x) == _operands(entry)
            for x in change.removed
        )
        for entry in computation.entries
    )
