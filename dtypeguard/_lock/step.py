"""Traces a step and makes its lock: computations by function, types by path."""

import functools
import os
import re
from collections.abc import Iterable, Mapping
from types import CodeType
from typing import Any, NamedTuple

from .._carry.call import Call
from .._carry.carry import carry_of
from .._costs.costs import input_names
from .._leaves.compat import check_release, set_x64
from .._leaves.dtypes import is_weak
from .._leaves.quiet import warnings_ignored
from .._leaves.types import Aval, Step
from .._program.graph import Graph
from .._program.trace import Program, trace
from .._source.files import is_installed, short_path
from .._source.origin import function_name
from .._tracebacks.path_text import parts
from .computations import (
    Computation,
    FunctionOfCode,
    LockedFunction,
    LockEntry,
    code_of_step,
    computations,
)

TypeOfPath = dict[str, str]
INPUTS = "inputs"
OUTPUTS = "outputs"
TABLES = (INPUTS, OUTPUTS)
_INDEX = re.compile(r"\[\d+\]")
_NUMBER = re.compile(r"\d+")


def fold(path: str) -> str:
    """Returns a path, or a part of one, with `*` for its numbers."""
    return _NUMBER.sub("*", path)


class TypedLeaf(NamedTuple):
    """A leaf of the inputs or outputs.

    Attributes:
        path: its path.
        name: of its type, `bfloat16` or `weak float32`.
        value: its number in the graph.
    """

    path: str
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
    functions: dict[LockedFunction, list[LockEntry]]
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
        program = trace(lambda: Call(step, carry, args, dict(kwargs)))
    folder = os.path.dirname(os.path.abspath(path or "lock"))

    # Thousands of equations come from a few functions.
    @functools.cache
    def function_of(code: CodeType) -> LockedFunction:
        return name_of_file(code.co_filename, folder), function_name(code)

    code = code_of_step(step)
    name = carry.step
    if code is not None:
        function = code.co_qualname.replace("<locals>.", "")
        name = f"{name_of_file(code.co_filename, folder)}:{function}"
    calls = computations(program.step, code, function_of)
    functions: dict[LockedFunction, list[LockEntry]] = {}
    for call in calls:
        if call.entries:
            functions.setdefault(call.function, []).extend(call.entries)
    leaves = _locked_leaves(program, step)
    inputs = types_by_node(leaves[INPUTS])
    outputs = types_by_node(leaves[OUTPUTS])
    lock = Lock(name, functions, inputs, outputs)
    return TracedStep(lock, calls, leaves, function_of)


def name_of_file(file: str, folder: str) -> str:
    """Returns a file relative to a folder, or by the name of its package."""
    # A lock is checked in, and read on systems with another separator.
    if is_installed(file):
        return short_path(file).replace(os.sep, "/")
    try:
        return os.path.relpath(file, folder).replace(os.sep, "/")
    except ValueError:  # on another drive
        return file.replace(os.sep, "/")


def _locked_leaves(program: Program, step: Step) -> dict[str, list[TypedLeaf]]:
    """Returns inputs and outputs; objects that are changed in place are both."""
    inputs: list[str] = []
    outputs: list[str] = []
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
    leaves: list[TypedLeaf] = []
    for path, value in zip(paths, values):
        leaves.append(TypedLeaf(path, _name_of_type(graph.avals[value]), value))
    return leaves


def _name_of_type(aval: Aval) -> str:
    if is_weak(aval):
        return f"weak {aval.dtype}"
    return str(aval.dtype)


# The parts of a path, and the type at its end.
_Below = list[tuple[tuple[str, ...], str]]


def types_by_node(leaves: Iterable[TypedLeaf]) -> TypeOfPath:
    """Returns types by path: one line for all below a node that are alike.

    Numbers are `*`: `params['layer_3'][0]` is `params['layer_*'][*]`. Indices stay where
    no two of them hold the same, as in `(params, opt_state)`.
    """
    types: TypeOfPath = {}
    _add_below("", [(_path_parts(leaf.path), leaf.name) for leaf in leaves], types)
    return types


def _add_below(prefix: str, below: _Below, types: TypeOfPath) -> None:
    """Adds the lines of what is below a node."""
    names = {name for _, name in below}
    if prefix and len(names) == 1:
        types[prefix] = names.pop()
        return
    children: dict[str, _Below] = {}
    ending: set[str] = set()
    for rest, name in below:
        if rest:
            children.setdefault(rest[0], []).append((rest[1:], name))
        else:
            ending.add(name)
    if ending:
        types[prefix] = ", ".join(sorted(ending))
    # In `(params, opt_state)` an index tells; in a list of layers it does not.
    keeps_indices = _differ(children)
    merged: dict[str, _Below] = {}
    for part, leaves in children.items():
        # The first part is the name of an argument, which is not one of many.
        stays = not prefix or (keeps_indices and _INDEX.fullmatch(part))
        merged.setdefault(part if stays else fold(part), []).extend(leaves)
    for part, leaves in merged.items():
        _add_below(prefix + part, leaves, types)


def _differ(children: Mapping[str, _Below]) -> bool:
    """Returns whether no two of several children hold the same."""
    contents = set()
    for leaves in children.values():
        folded = [(fold(repr(rest)), name) for rest, name in leaves]
        contents.add(frozenset(folded))
    # An only child says nothing of what two would hold.
    return len(children) > 1 and len(contents) == len(children)


def _path_parts(path: str) -> tuple[str, ...]:
    """Returns the parts of a path."""
    names = parts(path) or (path,)
    if len(names) < 2 or names[0] != "result":
        return names
    result, index, *rest = names
    if _INDEX.fullmatch(index) is None:
        return names
    # Items of a result are no more alike than results are.
    return (result + index, *rest)


def covering(types: Iterable[str], path: str) -> tuple[str, str]:
    """Returns the path in a lock that covers a leaf, and the rest of the leaf's.

    The first is "" if there is none.
    """
    names = _path_parts(path)
    # The longest path that covers the leaf says most of it.
    for size in range(len(names), 0, -1):
        head = "".join(names[:size])
        matching = [pattern for pattern in types if _pattern(pattern).fullmatch(head)]
        if matching:
            # Of `a[0]` and `a[*]` the former was locked for this leaf alone.
            exact = head if head in matching else matching[0]
            return exact, "".join(names[size:])
    return "", path


@functools.lru_cache(10_000)
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.escape(path).replace(r"\*", r"(\d+|\*)"))
