"""What branches return in different types, and the lines behind that."""

from collections.abc import Callable, Sequence
from types import CodeType

from jax import tree_util

from .._leaves.dtypes import is_python_number
from .._leaves.rows import count, path_of, paths
from .._lines.body import Results, difference
from .._lines.provenance import TypeProvenance
from .._source.files import is_users
from .._source.origin import Origin, Why, origin_at
from .._source.syntax import returned
from .finding import Finding, RefusedLeaf
from .frames import ControlFlow


def find_in_branches(
    call: ControlFlow, provenance: TypeProvenance, is_meant: Callable[..., bool]
) -> Finding | None:
    """For each leaf that differs, what the first branch and those that differ return."""
    traced = [(name, body.results()) for name, body in call.bodies.items()]
    branches = [(name, results) for name, results in traced if results is not None]
    counts = {len(results.graph.outputs) for _, results in branches}
    if len(counts) != 1:
        return None
    leaves: list[RefusedLeaf] = []
    differing: list[str] = []
    for number, path in enumerate(_paths(call, *counts)):
        first, *others = (results.aval(number) for _, results in branches)
        kinds = [difference(first, other) for other in others]
        kinds = [next(filter(None, kinds), None), *kinds]
        items = [(*branch, what) for branch, what in zip(branches, kinds) if what]
        if items and is_meant(*(results.aval(number) for _, results, _ in items[:2])):
            differing.append(path)
            path = call.users_path(f"result{path}")
            for name, results, what in items:
                why, kept = _lines(call, provenance, results, number, what)
                about = len(leaves), path, (results.aval(number),), why, number
                leaves.append(RefusedLeaf(*about, branch=name, kept=kept))
    some = f"{count(differing)} of their result in different types."
    headline = f"the branches of {call.kind.name} give {some}"
    return Finding(headline, leaves, call) if leaves else None


def _paths(call: ControlFlow, leaves: int) -> list[str]:
    """The paths of a result with so many leaves."""
    for tree in call.trees:
        if tree.num_leaves == leaves:
            try:
                return paths(tree_util.tree_unflatten(tree, range(leaves)))
            except Exception:  # a node that rejects numbers as leaves
                continue
    return paths(list(range(leaves)))


def _lines(
    call: ControlFlow,
    provenance: TypeProvenance,
    results: Results,
    number: int,
    what: str,
) -> tuple[Why, str]:
    """The lines behind what a branch returns, and how it returns what was there before."""
    is_given, is_constant, value = results.unchanged(number)
    held = [*call.variables.items()]
    name = _name(value, held) if value is not None else ""
    why = provenance.of_value(value) if name or is_given else results.of(number, what)
    if is_constant and is_python_number(value):
        return Why(_returns_at(results.body.code)), ""
    if is_given:
        return why, ("" if not name else f"{name}, ") + "as it was given"
    if not is_constant:
        return why, ""
    return why, f"{name}, closed over" if name else "a constant, or closed over"


def _name(value: object, held: Sequence[tuple[str, object]]) -> str:
    """The shortest name by which a variable holds a value; empty if none does."""
    names = [(name, path_of(value, tree)) for name, tree in held]
    return min((x + path for x, path in names if path is not None), default="", key=len)


def _returns_at(code: CodeType | None) -> Origin | None:
    """The line at which a function of the user's returns, if that is one."""
    if code is None or not is_users(code.co_filename):
        return None
    node = returned(code)
    line = node.lineno if node else code.co_firstlineno
    is_known = node is not None or code.co_name == "<lambda>"
    return origin_at(code.co_filename, line, code.co_qualname) if is_known else None
