"""Operations of a program by dtype, and the lines that make them wider than expected."""

import collections
import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._blame.blame import blame
from .._blame.why import line_of
from .._carry.places import Names
from .._leaves.dtypes import bits
from .._leaves.key_path import KeyPath, key_value, path_text
from .._leaves.types import Aval, DType, Function
from .._program.graph import Graph
from .._program.program import Node
from .._source.origin import Origin
from .._tracebacks.written import Written
from .work import work_of_stack

_LEAST_SHARE_OF_WORK = 0.01
# A program is expected to compute in 16 bits if at least this part of its inputs has them:
# of bfloat16 params with the float32 moments of Adam beside them, a third.
_NOTABLE_PART = 0.25
# Lines and inputs that make values wide, and where narrow values become wide by them.
_Causes = dict[Origin | str, Origin | None]


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


NO_WORK = Work({})


def work_of(graph: Graph, inputs: Sequence[str], narrow: DType = None) -> Work:
    """Counts what a program computes.

    Args:
        graph: of the program.
        inputs: the paths of its inputs.
        narrow: the dtype that it is expected to compute in; None for the commonest one.
    """
    works = {}
    flops = collections.defaultdict(float)
    for value, node in graph.made_by.items():
        work = work_of_stack(node.stack)
        if not work:
            continue
        works[value] = work
        flops[_dtype_of_product(node)] += work
    if narrow is None:
        narrow = _expected_dtype(graph, flops)
    if narrow is None:
        return NO_WORK
    expected = jnp.dtype(narrow)
    name = str(expected)
    most_bits = bits(expected)
    wide = 0.0
    flops_by_name = {}
    for dtype, work in flops.items():
        flops_by_name[str(dtype)] = work
        if bits(dtype) > most_bits:
            wide += work
    # Maybe there are no products, of which there is no share.
    if not wide:
        return Work(flops_by_name, name)
    total = sum(flops.values())
    operands = _WideOperands(graph, most_bits, inputs)
    costs = operands.costs(works, total)
    wide_share = wide / total
    return Work(flops_by_name, name, wide_share, costs)


def _dtype_of_product(product: Node) -> np.dtype:
    """Returns the dtype of the wider operand of a product."""
    # JAX promotes operands of two dtypes to the wider one before it multiplies.
    dtypes = [var.aval.dtype for var in product.eqn.invars]
    return max(dtypes, key=bits)


def _expected_dtype(graph: Graph, flops: dict[np.dtype, float]) -> np.dtype | None:
    """Returns the dtype that a program is to compute in: the commonest of its inputs."""
    sizes = collections.defaultdict(float)
    for value in graph.inputs:
        aval = graph.avals[value]
        if bits(aval.dtype) < 16:
            continue
        sizes[aval.dtype] += math.prod(aval.shape)
    total = sum(sizes.values())
    notable_size = _NOTABLE_PART * total
    half = []
    for dtype in [*sizes, *flops]:
        if bits(dtype) != 16:
            continue
        # Mixed precision keeps float32 params and computes in 16 bits: its products tell.
        if dtype in flops or sizes[dtype] >= notable_size:
            half.append(dtype)
    candidates = half or sizes or flops
    return max(candidates, key=lambda dtype: sizes[dtype], default=None)


@dataclasses.dataclass
class _WideOperands:
    """The wide values of a program, and what makes them wide.

    Attributes:
        graph: of the program.
        most_bits: those of the dtype that it is expected to compute in.
        inputs: the paths of its inputs.
    """

    graph: Graph
    most_bits: int
    inputs: Sequence[str]

    @functools.cached_property
    def narrow_inputs(self) -> int:
        """The inputs that are not wide, as the bits of a number."""
        narrow_inputs = 0
        for value in self.graph.inputs:
            aval = self.graph.avals[value]
            if 0 < bits(aval.dtype) <= self.most_bits:
                narrow_inputs |= 1 << value
        return narrow_inputs

    def costs(self, works: dict[int, float], total: float) -> tuple[LineCost, ...]:
        """Returns what makes more than a hundredth of some work wide, in order.

        Args:
            works: the operations of products, by their values.
            total: all of them.
        """
        work_by_cause = collections.defaultdict(float)
        origins: _Causes = {}
        causes_of_call = collections.defaultdict(dict)
        for product, work in works.items():
            node = self.graph.made_by[product]
            calls = Written(node.stack).calls
            # A gradient has the dtype of its value: the products of its call tell.
            if node.is_backward and calls in causes_of_call:
                causes = causes_of_call[calls]
            else:
                causes = self.causes(product)
                causes_of_call[calls].update(causes)
            # One whose result alone is wide is as fast as a narrow one.
            if bits(_dtype_of_product(node)) <= self.most_bits:
                continue
            for cause, origin in causes.items():
                origins.setdefault(cause, origin)
                work_by_cause[cause] += work
        costs = []
        for cause, work in work_by_cause.items():
            share = work / total
            if share < _LEAST_SHARE_OF_WORK:
                continue
            cost = LineCost(origins[cause], cause, share)
            costs.append(cost)
        # Equal shares stay in the order of the program.
        costs.sort(key=attrgetter("share"), reverse=True)
        return tuple(costs)

    def is_wide(self, aval: Aval) -> bool:
        """Returns whether a value is wider than expected."""
        # Tokens have no dtype.
        return bits(getattr(aval, "dtype", None)) > self.most_bits

    def causes(self, product: int) -> _Causes:
        """Returns what makes the operands of a product wide, by its value."""
        graph = self.graph
        node = graph.made_by[product]
        line = line_of(node)
        causes: _Causes = {}
        for value in graph.sources(product):
            aval = graph.avals[value]
            if not self.is_wide(aval):
                continue
            blamed = blame(graph, value, self.is_wide, self.narrow_inputs)
            origin = line_of(blamed.promotion)
            cause = line_of(blamed.cause) or origin
            if blamed.operand in graph.inputs:
                path = self.inputs[blamed.operand]
                causes[path] = origin or line
            elif cause is not None:
                causes[cause] = origin
        if causes or line is None:
            return causes
        # Its result alone is wide, as it asks for. JAX's own narrows that again.
        if not Written(node.stack).is_of_jax_nn:
            causes[line] = line
        return causes


def input_names(f: Function, paths: Iterable[KeyPath]) -> list[str]:
    """Returns the paths of inputs as a user would write them.

    Args:
        f: the function.
        paths: of its inputs, in a tree `(args, kwargs)`.
    """
    names = Names(f)
    inputs = []
    for path in paths:
        # The first key is of the tree. Arguments by position the signature names.
        argument = key_value(path[1])
        if isinstance(argument, int):
            argument = names.at(argument)
        path_in_argument = path_text(path[2:])
        inputs.append(argument + path_in_argument)
    return inputs
