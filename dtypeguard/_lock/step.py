"""Traces a step and makes its lock."""

import functools
import os
from collections.abc import Sequence
from typing import NamedTuple

from .._carry.call import Call, SplitTree
from .._leaves.functions import parameters
from .._leaves.types import PyTree, Step
from .._program.trace import Program, trace
from .._source.files import is_installed, short_path
from .computations import Computation, Function, LockEntry, computations
from .leaves import TypedLeaf, Types, grouped, typed_leaf


class Lock(NamedTuple):
    """What a step computes in.

    Attributes:
        step: the file and the name of the step.
        functions: what the calls of each compute in.
        inputs: types by path; also `carry`, where a leaf may change its type, and
            `outputs`.
    """

    step: str
    functions: dict[Function, list[LockEntry]]
    inputs: Types
    carry: Types
    outputs: Types


class TracedStep(NamedTuple):
    """A step, traced: its lock, its calls in order, and its leaves by the lock's tables."""

    lock: Lock
    computations: list[Computation]
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
    name_of = functools.partial(name_of_file, folder=folder)
    found = computations(program.step, step, name_of)
    functions: dict[Function, list[LockEntry]] = {}
    for each in found:
        if each.entries:
            functions.setdefault(each.function, []).extend(dict.fromkeys(each.entries))
    leaves = _leaves(call, program, step)
    types = {table: grouped(each) for table, each in leaves.items()}
    return TracedStep(Lock(name, functions, **types), found, leaves)


def name_of_file(file: str, folder: str) -> str:
    """A file relative to a folder, or that of a package by the name of the package."""
    if is_installed(file):
        return short_path(file).replace(os.sep, "/")
    try:
        return os.path.relpath(file, folder).replace(os.sep, "/")
    except ValueError:  # on another drive
        return file.replace(os.sep, "/")


def _leaves(call: MayCarry, program: Program, step: Step) -> dict[str, list[TypedLeaf]]:
    """Inputs, carry and outputs."""
    graph, names = program.step, [*parameters(step)]
    typed = lambda paths, values: [
        typed_leaf(path, value, graph.avals[value]) for path, value in zip(paths, values)
    ]
    of_carry = lambda trees: [n + p for n, x in zip(program.names, trees) for p in x.paths]
    before = typed(of_carry(program.carried), graph.inputs)
    paths = [_of_argument(path, names) for path in program.rest.paths]
    inputs = typed(paths, graph.inputs[len(before) :])
    if not call.is_carried:
        inputs, before = before + inputs, []
    returned = typed(of_carry(program.returned), graph.outputs)
    after = {leaf.path: leaf for leaf in returned}
    carry = [leaf.after(after.pop(leaf.path, leaf)) for leaf in before]
    carry += [leaf._replace(name=f"-> {leaf.name}") for leaf in after.values()]
    others = map(call.path_of_other, program.others.paths)
    outputs = typed(others, graph.outputs[len(returned) :])
    return {"inputs": inputs, "carry": carry, "outputs": outputs}


def _of_argument(path: str, names: Sequence[str]) -> str:
    """A path in the arguments, `[0][1]['x']` or `[1]['key']`, by the parameter's name."""
    which, _, rest = path[1:].partition("]")
    key, _, rest = rest[1:].partition("]")
    if which == "0":
        key = names[int(key)] if int(key) < len(names) else f"args[{key}]"
    return key.strip("'\"") + rest
