"""Traces a step and makes its lock: computations by function, types by path."""

import collections
import contextlib
import functools
import inspect
import itertools
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from types import CodeType
from typing import Any, NamedTuple

from .._carry.call import Call
from .._carry.carry import carry_of
from .._costs.costs import input_names
from .._leaves.compat import check_release, set_x64
from .._leaves.dtypes import is_weak
from .._leaves.quiet import warnings_ignored
from .._leaves.types import Step
from .._program.graph import Graph
from .._program.trace import Program, TraceFailed, trace
from .._source.files import is_installed, short_path
from .._source.origin import function_name
from .._tracebacks.path_text import parts
from .computations import (
    Computation,
    FunctionOfCode,
    LockedFunction,
    LockEntries,
    computations,
    one_text,
)

INPUTS = "inputs"
OUTPUTS = "outputs"
TABLES = (INPUTS, OUTPUTS)
# The results of a step are told apart, as its arguments are.
_RESULT = re.compile(r"result\[\d+\]")
_NUMBER = re.compile(r"\d+")


class TypedLeaf(NamedTuple):
    """A leaf of the inputs or outputs.

    Attributes:
        nodes: the paths of the nodes that lead to it, and its own, as a lock has them.
        name: of its type, `bfloat16` or `weak float32`.
        value: its number in the graph.
    """

    nodes: tuple[str, ...]
    name: str
    value: int


class Lock(NamedTuple):
    """What a step computes in.

    Attributes:
        step: its file and its name.
        functions: the entries of each function.
        types: those of inputs and outputs, by table and path.
    """

    step: str
    functions: dict[LockedFunction, LockEntries]
    types: dict[str, dict[str, str]]


class TracedStep(NamedTuple):
    """A traced step.

    Attributes:
        lock: its lock.
        computations: its calls, in order.
        leaves: its leaves by the tables of the lock.
        function_of: returns the function of code as the lock names it.
    """

    lock: Lock
    computations: list[Computation]
    leaves: dict[str, list[TypedLeaf]]
    function_of: FunctionOfCode

    def makers(self, values: AbstractSet[int]) -> list[Computation]:
        """Returns the calls that give any of these values."""
        calls = []
        for call in self.computations:
            if call.gives.keys() & values:
                calls.append(call)
        return calls


def lock_of(
    step: Step,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    path: str | None,
    x64: bool | None = None,
    owner: str = "lock",
) -> TracedStep:
    """Traces a step and reads what it computes in; files are named as seen from a path."""
    check_release(owner)
    # The program warns when it runs.
    with set_x64(x64), warnings_ignored():
        carry = carry_of(owner, step).without_arguments()
        try:
            call_of_step = Call(step, carry, args, dict(kwargs))
            program = trace(lambda: call_of_step)
        except TraceFailed as failed:
            # The step's own error says what is wrong with it.
            raise failed.__cause__ or failed from None
    absolute_path = os.path.abspath(path or "lock")
    folder = os.path.dirname(absolute_path)

    # Thousands of equations come from a few functions.
    @functools.cache
    def function_of(code: CodeType) -> LockedFunction:
        file = _name_of_file(code.co_filename, folder)
        return file, function_name(code)

    code = _code_of_step(step)
    name = carry.step
    if code is not None:
        function = code.co_qualname.replace("<locals>.", "")
        file = _name_of_file(code.co_filename, folder)
        name = f"{file}:{function}"
    calls = computations(program.step, code, function_of)
    functions = collections.defaultdict(LockEntries)
    for call in calls:
        if call.entries:
            functions[call.function].update(call.entries)
    leaves = _locked_leaves(program, step)
    types = {}
    for table in TABLES:
        types[table] = _types_by_path(leaves[table])
    lock = Lock(name, functions, types)
    return TracedStep(lock, calls, leaves, function_of)


def _code_of_step(step: Step) -> CodeType | None:
    """Returns the code of a step, inside of partials and wrappers; None if it has none."""
    inner = inspect.unwrap(step)
    # A partial may hold a wrapper, and that another partial.
    while getattr(inner, "func", None) is not None:
        inner = inspect.unwrap(inner.func)
    return getattr(inner, "__code__", None)


def _name_of_file(file: str, folder: str) -> str:
    """Returns a file relative to a folder, or by the name of its package."""
    name = file
    if is_installed(file):
        name = short_path(file)
    else:
        with contextlib.suppress(ValueError):  # on another drive
            name = os.path.relpath(file, folder)
    # A lock is checked in, and read on systems with another separator.
    return pathlib.PurePath(name).as_posix()


def _locked_leaves(program: Program, step: Step) -> dict[str, list[TypedLeaf]]:
    """Returns inputs and outputs; objects that are changed in place are both."""
    inputs = []
    outputs = []
    for name, before, after in zip(program.names, program.carried, program.returned):
        for path in before.paths:
            inputs.append(name + path)
        for path in after.paths:
            outputs.append(name + path)
    inputs += input_names(step, program.rest.paths)
    for path in program.others.paths:
        outputs.append(f"result{path}")
    graph = program.step
    return {
        INPUTS: _typed_leaves(graph, inputs, graph.inputs),
        OUTPUTS: _typed_leaves(graph, outputs, graph.outputs),
    }


def _typed_leaves(
    graph: Graph, paths: Iterable[str], values: Iterable[int]
) -> list[TypedLeaf]:
    leaves = []
    for path, value in zip(paths, values):
        aval = graph.avals[value]
        name = str(aval.dtype)
        if is_weak(aval):
            name = f"weak {name}"
        leaf = TypedLeaf(_nodes_of(path), name, value)
        leaves.append(leaf)
    return leaves


def _nodes_of(path: str) -> tuple[str, ...]:
    """Returns the paths that lead to a leaf: `params`, `params['layer_*']`, and so on."""
    first, *keys = parts(path)
    if _RESULT.match(path):
        index, *keys = keys
        first += index
    names = [first]
    # Layers are alike: how many there are is no matter of types.
    for key in keys:
        folded_key = _NUMBER.sub("*", key)
        names.append(folded_key)
    return tuple(itertools.accumulate(names))


def _types_by_path(leaves: Sequence[TypedLeaf]) -> dict[str, str]:
    """Returns the types of leaves by the first node below which all have the same."""
    names_below = collections.defaultdict(set)
    for leaf in leaves:
        for node in leaf.nodes:
            names_below[node].add(leaf.name)
    names_of_path = collections.defaultdict(set)
    for leaf in leaves:
        path = leaf.nodes[-1]
        for node in leaf.nodes:
            if len(names_below[node]) == 1:
                path = node
                break
        names_of_path[path].add(leaf.name)
    types = {}
    for path, names in names_of_path.items():
        types[path] = one_text(names)
    return types


def path_in(types: Mapping[str, str], leaf: TypedLeaf) -> str:
    """Returns the path that stands for a leaf in a table of a lock; "" if none does."""
    covering = ""
    for node in leaf.nodes:
        if node in types:
            covering = node
    return covering
