"""The leaves that branches of a `cond` or `switch` give in other types, and the lines."""

from typing import Any, NamedTuple

from jax import tree_util

from .blame import blame
from .control_flow import Call, with_inputs
from .graph import Graph
from .loops import differ, is_like
from .origins import Origin, origin_of


class Variant(NamedTuple):
    """One leaf of the result, as one branch gives it.

    Attributes:
        path: of the leaf, "result" first.
        branch: the branch, by the name of its parameter.
        aval: its abstract value.
        origin: the line that gave it this type; None if it is returned as it was given.
        is_constant: whether it is no operand then, but a constant or closed over.
    """

    path: str
    branch: str
    aval: Any
    origin: Origin | None
    is_constant: bool = False


def variants(call: Call) -> list[list[Variant]]:
    """For each leaf that differs, what the first branch and those that differ give."""
    jaxprs = _branches(call)
    if len({len(closed.jaxpr.outvars) for closed in jaxprs}) != 1:
        return []
    operands = [call.arguments.get(name) for name in ("operands", "operand")]
    given = len(tree_util.tree_leaves(operands))
    graphs = [Graph(with_inputs(closed, given)) for closed in jaxprs]
    if call.name == "cond":
        names = ["true_fun", "false_fun"]
    else:
        names = [f"branches[{number}]" for number in range(len(jaxprs))]
    paths = _paths(call, len(graphs[0].outputs))
    found = []
    for number, path in enumerate(paths):
        avals = [graph.avals[graph.outputs[number]] for graph in graphs]
        others = [n for n, aval in enumerate(avals) if differ(avals[0], aval)]
        found.append(
            [
                Variant(
                    path,
                    names[n],
                    avals[n],
                    _line(graphs[n], number, avals[n], other),
                    graphs[n].outputs[number] in graphs[n].constants,
                )
                for n, other in [(0, avals[others[0]]), *((n, avals[0]) for n in others)]
            ]
            if others
            else []
        )
    return [leaf for leaf in found if leaf]


def _branches(call: Call) -> list[Any]:
    """The jaxprs of the branches, in their order; none if they are not all there."""
    expected = 2 if call.name == "cond" else len(call.arguments.get("branches", ()))
    lists = [found for found in call.lists_of_jaxprs() if len(found) == expected]
    single = [closed for _, closed in call.jaxprs()]
    if not lists and call.name == "cond" and len(single) >= 2:
        lists = [single[-2:]]
    return lists[-1] if lists else []


def _line(graph: Graph, number: int, aval: Any, other: Any) -> Origin | None:
    output = graph.outputs[number]
    if output in graph.constants:
        return origin_of(graph.constants[output])
    every_input = (1 << len(graph.inputs)) - 1
    step = blame(graph, output, is_like(aval, other), every_input).promotion
    return None if step is None else origin_of(step.equations)


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
