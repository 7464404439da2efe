"""Plain runs of a program as written and in wide types, and how far apart they are.

Each makes its own decisions, so their distances are those that a user measures.
"""

import collections
import functools
import math
import operator
from collections.abc import Collection, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.compat import as_function, set_x64, x64_enabled
from .._leaves.dtypes import bits, kind
from .._leaves.types import Jaxpr, Leaf
from .._lines.equations import Written
from .._numbers import plans
from .._numbers.measure import Measures, distance, size_of
from .._numbers.primitives import SELECTS, is_inexact
from .._numbers.probes import Noted, Probes
from .._numbers.program import NumericProgram
from .._program.graph import Equation, Graph, jaxprs_in, open_jaxpr
from .._source.origin import Origin
from .rows import LineDecision

# An error above this may be that of an output that rounding alone decides.
_FAR = 0.05
# It does if wide types differ by this part of the error, or of the output. Other outputs
# differ by 2^-13 of the error at most, which is how much finer than float16 float32 is.
_LEAST_PART = 0.1


class PlainRuns:
    """A program as written and in wide types.

    Attributes:
        by_output: the error of each output that is measured, relative to its norm in wide
            types.
        total: the root mean square of these.
        once: the same if the wide outputs are rounded once to the dtypes as written.
        written: these outputs as written.
        exact: those in wide types.
        lost: the share of the numbers in the outputs that are 0 as written and not in wide
            types.
        decisions: the lines whose decisions differ, those that differ most first.
        turns_differ: whether a loop turns another number of times.
        has_gradients: whether an output is a gradient in a narrow dtype.
    """

    def __init__(self, measures: Measures):
        self._measures, self.program = measures, measures.program
        self._arrays = measures.arrays
        self.written = measures.written
        others: Noted = {}
        self.exact = measures.run(plans.wide(self.program), Probes(decisions=others))
        self._sizes = [size_of(x) or 1.0 for x in self.exact]
        self.leave_out(())
        compared = _compared(self.program, measures.decisions, others)
        self.turns_differ, self.decisions = compared
        inside = open_jaxpr(self.program.jaxpr)
        outputs = [inside.outvars[n] for n in measures.outputs]
        self._are_gradients = [_is_backward(inside, var) for var in outputs]
        narrow = [0 < bits(x.dtype) < 32 for x in self.written]
        self.has_gradients = any(map(operator.and_, narrow, self._are_gradients))

    def leave_out(self, numbers: Collection[int]) -> None:
        """Counts no error of these outputs from now on."""
        for number in numbers:
            self._sizes[number] = math.inf
        self.by_output = self._distances(self.written)
        self.total = self._mean(self.by_output)
        rounded = [e.astype(x.dtype) for x, e in zip(self.written, self.exact)]
        self.once = self._mean(self._distances(rounded))
        pairs = [*zip(self.written, self.exact, self._sizes)]
        counted = [(x, e) for x, e, size in pairs if size < math.inf]
        floats = counted if self._measures.are_floats else []
        lost = sum(int(jnp.sum((x == 0) & (e != 0))) for x, e in floats)
        self.lost = lost / (sum(x.size for x, _ in counted) or 1)

    def compiled(self) -> float:
        """The error where XLA may leave out roundings, as it does by default."""
        return self._mean(self._distances(self._as_compiled()))

    def vanishing(self) -> list[int]:
        """The outputs that rounding alone decides, on the wide side as well.

        What is 0 but for rounding, and what an optimizer makes of it, is another number in
        float64 than in float32, or in float64 of inputs that differ by a few roundings. An
        output that is lost may be as far off as written, but wide types agree on it.
        """
        far = [n for n, error in enumerate(self.by_output) if _FAR < error < math.inf]
        if not far:
            return []
        with set_x64(True):
            others = self._exact_otherwise()
            found = [(n, others[n], self.exact[n].astype(others[n].dtype)) for n in far]
            differ = [(n, distance(x, e), min(size_of(x), size_of(e))) for n, x, e in found]
        is_much = lambda n, off, size: off > _LEAST_PART * min(self.by_output[n], 1) * size
        return [n for n, off, size in differ if is_much(n, off, size)]

    def _exact_otherwise(self) -> list[Leaf]:
        """The floating outputs in wide types, of inputs that differ by a few roundings."""
        part = 4 * float(jnp.finfo(self.program.formats.wide).eps)
        arrays = [rounded_otherwise(x, part) for x in self._arrays]
        return self._measures.run(plans.wide(self.program), arrays=arrays)

    def flipped(self, rounding: float) -> float:
        """The share of the squared error that other decisions cause.

        Negative if they undo what rounding causes.
        """
        is_known = math.isfinite(self.total) and math.isfinite(rounding) and self.total > 0
        decides = bool(self.decisions) or self.turns_differ
        return 1 - (rounding / self.total) ** 2 if decides and is_known else 0.0

    @functools.cached_property
    def _elsewhere(self) -> list[tuple[list[Leaf], list[Leaf], float]]:
        """Inputs that differ by a rounding, the wide outputs, and the error as written."""
        return [*map(self._moved, (0, 1))]

    def _moved(self, shift: int) -> tuple[list[Leaf], list[Leaf], float]:
        step = lambda x: self._step(self.program.formats.written(x.dtype))
        move = lambda x: rounded_otherwise(x, step(x), shift).astype(x.dtype)
        arrays = [move(x) if is_inexact(x) else x for x in self._arrays]
        exact = self._measures.run(plans.wide(self.program), arrays=arrays)
        written = self._measures.run(plans.written(self.program), arrays=arrays)
        return arrays, exact, self._mean(self._distances(written, exact))

    def _step(self, dtype: np.dtype) -> float:
        """The relative size of a rounding of an input."""
        return float(jnp.finfo(dtype).eps) if kind(dtype) == "float" else 0.0

    def left(self, error: float) -> float:
        """The share of the squared error that an error is."""
        if not (self.total and math.isfinite(error)):
            return 1.0 if self.total else 0.0
        return 0.0 if math.isinf(self.total) else (error / self.total) ** 2

    def _distances(
        self, made: Sequence[Leaf], beside: Sequence[Leaf] | None = None
    ) -> list[float]:
        """How far outputs are from those in wide types, or from others."""
        sizes = self._sizes
        if beside is not None:
            known = zip(beside, sizes)
            sizes = [math.inf if s == math.inf else size_of(x) or 1.0 for x, s in known]
        pairs = zip(made, self.exact if beside is None else beside, sizes)
        errors = [distance(x.astype(e.dtype), e) / size for x, e, size in pairs]
        return [error if math.isfinite(error) else math.inf for error in errors]

    def _mean(self, errors: Sequence[float]) -> float:
        known = [e for e, size in zip(errors, self._sizes) if size < math.inf]
        return float(np.sqrt(np.mean(np.square(known)))) if known else 0.0

    def _as_compiled(self) -> list[Leaf]:
        """The floating outputs of the program as XLA compiles it."""
        program = self.program
        if program.formats.narrow is not None:  # there is no such program to compile
            return self.written
        made = jax.jit(as_function(program.jaxpr))(*self._arrays)
        return [made[n] for n in self._measures.outputs]


