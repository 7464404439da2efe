"""Second stage: finds the leaves that JAX refuses, and the lines behind their types."""

import ast
import re
from collections.abc import Callable, Iterator
from types import CodeType

from jax import tree_util

from .._leaves.dtypes import is_python_number, kind
from .._leaves.paths import parts
from .._leaves.rows import count, path_of, paths
from .._leaves.types import Aval
from .._lines.body import Results, difference
from .._lines.drift import Drift, drift_between
from .._lines.numbers import number_source
from .._lines.provenance import TypeProvenance
from .._program.trace import Program
from .._source.files import is_users
from .._source.origin import Origin, Why, origin_at
from .._source.syntax import item, returned
from .added import find_added, find_tangent, is_pulled_back
from .arguments import find_arguments, find_compiled, find_named
from .begin import whole_floats
from .finding import Finding, RefusedLeaf
from .flags import find_lowered
from .frames import ControlFlow
from .linalg import find_unsupported
from .messages import added, compiled_for, is_of_rule
from .odd import odd
from .read import Failure
from .written import Expression


def find(failure: Failure) -> Finding | None:
    """The leaves that an error is about; None if it finds none."""
    found = _find(failure)
    return found and found._replace(sites=failure.sites)


def _find(failure: Failure) -> Finding | None:
    if failure.lowered is not None:
        return find_lowered(failure, failure.lowered)
    if failure.unsupported is not None:
        return find_unsupported(failure, failure.unsupported)
    provenance = TypeProvenance(failure.frames, failure.sites)
    if failure.complaint is not None and is_pulled_back(failure):
        return find_added(failure, failure.complaint.types, provenance)
    if failure.complaint is not None:
        return find_arguments(failure, failure.complaint, provenance)
    if meant := compiled_for(failure.message):
        return find_compiled(failure, meant, provenance)

    def is_meant(*avals: Aval) -> bool:
        return all(_is_named(str(aval.dtype), failure.message) for aval in avals)

    for call in failure.control_flow:
        in_call = _in_loop if call.is_loop else _in_branches
        if finding := in_call(call, provenance, is_meant):
            return finding
    if is_of_rule(failure.message):
        return find_tangent(failure, provenance)
    if len(types := added(failure.message)) == 2:
        return find_added(failure, types, provenance)
    return find_named(failure, provenance) if failure.types else None


def _in_loop(
    call: ControlFlow, provenance: TypeProvenance, is_meant: Callable[..., bool]
) -> Finding | None:
    """The leaves of a carry that come back in another dtype or shape.

    Without a jaxpr of the body in the traceback the body is traced again. Equinox compares
    the carry before there is a jaxpr: if the body no longer traces, the two sides that
    Equinox compares remain, without lines.
    """
    body = call.bodies["body"]

    def drifts() -> Iterator[tuple[Program | None, Iterator[Drift]]]:
        yield from body.drifts(provenance, call.first, call.kind.is_equinox)
        if call.kind.is_equinox:
            yield None, _compared(call)

    places = [body.name + path for path in body.carried.paths]
    for program, drifting in drifts():
        meant: dict[str, Drift] = {}
        for drift in drifting:
            if is_meant(*drift.avals):
                meant.setdefault(drift.path, drift)
        if not meant:
            continue
        drifts_meant = [*meant.values()]
        if program is None:
            reasons = [""] * len(meant)
        else:
            reasons = odd(program.step, drifts_meant, places)
        # No line in what JAX wrote is anything to the user.
        line = call.line if call.is_of_jax else None
        about = provenance, call.first
        begun = [
            _made(
                body.begun_apart(*about, drift, meant.keys(), reason == "average")
                if reason
                else drift.begun,
                call,
                provenance,
            )
            for drift, reason in zip(drifts_meant, reasons)
        ]
        leaves = [
            RefusedLeaf(
                number,
                call.users_path(drift.path),
                drift.avals,
                Why(drift.origin or line, drift.cause, begun[number]),
                drift.is_castable,
                bool(reasons[number]) or _is_of_first(drift, begun[number]),
                is_average=reasons[number] == "average",
                place=places.index(drift.path) if drift.path in places else None,
            )
            for number, drift in enumerate(drifts_meant)
        ]
        some, verb = count(leaves), "comes" if len(leaves) == 1 else "come"
        headline = call.kind.headline.format(some=some, verb=verb, name=call.kind.name)
        return Finding(headline, leaves, call, program=program)
    return None


