"""Traces a step and makes its lock."""

import functools
import os
from collections.abc import Sequence
from typing import NamedTuple

from .._carry.call import Call, SplitTree
from .._leaves.arguments import parameters
from .._leaves.types import PyTree, Step
from .._program.trace import Program, trace
from .._source.files import is_installed, short_path
from .computations import Computation, LockEntry, computations, function_name
from .leaves import TypedLeaf, Types, grouped

Function = tuple[str, str]  # its file and its name
# One for each call and what it computes in, in the order of the program.
Entries = list[LockEntry]


class Lock(NamedTuple):
    """What a step computes in.

    Attributes:
        step: the file and the name of the step.
        functions: in the order of the program.
        inputs: types by path; also `carry`, where a leaf may change its type, and
            `outputs`.
    """

    step: str
    functions: dict[Function, Entries]
    inputs: Types
    carry: Types
    outputs: Types


class TracedStep(NamedTuple):
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
    leaves: dict[str, list[TypedLeaf]]


class MayCarry(Call):
    """A call of a function that may carry nothing."""

    is_carried, others = True, ()

    def returned(
        self, result: PyTree, given: Sequence[PyTree]
    ) -> tuple[list[SplitTree], SplitTree]:
        """As that of a step; all is another result if nothing comes back."""
        try:
            returned, others = super().returned(result, given)
        except TypeError:
            if not self._carry.is_default:
                raise
            self.is_carried = False
            return [], SplitTree(self._spread(result))
        found = self._carry.find(result, self._values, self._is_in_place)
        if found.items is not None:
            keys = enumerate(found.items.keys)
            self.others = [key for number, key in keys if number not in found.indices]
        return returned, others

    def path_of_other(self, path: str) -> str:
        """The path in the result of one in the other results."""
        number, _, rest = path[1:].partition("]")
        if number.isdecimal() and int(number) < len(self.others):
            return f"result[{self.others[int(number)]!r}]{rest}"
        return f"result{path if not self.is_carried else path[len(number) + 2 :]}"


def traced_step(call: MayCarry, step: Step, name: str, folder: str) -> TracedStep:
    """Traces a step and reads what it computes in."""
    program = trace(lambda: call)
    file_of = functools.cache(lambda file: name_of_file(file, folder))
    found = computations(program.step, step)
    pairs = [((file_of(x.code.co_filename), function_name(x.code)), x) for x in found]
    leaves = _leaves(call, program, step)
    tables = {key: grouped(x[:2] for x in each) for key, each in leaves.items()}
    lock = Lock(name, _functions(pairs), **tables)
    return TracedStep(lock, program, pairs, leaves)


def name_of_file(file: str, folder: str) -> str:
    """A file relative to a folder, or that of a package by the name of the package."""
    if is_installed(file):
        return short_path(file).replace(os.sep, "/")
    try:
        return os.path.relpath(file, folder).replace(os.sep, "/")
    except ValueError:  # on another drive
        return file.replace(os.sep, "/")


def _functions(pairs: Sequence[tuple[Function, Computation]]) -> dict[Function, Entries]:
    found: dict[Function, Entries] = {}
    for function, computation in pairs:
        if computation.entries:
            found.setdefault(function, []).extend(dict.fromkeys(computation.entries))
    return found


def _leaves(call: MayCarry, program: Program, step: Step) -> dict[str, list[TypedLeaf]]:
    """Inputs, carry and outputs."""
    graph, names = program.step, [*parameters(step)]
    of_carry = lambda trees: [n + p for n, x in zip(program.names, trees) for p in x.paths]
    before = [
        TypedLeaf(*pair, graph.avals)
        for pair in zip(of_carry(program.carried), graph.inputs)
    ]
    paths = [_of_argument(path, names) for path in program.rest.paths]
    inputs = [TypedLeaf(*x, graph.avals) for x in zip(paths, graph.inputs[len(before) :])]
    if not call.is_carried:
        inputs, before = before + inputs, []
    returned = of_carry(program.returned)
    after = {
        path: TypedLeaf(path, x, graph.avals) for path, x in zip(returned, graph.outputs)
    }
    carry = [leaf.after(after.pop(leaf.path, leaf)) for leaf in before]
    carry += [leaf._replace(name=f"-> {leaf.name}") for leaf in after.values()]
    paths = map(call.path_of_other, program.others.paths)
    outputs = zip(paths, graph.outputs[len(returned) :])
    outputs = [TypedLeaf(*pair, graph.avals) for pair in outputs]
    return {"inputs": inputs, "carry": carry, "outputs": outputs}


def _of_argument(path: str, names: Sequence[str]) -> str:
    """A path in the arguments, `[0][1]['x']` or `[1]['key']`, by the parameter's name."""
    which, _, rest = path[1:].partition("]")
    key, _, rest = rest[1:].partition("]")
    if which == "0":
        key = names[int(key)] if int(key) < len(names) else f"args[{key}]"
    return key.strip("'\"") + rest
