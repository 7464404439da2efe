"""What one equation makes of its operands: as written, wide, or the error of it alone."""

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._leaves.dtypes import bits, kind
from .._leaves.types import DType, Leaf
from . import primitives
from .evaluate import (
    DtypeOf,
    as_dtype,
    binding,
    evaluate,
    evaluate_in,
    own_dtype,
    round_inwards,
    round_to,
    rounded_as,
)
from .formats import Formats
from .nodes import Node
from .plans import ROUNDED, WIDE, WRITTEN, Computes
from .primitives import is_inexact
from .products import product

# What an equation raises that takes no operands of another dtype.
REFUSALS = (TypeError, ValueError, NotImplementedError)


class Either(NamedTuple):
    """A value that has a form of its own in wide types: a constant, a sample, a number."""

    own: Leaf
    wide: Leaf
    meant: float | None = None  # the Python number, if its line may round that


Value = Leaf | Either


def own_form(value: Value) -> Leaf:
    return value.own if isinstance(value, Either) else value


def wide_form(value: Value) -> Leaf:
    return value.wide if isinstance(value, Either) else value


_Function = Callable[..., list[Leaf]]
_COMPILED, _MOST_COMPILED = dict[object, _Function](), 4096


def _compiled(same: object, run: _Function) -> _Function:
    """What evaluates an equation, compiled once for all programs that compute the same."""
    if len(_COMPILED) > _MOST_COMPILED:
        _COMPILED.clear()
    with contextlib.suppress(TypeError):  # a parameter has no hash
        run = _COMPILED.setdefault(same, jax.jit(run))
    return run


