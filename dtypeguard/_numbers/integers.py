"""Integers that do not fit their dtypes, and floats that are narrowed to become bits.

Both runs of an audit compute integers as written, so neither shows that one wrapped. A walk
finds the equations to look at, but for those of whose results only bits are taken. Exact
results are computed beside the run, in float64: what wraps is off by a power of two.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.compat import set_x64
from .._leaves.dtypes import kind
from .._leaves.internals import ForeignNames
from .._leaves.types import Aval, DType, Leaf
from .._program.jaxprs import value_kind
from .._program.program import Node
from .._tracebacks.written import Written
from . import primitives
from .evaluate import evaluate
from .nodes import Noted
from .plans import Propagation
from .primitives import is_inexact, is_key
from .program import NumericProgram

# The lowest bits of their results follow from the lowest bits of what they are given, so
# that it does no harm to wrap where only these are taken.
_MODULAR = ForeignNames(
    "add add_any sub mul integer_pow square@jax>=0.4.36 iota dot_general "
    "conv_general_dilated reduce_sum reduce_prod cumsum cumprod reduce_window_sum "
    "scatter-add scatter-mul scatter-sub@jax>=0.5"
)
# They return the numbers that they are given or the negatives of these. The negative of the
# least number of a dtype does not fit.
_CHANGE_SIGNS = ForeignNames("neg abs")
# Who takes the bits of a number, or what is left of it by division, means it to wrap.
_TAKE_BITS = ForeignNames(
    "xor and or not shift_left shift_right_logical shift_right_arithmetic rem "
    "population_count clz"
)
# The results of these are hashed numbers, of which all arithmetic is meant to wrap.
_MAKE_BITS = ForeignNames("xor not shift_left shift_right_logical shift_right_arithmetic")

# The numbers of equations whose results a value may hold, as they are or wrapped.
Sources = frozenset[int]
_NONE: Sources = frozenset()
# In place of a number: the value consists of bits.
_BITS: Sources = frozenset([-1])


class Watched(NamedTuple):
    """The equations of which a run notes more than decisions, by their numbers.

    Attributes:
        integers: their results have to fit their dtypes.
        narrowings: they convert to a narrower floating dtype.
        to_bits: those of them that lead to bits or to a random key.
        to_integers: those of them that lead to integers.
    """

    integers: Sources = _NONE
    narrowings: Sources = _NONE
    to_bits: Sources = _NONE
    to_integers: Sources = _NONE

    def notes(self, node: Node, operands: Sequence[Leaf], results: Sequence[Leaf]) -> Noted:
        """Returns what a run notes of an equation."""
        noted = Noted()
        number = node.number
        if number in self.integers:
            noted[number, "fit"] = _fit(node, operands, results[0])
        if number in self.narrowings:
            back = lax.convert_element_type(results[0], operands[0].dtype)
            noted[number, "loses"] = jnp.any(back != operands[0])
        if number in self.to_bits or number in self.to_integers:
            noted[number, "given"] = operands[0]
        return noted


NOTHING = Watched()


def watched(program: NumericProgram) -> Watched:
    """Returns the equations of a program to look at while it runs as written."""
    flow = _Flow(program)
    arguments = [_NONE for _ in program.jaxpr.in_avals]
    outputs = flow.block(program.block, arguments)
    flow.use(outputs)
    return Watched(
        integers=frozenset(flow.integers) & flow.used,
        narrowings=frozenset(flow.narrowings),
        to_bits=frozenset(flow.narrowings) & flow.to_bits,
        to_integers=frozenset(flow.narrowings) & flow.to_integers,
    )


class _Flow(Propagation[Sources]):
    """Follows results that may wrap, and narrowed floats, to where they are used.

    Attributes:
        integers: equations whose results may not fit.
        narrowings: conversions to a narrower floating dtype.
        used: whose results are used for more than their lowest bits.
        to_bits: whose results become bits, or a random key.
        to_integers: whose results become integers.
    """

    def __init__(self, program: NumericProgram):
        super().__init__(program)
        self.integers = set[int]()
        self.narrowings = set[int]()
        self.used = set[int]()
        self.to_bits = set[int]()
        self.to_integers = set[int]()

    def use(self, values: Iterable[Sources]) -> None:
        """Counts values as used for more than their lowest bits."""
        self.used.update(*values)

    def constant(self, var, array):
        return _NONE

    def joined(self, values, attempt):
        return _NONE.union(*values)

    def visit_cond(self, node, values):
        self.use(values[:1])  # the number of the branch
        return super().visit_cond(node, values)

    def visit_own(self, node, values):
        if not self._makes_bits(node, values):
            self.use(values)
            return _each_result(node, _NONE)
        return _each_result(node, _BITS)

    visit_reduce_precision = visit_own
    visit_stochastic = visit_own

    def visit_sample(self, node, values):
        if self._makes_bits(node, values):
            return _each_result(node, _BITS)
        return self.computed(node, values)

    def _makes_bits(self, node: Node, values: Iterable[Sources]) -> bool:
        """Notes operands that become bits or a key; returns whether they do."""
        variables = (*node.eqn.invars, *node.eqn.outvars)
        makes_bits = node.name in primitives.OF_BITS
        makes_bits = makes_bits or any(is_key(var.aval) for var in variables)
        if makes_bits:
            self.to_bits.update(*values)
        return makes_bits

    def computed(self, node, values):
        numbers = _places_of_numbers(node)
        indices = [x for place, x in enumerate(values) if place not in numbers]
        self.use(indices)
        sources = _NONE.union(*(values[place] for place in numbers))
        return _each_result(node, self._result(node, sources))

    def _result(self, node: Node, sources: Sources) -> Sources:
        """Returns whose results are in the result of an equation."""
        operands = [var.aval for var in node.eqn.invars]
        results = [var.aval for var in node.eqn.outvars]
        if node.name == "convert_element_type":
            return self._converted(node, sources, operands[0].dtype, results[0].dtype)
        if _is_integer(results[0]) and node.name in _CHANGE_SIGNS:
            return self._new(node, sources)
        if primitives.moves(node.eqn, operands, results):
            return sources
        if _is_integer(results[0]):
            if node.name in _TAKE_BITS:
                return _BITS if node.name in _MAKE_BITS else _NONE
            if node.name in _MODULAR:
                return self._new(node, sources)
        variables = [var for var in node.eqn.invars if not hasattr(var, "val")]
        if is_inexact(results[0]) and len(variables) == 1:
            return sources  # equal numbers stay equal
        self.use([sources])
        return _NONE

    def _converted(
        self, node: Node, sources: Sources, before: DType, after: DType
    ) -> Sources:
        """Returns whose results are in the result of a conversion."""
        if kind(after) == "float":
            return self._made_float(node, sources, before)
        if kind(after) not in ("int", "uint"):
            self.use([sources])
            return _NONE
        if kind(before) == "float":
            self.to_integers.update(sources)
            return self._new(node, _NONE)
        if kind(before) == "bool":
            return _NONE
        if _has_all(after, before):
            self.use([sources])
            return sources & _BITS
        return self._new(node, sources)

    def _made_float(self, node: Node, sources: Sources, before: DType) -> Sources:
        """Returns whose results are in a number that is made a float."""
        if kind(before) != "float":
            self.use([sources])
            sources = _NONE
        if node.rounds:
            self.narrowings.add(node.number)
            sources = sources.union([node.number])
        return sources

    def _new(self, node: Node, sources: Sources) -> Sources:
        """Returns the sources of a result that may not fit its dtype."""
        written = Written(node.stack)
        if sources >= _BITS or written.is_of_sampler or written.origin is None:
            return sources
        self.integers.add(node.number)
        return sources.union([node.number])


def _each_result(node: Node, sources: Sources) -> list[Sources]:
    """Returns the same sources for all results of an equation."""
    return [sources for _ in node.eqn.outvars]


def _is_integer(value: Aval) -> bool:
    return value_kind(value) in ("int", "uint")


def _has_all(wide: DType, narrow: DType) -> bool:
    """Returns whether an integer dtype has each number of another."""
    wide_info = jnp.iinfo(wide)
    narrow_info = jnp.iinfo(narrow)
    return wide_info.min <= narrow_info.min and wide_info.max >= narrow_info.max


# The places of the operands whose numbers are in the result: the others are indices.
_PLACES_OF_NUMBERS: dict[str, Sequence[int]] = {
    "gather": (0,),
    "dynamic_slice": (0,),
    "dynamic_update_slice": (0, 1),
    **dict.fromkeys(primitives.IN_PLACE, (0, 2)),
}


def _places_of_numbers(node: Node) -> Sequence[int]:
    """Returns the places of the operands whose numbers are in the result."""
    places = range(len(node.eqn.invars))
    if node.name == "select_n":  # the first tells which of the others to take
        return places[1:]
    return _PLACES_OF_NUMBERS.get(node.name, places)


# What is noted of each: how many numbers do not fit, and the one furthest out of range (0
# if none of them is a number).
COUNT, FURTHEST = range(2)


def _fit(node: Node, operands: Sequence[Leaf], result: Leaf) -> Leaf:
    """Returns how many numbers of a result do not fit, and which."""
    with set_x64(True):
        exact, is_wrong = _compared_exactly(node, operands, result)
        numbers = jnp.where(is_wrong & ~jnp.isnan(exact), exact, 0)
        greatest = jnp.max(numbers, initial=0)
        least = jnp.min(numbers, initial=0)
        furthest = jnp.where(greatest >= -least, greatest, least)
        # In float32, which a loop can carry with x64 off.
        count = jnp.sum(is_wrong, dtype=furthest.dtype)
        return jnp.stack([count, furthest]).astype(np.float32)


def otherwise(node: Node, operands: Sequence[Leaf], result: Leaf) -> Leaf:
    """Returns a result in which all numbers that do not fit are changed."""
    with set_x64(True):
        _, is_wrong = _compared_exactly(node, operands, result)
        return jnp.where(is_wrong, ~result, result)


def _compared_exactly(
    node: Node, operands: Sequence[Leaf], result: Leaf
) -> tuple[Leaf, Leaf]:
    """Returns the exact result of an equation in float64, and which numbers do not fit."""
    numbers = _places_of_numbers(node)
    wide_operands = list[Leaf]()
    for place, operand in enumerate(operands):
        if place in numbers:
            operand = lax.convert_element_type(operand, np.float64)
        wide_operands.append(operand)
    if node.name == "convert_element_type":
        exact = jnp.trunc(wide_operands[0])
    else:
        (exact,) = evaluate(node.eqn, wide_operands, _as_double)
    info = jnp.iinfo(result.dtype)
    is_outside = (exact > float(info.max)) | (exact < float(info.min))
    # Float64 has numbers of 64 bits rounded: what has wrapped is off by a power of two.
    is_near = jnp.abs(exact - result.astype(np.float64)) < 2.0 ** (info.bits - 1)
    return exact, is_outside | ~is_near


def _as_double(dtype: DType) -> DType:
    return np.dtype("float64") if kind(dtype) in ("int", "uint") else dtype
