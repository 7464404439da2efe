"""Which lines make a program compute wider than expected: a `why` for each product."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .._carry.places import Names
from .._leaves.dtypes import bits
from .._leaves.types import Aval, Function
from .._lines.blame import blame
from .._lines.equations import Written
from .._lines.why import line_of
from .._program.graph import PRODUCTS, Equation, Graph
from .._source.origin import Origin, place_of
from .work import equations, operations, repetitions

_LEAST_SHARE = 0.01
_PATH = re.compile(r"\[([01])\]\[([^\]]*)\](.*)", re.DOTALL)


class LineCost(NamedTuple):
    """What makes a program compute wider than it is expected to.

    Attributes:
        origin: the line at which narrow values become wide because of it; None for the
            operand of a product itself.
        cause: the line that makes the wide values, a cast or a constant; the path of an
            input, if that is wide.
        share: the share of the operations of matrix products and convolutions that run wide
            because of it, alone or together with others.
    """

    origin: Origin | None
    cause: Origin | str
    share: float


def line_costs(
    graph: Graph, narrow: np.dtype, inputs: Sequence[str]
) -> tuple[LineCost, ...]:
    """What makes more than a hundredth of the products wide, the greatest first.

    A product has the causes of its operands. One of a backward pass has those of the
    forward products of its call: a gradient has the dtype of its value.

    Args:
        graph: of the program.
        narrow: the dtype that it is expected to compute in.
        inputs: the paths of its inputs.
    """
    search = _Causes(graph, narrow, inputs)
    products = [x for x, _ in equations(graph) if x.primitive in PRODUCTS]
    forward, shares, total = defaultdict(set), defaultdict(float), 0.0
    for product in products:
        if not Written(product.stack).is_backward:
            search.of(product)
            forward[Written(product.stack).calls] |= search.of(product)
    lines = dict[str, LineCost]()
    for product in products:
        work = operations(product.stack[0]) * repetitions(product.stack)
        total += work
        written = Written(product.stack)
        causes = forward.get(written.calls) if written.is_backward else None
        if any(map(search.is_wide, product.inputs[:2])):
            known = causes or search.of(product)
            for cost in {place_of(each.cause): each for each in known}.values():
                key = place_of(cost.cause)
                lines.setdefault(key, cost)
                shares[key] += work
    found = [x._replace(share=shares[key] / (total or 1.0)) for key, x in lines.items()]
    found = [each for each in found if each.share >= _LEAST_SHARE]
    return tuple(sorted(found, key=lambda each: -each.share))


class _Causes:
    """What makes the operands of products wide."""

    def __init__(self, graph: Graph, narrow: np.dtype, inputs: Sequence[str]):
        self._graph, self._narrow, self._paths = graph, bits(narrow), inputs
        sizes = [bits(getattr(graph.avals[x], "dtype", None)) for x in graph.inputs]
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
            return frozenset([LineCost(line, line, 0.0)])
        for value in operands:
            if value not in self._known:
                self._known[value] = frozenset(self._causes(value, product))
            found |= self._known[value]
        return found

    def _causes(self, value: int, product: Equation) -> Iterator[LineCost]:
        found = blame(self._graph, value, self._matches, self._leaves)
        origin, cause = line_of(found.promotion), line_of(found.cause)
        if found.operand in self._graph.inputs:
            path = self._paths[self._graph.inputs.index(found.operand)]
            yield LineCost(origin or line_of(product), path, 0.0)
        elif cause or origin:
            yield LineCost(origin, cause or origin, 0.0)  # pyright: ignore[reportArgumentType]: one is there


def input_names(f: Function, paths: Sequence[str]) -> list[str]:
    """The names of the inputs of a function by their paths in a tree `(args, kwargs)`."""
    names, found = Names.of(f), []
    for path in paths:
        place, key, rest = _PATH.fullmatch(path).groups()  # pyright: ignore[reportOptionalMemberAccess]: paths of a tuple have two keys
        found.append((key.strip("'") if place == "1" else names.at(int(key))) + rest)
    return found