def rounded_otherwise(array: Leaf, part: float, shift: int = 0) -> Leaf:
    """A float array with a part of each number added or taken away, in wide types."""
    if not is_inexact(array):
        return array
    widest = np.float64 if x64_enabled() else np.float32
    wide = jnp.asarray(array, np.promote_types(array.dtype, widest))
    signs = np.where((np.arange(wide.size).reshape(wide.shape) + shift) % 3, 1, -1)
    return wide * (1 + signs * part)


def _is_backward(jaxpr: Jaxpr, var: Leaf) -> bool:
    """Whether the backward pass of a gradient makes a result."""
    for eqn in jaxpr.eqns:
        if var in eqn.outvars:
            inner = [open_jaxpr(x) for x in jaxprs_in(eqn.params)]
            if len(inner) == 1 and len(inner[0].outvars) == len(eqn.outvars):
                return _is_backward(inner[0], inner[0].outvars[eqn.outvars.index(var)])
            return Written((eqn,)).is_backward
    return False


def _compared(
    program: NumericProgram, decisions: Noted, others: Noted
) -> tuple[bool, tuple[LineDecision, ...]]:
    """Whether turns of loops differ, and the lines whose decisions do."""
    flipped, counts = collections.Counter[Origin | None](), collections.Counter()
    turns_differ = False
    for node in program.block.all_nodes():
        if node.number not in decisions or node.number not in others:
            continue
        choice, other = decisions[node.number], others[node.number]
        if choice.shape != other.shape:  # other turns of a loop
            continue
        if node.rule == "while":
            turns_differ |= bool(jnp.any(choice != other))
            continue
        if node.name in SELECTS:  # it is a value by which others are chosen
            continue
        origin = Written(node.stack).origin
        flipped[origin] += int(jnp.sum(choice.astype(other.dtype) != other))
        counts[origin] += choice.size
    lines = (LineDecision(x, n, counts[x]) for x, n in flipped.most_common() if n)
    return turns_differ, tuple(lines)


