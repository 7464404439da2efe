"""Runs a program: as written, by plans, in wide types, with lines wide, the loss scaled.

Each makes its own decisions, so their distances are those that a user measures.
"""

import collections
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._costs.costs import operations, repetitions
from .._leaves.compat import as_function, x64_enabled
from .._leaves.types import Equation as JaxEquation, Jaxpr, Leaf
from .._numbers import plans
from .._numbers.measure import Inputs, Measures, distance, size_of
from .._numbers.nodes import Noted
from .._numbers.plans import WIDE, WidthPlan
from .._numbers.primitives import SELECTS, is_inexact
from .._numbers.probes import Probes
from .._numbers.program import NumericProgram
from .._program.graph import Equation, Graph
from .._program.jaxprs import jaxprs_in, open_jaxpr
from .._source.origin import Origin
from .._tracebacks.written import Written
from .rows import LineDecision, Scaled, left

# An error above this may be that of an output that rounding alone decides.
_FAR = 0.05
# It does if wide types differ by this part of the error, or of the output. Other outputs
# differ by a thousandth of the error at most: float32 is so much finer than float16.
_LEAST_PART_OF_ERROR = 0.1
# From this share of outputs on that are lost to 0, it is tried to scale the loss, by these
# powers of two.
_LEAST_LOST, _LEFT_AT_MOST = 0.001, 0.5
_POWERS = (-16, -12, -8, -4, 4, 8, 12, 16, 20, 24)


class WideRun(NamedTuple):
    """A run with some lines wide.

    Attributes:
        lines: their numbers.
        error: of its outputs.
        left: the share of the squared error that it leaves.
        price: the share of the operations of matrix products that it makes wide.
        keeps: whether what the lines make stays wide; else it is cast back after each.
    """

    lines: tuple[int, ...]
    error: float
    left: float
    price: float
    keeps: bool = True


