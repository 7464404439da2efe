"""Traces a step and makes its lock."""

import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from .._carry.call import Call, SplitTree
from .._leaves.functions import parameters
from .._leaves.types import Aval, PyTree, Step
from .._program.trace import Program, trace
from .._source.files import is_installed, short_path
from .computations import Computation, Entry, by_function, computations, shares
from .leaves import Types, grouped, type_in_lock

Function = tuple[str, str]  # its file and its name
Entries = dict[Entry, int]  # a line, and the number of calls that compute so


class Lock(NamedTuple):
    """What a step computes in.

    Attributes:
        step: the file and the name of the step.
        functions: in the order of the program.
        inputs: types by path; also `carry`, where a leaf may change its type, and
            `outputs`.
        shares: of multiply-adds by type; {} of a lock that was read.
    """

    step: str
    functions: dict[Function, Entries]
    inputs: Types
    carry: Types
    outputs: Types
    shares: dict[str, float] = {}


class Traced(NamedTuple):
    """A step, traced, and the lock of what it is now.

    Attributes:
        lock: the lock.
        program: the program.
        computations: what the calls of each function compute, in the order of the program.
        leaves: the leaves of inputs, carry and outputs by path, by the name of the table.
    """

    lock: Lock
    program: Program
    computations: list[tuple[Function, Computation]]
    leaves: dict[str, list[tuple[str, str, Aval]]]


class MayCarry(Call):
    """A call of a function that may carry nothing."""

    is_carried = True

    def returned(
        self, result: PyTree, given: Sequence[PyTree]
    ) -> tuple[list[SplitTree], SplitTree]:
        """As that of a step; all is another result if nothing comes back."""
        try:
            return super().returned(result, given)
        except TypeError:
            if not self._carry.is_default:
                raise
            self.is_carried = False
            return [], SplitTree(self._spread(result))


def traced_step(call: MayCarry, step: Step, name: str, folder: str) -> Traced:
    """Traces a step and reads what it computes in.

    Args:
        call: the call of the step.
        step: the step.
        name: its name.
        folder: of the lock; files are named from there.

    Raises:
        TraceFailed: if the step raises.
    """
    program = trace(lambda: call)
    file_of = lambda file: name_of_file(file, folder)
    found = computations(program.step, step)
    pairs = list(by_function(found, file_of))
    leaves = _leaves(call, program, step)
    tables = {key: grouped((p, t) for p, t, _ in each) for key, each in leaves.items()}
    lock = Lock(name, _functions(pairs), **tables, shares=shares(found))
    return Traced(lock, program, pairs, leaves)


def name_of_file(file: str, folder: str) -> str:
    """A file relative to a folder, or that of a package by the name of the package."""
    if is_installed(file):
        return short_path(file).replace(os.sep, "/")
    try:
        return os.path.relpath(file, folder).replace(os.sep, "/")
    except ValueError:  # on another drive
        return file.replace(os.sep, "/")


def _functions(pairs: Sequence[tuple[Function, Computation]]) -> dict[Function, Entries]:
    found: dict[Function, Counter[Entry]] = {}
    for function, computation in pairs:
        if computation.entries:
            found.setdefault(function, Counter()).update(set(computation.entries))
    return {function: dict(entries) for function, entries in found.items()}


def _leaves(
    call: MayCarry, program: Program, step: Step
) -> dict[str, list[tuple[str, str, Aval]]]:
    """Inputs, carry and outputs: the path, the type and the abstract value of each leaf."""
    given, made = program.step.types
    carried, rest = given[: program.carried_inputs], given[program.carried_inputs :]
    before = _named(program.names, program.carried, carried)
    inputs = _of_arguments(program.rest.paths, [*parameters(step)], rest)
    if not call.is_carried:
        inputs, before = before + inputs, []
    returned = sum(len(parts.arrays) for parts in program.returned)
    after = dict(_named(program.names, program.returned, made[:returned]))
    carry = []
    for path, aval in before:
        old, new = type_in_lock(aval), type_in_lock(after.get(path, aval))
        carry.append((path, old if old == new else f"{old} -> {new}", aval))
    known = {path for path, _ in before}
    carry += [(p, f"-> {type_in_lock(x)}", x) for p, x in after.items() if p not in known]
    outputs = zip([f"result{path}" for path in program.others.paths], made[returned:])
    typed = lambda leaves: [(path, type_in_lock(x), x) for path, x in leaves]
    return {"inputs": typed(inputs), "carry": carry, "outputs": typed(outputs)}


def _named(
    names: Sequence[str], trees: Sequence[SplitTree], avals: Sequence[Aval]
) -> list[tuple[str, Aval]]:
    paths = [name + path for name, parts in zip(names, trees) for path in parts.paths]
    return list(zip(paths, avals))


def _of_arguments(
    paths: Sequence[str], names: Sequence[str], avals: Sequence[Aval]
) -> list[tuple[str, Aval]]:
    """Paths in the arguments, `[0][1]['x']` and `[1]['key']`, by the parameters' names."""

    def named(path: str) -> str:
        which, _, rest = path[1:].partition("]")
        key, _, rest = rest[1:].partition("]")
        if which == "0":
            key = names[int(key)] if int(key) < len(names) else f"args[{key}]"
        return key.strip("'\"") + rest

    return list(zip(map(named, paths), avals))