# Which outputs are an input with an update, and where rounding takes the update away.

_SAME = frozenset(["convert_element_type", "copy", "optimization_barrier", "select_n"])
_ADDS = frozenset(["add", "add_any", "sub"])


def unmoved(
    graph: Graph, arrays: Sequence[Leaf], written: Sequence[Leaf], exact: Sequence[Leaf]
) -> dict[int, float]:
    """The share of the elements of each update that do not move, by number of the output.

    An element does not that is the input again as written, and another number in wide
    types. It has the floating outputs that a program makes of an input of their shape by
    adding to it, once or in each turn of a loop.
    """
    floats = [each for each in graph.outputs if is_inexact(graph.avals[each])]
    shares = dict[int, float]()
    for number, (value, new, true) in enumerate(zip(floats, written, exact)):
        for place in _updated(graph, value):
            moves = true != jnp.asarray(arrays[place], true.dtype)
            stays = moves & (new == jnp.asarray(arrays[place], new.dtype))
            share = float(jnp.sum(stays) / jnp.maximum(jnp.sum(moves), 1))
            shares[number] = max(share, shares.get(number, 0.0))
    return shares


def updated_inputs(graph: Graph) -> dict[int, int]:
    """The input to which each floating output adds, by the numbers of both."""
    floats = [each for each in graph.outputs if is_inexact(graph.avals[each])]
    found = ((n, next(_updated(graph, value), None)) for n, value in enumerate(floats))
    return {number: place for number, place in found if place is not None}


def _updated(graph: Graph, output: int) -> Iterator[int]:
    """The inputs to which an output adds."""
    shape = getattr(graph.avals[output], "shape", None)
    waiting, seen = [(output, False)], set[tuple[int, bool]]()
    while waiting:
        state = value, is_added = waiting.pop()
        if state in seen or getattr(graph.avals[value], "shape", None) != shape:
            continue
        seen.add(state)
        if value < len(graph.inputs) and is_added:
            yield value
        equation = graph.made_by.get(value)
        if equation is None:
            waiting += [(each, is_added) for each in graph.same.get(value, ())]
        else:
            adds = is_added or equation.primitive in _ADDS
            waiting += [(each, adds) for each in _carried(graph, equation)]


def _carried(graph: Graph, equation: Equation) -> Sequence[int]:
    """The operands of an equation that its result may be, but for what is added."""
    inputs = equation.inputs
    if equation.primitive == "sub":
        return inputs[:1]
    if equation.primitive == "mul":  # a decay by a number
        scalars = [not getattr(graph.avals[each], "shape", ()) for each in inputs]
        return [each for each, other in zip(inputs, scalars[::-1]) if other]
    return inputs if equation.primitive in _SAME | _ADDS else ()