class Arithmetic:
    """Computes equations in the dtypes that their entries say.

    Args:
        formats: the dtypes of the program.
        unknown: gets the primitives that take no wider operands.
        functions: gets what evaluates equations.
        is_traced: whether XLA compiles what is computed, and must leave out no rounding.
        scale: a power of two. If given, what a backward pass makes wide is rounded as if it
            were multiplied by this, as it is where the loss is.
    """

    def __init__(
        self,
        formats: Formats,
        unknown: set[str],
        functions: dict[object, Callable[..., list[Leaf]]],
        is_traced: bool = False,
        scale: float | None = None,
    ):
        self._formats, self._unknown = formats, unknown
        self._functions = functions
        self._is_traced, self._scale = is_traced, scale

    # Values

    def constant(self, array: Leaf, meant: float | None = None) -> Value:
        """What the program has of its own, as it is and as it was meant, if known."""
        array = array if hasattr(array, "dtype") else jnp.asarray(array)
        if not is_inexact(array):
            return array
        own = as_dtype(array, self._formats.written(array.dtype))
        dtype = self._formats.widened(array.dtype)
        wide = as_dtype(array, dtype) if meant is None else jnp.asarray(meant, dtype)
        return Either(own, wide, meant)

    def sample(self, array: Leaf) -> Value:
        """What `jax.random` draws: below 1 stays below 1 in a narrow dtype."""
        if not is_inexact(array):
            return array
        own = round_inwards(array, self._formats.written(array.dtype))
        return Either(own, as_dtype(array, self._formats.widened(array.dtype)))

    def as_written(self, value: Value, dtype: DType) -> Leaf:
        """A value as a narrow equation takes it, where the program has this dtype."""
        array = own_form(value)
        if kind(dtype) not in ("float", "complex"):
            return array
        narrow = as_dtype(array, self._formats.written(dtype))
        return narrow if narrow is array else self._kept(narrow)

    def as_wide(self, value: Value, dtype: DType) -> Leaf:
        """A value as a wide equation takes it."""
        array = wide_form(value) if self._scale is None else own_form(value)
        if kind(dtype) not in ("float", "complex"):
            return array
        return as_dtype(array, self._formats.widened(dtype))

    # Equations

    def own(self, node: Node, values: Sequence[Value]) -> list[Leaf]:
        """The results of an equation in the dtypes that the program has."""
        pairs = zip(map(wide_form, values), node.eqn.invars)
        operands = [as_dtype(x, v.aval.dtype) if is_inexact(x) else x for x, v in pairs]
        return evaluate(node.eqn, operands, own_dtype)

    def computed(
        self,
        node: Node,
        values: Sequence[Value],
        entry: int,
        rounds_constant: bool = False,
    ) -> tuple[list[Leaf], list[Leaf]]:
        """The operands and the results of an equation without others inside it."""
        entry = ROUNDED if rounds_constant and node.constant is not None else entry
        if rounds_constant or entry == ROUNDED:
            is_number = lambda v: isinstance(v, Either) and v.meant is not None
            values = [v.own if is_number(v) else v for v in values]
        dtypes = [var.aval.dtype for var in node.eqn.invars]
        if entry in (WIDE, ROUNDED):
            operands = [*map(self.as_wide, values, dtypes)]
        else:
            operands = [*map(self.as_written, values, dtypes)]
        try:
            if entry == ROUNDED and node.rounds:
                made = self._rounded(node, values, operands)
            elif entry in (WIDE, ROUNDED):
                made = self._evaluated(node, True, operands)
            else:
                made = self._written(node, values, operands)
        except REFUSALS:  # it does not take wider operands
            self._unknown.add(node.name)
            made = self.own(node, values)
        made = [*map(self._kept, made)]
        if node.is_backward and self._scale is not None:
            dtypes = [self._formats.written(v.aval.dtype) for v in node.eqn.outvars]
            made = self._as_if_scaled(made, dtypes)
        return operands, made

    def named(
        self, node: Node, values: Sequence[Value], computes: Computes
    ) -> tuple[list[Leaf], list[Leaf]]:
        """The operands and the results of an equation in a dtype that a plan names.

        With a loss scale, what a backward pass makes narrow is rounded as if it were
        multiplied by that, and stays in the dtype as written.
        """
        own = [*map(own_form, values)]
        dtype, result = computes
        if node.is_backward and self._scale is not None:
            operands, made = self.computed(node, own, WRITTEN)
            return operands, self._as_if_scaled(made, [result] * len(made))
        eqn = node.eqn  # not the node: what is compiled is kept
        compute = lambda *x: evaluate_in(eqn, x, dtype, result)
        try:
            if not self._is_traced:
                key = node.number, computes
                if key not in self._functions:
                    same, _ = binding(node.eqn, own_dtype)
                    self._functions[key] = _compiled((same, computes), compute)
                compute = self._functions[key]
            made = compute(*own)
        except REFUSALS:
            dtypes = [var.aval.dtype for var in node.eqn.invars]
            written = self._written(node, own, [*map(self.as_written, own, dtypes)])
            made = [as_dtype(x, result) if is_inexact(x) else x for x in written]
        return own, [*map(self._kept, made)]

    def _written(
        self, node: Node, values: Sequence[Value], operands: list[Leaf]
    ) -> list[Leaf]:
        formats = self._formats
        is_own = node.name in primitives.OF_OWN_DTYPES
        if formats.narrow is not None and (is_own or formats.narrow.itemsize < 2):
            # Nothing computes in 8 bits: results are rounded to them.
            made = self.own(node, [*map(own_form, values)])
            return [
                as_dtype(x, formats.written(x.dtype)) if is_inexact(x) else x for x in made
            ]
        return self._evaluated(node, False, operands)

    def _evaluated(self, node: Node, is_wide: bool, operands: list[Leaf]) -> list[Leaf]:
        """The results of an equation; outside of a trace, by a function that is compiled.

        To bind a primitive takes twice as long as to call what JAX compiles of it.
        """
        formats = self._formats
        if algorithm := formats.algorithm(node.eqn, is_wide):
            return product(node.eqn, operands, algorithm)
        dtype_of: DtypeOf = formats.widened if is_wide else formats.written
        if self._is_traced:
            return evaluate(node.eqn, operands, dtype_of)
        key = node.number, is_wide, formats
        if key not in self._functions:
            self._functions[key] = _compiled(*binding(node.eqn, dtype_of))
        return self._functions[key](*operands)

    def _rounded(
        self, node: Node, values: Sequence[Value], operands: list[Leaf]
    ) -> list[Leaf]:
        """The wide results, rounded as the equation rounds on operands as written."""
        if self._formats.products is not None:
            return self._written(node, values, operands)
        exact = self._evaluated(node, True, operands)
        dtypes = [var.aval.dtype for var in node.eqn.invars]
        narrow = [*map(self.as_written, values, dtypes)]
        own = [*map(self._kept, self._written(node, values, narrow))]
        from_narrow = self._evaluated(node, True, [*map(self.as_wide, narrow, dtypes)])
        triples = zip(own, exact, from_narrow)
        return [rounded_as(*each) if is_inexact(each[1]) else each[1] for each in triples]

    def _kept(self, x: Leaf) -> Leaf:
        """A result; if it is narrow, XLA shall not keep it wide."""
        if not self._is_traced or not is_inexact(x):
            return x
        is_narrow = bits(x.dtype) < 32 or self._formats.widened(x.dtype) != x.dtype
        return lax.optimization_barrier(x) if is_narrow else x

    def _as_if_scaled(self, made: list[Leaf], dtypes: Sequence[DType]) -> list[Leaf]:
        """What a backward pass makes in these dtypes where the loss is scaled."""
        scale = jnp.asarray(self._scale)
        return [
            round_to(x * scale.astype(x.dtype), dtype) / scale.astype(x.dtype)
            if kind(dtype) == "float" and 0 < bits(dtype) < bits(x.dtype)
            else x
            for x, dtype in zip(made, dtypes)
        ]