def _is_of_first(drift: Drift, begun: Origin | None) -> bool:
    """Whether a first value is to blame for an int that becomes a float.

    It is taken to be for a single number, such as a running loss that begins as 0.
    """
    kinds = tuple(kind(aval.dtype) for aval in drift.avals)
    is_number = not any(aval.shape for aval in drift.avals)
    if kinds != ("int", "float") or not (is_number and begun and drift.origin):
        return False
    return not whole_floats(drift.origin.users)


def _made(
    line: Origin | None, call: ControlFlow, provenance: TypeProvenance
) -> Origin | None:
    """The line of a first value; None for one that only hands it on.

    That is the line of the loop if its arguments are variables, and that of a package which
    calls the loop.
    """
    if line is None:
        return None
    if line.called_from is not None:
        return None if provenance.is_passed(line.users) else line
    given = getattr(call.written, "args", ())
    is_plain = given and not any(
        isinstance(each, (ast.Call, ast.BinOp)) for x in given for each in ast.walk(x)
    )
    is_of_loop = call.line is not None and str(line) == str(call.line)
    return None if is_plain and is_of_loop else line


def _compared(call: ControlFlow) -> Iterator[Drift]:
    """What differs between the two carries that Equinox compares, without lines."""
    body, pairs = call.bodies["body"], zip(*map(tree_util.tree_leaves, call.compared))
    for path, (old, new) in zip(body.carried.paths, pairs):
        if what := difference(old, new):
            yield drift_between(body.name + path, what, old, new)


def _in_branches(
    call: ControlFlow, provenance: TypeProvenance, is_meant: Callable[..., bool]
) -> Finding | None:
    """For each leaf that differs, what the first branch and those that differ return."""
    traced = [(name, body.results(provenance)) for name, body in call.bodies.items()]
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
                aval = results.aval(number)
                leaf = RefusedLeaf(len(leaves), path, (aval,), branch=name, place=number)
                leaves.append(_lined(leaf, call, provenance, results, number, what))
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


def _lined(
    leaf: RefusedLeaf,
    call: ControlFlow,
    provenance: TypeProvenance,
    results: Results,
    number: int,
    what: str,
) -> RefusedLeaf:
    """A leaf that a branch returns, with its lines."""
    is_given, is_constant, value = results.unchanged(number)
    held = [*call.variables.items(), *results.body.globals.items()]
    held = [] if value is None else held
    names = [(name, path_of(value, tree)) for name, tree in held]
    names = [name + path for name, path in names if path is not None]
    name = min(names, default="", key=len)
    why = provenance.of_value(value) if name or is_given else results.of(number, what)
    text, is_made, literal = "", True, None
    if found := _number(leaf, results, number):
        text, literal, why = repr(found[0]), found[0], Why(found[1].line)
    elif is_constant and is_python_number(value):
        text, literal, why = repr(value), value, Why(_returns_at(results.body.code))
    elif is_given:
        text, is_made = ("" if not name else f"{name}, ") + "as it was given", False
    elif is_constant:
        text = f"{name}, closed over" if name else "a constant, or closed over"
        is_made = bool(name and why.origin)
    about = {"variable": name, "unchanged": text, "is_made": is_made}
    leaf = leaf._replace(written=found and found[1], literal=literal)
    return leaf._replace(why=why, **about)


def _number(
    leaf: RefusedLeaf, results: Results, number: int
) -> tuple[int, Expression] | None:
    """An int that a function inside of a branch writes out for a field of its result."""
    value, code = results.whole(number), results.body.code
    name = parts(leaf.path)[-1].removeprefix(".")
    if value is None or code is None or not name.isidentifier():
        return None
    node = returned(code) if is_users(code.co_filename) else None
    for part in parts(leaf.path)[1:]:
        node = item(node, part)
    found = number_source(name, value, code.co_filename)
    if isinstance(node, ast.Constant) or found is None:
        return None
    return value, Expression(found[1], found[0])


def _returns_at(code: CodeType | None) -> Origin | None:
    """The line at which a function of the user's returns, if that is one."""
    if code is None or not is_users(code.co_filename):
        return None
    node = returned(code)
    line = node.lineno if node else code.co_firstlineno
    is_known = node is not None or code.co_name == "<lambda>"
    return origin_at(code.co_filename, line, code.co_qualname) if is_known else None


def _is_named(dtype: str, message: str) -> bool:
    """Whether a message names a dtype, in full like JAX or abbreviated like Equinox."""
    short = re.sub(r"(loat|nt|omplex)(?=\d)", "", dtype.replace("uint", "u"))
    return dtype in message or short in message
