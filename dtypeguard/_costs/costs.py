"""Operations of a program by dtype, and the lines that make them wider than expected."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._blame.blame import blame
from .._blame.why import line_of
from .._carry.places import Names
from .._leaves.dtypes import bits
from .._leaves.types import Aval, DType, Function
from .._program.graph import Equation, Graph
from .._program.jaxprs import PRODUCTS
from .._source.origin import Origin, place_of
from .._tracebacks.written import Written
from .work import work_of_stack

_LEAST_SHARE_OF_WORK = 0.01
# A program is expected to compute in 16 bits if at least this part of its inputs has them:
# of bfloat16 params with the float32 moments of Adam beside them, a third.
_NOTABLE_PART = 0.25
# The keys of a path in a tree `(args, kwargs)`: which of both, the argument, and the rest.
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
    """Counts what a program computes.

    Args:
        graph: of the program.
        inputs: the argument of each input, by its path.
        narrow: the dtype that it is expected to compute in; None for the commonest one.
    """
    flops: dict[str, float] = {}
    for equation in equations(graph):
        work = work_of_stack(equation.stack)
        if work:
            dtypes = [graph.avals[value].dtype for value in equation.inputs]
            # JAX promotes operands of two dtypes to the wider one before it multiplies.
            widest = str(max(dtypes, key=bits))
            flops[widest] = flops.get(widest, 0.0) + work
    narrow = _expected_dtype(graph, flops) if narrow is None else jnp.dtype(narrow)
    wide = 0.0
    for dtype, count in flops.items():
        if bits(jnp.dtype(dtype)) > bits(narrow):
            wide += count
    name = None if narrow is None else str(narrow)
    if not wide:
        return Work(flops, name)
    costs: tuple[LineCost, ...] = ()
    if narrow is not None:
        costs = LineCosts(graph, narrow, inputs).costs()
    return Work(flops, name, wide / sum(flops.values()), costs)


def _expected_dtype(graph: Graph, flops: dict[str, float]) -> np.dtype | None:
    """Returns the dtype that a program is to compute in: the commonest of its inputs.

    Mixed precision keeps float32 params and computes in 16 bits: its products tell.
    """
    sizes: dict[np.dtype, float] = {}
    for value in graph.inputs:
        aval = graph.avals[value]
        if bits(getattr(aval, "dtype", None)) >= 16:
            sizes[aval.dtype] = sizes.get(aval.dtype, 0.0) + math.prod(aval.shape)
    half = _of_16_bits(sizes)
    least = _NOTABLE_PART * sum(sizes.values())
    if half and sum(half.values()) >= least:
        return _commonest(half)
    flops_of_dtype = {jnp.dtype(name): count for name, count in flops.items()}
    return _commonest(_of_16_bits(flops_of_dtype) or sizes)


def _of_16_bits(counts: dict[np.dtype, float]) -> dict[np.dtype, float]:
    return {dtype: count for dtype, count in counts.items() if bits(dtype) == 16}


def _commonest(counts: dict[np.dtype, float]) -> np.dtype | None:
    return max(counts, key=lambda dtype: counts[dtype], default=None)


def equations(graph: Graph) -> list[Equation]:
    """Returns each equation that computes something itself, once."""
    # An equation with several results makes several values.
    unique = {id(equation): equation for equation in graph.made_by.values()}
    return list(unique.values())


class LineCosts:
    """What makes the operands of products wide.

    Args:
        graph: of the program.
        narrow: the dtype that it is expected to compute in.
        inputs: the argument of each input, by its path.
    """

    def __init__(self, graph: Graph, narrow: np.dtype, inputs: dict[str, str]):
        self._graph = graph
        self._bits = bits(narrow)
        self._inputs = inputs
        # The inputs that are narrow, as the bits of a number.
        self._narrow_inputs = 0
        for place, value in enumerate(graph.inputs):
            if 0 < self._bits_of(value) <= self._bits:
                self._narrow_inputs |= 1 << place
        # Products share operands, and to blame a line walks over the graph.
        self._known: dict[int, frozenset[LineCost]] = {}

    def costs(self) -> tuple[LineCost, ...]:
        """Returns what makes more than a hundredth of the products wide, in order.

        A product has the causes of its operands. One of a backward pass has those of the
        forward products of its call: a gradient has the dtype of its value.
        """
        products = [x for x in equations(self._graph) if x.primitive in PRODUCTS]
        forward: dict[object, frozenset[LineCost]] = {}
        for product in products:
            written = Written(product.stack)
            if not written.is_backward:
                before = forward.get(written.calls, frozenset())
                forward[written.calls] = before | self._causes_of(product)
        causes: list[frozenset[LineCost]] = []
        for product in products:
            written = Written(product.stack)
            if not any(self._is_wide(value) for value in product.inputs[:2]):
                causes.append(frozenset())
            elif written.is_backward and written.calls in forward:
                causes.append(forward[written.calls])
            else:
                causes.append(self._causes_of(product))
        return self._summed(products, causes)

    def _summed(
        self, products: Sequence[Equation], causes: Sequence[frozenset[LineCost]]
    ) -> tuple[LineCost, ...]:
        """Returns the share of the products that each cause makes wide."""
        works = [work_of_stack(product.stack) for product in products]
        total = sum(works) or 1.0
        whole_arguments = self._whole_arguments(frozenset().union(*causes))
        rows: dict[str, LineCost] = {}
        for work, causes_of_product in zip(works, causes):
            by_place: dict[str, LineCost] = {}
            # A set has another order in every process.
            for cost in sorted(causes_of_product, key=repr):
                cause = whole_arguments.get(cost.cause, cost.cause)
                by_place[place_of(cause)] = cost._replace(cause=cause)
            for place, cost in by_place.items():
                row = rows.get(place, cost)
                rows[place] = row._replace(share=row.share + work)
        costs: list[LineCost] = []
        for row in rows.values():
            share = row.share / total
            if share >= _LEAST_SHARE_OF_WORK:
                costs.append(row._replace(share=share))
        costs.sort(key=_greatest_share_first)
        return tuple(costs)

    def _bits_of(self, value: int) -> int:
        return bits(getattr(self._graph.avals[value], "dtype", None))

    def _is_wide(self, value: int) -> bool:
        return self._is_wide_aval(self._graph.avals[value])

    def _is_wide_aval(self, aval: Aval) -> bool:
        return bits(getattr(aval, "dtype", None)) > self._bits

    def _causes_of(self, product: Equation) -> frozenset[LineCost]:
        """Returns the causes of the wide operands of a product."""
        operands = [value for value in product.inputs[:2] if self._is_wide(value)]
        line = line_of(product)
        if not operands and line is not None:
            # Its result alone is wide, as it asks for. JAX's own narrows that again.
            if Written(product.stack).is_of_jax_nn:
                return frozenset()
            return frozenset([LineCost(line, line, 0.0)])
        causes: frozenset[LineCost] = frozenset()
        for value in operands:
            if value not in self._known:
                self._known[value] = frozenset(self._causes_of_operand(value, product))
            causes |= self._known[value]
        return causes

    def _causes_of_operand(self, value: int, product: Equation) -> Iterator[LineCost]:
        graph = self._graph
        blamed = blame(graph, value, self._is_wide_aval, self._narrow_inputs)
        origin = line_of(blamed.promotion)
        cause = line_of(blamed.cause) or origin
        if blamed.operand in graph.inputs:
            # Paths are in the order of the inputs.
            path = list(self._inputs)[graph.inputs.index(blamed.operand)]
            yield LineCost(origin or line_of(product), path, 0.0)
        elif cause is not None:
            yield LineCost(origin, cause, 0.0)

    def _whole_arguments(self, costs: frozenset[LineCost]) -> dict[Origin | str, str]:
        """Returns the arguments of inputs of which all are causes, by their paths."""
        causes = {cost.cause for cost in costs}
        in_part: set[str] = set()
        for value, (path, argument) in zip(self._graph.inputs, self._inputs.items()):
            if self._bits_of(value) and path not in causes:
                in_part.add(argument)
        arguments: dict[Origin | str, str] = {}
        for path, argument in self._inputs.items():
            if argument not in in_part:
                arguments[path] = argument
        return arguments


def _greatest_share_first(cost: LineCost) -> tuple[float, str]:
    # Equal shares are in the order of their places, which is the same in each process.
    return -cost.share, place_of(cost.cause)


def input_names(f: Function, paths: Sequence[str]) -> dict[str, str]:
    """Returns the arguments of inputs, by the paths that a user would write.

    Args:
        f: the function.
        paths: of its inputs, in a tree `(args, kwargs)`.
    """
    names = Names(f)
    arguments: dict[str, str] = {}
    for path in paths:
        match = _PATH.fullmatch(path)
        assert match is not None  # paths of a tuple have two keys
        place, key, rest = match.groups()
        # In `(args, kwargs)`, 0 is by position, which the signature names, and 1 by name.
        argument = names.at(int(key)) if place == "0" else key.strip("'")
        arguments[argument + rest] = argument
    return arguments
