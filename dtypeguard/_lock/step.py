"""Traces a step and makes its lock: computations by function, types by path."""

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

from .._carry.call import Call
from .._carry.carry import carry_of
from .._costs.costs import input_names
from .._leaves.compat import check_release, set_x64
from .._leaves.dtypes import is_weak
from .._leaves.quiet import warnings_ignored
from .._leaves.table import grouped
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
    no_entries,
)

TypeOfPath = dict[str, str]
INPUTS = "inputs"
OUTPUTS = "outputs"
TABLES = (INPUTS, OUTPUTS)
_INDEX = re.compile(r"\[\d+\]")
_RESULT = re.compile(r"result\[\d+\]")
_NUMBER = re.compile(r"\d+")


def fold(path: str) -> str:
    """Returns a part of a path with `*` for its numbers."""
    return _NUMBER.sub("*", path)


class TypedLeaf(NamedTuple):
    """A leaf of the inputs or outputs.

    Attributes:
        parts: of its path.
        name: of its type, `bfloat16` or `weak float32`.
        value: its number in the graph.
    """

    parts: Sequence[str]
    name: str
    value: int


class Lock(NamedTuple):
    """What a step computes in.

    Attributes:
        step: its file and its name.
        functions: the entries of each function.
        inputs: the types of the inputs, by path.
        outputs: the types of the outputs, by path.
    """

    step: str
    functions: dict[LockedFunction, LockEntries]
    inputs: TypeOfPath
    outputs: TypeOfPath


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

    def makers(self, values: Iterable[int]) -> list[Computation]:
        """Returns the calls that give any of these values."""
        calls = []
        for call in self.computations:
            if not call.gives.keys().isdisjoint(values):
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
            program = trace(lambda: Call(step, carry, args, dict(kwargs)))
        except TraceFailed as failed:
            # The step's own error says what is wrong with it.
            raise failed.__cause__ or failed from None
    folder = os.path.dirname(os.path.abspath(path or "lock"))

    # Thousands of equations come from a few functions.
    @functools.cache
    def function_of(code: CodeType) -> LockedFunction:
        return _name_of_file(code.co_filename, folder), function_name(code)

    code = _code_of_step(step)
    name = carry.step
    if code is not None:
        function = code.co_qualname.replace("<locals>.", "")
        name = f"{_name_of_file(code.co_filename, folder)}:{function}"
    calls = computations(program.step, code, function_of)
    functions = {}
    for call in calls:
        for entry in call.entries:
            entries = functions.setdefault(call.function, no_entries())
            entries[entry.kind][entry.text] += 1
    leaves = _locked_leaves(program, step)
    inputs = leaves_by_node(leaves[INPUTS])
    outputs = leaves_by_node(leaves[OUTPUTS])
    lock = Lock(name, functions, type_texts(inputs), type_texts(outputs))
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
    return name.replace(os.sep, "/")


def _locked_leaves(program: Program, step: Step) -> dict[str, list[TypedLeaf]]:
    """Returns inputs and outputs; objects that are changed in place are both."""
    inputs = []
    outputs = []
    for name, before, after in zip(program.names, program.carried, program.returned):
        inputs += [name + path for path in before.paths]
        outputs += [name + path for path in after.paths]
    inputs += input_names(step, program.rest.paths)
    outputs += [f"result{path}" for path in program.others.paths]
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
        leaves.append(TypedLeaf(_split_path(path), name, value))
    return leaves


def _split_path(path: str) -> Sequence[str]:
    names = parts(path)
    if _RESULT.match(path) is None:
        return names
    # Items of a result are no more alike than results are.
    result, index, *rest = names
    return (result + index, *rest)


LeavesOfPath = dict[str, list[TypedLeaf]]


def type_texts(leaves_of_path: LeavesOfPath) -> TypeOfPath:
    """Returns the types of leaves by path."""
    types = {}
    for path, leaves in leaves_of_path.items():
        names = {leaf.name for leaf in leaves}
        types[path] = ", ".join(sorted(names))
    return types


def leaves_by_node(leaves: Sequence[TypedLeaf], node: str = "") -> LeavesOfPath:
    """Returns leaves below a node by path: one for all below a node that are alike.

    Numbers are `*`: `params['layer_3'][0]` is `params['layer_*'][*]`. Indices stay where
    no two of them hold the same, as in `(params, opt_state)`.
    """
    depth = len(_split_path(node))
    is_end = all(len(leaf.parts) == depth for leaf in leaves)
    is_alike = len({leaf.name for leaf in leaves}) == 1
    if node and (is_end or is_alike):
        return {node: list(leaves)}
    children = grouped(leaves, lambda leaf: leaf.parts[depth : depth + 1])
    # In `(params, opt_state)` an index tells; in a list of layers it does not.
    keeps_indices = _differ(children, depth + 1)

    def name_of_child(leaf: TypedLeaf) -> str:
        part = "".join(leaf.parts[depth : depth + 1])
        # The first part is the name of an argument, which is not one of many.
        stays = not node or (keeps_indices and _INDEX.fullmatch(part))
        return node + (part if stays else fold(part))

    nodes = {}
    for child in grouped(leaves, name_of_child):
        nodes |= leaves_by_node(child, name_of_child(child[0]))
    return nodes


def _differ(children: Iterable[Sequence[TypedLeaf]], depth: int) -> bool:
    """Returns whether no two of several children hold the same."""
    contents = []
    for leaves in children:
        folded = set()
        for leaf in leaves:
            path = "".join(leaf.parts[depth:])
            folded.add((fold(path), leaf.name))
        if folded in contents:
            return False
        contents.append(folded)
    # An only child says nothing of what two would hold.
    return len(contents) > 1


def covering(paths: Iterable[str], leaf: TypedLeaf) -> str:
    """Returns the path in a lock that covers a leaf; "" if there is none."""
    covers = [""]
    for path in paths:
        names = _split_path(path)
        above = leaf.parts[: len(names)]
        pairs = zip(names, above)
        is_above = all(name in (part, fold(part)) for name, part in pairs)
        if is_above and len(above) == len(names):
            covers.append(path)
    # The longest says most of the leaf; of `a[0]` and `a[*]` the former is for it alone.
    return max(covers, key=lambda path: (len(path), path))
