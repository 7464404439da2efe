"""What one equation makes of its operands: as written, wide, or the error of it alone."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._leaves.dtypes import bits, kind
from .._leaves.types import DType, Equation, Leaf
from .._program.meshes import as_dtype
from . import primitives
from .evaluate import (
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
from .primitives import is_inexact
from .products import product
from .propagate import ROUNDED, WIDE, WRITTEN, Computes

# What an equation raises that takes no operands of another dtype.
REFUSALS = (TypeError, ValueError, NotImplementedError)


class Either(NamedTuple):
    """A value that has a form of its own in wide types: a constant, a sample, a number.

    Attributes:
        own: as written.
        wide: in wide types.
        meant: the Python number that it stands for, if its line may round that.
    """

    own: Leaf
    wide: Leaf
    meant: float | None = None


Value = Leaf | Either


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
        array = value.own if isinstance(value, Either) else value
        if kind(dtype) not in ("float", "complex"):
            return array
        narrow = as_dtype(array, self._formats.written(dtype))
        return narrow if narrow is array else self._kept(narrow)

    def as_wide(self, value: Value, dtype: DType, is_rounded: bool = False) -> Leaf:
        """A value as a wide equation takes it.

        Args:
            value: the value.
            dtype: what the program has.
            is_rounded: whether it is rounded to the dtype as written first.
        """
        is_own = is_rounded or self._scale is not None
        if isinstance(value, Either):
            array = value.own if is_own else value.wide
        else:
            array = value
        if kind(dtype) not in ("float", "complex"):
            return array
        if is_rounded:
            array = self._kept(as_dtype(array, self._formats.written(dtype)))
        return as_dtype(array, self._formats.widened(dtype))

    # Equations

    def own(self, node: Node, values: Sequence[Value]) -> list[Leaf]:
        """The results of an equation in the dtypes that the program has."""
        exact = [v.wide if isinstance(v, Either) else v for v in values]
        operands = [
            as_dtype(x, var.aval.dtype) if is_inexact(x) else x
            for x, var in zip(exact, node.eqn.invars)
        ]
        return evaluate(node.eqn, operands, own_dtype)

    def computed(
        self,
        node: Node,
        values: Sequence[Value],
        entry: int,
        is_rounded: Sequence[bool],
        rounds_constant: bool,
    ) -> tuple[list[Leaf], list[Leaf]]:
        """The operands and the results of an equation without others inside it.

        Args:
            node: the equation.
            values: its operands.
            entry: what it computes in.
            is_rounded: which operands are rounded first.
            rounds_constant: whether the Python numbers among them are rounded.
        """
        entry = ROUNDED if rounds_constant and node.constant is not None else entry
        if rounds_constant or entry == ROUNDED:
            values = [
                v.own if isinstance(v, Either) and v.meant is not None else v
                for v in values
            ]
        dtypes = [var.aval.dtype for var in node.eqn.invars]
        if entry in (WIDE, ROUNDED):
            triples = zip(values, dtypes, is_rounded)
            operands = [self.as_wide(v, d, r) for v, d, r in triples]
        else:
            operands = [self.as_written(v, d) for v, d in zip(values, dtypes)]
        try:
            if entry == ROUNDED and node.rounds:
                made = self._rounded(node, values, operands)
            elif entry in (WIDE, ROUNDED):
                made = self._wide(node, operands)
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
        own = [value.own if isinstance(value, Either) else value for value in values]
        dtype, result = computes
        if node.is_backward and self._scale is not None:
            operands, made = self.computed(node, own, WRITTEN, [False] * len(own), False)
            return operands, self._as_if_scaled(made, [result] * len(made))
        try:
            if self._is_traced:
                made = evaluate_in(node.eqn, own, dtype, result)
            else:
                key = node.number, computes
                if key not in self._functions:
                    compute = lambda *x: evaluate_in(node.eqn, x, dtype, result)
                    self._functions[key] = jax.jit(compute)
                made = self._functions[key](*own)
        except REFUSALS:
            operands = [
                self.as_written(x, v.aval.dtype) for x, v in zip(own, node.eqn.invars)
            ]
            made = [
                as_dtype(x, result) if is_inexact(x) else x
                for x in self._written(node, own, operands)
            ]
        return own, [*map(self._kept, made)]

    def _wide(self, node: Node, operands: list[Leaf]) -> list[Leaf]:
        formats = self._formats
        if algorithm := formats.algorithm(node.eqn, is_wide=True):
            return product(node.eqn, operands, algorithm)
        number_of = lambda var, _: node.combined.get(id(var), var.val)
        is_meant = self._scale is None
        more = (number_of,) if is_meant else ()
        return self._evaluated(node, WIDE, operands, formats.widened, *more)

    def _written(
        self, node: Node, values: Sequence[Value], operands: list[Leaf]
    ) -> list[Leaf]:
        formats = self._formats
        if algorithm := formats.algorithm(node.eqn, is_wide=False):
            return product(node.eqn, operands, algorithm)
        is_own = node.name in primitives.OF_OWN_DTYPES
        if formats.narrow is not None and (is_own or formats.narrow.itemsize < 2):
            # Nothing computes in 8 bits: results are rounded to them.
            own = [v.own if isinstance(v, Either) else v for v in values]
            made = self.own(node, own)
            return [
                as_dtype(x, formats.written(x.dtype)) if is_inexact(x) else x for x in made
            ]
        return self._evaluated(node, WRITTEN, operands, formats.written)

    def _evaluated(
        self, node: Node, entry: int, operands: list[Leaf], *dtypes_and_numbers: Any
    ) -> list[Leaf]:
        """The results of an equation; outside of a trace, by a function that is compiled.

        To bind a primitive takes twice as long as to call what JAX compiles of it.
        """
        if self._is_traced:
            return evaluate(node.eqn, operands, *dtypes_and_numbers)
        key = node.number, entry, self._formats, self._scale is None
        if key not in self._functions:
            made = binding(node.eqn, *dtypes_and_numbers)
            try:
                shared = self._functions.setdefault(made.key, jax.jit(made.run))
            except TypeError:  # a parameter has no hash
                shared = made.run
            self._functions[key] = shared
        return self._functions[key](*operands)

    def _rounded(
        self, node: Node, values: Sequence[Value], operands: list[Leaf]
    ) -> list[Leaf]:
        """The wide results, rounded as the equation rounds on operands as written."""
        if self._formats.products is not None:
            return self._written(node, values, operands)
        exact = self._wide(node, operands)
        avals = [var.aval for var in (*node.eqn.outvars, *node.eqn.invars)]
        dtypes = [self._formats.written(each.dtype) for each in avals]
        if self._is_correct(node.eqn, dtypes):
            return [round_to(x, d) for x, d in zip(exact, dtypes)]
        pairs = zip(values, node.eqn.invars)
        narrow = [self.as_written(v, x.aval.dtype) for v, x in pairs]
        own = [*map(self._kept, self._written(node, values, narrow))]
        wide = [self.as_wide(x, v.aval.dtype) for x, v in zip(narrow, node.eqn.invars)]
        from_narrow = self._wide(node, wide)
        triples = zip(own, exact, from_narrow)
        return [_rounded_as(*each) if is_inexact(each[1]) else each[1] for each in triples]

    def _is_correct(self, eqn: Equation, dtypes: Sequence[DType]) -> bool:
        """Whether a result is that of the wide operation, rounded.

        It is if the wide format has twice its digits and two more, as float32 has for
        float16 and float64 for float32: then rounding to the wide format first changes
        nothing.
        """
        if any(kind(x) != "float" for x in dtypes):
            return False
        wide = {self._formats.widened(x) for x in dtypes}
        return len(wide) == 1 and primitives.is_correct(eqn, dtypes[0])

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


# A dozen operations that run as one.
_rounded_as = jax.jit(rounded_as)
