"""Integers that do not fit their dtypes, and floats that are narrowed to become bits.

Both runs of an audit compute integers as written, so neither shows that one wrapped. A walk
finds the equations to look at, but for those of whose results only bits are taken. Exact
results are computed beside the run, in float64: what wraps is off by a power of two.
"""

import collections
from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np

from .._leaves.compat import set_x64
from .._leaves.dtypes import kind
from .._leaves.internals import ForeignNames
from .._leaves.types import DType, Leaf
from .._program.graph import Graph
from .._program.jaxprs import Arrays, is_literal
from .._program.program import Node
from .._tracebacks.written import Written
from . import primitives
from .arithmetic import Values, own_form
from .arrays import numpy_for
from .evaluate import evaluate
from .primitives import Noted, is_inexact, is_integer, is_key
from .probes import note_decisions
from .program import NumericProgram

# The lowest bits of their results follow from the lowest bits of what they are given, so
# that it does no harm to wrap where only these are taken. The negative of the least number
# of a dtype does not fit.
_MODULAR = ForeignNames(
    "neg abs add add_any sub mul integer_pow square@jax>=0.4.36 iota dot_general "
    "conv_general_dilated reduce_sum reduce_prod cumsum cumprod reduce_window_sum "
    "scatter-add scatter-mul scatter-sub@jax>=0.5"
)
# Who takes the bits of a number, or what is left of it by division, means it to wrap.
_TAKE_BITS = ForeignNames(
    "xor and or not shift_left shift_right_logical shift_right_arithmetic rem "
    "population_count clz"
)
# The results of these are hashed numbers.
_MAKE_BITS = primitives.OF_BITS | ForeignNames(
    "xor not shift_left shift_right_logical shift_right_arithmetic"
)

# The operands whose numbers are in the result: all, unless some are indices, or tell which
# of the others to take.
_OF_NUMBERS = collections.defaultdict(
    lambda: slice(None),
    gather=slice(1),
    dynamic_slice=slice(1),
    dynamic_update_slice=slice(2),
    select_n=slice(1, None),
)
for _name in primitives.IN_PLACE:
    _OF_NUMBERS[_name] = slice(0, 3, 2)


class Watched(Graph):
    """The equations of which a run notes more than decisions.

    It follows results that may wrap, and narrowed floats, to where they are used.

    Attributes:
        deciding: the values that tell which branch is taken.
        integers: the numbers of the equations whose results have to fit their dtypes.
        before_bits: of those that lead to bits, to a random key or to integers.
    """

    # The numbers that they compare are used.
    has_conditions = True

    def __init__(self, program: NumericProgram):
        self.deciding: list[int] = []
        super().__init__(program.block)
        made_values = self.made_by.items()
        used = [*self.outputs, *self.deciding]
        made_bits = []
        hashed = set()
        for value, node in made_values:
            inputs = set(self.sources(value))
            if _makes_bits(node):
                made_bits.extend(inputs)
                hashed.add(value)
            elif node.name not in _TAKE_BITS:
                passed = self.passed(value)
                used.extend(inputs.difference(passed))
            # Floats among these become integers.
            if is_integer(self.avals[value]):
                made_bits.extend(inputs)
        # All arithmetic of hashed numbers is meant to wrap.
        for value in range(len(self.avals)):  # sources come first
            if not hashed.isdisjoint(self.passed(value)):
                hashed.add(value)
        wrapping = set()
        for value, node in made_values:
            if value in hashed or not is_integer(self.avals[value]):
                continue
            if node.name not in _MODULAR | {"convert_element_type"}:
                continue
            if not Written(node.stack).is_of_sampler:
                wrapping.add(node.number)
        self.integers = self._numbers_behind(used) & wrapping
        self.before_bits = self._numbers_behind(made_bits)

    def visit_cond(self, node, operands):
        self.deciding.append(operands[0])
        return super().visit_cond(node, operands)

    def passed(self, value: int) -> Sequence[int]:
        """Returns the values whose numbers are in another one, as they are or wrapped."""
        operands = self.sources(value)
        if value not in self.made_by:
            return operands
        node = self.made_by[value]
        if not _passes(node):
            return ()
        return operands[_OF_NUMBERS[node.name]]

    def _numbers_behind(self, values: Iterable[int]) -> set[int]:
        """Returns the equations whose results are in some values, by their numbers."""
        numbers = set()
        for value in self.behind(values, self.passed):
            if value in self.made_by:
                node = self.made_by[value]
                numbers.add(node.number)
        return numbers

    def notes(self, node: Node, operands: Values, results: Values) -> Noted:
        """Returns what a run notes of an equation: its decisions, and whether all fits."""
        noted = note_decisions(node, operands, results)
        number = node.number
        operands = list(map(own_form, operands))
        if number in self.integers:
            noted[number, "fit"] = _fit(node, operands, results[0])
        if not node.rounds:
            return noted
        if node.name != "convert_element_type":
            return noted
        numpy = numpy_for(results[0])
        operand = numpy.asarray(operands[0])
        result = numpy.asarray(results[0])
        # A complex number that is not real counts as changed.
        back = result.real.astype(operand.dtype)
        differs = back != operand
        noted[number, "loses"] = differs.any()
        if number in self.before_bits:
            noted[number, "given"] = operand
        return noted