class Runs:
    """Runs a program by plans, and compares it with itself in wide types.

    Attributes:
        own: the inputs of the call.
        written: the measured outputs of the call as written.
        by_output: the error of each.
        total: the root mean square of these.
        decisions: the lines whose decisions differ, those that differ most first.
        updated: the outputs that are an input with an update, with the number of that.
        count: how many runs by plans were made.
        products: those of a device, which are beside float32 ones; None in other audits.
        level: the precision of the products of wide lines there.
    """

    def __init__(self, measures: Measures, graph: Graph):
        self._measures, self.program = measures, measures.program
        self.written, self.count = measures.written, 0
        self.products = self.program.formats.products
        self.level = None if self.products is None else self.products.levels[0]
        self._wide, others = plans.wide(self.program), Noted()
        exact = measures.run(self._wide, Probes(others), is_compiled=True)
        self.own = Inputs(measures.arrays, exact, [size_of(x) or 1.0 for x in exact])
        self.leave_out(())
        self.decisions = _compared_decisions(self.program, measures.decisions, others)
        self._places = _all_updated(graph)
        self.updated = {number: places[0] for number, places in self._places.items()}
        inside = open_jaxpr(self.program.jaxpr)
        outputs = [inside.outvars[n] for n in measures.outputs]
        self._are_gradients = [_is_backward(inside, var) for var in outputs]
        self._known = dict[object, WideRun]()
        self._work = self._widened_work(self._wide, is_any=True) or 1.0

    def leave_out(self, numbers: Collection[int]) -> None:
        """Counts no error of these outputs from now on."""
        for number in numbers:
            self.own.sizes[number] = math.inf
        self.by_output = self.own.errors(self.written)
        self.total = self.own.off(self.written)

    def inputs(self, arrays: Sequence[Leaf]) -> Inputs:
        """Other inputs; the error of an input with an update is relative to the update.

        Rounded to bfloat16, new params are nearly right, and the update is gone.
        """
        exact = self._measures.run(self._wide, arrays=arrays, is_compiled=True)
        sizes = [size_of(x) or 1.0 for x in exact]
        for number, place in self.updated.items():
            change = distance(arrays[place].astype(exact[number].dtype), exact[number])
            sizes[number] = min(change or math.inf, sizes[number])
        pairs = zip(sizes, self.own.sizes)
        return Inputs(
            [*arrays], exact, [max(x, y) if y == math.inf else x for x, y in pairs]
        )

    def is_repeatable(self) -> bool:
        """Whether the program returns the same again."""
        again = self._measures.run(self._wide, is_compiled=True)
        pairs = zip(again, self.own.exact)
        return all(bool(jnp.array_equal(x, y, equal_nan=True)) for x, y in pairs)

    def error_of(self, function: Callable[[], Sequence[Leaf]], inputs: Inputs) -> float:
        """How far off all outputs are that a function makes; infinity if a check raises."""
        try:
            made = function()
        except jax.errors.JaxRuntimeError:
            return math.inf
        return inputs.off([made[n] for n in self._measures.outputs])

    def flipped(self, rounding: float) -> float:
        """The share of the squared error that other decisions cause.

        Negative if they undo what rounding causes.
        """
        is_known = math.isfinite(self.total) and math.isfinite(rounding) and self.total > 0
        return 1 - (rounding / self.total) ** 2 if self.decisions and is_known else 0.0

    def compiled(self) -> float:
        """The error where XLA may leave out roundings, as it does by default."""
        if self.program.formats.narrow or self.products:  # there is no such program
            return self.total
        function = jax.jit(as_function(self.program.jaxpr))
        return self.error_of(lambda: function(*self.own.arrays), self.own)

    def vanishing(self) -> list[int]:
        """The outputs that rounding alone decides, on the wide side as well.

        What is 0 but for rounding, and what an optimizer makes of it, is another number for
        inputs that differ by a few roundings. An output that is lost may be as far off as
        written, but wide types agree on it.
        """
        far = [n for n, error in enumerate(self.by_output) if _FAR < error < math.inf]
        others, found = self._exact_otherwise() if far else [], []
        for n in far:
            exact = self.own.exact[n].astype(others[n].dtype)
            size = min(size_of(others[n]), size_of(exact))
            least = _LEAST_PART_OF_ERROR * min(self.by_output[n], 1) * size
            found += [n] * (distance(others[n], exact) > least)
        return found

    def _exact_otherwise(self) -> list[Leaf]:
        """The floating outputs in wide types, of inputs that differ by a few roundings."""
        formats = self.program.formats
        part = 4 * float(jnp.finfo(formats.wide).eps)
        arrays = [_rounded_otherwise(x, part) for x in self.own.arrays]
        if formats.is_own:
            arrays = [x.astype(y.dtype) for x, y in zip(arrays, self.own.arrays)]
        return self._measures.run(self._wide, arrays=arrays, is_compiled=True)

    def unmoved(self) -> dict[int, float]:
        """The share of the elements of each update that do not move, by output.

        An element does not that is the input again as written, and another number in wide
        types.
        """
        shares = dict[int, float]()
        for number, places in self._places.items():
            new, true = self.written[number], self.own.exact[number]
            for place in places:
                old = self.own.arrays[place]
                moves = true != jnp.asarray(old, true.dtype)
                stays = moves & (new == jnp.asarray(old, new.dtype))
                share = float(jnp.sum(stays) / jnp.maximum(jnp.sum(moves), 1))
                shares[number] = max(share, shares.get(number, 0.0))
        return shares

    # With lines wide

    @property
    def nothing(self) -> WideRun:
        """The program with no line wide."""
        return WideRun((), self.total, left(self.total, self.total), 0.0)

    def with_wide(self, lines: Iterable[int], keeps: bool) -> WideRun:
        """The program with some lines wide.

        Of a line inside of a package, that is all that the user's line calls there, which
        is given wide arrays.
        """
        origins = [line.origin for line in self.program.lines]
        called = {n: x.users.place for n, x in enumerate(origins) if x and x.called_from}
        lines, level = [*lines], self.level
        keeps = keeps and level is None
        callers = {called[number] for number in lines if number in called}
        given_wide = frozenset(n for n, users in called.items() if users in callers)
        key = chosen, *_ = given_wide.union(lines), keeps, level
        if key not in self._known:
            plan, formats = plans.wide_lines(self.program, chosen, keeps), None
            if self.products and level:
                wider = self.products._replace(mended=level)
                formats = self.program.formats._replace(products=wider)
            made = self._measures.run(plan, formats=formats)
            # A gradient comes back in the dtype of its argument.
            triples = zip(made, self.written, self._are_gradients)
            error = self.own.off([x.astype(w.dtype) if g else x for x, w, g in triples])
            price = self._widened_work(plan) / self._work
            self._known[key] = WideRun((), error, left(error, self.total), price, keeps)
            self.count += 1
        return self._known[key]._replace(lines=(*lines,))

    def _widened_work(self, plan: WidthPlan, is_any: bool = False) -> float:
        """The operations of the products that a plan makes wide, or of all of them."""
        return sum(
            operations(node.eqn) * repetitions(node.stack)
            for node in self.program.block.all_nodes()
            if plan.entries[node.number] == WIDE and (is_any or self._is_narrow(node.eqn))
        )

    def _is_narrow(self, eqn: JaxEquation) -> bool:
        """Whether a product is computed wider where its line is wide."""
        if self.products is not None:
            return self.products.rounds(eqn)
        return any(self.program.formats.rounds(var.aval.dtype) for var in eqn.invars[:2])

    # With the loss scaled

    def scaled(self) -> Scaled | None:
        """The loss scale that leaves the least error; None if none leaves half of it."""
        narrow = () if self.products else self.program.backward
        short = sorted(str(x) for x in narrow if jnp.finfo(x).maxexp < 127)
        lost = self._lost() if short else 0.0
        if not short or (lost < _LEAST_LOST and math.isfinite(self.total)):
            return None
        is_wide = lambda node, has_wide: node.is_backward or has_wide
        plan = plans.WideLines(self.program, is_wide).plan()
        tried = []
        for power in _POWERS:
            made = self._measures.run(plan, scale=np.float32(2.0**power))
            triples = zip(made, self.written, self._are_gradients)
            made = [x if g else x.astype(w.dtype) for x, w, g in triples]
            tried.append((self.own.off(made), power))
        least = min(tried)[0]
        error, power = min(
            (each for each in tried if each[0] <= 1.1 * least), key=lambda x: abs(x[1])
        )
        is_better = left(error, self.total) < _LEFT_AT_MOST
        return Scaled(2.0**power, error, short[0], lost) if is_better else None

    def _lost(self) -> float:
        """The share of the numbers in the outputs that are 0 as written, and not wide."""
        triples = zip(self.written, *self.own[1:])
        counted = [(x, exact) for x, exact, size in triples if size < math.inf]
        lost = sum(int(jnp.sum((x == 0) & (exact != 0))) for x, exact in counted)
        return lost / (sum(x.size for x, _ in counted) or 1) * self._measures.are_floats


