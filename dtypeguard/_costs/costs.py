"""Operations of a program by dtype, and the lines that make them wider than expected."""

import collections
import math
from collections.abc import Sequence
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
    flops: dict[np.dtype, float] = collections.defaultdict(float)
    for equation in equations(graph):
        work = work_of_stack(equation.stack)
        if work:
            dtypes = [graph.avals[value].dtype for value in equation.inputs]
            # JAX promotes operands of two dtypes to the wider one before it multiplies.
            flops[jnp.dtype(max(dtypes, key=bits))] += work
    flops_by_name = {str(dtype): count for dtype, count in flops.items()}
    expected = None if narrow is None else jnp.dtype(narrow)
    if expected is None:
        expected = _expected_dtype(graph, flops)
    if expected is None:
        return Work(flops_by_name)
    wide = 0.0
    for dtype, count in flops.items():
        if bits(dtype) > bits(expected):
            wide += count
    if not wide:
        return Work(flops_by_name, str(expected))
    share = wide / sum(flops.values())
    costs = WideProducts(graph, expected, inputs).costs()
    return Work(flops_by_name, str(expected), share, costs)


def _expected_dtype(graph: Graph, flops: dict[np.dtype, float]) -> np.dtype | None:
    """Returns the dtype that a program is to compute in: the commonest of its inputs."""
    sizes: dict[np.dtype, float] = collections.defaultdict(float)
    for value in graph.inputs:
        aval = graph.avals[value]
        if _bits_of(aval) >= 16:
            sizes[aval.dtype] += math.prod(aval.shape)
    half = _of_16_bits(sizes)
    if sum(half.values()) < _NOTABLE_PART * sum(sizes.values()):
        # Mixed precision keeps float32 params and computes in 16 bits: its products tell.
        half = _of_16_bits(flops)
    counts = half or sizes
    return max(counts, key=lambda dtype: counts[dtype], default=None)


def _of_16_bits(counts: dict[np.dtype, float]) -> dict[np.dtype, float]:
    half: dict[np.dtype, float] = {}
    for dtype, count in counts.items():
        if bits(dtype) == 16:
            half[dtype] = count
    return half


def _bits_of(aval: Aval) -> int:
    return bits(getattr(aval, "dtype", None))


def equations(graph: Graph) -> list[Equation]:
    """Returns each equation that computes something itself, once."""
    unique: dict[int, Equation] = {}
    for equation in graph.made_by.values():
        # An equation with several results makes several values.
        unique[id(equation)] = equation
    return list(unique.values())


class WideProducts:
    """The products of a program with a wide operand, and what makes that wide.

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
            if 0 < _bits_of(graph.avals[value]) <= self._bits:
                self._narrow_inputs |= 1 << place

    def costs(self) -> tuple[LineCost, ...]:
        """Returns what makes more than a hundredth of the products wide, in order."""
        products: list[Equation] = []
        for equation in equations(self._graph):
            if equation.primitive in PRODUCTS:
                products.append(equation)
        causes = self._causes(products)
        whole_arguments = self._whole_arguments(causes)
        works: dict[str, float] = collections.defaultdict(float)
        costs: dict[str, LineCost] = {}
        total = 0.0
        for product, causes_of_product in zip(products, causes):
            work = work_of_stack(product.stack)
            total += work
            places: set[str] = set()
            for cost in causes_of_product:
                cause = whole_arguments.get(cost.cause, cost.cause)
                place = place_of(cause)
                costs.setdefault(place, cost._replace(cause=cause))
                places.add(place)
            for place in places:
                works[place] += work
        rows: list[LineCost] = []
        for place, work in works.items():
            share = work / (total or 1.0)
            if share >= _LEAST_SHARE_OF_WORK:
                rows.append(costs[place]._replace(share=share))
        rows.sort(key=_greatest_share_first)
        return tuple(rows)

    def _causes(self, products: Sequence[Equation]) -> list[list[LineCost]]:
        """Returns what makes the operands of each product wide."""
        causes: list[list[LineCost]] = []
        forward: dict[object, list[LineCost]] = collections.defaultdict(list)
        for product in products:
            written = Written(product.stack)
            # A gradient has the dtype of its value: the products of its call tell.
            if written.is_backward and written.calls in forward:
                causes_of_product = forward[written.calls]
            else:
                causes_of_product = self._causes_of(product)
            if not written.is_backward:
                forward[written.calls].extend(causes_of_product)
            if any(self._is_wide_value(value) for value in product.inputs[:2]):
                causes.append(causes_of_product)
            else:
                causes.append([])
        return causes

    def _is_wide(self, aval: Aval) -> bool:
        return _bits_of(aval) > self._bits

    def _is_wide_value(self, value: int) -> bool:
        return self._is_wide(self._graph.avals[value])

    def _causes_of(self, product: Equation) -> list[LineCost]:
        """Returns the causes of the wide operands of a product."""
        operands: list[int] = []
        for value in product.inputs[:2]:
            if self._is_wide_value(value):
                operands.append(value)
        line = line_of(product)
        if not operands and line is not None:
            # Its result alone is wide, as it asks for. JAX's own narrows that again.
            if Written(product.stack).is_of_jax_nn:
                return []
            return [LineCost(line, line, 0.0)]
        causes: list[LineCost] = []
        for value in operands:
            cause = self._cause_of_operand(value, product)
            if cause is not None:
                causes.append(cause)
        return causes

    def _cause_of_operand(self, value: int, product: Equation) -> LineCost | None:
        graph = self._graph
        blamed = blame(graph, value, self._is_wide, self._narrow_inputs)
        origin = line_of(blamed.promotion)
        if blamed.operand in graph.inputs:
            # Paths are in the order of the inputs.
            place = graph.inputs.index(blamed.operand)
            path = list(self._inputs)[place]
            return LineCost(origin or line_of(product), path, 0.0)
        cause = line_of(blamed.cause) or origin
        return None if cause is None else LineCost(origin, cause, 0.0)

    def _whole_arguments(
        self, causes: Sequence[Sequence[LineCost]]
    ) -> dict[Origin | str, str]:
        """Returns the arguments of inputs of which all are causes, by their paths."""
        blamed: set[Origin | str] = set()
        for costs in causes:
            blamed.update(cost.cause for cost in costs)
        in_part: set[str] = set()
        for value, (path, argument) in zip(self._graph.inputs, self._inputs.items()):
            if _bits_of(self._graph.avals[value]) and path not in blamed:
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
        # The first key is of the tree: 0 is by position, which the signature names.
        key, _, rest = path[4:].partition("]")
        argument = key.strip("'")
        if path.startswith("[0]"):
            argument = names.at(int(key))
        arguments[argument + rest] = argument
    return arguments
