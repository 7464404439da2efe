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
from .._lines.equations import Written
from . import primitives
from .evaluate import evaluate
from .nodes import SAMPLE, Node, Noted
from .plans import WRITTEN, Propagation
from .primitives import is_inexact, is_key
from .program import NumericProgram

# The lowest bits of their results follow from the lowest bits of what they are given, so
# that it does no harm to wrap where only these are taken.
_MODULAR = ForeignNames(
    "add add_any sub mul neg integer_pow square@jax>=0.4.36 iota dot_general "
    "conv_general_dilated reduce_sum reduce_prod cumsum cumprod reduce_window_sum "
    "scatter-add scatter-mul scatter-sub@jax>=0.5"
)
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

    def notes(self, node: Node, operands: Sequence[Leaf], made: Sequence[Leaf]) -> Noted:
        """Returns what a run notes of an equation."""
        noted = Noted()
        number = node.number
        if number in self.integers:
            noted[number, "fit"] = _fit(node, operands, made[0])
        if number in self.narrowings:
            back = lax.convert_element_type(made[0], operands[0].dtype)
            noted[number, "loses"] = jnp.any(back != operands[0])
        if number in self.to_bits or number in self.to_integers:
            noted[number, "given"] = operands[0]
        return noted


NOTHING = Watched()


def watched(program: NumericProgram) -> Watched:
    """Returns the equations of a program to look at while it runs as written."""
    flow = _Flow(program)
    outputs = flow.block(program.block, [_NONE] * len(program.jaxpr.in_avals))
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

    def constant(self, array: Leaf, aval: Aval) -> Sources:
        return _NONE

    def joined(self, values: Sequence[Sources], attempt: int) -> Sources:
        return _NONE.union(*values)

    def entry_of(self, value: Sources, aval: Aval) -> int:
        return WRITTEN

    def entering(self, node: Node, values: list[Sources]) -> list[Sources]:
        if node.rule == "cond":  # the number of the branch
            self.use(values[:1])
        return values

    def opaque(self, node: Node, values: list[Sources]) -> list[Sources]:
        has_keys = any(is_key(var.aval) for var in (*node.eqn.invars, *node.eqn.outvars))
        if has_keys or node.name in primitives.OF_BITS:
            self.to_bits.update(*values)
            return [_BITS] * len(node.eqn.outvars)
        if node.rule == SAMPLE:
            return self.computed(node, values)
        self.use(values)
        return [_NONE] * len(node.eqn.outvars)

    def computed(self, node: Node, values: list[Sources]) -> list[Sources]:
        numbers = _places_of_numbers(node)
        indices = [x for place, x in enumerate(values) if place not in numbers]
        self.use(indices)
        sources = _NONE.union(*(values[place] for place in numbers))
        return [self._result(node, sources)] * len(node.eqn.outvars)

    def _result(self, node: Node, sources: Sources) -> Sources:
        """Returns whose results are in the result of an equation."""
        operands = [var.aval for var in node.eqn.invars]
        results = [var.aval for var in node.eqn.outvars]
        if node.name == "convert_element_type":
            return self._converted(node, sources, operands[0].dtype, results[0].dtype)
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
        kinds = kind(before), kind(after)
        if kinds[1] == "float":
            if kinds[0] != "float":
                self.use([sources])
                sources = _NONE
            if node.rounds:
                self.narrowings.add(node.number)
                sources = sources | {node.number}
            return sources
        if kinds[1] not in ("int", "uint"):
            self.use([sources])
            return _NONE
        if kinds[0] == "float":
            self.to_integers.update(sources)
            return self._new(node, _NONE)
        if kinds[0] == "bool":
            return _NONE
        if _has_all(after, before):
            self.use([sources])
            return sources & _BITS
        return self._new(node, sources)

    def _new(self, node: Node, sources: Sources) -> Sources:
        """Returns the sources of a result that may not fit its dtype."""
        written = Written(node.stack)
        if sources >= _BITS or written.is_of_sampler or written.origin is None:
            return sources
        self.integers.add(node.number)
        return sources | {node.number}


def _is_integer(value: Aval) -> bool:
    return kind(getattr(value, "dtype", None)) in ("int", "uint")


def _has_all(wide: DType, narrow: DType) -> bool:
    """Returns whether an integer dtype has each number of another."""
    wide_info, narrow_info = jnp.iinfo(wide), jnp.iinfo(narrow)
    return wide_info.min <= narrow_info.min and wide_info.max >= narrow_info.max


def _places_of_numbers(node: Node) -> Sequence[int]:
    """Returns the places of the operands whose numbers are in the result: no indices."""
    if node.name in ("gather", "dynamic_slice"):
        return (0,)
    if node.name == "dynamic_update_slice":
        return (0, 1)
    if node.name in primitives.IN_PLACE:
        return (0, 2)
    places = range(len(node.eqn.invars))
    return places[1:] if node.name == "select_n" else places


# What is noted of each: how many numbers do not fit, of how many; how many of these are not
# a number; the greatest of them, and the least.
COUNT, SIZE, NANS, GREATEST, LEAST = range(5)


def _fit(node: Node, operands: Sequence[Leaf], made: Leaf) -> Leaf:
    """Returns how many numbers of a result do not fit, and which."""
    with set_x64(True):
        exact, is_wrong = _compared(node, operands, made)
        figures = [
            jnp.sum(is_wrong),
            made.size,
            jnp.sum(jnp.isnan(exact)),
            jnp.max(exact, initial=-np.inf, where=is_wrong & ~jnp.isnan(exact)),
            jnp.min(exact, initial=np.inf, where=is_wrong & ~jnp.isnan(exact)),
        ]
        return jnp.stack([jnp.asarray(x, np.float32) for x in figures])


def otherwise(node: Node, operands: Sequence[Leaf], made: Leaf) -> Leaf:
    """Returns a result with other numbers in place of those that do not fit."""
    with set_x64(True):
        _, is_wrong = _compared(node, operands, made)
        # Every other bit, up to the second highest one: another number of any size.
        pattern = int("01" * (jnp.iinfo(made.dtype).bits // 2), 2)
        return jnp.where(is_wrong, made ^ jnp.asarray(pattern, made.dtype), made)


def _compared(node: Node, operands: Sequence[Leaf], made: Leaf) -> tuple[Leaf, Leaf]:
    """Returns the exact result of an equation in float64, and which numbers do not fit."""
    numbers = _places_of_numbers(node)
    given = [
        lax.convert_element_type(x, np.float64) if place in numbers else x
        for place, x in enumerate(operands)
    ]
    info = jnp.iinfo(made.dtype)
    if node.name == "convert_element_type" and kind(operands[0].dtype) == "float":
        exact = jnp.trunc(given[0])
        fits = (exact >= float(info.min)) & (exact < float(info.max + 1))
        return exact, ~fits
    (exact,) = evaluate(node.eqn, given, _as_double)
    off = jnp.abs(exact - made.astype(np.float64))
    return exact, off >= 2.0 ** (info.bits - 1)


def _as_double(dtype: DType) -> DType:
    return np.dtype("float64") if kind(dtype) in ("int", "uint") else dtype
