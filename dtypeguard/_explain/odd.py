"""Which leaves of a carry are to begin in another dtype than they do.

A cast of what comes back would round what they keep, or would change all the others.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._leaves.dtypes import dtype_of, is_weak, kind
from .._leaves.paths import parts as path_parts
from .._leaves.types import DType
from .._lines.drift import Drift
from .._program.graph import SHAPES, Graph
from .._source.syntax import statement

# What keeps the sign and the size of a value, as far as an average is concerned.
_SAME = {*SHAPES, "convert_element_type", "copy", "select_n", "clamp"}
_PASSING = {*_SAME, "add", "sub", "mul", "div"}
_NEAR = 0.01  # 16 bits round 0.999 to 1
_SLOW = 0.1  # an average that moves by more in a step loses little


def odd(graph: Graph, drifts: Sequence[Drift], paths: Sequence[str]) -> list[str]:
    """For each leaf that comes back in another type, why its first value is to blame.

    Args:
        graph: of the body, whose first inputs are the carry.
        drifts: those leaves.
        paths: of all leaves of the carry.

    Returns:
        "average", "rare", "narrow", "weak", or nothing where it is not.
    """
    rare = _rare(graph, drifts)
    places = [paths.index(drift.path) for drift in drifts]
    users = _users(graph)

    def is_kept_up(drift: Drift, place: int) -> bool:
        pair = graph.inputs[place], graph.outputs[place]
        return _is_kept_up(graph, *pair, users, _begins_empty(drift))

    return [
        "average"
        if not _is_of_optimizer(drift) and is_kept_up(drift, place)
        else "rare" * (drift.avals[0].dtype in rare)
        or "narrow" * _is_of_wider_param(graph, paths, place)
        or "weak" * is_weak(graph.avals[graph.inputs[place]])
        for drift, place in zip(drifts, places)
    ]


def is_averaged(graph: Graph, place: int, dtype: DType) -> bool:
    """Whether a result is an average of something from outside that has 16 bits.

    Args:
        graph: of a branch.
        place: of the result.
        dtype: of what the branch averages.
    """
    users, output = _users(graph), graph.outputs[place]
    shape = graph.avals[output].shape
    return any(
        (aval := graph.avals[value]).dtype == dtype
        and aval.shape == shape
        and _is_kept_up(graph, value, output, users)
        for value in values_behind(graph, output) & {*graph.inputs, *graph.constants}
    )


def _users(graph: Graph) -> dict[int, list[int]]:
    """The values that sums and products make of each value."""
    users: dict[int, list[int]] = {}
    for value in graph.sources_first():
        equation = graph.made_by.get(value)
        passes = equation is None or equation.primitive in _PASSING
        sources = equation.inputs if equation else graph.same.get(value, ())
        for source in sources if passes else ():
            users.setdefault(source, []).append(value)
    return users


def _is_of_optimizer(drift: Drift) -> bool:
    """Whether an Optax optimizer promotes a leaf: a guard of it keeps its averages."""
    return drift.origin is not None and drift.origin.is_of_optimizer


def _rare(graph: Graph, drifts: Sequence[Drift]) -> set[DType]:
    """The dtypes with which leaves alone begin, in a program whose arrays have another.

    A cast of the program would change all of these arrays, and a first value only itself.
    """
    found: set[DType] = set()
    pairs = {tuple(x.avals[n].dtype for n in (0, 1)) for x in drifts if x.kind == "dtype"}
    constants = [n for n in graph.constants if getattr(graph.avals[n], "shape", ())]
    known = [graph.avals[number] for number in (*graph.inputs, *constants)]
    for old, new in pairs:
        begun = sum(drift.avals[0].dtype == old for drift in drifts)
        have = [sum(aval.dtype == dtype for aval in known) for dtype in (old, new)]
        if kind(old) == kind(new) == "float" and have[0] == begun < have[1] > 1:
            found.add(old)
    return found


def _is_of_wider_param(graph: Graph, paths: Sequence[str], number: int) -> bool:
    """Whether a leaf of an optimizer's state begins narrower than its param.

    That is a leaf of the carry that keeps its dtype. The path of the leaf ends like that of
    the param: `carry[1][0].mu['w']` and `carry[0]['w']`.
    """
    avals = [
        [graph.avals[x] for x in values[: len(paths)]]
        for values in (graph.inputs, graph.outputs)
    ]
    parts = [path_parts(path)[1:] for path in paths]
    old, new = (pair[number] for pair in avals)
    return any(
        before.dtype == after.dtype == new.dtype
        and before.shape == old.shape
        and 0 < len(part) - 1 < len(parts[number]) - 2
        and part[1:] == parts[number][1 - len(part) :]
        for part, before, after in zip(parts, *avals)
    )


def _begins_empty(drift: Drift) -> bool:
    """Whether a leaf begins as `zeros` or `zeros_like`, as far as its line says so."""
    line = drift.begun and drift.begun.users
    node = statement(line.file, line.line) if line else None
    names = (getattr(x, "attr", getattr(x, "id", "")) for x in ast.walk(node or ast.Pass()))
    return any(name in ("zeros", "zeros_like") for name in names)


def _is_kept_up(
    graph: Graph,
    leaf: int,
    result: int,
    users: Mapping[int, Sequence[int]],
    is_empty: bool = False,
) -> bool:
    """Whether a leaf of 16 bits is an average or a running sum, which rounding stops.

    A running sum is a scalar plus something, or an array that begins with zeros plus what
    is not computed from it, such as the gradients of a batch. An average is the leaf plus a
    part of its distance to something, or the leaf times a factor plus something, where that
    is times what the factor lacks to 1, or the factor is nearly 1.
    """
    aval = graph.avals[leaf]
    if kind(aval.dtype) != "float" or aval.dtype.itemsize > 2:
        return False
    rank = {value: number for number, value in enumerate(graph.sources_first())}
    sums = {*_sums(graph, leaf, _reached(leaf, users, rank), is_empty)}
    return bool(sums and sums & values_behind(graph, result))


def _sums(graph: Graph, leaf: int, reached: Sequence[int], is_empty: bool) -> Iterator[int]:
    """The averages and sums that a program makes of a leaf.

    Args:
        graph: of the program.
        leaf: an input.
        reached: what sums and products make of it.
        is_empty: whether it begins with zeros.
    """
    aval = graph.avals[leaf]
    least = 1 - 4 * float(jnp.finfo(aval.dtype).eps)
    own = {leaf}
    apart: dict[int, float | None] = {}  # its distance to something, and times what
    factors: dict[int, int] = {}  # by the value that is the leaf times a factor
    for value in reached:
        equation = graph.made_by.get(value)
        inputs = equation.inputs if equation else tuple(graph.same.get(value, ()))
        name, given = equation.primitive if equation else "copy", {*inputs}
        if name in _SAME:
            own |= {value} if own & given else set()
            apart |= zip([value], (apart[x] for x in inputs if x in apart))
            factors |= zip([value], (factors[x] for x in inputs if x in factors))
        elif name in ("mul", "div") and apart.keys() & given:
            numbers = [_number(graph, x) for x in inputs if x not in apart]
            part = numbers[0] if numbers else None
            apart[value] = 1 / part if part and name == "div" else part
        elif name == "mul" and own & given:
            factors |= zip([value], (x for x in inputs if x not in own))
        elif name in ("add", "sub") and own & given:
            is_sum = name == "add" and not apart.keys() & given
            is_sum = is_sum and (is_empty or not aval.shape)
            if is_sum and not (aval.shape and _depends(graph, leaf, given - own)):
                yield value
            parts = [apart[x] for x in given if x in apart]
            if parts and (parts[0] is None or abs(parts[0]) <= _SLOW + _NEAR):
                yield value
            apart |= {value: 1.0} if name == "sub" else {}
        elif name in ("add", "sub") and factors.keys() & given:
            (scaled, *_), others = factors.keys() & given, given - factors.keys()
            factor = _number(graph, factors[scaled])
            is_near_1 = factor is not None and least <= factor <= 1 and name == "add"
            is_slow = factor is None or factor >= 1 - _SLOW - _NEAR
            if is_near_1 or (
                is_slow and any(_lacks(graph, factors[scaled], x) for x in others)
            ):
                yield value


def _depends(graph: Graph, leaf: int, values: Iterable[int]) -> bool:
    """Whether some values are computed from a leaf."""
    return any(leaf in values_behind(graph, value) for value in values)


def _reached(
    start: int, users: Mapping[int, Sequence[int]], rank: Mapping[int, int]
) -> list[int]:
    """What sums and products make of a value, each after what it is made of."""
    seen, queue = {start}, [start]
    for value in queue:
        new = [user for user in users.get(value, ()) if user not in seen]
        queue += new
        seen.update(new)
    return sorted(queue[1:], key=rank.__getitem__)


def _lacks(graph: Graph, factor: int, value: int) -> bool:
    """Whether a value is something times what a factor lacks to 1."""
    equation = graph.made_by.get(_passed_on(graph, value))
    if equation is None or equation.primitive != "mul":
        return False
    one = _number(graph, factor)
    for other in equation.inputs:
        two = _number(graph, other)
        is_rest = one is not None and two is not None and abs(one + two - 1) < _NEAR
        if is_rest or _is_rest(graph, factor, other) or _is_rest(graph, other, factor):
            return True
    return False


def _is_rest(graph: Graph, one: int, other: int) -> bool:
    """Whether a value is 1 minus another."""
    equation = graph.made_by.get(_passed_on(graph, one))
    if equation is None or equation.primitive != "sub":
        return False
    first, second = equation.inputs
    number = _number(graph, first)
    is_same = _passed_on(graph, second) == _passed_on(graph, other)
    return number == 1 and (is_same or graph.values.get(second) is not None)


def _passed_on(graph: Graph, value: int) -> int:
    """What a value is, before it was converted or reshaped."""
    while True:
        equation = graph.made_by.get(value)
        same = graph.same.get(value, ())
        if equation and equation.primitive in _SAME and len(equation.inputs) == 1:
            value = equation.inputs[0]
        elif equation is None and len(same) == 1:
            value = same[0]
        else:
            return value


def _number(graph: Graph, value: int) -> float | None:
    """The number that a value is; None if it is not known, or an array."""
    known = graph.values.get(_passed_on(graph, value))
    if known is None or np.ndim(known) or isinstance(known, Tracer):
        return None
    return float(known) if kind(dtype_of(known)) in ("int", "float") else None


def values_behind(graph: Graph, value: int) -> set[int]:
    """The values from which another is computed, with it."""
    seen, queue = {value}, [value]
    for each in queue:
        equation = graph.made_by.get(each)
        sources = equation.inputs if equation else graph.same.get(each, ())
        queue += [source for source in sources if source not in seen]
        seen.update(sources)
    return seen
