"""Finds the leaves that the branches of a `cond` or `switch` return in different types."""

from typing import NamedTuple

from jax import tree_util

from .._leaves.rows import paths
from .._leaves.types import Aval
from .._program.origins import Origin
from .again import Inside, inside
from .control_flow import Call
from .loops import difference
from .made import Makers
from .paths import users_path


class Variant(NamedTuple):
    """A leaf of the result, as one branch returns it.

    Attributes:
        path: of the leaf, "result" first.
        branch: the branch, by the name of its parameter.
        aval: the abstract value.
        origin: the line that gave it this type.
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


def variants(call: Call, makers: Makers) -> list[list[Variant]]:
    """For each leaf that differs, what the first branch and those that differ return.

    Args:
        call: of a `cond` or `switch`.
        makers: find the lines of what a branch returns unchanged.
    """
    branches = _branches(call)
    counts = {len(branch.graph.outputs) for branch in branches.values()}
    if len(counts) != 1:
        return []
    users, found = users_path(call.caller), []
    for number, path in enumerate(paths(call.tree(*counts))):
        leaves = [
            Variant(users(f"result{path}"), name, branch.aval(number))
            for name, branch in branches.items()
        ]
        kinds = [difference(leaves[0].aval, leaf.aval) for leaf in leaves]
        kinds[0] = next(filter(None, kinds), None)
        differing = [
            _lined(leaf, call, makers, branch, number, kind)
            for leaf, branch, kind in zip(leaves, branches.values(), kinds)
            if kind
        ]
        found += [differing] if differing else []
    return found


def _lined(
    leaf: Variant, call: Call, makers: Makers, branch: Inside, number: int, kind: str
) -> Variant:
    """A leaf with its lines, and the variable of one that a branch returns unchanged."""
    graph = branch.graph
    output, value = graph.outputs[number], None
    if output in graph.inputs:
        value = tree_util.tree_leaves(call.operands)[graph.inputs.index(output)]
        leaf = leaf._replace(is_given=True)
    elif output in graph.constants:
        again = branch.again()
        value = again and again.results[number]
        leaf = leaf._replace(is_constant=True)
    name = "" if value is None else call.variable_of(value)
    if not name and not leaf.is_given:
        return leaf._replace(**branch.of(number, kind))
    made = makers.of_value(value)
    return leaf._replace(name=name, origin=made.origin, cause=made.cause)


def _branches(call: Call) -> dict[str, Inside]:
    """The branches in their order, by their names; none if a jaxpr is missing."""
    given = call.arguments
    if call.name == "cond":
        functions = {name: given.get(name) for name in ("true_fun", "false_fun")}
    else:
        branches = enumerate(given.get("branches", ()))
        functions = {f"branches[{number}]": each for number, each in branches}
    lists = [found for found in call.lists_of_jaxprs() if len(found) == len(functions)]
    single = [jaxpr for _, jaxpr in call.jaxprs()]
    if not lists and call.name == "cond":
        lists = [single[-2:]]
    return {
        name: branch
        for (name, function), jaxpr in zip(functions.items(), lists[-1] if lists else ())
        if function and (branch := inside(function, call.operands, False, jaxpr))
    }
