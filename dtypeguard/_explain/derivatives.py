"""Cotangents of different types: a rule of `custom_vjp` returns another than it is to.

JAX lets a rule return float32 for a bfloat16 argument, and cannot add it to others then.
"""

import ast
from collections.abc import Collection, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

from .._leaves.dtypes import dtype_of, is_array
from .._lines.provenance import TypeProvenance
from .._source.files import is_installed, is_users
from .._source.inert import variables_of
from .._source.origin import Why, origin_at
from .._source.syntax import returned
from .finding import Finding, RefusedCall, RefusedLeaf
from .read import Failure


def is_pulled_back(failure: Failure) -> bool:
    """Whether JAX raised an error while it computed with cotangents."""
    inside = failure.sites[-1].inside if failure.sites else ()
    return any(x.f_code.co_name.startswith("backward_pass") for x in inside)


def find_added(
    failure: Failure, types: Collection[str], provenance: TypeProvenance
) -> Finding | None:
    """The cotangent that a rule of the user's returned in another type than it is to."""
    is_backward = [x.f_code.co_name.startswith("backward_pass") for x in failure.frames]
    inside = failure.frames[is_backward.index(True) :] if any(is_backward) else ()
    for rule, equation in _rules(failure.frames):
        linear = equation.invars[equation.params.get("num_res", 0) :]
        given = (dtype_of(x.aval) for x in linear)
        meant = {x for x in given if str(x) in types}
        if is_installed(rule.co_filename) or len(types) != 2:
            continue
        values, why = [], Why()
        for frame in reversed(inside):
            own = [x for x in list(variables_of(frame).values()) if is_array(x)]
            values += [x for x in own if str(dtype_of(x)) in types]
            whys = [(x, provenance.of_value(x)) for x in values if not why.is_promoted]
            value, why = next(((x, y) for x, y in whys if y.is_promoted), (None, why))
            if value is not None and len({*map(dtype_of, values)}) == 2:
                meant = {*map(dtype_of, values)} - {dtype_of(value)}
                break
        wrong = [x for x in values if dtype_of(x) not in meant]
        if len(meant) != 1 or not wrong:
            continue
        (wanted,), node = meant, returned(rule)
        first = node.lineno if node else rule.co_firstlineno
        line = origin_at(rule.co_filename, first, rule.co_qualname)
        lines = Why(why.origin, line) if why.is_promoted else Why(line)
        leaf = RefusedLeaf(0, "a cotangent", (wrong[0],), lines)
        name = rule.co_name.replace("<lambda>", "a lambda")
        head = f"{name} returns a cotangent in another dtype than its argument."
        return Finding(head, [leaf], RefusedCall(wanted, "rule", name))
    return None


def find_tangent(failure: Failure, provenance: TypeProvenance) -> Finding | None:
    """The tangent that a rule of `custom_jvp` returned in another type than its primal."""
    frame = failure.frames[-1]
    names = "primals_out", "tangents_out"
    pairs = [*zip(*(frame.f_locals.get(name, ()) for name in names))]
    unlike = [n for n, (x, t) in enumerate(pairs) if dtype_of(x) != dtype_of(t)]
    jvps = [x.f_locals["jvp"] for x in failure.frames if "jvp" in x.f_locals]
    rules = [x for y in jvps for x in _codes(y) if not is_installed(x.co_filename)]
    if not unlike or not rules:
        return None
    primal, tangent = pairs[unlike[0]]
    rule, node = rules[0], returned(rules[0])
    node = node.elts[1] if isinstance(node, ast.Tuple) and len(node.elts) == 2 else None
    if isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) == len(pairs):
        node = node.elts[unlike[0]]
    first = node.lineno if node else rule.co_firstlineno
    line = origin_at(rule.co_filename, first, rule.co_qualname)
    why = provenance.of_value(tangent)
    leaf = RefusedLeaf(0, "a tangent", (tangent,), Why(why.origin or line, line))
    name = rule.co_name.replace("<lambda>", "a lambda")
    head = f"{name} returns a tangent in another dtype than its primal."
    return Finding(head, [leaf], RefusedCall(dtype_of(primal), "rule", name))


def _rules(frames: Sequence[FrameType]) -> Iterator[tuple[CodeType, Any]]:
    """The functions that JAX may have called as rules, with their equations, inside out.

    What an equation is pulled back with comes from those that use its results.
    """
    for frame in reversed(frames):
        equation = frame.f_locals.get("eqn")
        if not hasattr(equation, "invars"):
            continue
        equations = getattr(frame.f_locals.get("jaxpr"), "eqns", ())
        queue: list[Any] = [equation]
        for each in queue:
            yield from ((code, each) for code in _codes(each.params.get("bwd")))
            made = {id(x) for x in each.outvars}
            after = [x for x in equations if made & set(map(id, x.invars))]
            queue += [x for x in after if not any(x is y for y in queue)]


def _codes(rule: Any) -> Iterator[CodeType]:
    """The functions in a rule, as JAX wraps them."""
    queue = [rule]
    for each in queue:
        code = getattr(each, "__code__", None)
        if code is not None and is_users(code.co_filename):
            yield code
        queue += [getattr(each, name, None) for name in ("f", "__wrapped__")]
        for _, given in getattr(each, "transforms", ()):
            queue += given
        queue = queue if len(queue) < 50 else []