def _rounded_otherwise(array: Leaf, part: float) -> Leaf:
    """A float array with a part of each number added or taken away, in wide types."""
    if not is_inexact(array):
        return array
    widest = np.float64 if x64_enabled() else np.float32
    wide = jnp.asarray(array, np.promote_types(array.dtype, widest))
    signs = np.where(np.arange(wide.size).reshape(wide.shape) % 3, 1, -1)
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


def _compared_decisions(
    program: NumericProgram, decisions: Noted, others: Noted
) -> tuple[LineDecision, ...]:
    """The lines whose decisions differ, and loops that turn another number of times."""
    flipped, counts = collections.Counter[Origin | None](), collections.Counter()
    for node in program.block.all_nodes():
        if node.number not in decisions or node.number not in others:
            continue
        choice, other = decisions[node.number], others[node.number]
        # In other turns of a loop; or a value by which others are chosen.
        if choice.shape != other.shape or node.name in SELECTS:
            continue
        origin = Written(node.stack).origin
        flipped[origin] += int(jnp.sum(choice.astype(other.dtype) != other))
        counts[origin] += choice.size
    return tuple(LineDecision(x, n, counts[x]) for x, n in flipped.most_common() if n)


# Which outputs are an input with an update, and where rounding takes the update away.

_VALUE_KEEPING = frozenset(
    ["convert_element_type", "copy", "optimization_barrier", "select_n"]
)
_ADDS = frozenset(["add", "add_any", "sub"])


def _all_updated(graph: Graph) -> dict[int, list[int]]:
    floats = [each for each in graph.outputs if is_inexact(graph.avals[each])]
    found = {n: [*_updated(graph, value)] for n, value in enumerate(floats)}
    return {number: places for number, places in found.items() if places}


def _updated(graph: Graph, output: int) -> Iterator[int]:
    """The inputs of its shape to which an output adds, once or in each turn of a loop."""
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
    return inputs if equation.primitive in _VALUE_KEEPING | _ADDS else ()
