"""Finds the leaves that the branches of a `cond` or `switch` return in different types."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jax import tree_util

from .._carry.call import SplitTree
from .._leaves.types import Aval, Jaxpr, Leaf, PyTree, Step
from .._program.bindings import bound
from .._program.graph import Graph
from .._program.lines import Has, Lines
from .._program.origins import Origin
from .._program.trace import Program
from .control_flow import Call
from .loops import difference, retrace
from .paths import users_path


class Variant(NamedTuple):
    """A leaf of the result, as one branch returns it.

    Attributes:
        path: of the leaf, "result" first.
        branch: the branch, by the name of its parameter.
        aval: the abstract value.
        origin: the line that gave it this type. For an operand or a closed-over value, the
            line that assigned it.
        cause: the line that forced that.
        name: of the variable that holds an operand or a closed-over value.
        is_given: whether it is an operand, unchanged.
        is_constant: whether it is a constant or closed over.
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
        """Whether code computes it: in the branch, or before the branch closes over it."""
        is_kept = self.is_given or self.is_constant
        return not is_kept or (self.is_constant and bool(self.name and self.origin))


class _Branch(NamedTuple):
    name: str
    function: Step | None
    graph: Graph
    lines: Lines


def variants(call: Call) -> list[list[Variant]]:
    """For each leaf that differs, what the first branch and those that differ return."""
    branches = _branches(call)
    if len({len(branch.graph.outputs) for branch in branches}) != 1:
        return []
    users = users_path(call.caller)
    found = []
    for number, path in enumerate(_paths(call, len(branches[0].graph.outputs))):
        avals = [each.graph.avals[each.graph.outputs[number]] for each in branches]
        others = [n for n, aval in enumerate(avals) if difference(avals[0], aval)]
        if others:
            pairs = [(0, avals[others[0]]), *((n, avals[0]) for n in others)]
            found.append(
                [
                    _variant(call, branches[n], number, other)._replace(path=users(path))
                    for n, other in pairs
                ]
            )
    return found


def _variant(call: Call, branch: _Branch, number: int, other: Aval) -> Variant:
    graph = branch.graph
    output = graph.outputs[number]
    aval = graph.avals[output]
    made = Variant("", branch.name, aval)
    if output in graph.inputs:
        parts = SplitTree(call.operands)
        leaf = tree_util.tree_leaves(call.operands)[graph.inputs.index(output)]
        found = (n for n, each in enumerate(parts.arrays) if each is leaf)
        nodes = [leaf, *(node for n in found for node in parts.holders(n))]
        return _named(made._replace(is_given=True), call, nodes)
    if output in graph.constants:
        made = made._replace(is_constant=True)
        named = _named(made, call, _closed_over(branch.function, aval))
        if named.name:
            return named
    kind = difference(aval, other) or "dtype"
    every_input = (1 << len(graph.inputs)) - 1
    matches = Has(kind, getattr(aval, kind, None))
    return made._replace(**branch.lines.of(output, matches, every_input))


def _named(variant: Variant, call: Call, nodes: Sequence[PyTree]) -> Variant:
    """A leaf with the variable that holds it, or holds a node that contains it."""
    variables = {} if call.caller is None else call.caller.f_locals
    for node in nodes:
        for name, value in variables.items():
            if value is node:
                path = "" if node is nodes[0] else _path_of(node, nodes[0])
                return variant._replace(name=name + path, origin=bound(call.caller, node))
    return variant


def _path_of(tree: PyTree, leaf: Leaf) -> str:
    leaves = tree_util.tree_flatten_with_path(tree)[0]
    return next(tree_util.keystr(path) for path, each in leaves if each is leaf)


def _closed_over(function: Step | None, aval: Aval) -> list[PyTree]:
    """The closed-over leaf of a type and the value that contains it, if there is one."""
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        for leaf in tree_util.tree_leaves(value):
            is_of_type = getattr(leaf, "dtype", None) == aval.dtype
            found += [[leaf, value]] * (is_of_type and np.shape(leaf) == aval.shape)
    return found[0] if len(found) == 1 else []


def _branches(call: Call) -> list[_Branch]:
    """The branches in their order; none if a jaxpr is missing."""
    if call.name == "cond":
        names = ["true_fun", "false_fun"]
        functions = [call.arguments.get(name) for name in names]
    else:
        functions = list(call.arguments.get("branches", ()))
        names = [f"branches[{number}]" for number in range(len(functions))]
    lists = [found for found in call.lists_of_jaxprs() if len(found) == len(names)]
    single = [jaxpr for _, jaxpr in call.jaxprs()]
    if not lists and call.name == "cond" and len(single) >= 2:
        lists = [single[-2:]]
    jaxprs = lists[-1] if lists else []
    return [_branch(call, *parts) for parts in zip(names, functions, jaxprs)]


def _branch(call: Call, name: str, function: Step | None, jaxpr: Jaxpr) -> _Branch:
    graph = Graph(jaxpr, len(tree_util.tree_leaves(call.operands)))
    program = Program(None, graph)

    def again() -> Program | None:
        traced = function and retrace(function, call.operands, has_results=False)
        return program._replace(returned=traced[1:]) if traced else None

    return _Branch(name, function, graph, Lines(program, None, again))


def _paths(call: Call, leaves: int) -> list[str]:
    """The paths of the result's leaves; numbers if its tree is unknown."""
    for tree in call.trees(leaves):
        try:
            result = tree_util.tree_unflatten(tree, range(leaves))
            found = tree_util.tree_flatten_with_path(result)[0]
        except Exception:  # a node that rejects numbers as leaves
            continue
        return [f"result{tree_util.keystr(path)}" for path, _ in found]
    return [f"result, leaf {number}" for number in range(leaves)]
