"""Traces a step and makes its lock: computations by function, types by path."""

import collections
import inspect
import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from types import CodeType
from typing import NamedTuple

from .._carry.call import Call
from .._carry.carry import carry_of
from .._costs.costs import input_names
from .._leaves.compat import check_release, set_x64
from .._leaves.quiet import warnings_ignored
from .._leaves.types import Args, Kwargs, Step
from .._program.trace import Program, TraceFailed, trace
from .._source.files import package
from .._tracebacks.path_text import parts
from .computations import (
    Computation,
    LockedFunction,
    LockEntries,
    computations,
    locked_function,
    one_text,
    type_text,
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
        calls: what they compute, in order.
        leaves: its leaves by the tables of the lock.
        folder: that of the lock.
    """

    lock: Lock
    calls: list[Computation]
    leaves: dict[str, list[TypedLeaf]]
    folder: str


def lock_of(
    step: Step,
    args: Args,
    kwargs: Kwargs,
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
    code = _code_of_step(step)
    name = carry.step
    # The packages of the user's files, and that of the step.
    homes = {""}
    if code is not None:
        homes.add(package(code.co_filename))
        file, _ = locked_function(code, folder)
        function = code.co_qualname.replace("<locals>.", "")
        name = f"{file}:{function}"
    calls = computations(program.step, homes, folder)
    functions = {}
    for call in calls:
        for kind, text in call.entries:
            entries = functions.setdefault(call.function, LockEntries(Counter))
            entries[kind][text] += 1
    leaves = _locked_leaves(program, step)
    types = {table: _types_by_path(leaves[table]) for table in TABLES}
    lock = Lock(name, functions, types)
    return TracedStep(lock, calls, leaves, folder)


def _code_of_step(step: Step) -> CodeType | None:
    """Returns the code of a step, inside of partials and wrappers; None if it has none."""
    inner = inspect.unwrap(step)
    # A partial may hold a wrapper, and that another partial.
    while getattr(inner, "func", None) is not None:
        inner = inspect.unwrap(inner.func)
    return getattr(inner, "__code__", None)


def _locked_leaves(program: Program, step: Step) -> dict[str, list[TypedLeaf]]:
    """Returns inputs and outputs; objects that are changed in place are both."""
    inputs = []
    outputs = []
    for name, before, after in zip(program.names, program.carried, program.returned):
        for path in before.paths:
            inputs.append(name + path)
        for path in after.paths:
            outputs.append(name + path)
    inputs += input_names(step, program.rest.key_paths)
    for path in program.others.paths:
        outputs.append(f"result{path}")
    graph = program.step
    leaves = collections.defaultdict(list)
    for table, paths, values in (
        (INPUTS, inputs, graph.inputs),
        (OUTPUTS, outputs, graph.outputs),
    ):
        for path, value in zip(paths, values):
            name = type_text(graph.avals[value])
            nodes = _nodes_of(path)
            leaf = TypedLeaf(nodes, name, value)
            leaves[table].append(leaf)
    return leaves


def _nodes_of(path: str) -> tuple[str, ...]:
    """Returns the paths that lead to a leaf: `params`, `params['layer_*']`, and so on."""
    first, *keys = parts(path)
    if _RESULT.match(path):
        index, *keys = keys
        first += index
    # Layers are alike: how many there are is no matter of types.
    folded_keys = [_NUMBER.sub("*", key) for key in keys]
    return tuple(itertools.accumulate([first, *folded_keys]))


def _types_by_path(leaves: Sequence[TypedLeaf]) -> dict[str, str]:
    """Returns the types of leaves by the first node below which all have the same."""
    names_below = collections.defaultdict(set)
    for leaf in leaves:
        for node in leaf.nodes:
            names_below[node].add(leaf.name)
    names_of_path = collections.defaultdict(set)
    for leaf in leaves:
        nodes = leaf.nodes
        uniform = [node for node in nodes if len(names_below[node]) == 1]
        leaf_path = nodes[-1]
        path = min(uniform, key=len, default=leaf_path)
        names_of_path[path].add(leaf.name)
    return {path: one_text(names) for path, names in names_of_path.items()}