def _passes(node: Node) -> bool:
    """Returns whether the numbers of operands are in a result, as they are or wrapped."""
    eqn = node.eqn
    result = eqn.outvars[0].aval
    if node.name == "convert_element_type":
        operand = eqn.invars[0].aval
        # A bool has next to nothing of a number.
        if is_integer(result):
            return is_integer(operand)
        return is_inexact(operand) and is_inexact(result)
    if primitives.moves(eqn):
        return True
    if is_integer(result):
        return node.name in _MODULAR
    # Equal numbers stay equal.
    are_literals = list(map(is_literal, eqn.invars))
    return is_inexact(result) and are_literals.count(False) == 1


def _makes_bits(node: Node) -> bool:
    """Returns whether an equation makes bits or hashed numbers, or makes or takes a key."""
    if node.name in _MAKE_BITS:
        return True
    eqn = node.eqn
    variables = [*eqn.invars, *eqn.outvars]
    return any(is_key(var.aval) for var in variables)


def _fit(node: Node, operands: Arrays, result: Leaf) -> Leaf:
    """Returns how many numbers of a result do not fit, the greatest and the least."""
    with set_x64(True):
        exact, is_wrong = _compared_exactly(node, operands, result)
        numpy = numpy_for(exact)
        numbers = numpy.where(is_wrong, exact, 0.0)
        count = is_wrong.sum(dtype=float)
        greatest = numbers.max(initial=0)
        least = numbers.min(initial=0)
        fit = numpy.stack([count, greatest, least])
        # In float32, which a loop can carry with x64 off.
        return fit.astype(np.float32)


def otherwise(node: Node, operands: Arrays, result: Leaf) -> Leaf:
    """Returns a result in which all numbers that do not fit are changed."""
    with set_x64(True):
        _, is_wrong = _compared_exactly(node, operands, result)
        return jnp.where(is_wrong, ~result, result)


def _compared_exactly(node: Node, operands: Arrays, result: Leaf) -> tuple[Leaf, Leaf]:
    """Returns the exact result of an equation in float64, and which numbers do not fit."""
    numpy = numpy_for(result)
    wide_operands = list(operands)
    places = range(len(operands))
    for place in places[_OF_NUMBERS[node.name]]:
        wide_operands[place] = numpy.asarray(operands[place], float)
    # Float64 rounds large numbers, and what has wrapped is off by a power of two.
    rounding = 2.0 ** (jnp.iinfo(result.dtype).bits - 1)
    if node.name == "convert_element_type":
        # What has ended at a limit is off by any number.
        rounding = 1.0
        exact = numpy.trunc(wide_operands[0])
    else:
        (exact,) = evaluate(node.eqn, wide_operands, _as_double)
    exact = numpy.asarray(exact)
    difference = exact - numpy.asarray(result, float)
    # What is no number is near to none.
    is_near = abs(difference) < rounding
    return exact, ~is_near


def _as_double(dtype: DType) -> DType:
    if kind(dtype) == "int":
        return np.dtype("float64")
    return dtype
