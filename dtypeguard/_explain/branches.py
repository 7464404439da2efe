"""The leaves that branches of a `cond` or `switch` give in other types, and the lines."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import tree_util

from .._carry.call import SplitTree
from .._leaves.types import Aval, Jaxpr, Leaf, PyTree
from .._program.graph import Graph
from .._program.lines import Lines
from .._program.origins import Origin
from .._program.trace import Program
from .._program.watch import bound
from .control_flow import Call, with_inputs
from .loops import differ, is_like, retrace
from .paths import users_path


class Variant(NamedTuple):
    """One leaf of the result, as one branch gives it.

    Attributes:
        path: of the leaf, "result" first.
        branch: the branch, by the name of its parameter.
        aval: its abstract value.
        origin: the line that gave it this type; of a leaf that the branch was given or
            closes over, the line that assigned it.
        cause: the line that forced that.
        name: of the variable that has it, where a branch was given it or closes over it.
        is_given: whether it is an operand, as it was given.
        is_constant: whether it is no operand, but a constant or closed over.
    """

    path: str
    branch: str
    aval: Aval
    origin: Origin | None = None
    cause: Origin | None = None
    name: str = ""
    is_given: bool = False
    is_constant: bool = False

    @property
    def is_made(self) -> bool:
        """Whether it was computed, by the branch or for the branch to close over it."""
        is_kept = self.is_given or self.is_constant
        return not is_kept or (self.is_constant and bool(self.name and self.origin))


class _Branch(NamedTuple):
    name: str
    function: Callable[..., Any] | None
    program: Program
    lines: Lines


def variants(call: Call) -> list[list[Variant]]:
    """For each leaf that differs, what the first branch and those that differ give."""
    branches = _branches(call)
    if len({len(branch.program.step.outputs) for branch in branches}) != 1:
        return []
    named = users_path(call.caller)
    paths = map(named, _paths(call, len(branches[0].program.step.outputs)))
    found = []
    for number, path in enumerate(paths):
        graphs = [branch.program.step for branch in branches]
        avals = [graph.avals[graph.outputs[number]] for graph in graphs]
        others = [n for n, aval in enumerate(avals) if differ(avals[0], aval)]
        if others:
            pairs = [(0, avals[others[0]]), *((n, avals[0]) for n in others)]
            found.append(
                [_variant(call, branches[n], number, other, path) for n, other in pairs]
            )
    return found


def _variant(call: Call, branch: _Branch, number: int, other: Aval, path: str) -> Variant:
    graph = branch.program.step
    output = graph.outputs[number]
    aval = graph.avals[output]
    made = Variant(path, branch.name, aval)
    if output in graph.inputs:
        leaf = tree_util.tree_leaves(call.operands)[graph.inputs.index(output)]
        nodes = [leaf, *_holders(call.operands, leaf)]
        return made._replace(is_given=True, **_variable(call, nodes))
    if output in graph.constants:
        found = _variable(call, _closed_over(branch.function, aval))
        if found:
            return made._replace(is_constant=True, **found)
    every_input = (1 << len(graph.inputs)) - 1
    lines = branch.lines.of(output, is_like(aval, other), every_input)
    return made._replace(is_constant=output in graph.constants, **lines)


def _variable(call: Call, nodes: Sequence[Any]) -> dict[str, Any]:
    """The variable that has a leaf, or something that it is in, and who assigned it."""
    names = {} if call.caller is None else call.caller.f_locals
    for node in nodes:
        found = [name for name, value in names.items() if value is node]
        if found:
            path = "" if node is nodes[0] else _path_of(node, nodes[0])
            return {"name": found[0] + path, "origin": bound(call.caller, node)}
    return {}


def _path_of(tree: PyTree, leaf: Leaf) -> str:
    leaves = tree_util.tree_flatten_with_path(tree)[0]
    return next(tree_util.keystr(path) for path, each in leaves if each is leaf)


def _holders(tree: PyTree, leaf: Leaf) -> Iterator[Any]:
    """The nodes of a tree that a leaf is in."""
    if tree_util.all_leaves([tree]):
        return
    for child in tree_util.tree_leaves(tree, is_leaf=lambda x: x is not tree):
        if any(each is leaf for each in tree_util.tree_leaves(child)):
            yield from _holders(child, leaf)
            if child is not leaf:
                yield child


def _closed_over(function: Callable[..., Any] | None, aval: Aval) -> list[Any]:
    """What a function closes over of a type, if it is one thing alone."""
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        alike = [leaf for leaf in tree_util.tree_leaves(value) if _is_of_type(leaf, aval)]
        found += [[leaf, value] for leaf in alike]
    return found[0] if len(found) == 1 else []


def _is_of_type(leaf: Leaf, aval: Aval) -> bool:
    return getattr(leaf, "dtype", None) == aval.dtype and np.shape(leaf) == aval.shape


def _branches(call: Call) -> list[_Branch]:
    """The branches, in their order; none if not all jaxprs are there."""
    if call.name == "cond":
        names = ["true_fun", "false_fun"]
        functions = [call.arguments.get(name) for name in names]
    else:
        functions = list(call.arguments.get("branches", ()))
        names = [f"branches[{number}]" for number in range(len(functions))]
    lists = [found for found in call.lists_of_jaxprs() if len(found) == len(names)]
    single = [closed for _, closed in call.jaxprs()]
    if not lists and call.name == "cond" and len(single) >= 2:
        lists = [single[-2:]]
    closed = lists[-1] if lists else []
    return [_branch(call, *parts) for parts in zip(names, functions, closed)]


def _branch(
    call: Call, name: str, function: Callable[..., Any] | None, closed: Jaxpr
) -> _Branch:
    given = len(tree_util.tree_leaves(call.operands))
    none = SplitTree(())
    graph = Graph(with_inputs(closed, given))
    program = Program(None, graph, (), (), (none,), none, none)

    def again() -> Program:
        found = retrace(function, call.operands, is_first=False) if function else None
        return program._replace(step=found[0], returned=found[1:]) if found else program

    return _Branch(name, function, program, Lines(program, None, again))


def _paths(call: Call, leaves: int) -> list[str]:
    """The paths of a result of so many leaves; numbers where its tree is not known."""
    for tree in call.trees(leaves):
        try:
            result = tree_util.tree_unflatten(tree, range(leaves))
            found = tree_util.tree_flatten_with_path(result)[0]
        except Exception:  # a node that does not take numbers for its leaves
            continue
        return [f"result{tree_util.keystr(path)}" for path, _ in found]
    return [f"result, leaf {number}" for number in range(leaves)]
