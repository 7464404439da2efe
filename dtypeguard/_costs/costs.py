"""Operations of a program by dtype, and the lines that make them wider than expected."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._blame.blame import blame
from .._blame.why import line_of
from .._carry.places import Names
from .._leaves.dtypes import bits, kind
from .._leaves.types import Aval, DType, Equation as JaxEquation, Function
from .._program.graph import Equation, Graph
from .._program.jaxprs import PRODUCTS, Stack, manual_axes
from .._source.origin import Origin, place_of
from .._tracebacks.written import Written

_LEAST_SHARE_OF_WORK = 0.01
_PATH = re.compile(r"\[([01])\]\[([^\]]*)\](.*)", re.DOTALL)


class LineCost(NamedTuple):
    """What makes a program compute wider than it is expected to.

    Attributes:
        origin: the line at which narrow values become wide because of it; None for the
            operand of a product itself.
        cause: the line that makes the wide values, a cast or a constant; the path of an
            input, if that is wide, or its argument, if all of that is.
        share: the share of the operations of matrix products and convolutions that run wide
            because of it, alone or together with others.
    """

    origin: Origin | None
    cause: Origin | str
    share: float


class Work(NamedTuple):
    """What a program computes, by dtype.

    Attributes:
        flops: the floating point operations of matrix products and convolutions, by the
            dtype of the wider operand. The body of a scan counts as often as it runs, that
            of a `while_loop` once, a kernel not; branches of a `cond` count as their mean.
        narrow: the dtype that the program is expected to compute in; None if it has no
            floating numbers.
        wide: the share of the operations that run in wider dtypes.
        costs: what makes more than a hundredth of them wide, the greatest first.
    """

    flops: dict[str, float]
    narrow: str | None = None
    wide: float = 0.0
    costs: tuple[LineCost, ...] = ()


def work_of(graph: Graph, inputs: dict[str, str], narrow: DType = None) -> Work:
    """Counts what a program computes."""
    flops = defaultdict[str, float](float)
    for equation, _ in equations(graph):
        if count := operations(equation.stack[0]):
            dtypes = (graph.avals[value].dtype for value in equation.inputs)
            flops[str(max(dtypes, key=bits))] += repetitions(equation.stack) * count
    narrow = _expected(graph, flops) if narrow is None else jnp.dtype(narrow)
    wide = sum(n for dtype, n in flops.items() if bits(jnp.dtype(dtype)) > bits(narrow))
    return Work(
        flops=dict(flops),
        narrow=None if narrow is None else str(narrow),
        wide=wide / sum(flops.values()) if wide else 0.0,
        costs=_line_costs(graph, narrow, inputs) if wide and narrow is not None else (),
    )


# A program is expected to compute in 16 bits if at least this part of its inputs has them:
# of bfloat16 params with the float32 moments of Adam beside them, a third.
_NOTABLE_PART = 0.25


def _expected(graph: Graph, flops: dict[str, float]) -> DType:
    """The dtype that a program is expected to compute in: the commonest of its inputs.

    Mixed precision keeps float32 params and computes in 16 bits: its products tell.
    """
    given: dict[np.dtype, float] = defaultdict(float)
    for value in graph.inputs:
        aval = graph.avals[value]
        if bits(getattr(aval, "dtype", None)) >= 16:
            given[aval.dtype] += math.prod(aval.shape)
    half = {dtype: size for dtype, size in given.items() if bits(dtype) == 16}
    if half and sum(half.values()) >= _NOTABLE_PART * sum(given.values()):
        return max(half, key=half.__getitem__)
    computed = {jnp.dtype(dtype): count for dtype, count in flops.items()}
    computed = {dtype: count for dtype, count in computed.items() if bits(dtype) == 16}
    return max(computed or given, key=(computed or given).__getitem__, default=None)


def equations(graph: Graph) -> Iterator[tuple[Equation, list[int]]]:
    """Each equation that computes something itself, with its results."""
    results: dict[int, tuple[Equation, list[int]]] = {}
    for value, equation in graph.made_by.items():
        results.setdefault(id(equation), (equation, []))[1].append(value)
    yield from results.values()


def repetitions(stack: Stack) -> float:
    """How often an equation runs: a `while_loop` counts once, a branch by their number."""
    times = 1.0
    for outer in stack[1:]:
        name, params = outer.primitive.name, outer.params
        if name == "scan":
            times *= params["length"]
        elif name == "cond":
            times /= len(params["branches"])
        elif name == "shard_map":  # its body has the shapes of one shard
            shape = params["mesh"].shape
            times *= math.prod(shape[axis] for axis in manual_axes(outer))
    return times


def operations(eqn: JaxEquation) -> float:
    """The floating point operations of a matrix product or convolution; 0 for the rest."""
    name = eqn.primitive.name
    if name not in PRODUCTS:
        return 0.0
    left, right, out = (v.aval for v in (*eqn.invars[:2], eqn.outvars[0]))
    if kind(out.dtype) not in ("float", "complex"):
        return 0.0
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        terms = math.prod(left.shape[axis] for axis in contracted)
        count = math.prod(out.shape) * terms
    elif name == "conv_general_dilated":
        features = right.shape[eqn.params["dimension_numbers"].rhs_spec[0]]
        terms = math.prod(right.shape) / max(features, 1)
        # Zeros between the elements of a dilated operand are no work.
        count = math.prod(out.shape) * terms / math.prod(eqn.params["lhs_dilation"])
    else:  # each row of the left operand goes to one group
        count = math.prod(left.shape) * right.shape[-1]
    return (8.0 if kind(out.dtype) == "complex" else 2.0) * count


def _line_costs(
    graph: Graph, narrow: np.dtype, inputs: dict[str, str]
) -> tuple[LineCost, ...]:
    """What makes more than a hundredth of the products wide, the greatest first.

    A product has the causes of its operands. One of a backward pass has those of the
    forward products of its call: a gradient has the dtype of its value.
    """
    search = _WideCauses(graph, narrow, inputs)
    products = [x for x, _ in equations(graph) if x.primitive in PRODUCTS]
    forward = defaultdict[object, set[LineCost]](set)
    for product in products:
        if not Written(product.stack).is_backward:
            forward[Written(product.stack).calls] |= search.of(product)
    work = list[tuple[float, Collection[LineCost]]]()
    for product in products:
        written = Written(product.stack)
        known = forward.get(written.calls) if written.is_backward else None
        is_wide = any(map(search.is_wide, product.inputs[:2]))
        causes = (search.of(product) if known is None else known) if is_wide else ()
        work.append((operations(product.stack[0]) * repetitions(product.stack), causes))
    total = sum(count for count, _ in work) or 1.0
    whole = search.whole(each.cause for _, causes in work for each in causes)
    found = dict[str, LineCost]()
    for count, causes in work:
        named = dict[str, LineCost]()
        for each in sorted(causes, key=repr):  # a set has another order in every process
            cause = whole.get(each.cause, each.cause)
            named[place_of(cause)] = each._replace(cause=cause)
        for place, each in named.items():
            cost = found.get(place, each)
            found[place] = cost._replace(share=cost.share + count)
    costs = [each._replace(share=each.share / total) for each in found.values()]
    costs = [each for each in costs if each.share >= _LEAST_SHARE_OF_WORK]
    return tuple(sorted(costs, key=lambda each: (-each.share, place_of(each.cause))))


class _WideCauses:
    """What makes the operands of products wide."""

    def __init__(self, graph: Graph, narrow: np.dtype, inputs: dict[str, str]):
        self._graph, self._narrow, self._inputs = graph, bits(narrow), inputs
        sizes = map(self._size, graph.inputs)
        self._leaves = sum(1 << n for n, x in enumerate(sizes) if 0 < x <= self._narrow)
        self._known = dict[int, frozenset[LineCost]]()

    def is_wide(self, value: int) -> bool:
        return self._matches(self._graph.avals[value])

    def _matches(self, aval: Aval) -> bool:
        return bits(getattr(aval, "dtype", None)) > self._narrow

    def of(self, product: Equation) -> frozenset[LineCost]:
        """The causes of the wide operands of a product."""
        found = frozenset[LineCost]()
        operands = [*filter(self.is_wide, product.inputs[:2])]
        line = line_of(product)
        if not operands and line is not None:  # one that is delivered wide
            is_of_jax = Written(product.stack).is_of_jax_nn  # which narrows it again
            return frozenset([] if is_of_jax else [LineCost(line, line, 0.0)])
        for value in operands:
            if value not in self._known:
                self._known[value] = frozenset(self._causes(value, product))
            found |= self._known[value]
        return found

    def _causes(self, value: int, product: Equation) -> Iterator[LineCost]:
        graph = self._graph
        found = blame(graph, value, self._matches, self._leaves)
        operand = found.operand
        origin, cause = line_of(found.promotion), line_of(found.cause)
        if operand in graph.inputs:
            path = [*self._inputs][graph.inputs.index(operand)]
            yield LineCost(origin or line_of(product), path, 0.0)
        elif cause or origin:
            yield LineCost(origin, cause or origin, 0.0)  # pyright: ignore[reportArgumentType]: one is there

    def whole(self, causes: Iterable[Origin | str]) -> dict[Origin | str, str]:
        """The arguments of inputs of which all are causes, by the paths of these."""
        known = {*causes}
        pairs = zip(self._graph.inputs, self._inputs.items())
        parts = {name for x, (path, name) in pairs if self._size(x) and path not in known}
        return {path: name for path, name in self._inputs.items() if name not in parts}

    def _size(self, value: int) -> int:
        return bits(getattr(self._graph.avals[value], "dtype", None))


def input_names(f: Function, paths: Sequence[str]) -> dict[str, str]:
    """The arguments of inputs by their own paths, of paths in a tree `(args, kwargs)`."""
    names, found = Names(f), {}
    for path in paths:
        place, key, rest = _PATH.fullmatch(path).groups()  # pyright: ignore[reportOptionalMemberAccess]: paths of a tuple have two keys
        argument = key.strip("'") if place == "1" else names.at(int(key))
        found[argument + rest] = argument
    return found
