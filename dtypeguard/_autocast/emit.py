"""Emits the equations of a traced program again, in the dtypes of a plan.

The equations are bound under the trace that is current, with their lines, scopes, meshes
and effects. One that computes as written is bound exactly as it stands; what holds other
equations is in `inside.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.core import Tracer

from .._leaves.dtypes import bits, kind
from .._leaves.internals import ForeignNames
from .._leaves.types import Aval, DType, Equation, Jaxpr, Leaf
from .._lines.equations import Written
from .._numbers import primitives
from .._numbers.arithmetic import REFUSALS
from .._numbers.evaluate import evaluate
from .._numbers.nodes import has_no_wide_form
from .._program.graph import PRODUCTS, Stack, open_jaxpr
from .binding import Values, bind, in_context
from .decide import CONSTANT, SUMS, Decisions, Kept, has_floats, still_lost
from .matching import Matcher
from .plan import Plan
from .products import is_bilinear, product, rounded
from .reach import Variables
from .values import (
    FLOAT32,
    Value,
    as_written,
    bits_of,
    cast,
    constant,
    dtype_of,
    is_float,
    is_narrower,
    most_lost,
    rounded_indeed,
    scope_for,
    with_lost,
)


class Emitter(Decisions):
    """Emits a program by a plan.

    Attributes:
        products: how many products there are, narrow or not.
        changes: how many equations have been emitted in other dtypes than written.
    """

    def __init__(self, plan: Plan, matcher: Matcher, kept: dict[Kept, None]):
        super().__init__(plan, matcher, kept)
        self.products = self.changes = 0
        self._rounded: dict[object, tuple[Leaf, Leaf]] = {}

    # Values

    def run(
        self, jaxpr: Jaxpr, values: Sequence[Value], outer: Stack, reached: Variables
    ) -> list[Value]:
        """The results of a jaxpr.

        Args:
            jaxpr: closed or open.
            values: its arguments, after its constants or without these.
            outer: the equations around it, inside out.
            reached: its variables that lead to a product.
        """
        opened = open_jaxpr(jaxpr)
        known = Values(opened)
        variables = *opened.constvars, *opened.invars
        if len(values) < len(variables):
            values = [*map(self.constant, jaxpr.consts), *values]
        for var, value in zip(variables, values):
            known.put(var, value)
        outside, self._rounded = self._rounded, {}
        for eqn in opened.eqns:
            operands = [self._read(known, var) for var in eqn.invars]
            with in_context(eqn):
                made = self.equation(eqn, (eqn, *outer), operands, reached)
                for var, value in zip(eqn.outvars, made):
                    known.put(var, value)
        self._rounded = outside
        return [self._read(known, var) for var in opened.outvars]

    def _read(self, known: "Values", var: Any) -> Value:
        if not hasattr(var, "val"):
            return known.get(var)
        number = (
            var.val if hasattr(var.val, "dtype") else np.asarray(var.val, var.aval.dtype)
        )
        return self.constant(number)

    def constant(self, number: Leaf) -> Value:
        return constant(number, self.plan.narrow)

    def given(self, jaxpr: Jaxpr, arrays: Sequence[Leaf]) -> list[Value]:
        """The constants of a closed jaxpr and its arguments, of the arrays of both."""
        known = [self.constant(x)._replace(array=y) for x, y in zip(jaxpr.consts, arrays)]
        return [*known, *map(Value, arrays[len(known) :])]

    # Equations

    def equation(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        """The results of an equation, by its rule."""
        raise NotImplementedError

    def written(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        """As it stands."""
        operands = as_written(values, [var.aval for var in eqn.invars])
        made = bind(eqn, operands, eqn.params)
        is_kept = any(value.is_kept for value in values)
        return [Value(x, is_kept and is_float(x)) for x in made]

    def computed(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        """In the dtype of its entry, or of what the plan makes narrow."""
        dtype = self.dtype_for(eqn, stack, values, reached)
        is_fixed = eqn.primitive.name in primitives.OF_OWN_DTYPES
        if dtype is None or (is_fixed and bits(dtype) < 32):
            made = self.written(eqn, stack, values, reached)
        else:
            made = self._in(dtype, eqn, stack, values, reached)
        return with_lost(made, still_lost(eqn, values))

    def chosen(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        """What compares or chooses has values that are rounded indeed.

        XLA may leave out a rounding, on one side of `x == max(x, y)` too, which the
        gradient of a maximum asks for.
        """
        values = [
            value._replace(array=rounded_indeed(value.array))
            if not hasattr(var, "val")
            and is_float(var.aval)
            and is_narrower(dtype_of(value.array), var.aval.dtype)
            else value
            for var, value in zip(eqn.invars, values)
        ]
        rule = self.moved if has_floats(eqn) else self.written
        return rule(eqn, stack, values, reached)

    def _in(
        self,
        dtype: DType,
        eqn: Equation,
        stack: Stack,
        values: list[Value],
        reached: Variables,
    ) -> list[Value]:
        variables = *eqn.invars, *eqn.outvars
        if all(var.aval.dtype == dtype for var in variables if is_float(var.aval)):
            return self.written(eqn, stack, values, reached)
        of = lambda x: dtype if kind(x) == "float" else x
        operands = [cast(value.array, of(dtype_of(value.array))) for value in values]
        try:
            with scope_for(dtype):
                made = evaluate(eqn, operands, of)
        except REFUSALS:  # it takes no operands of this dtype
            return self.written(eqn, stack, values, reached)
        written = [var.aval.dtype for var in eqn.outvars]
        self.changes += [dtype_of(x) for x in made] != written
        return [*map(Value, made)]

    def moved(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        """In the dtype that its operands have, which it rounds none of."""
        floats = [value for value in values if is_float(value.array)]
        is_kept = any(value.is_kept for value in floats)
        lost = most_lost(floats)
        # A constant that every dtype has, such as 0, takes that of the others.
        dtypes = {dtype_of(v.array) for v in floats if not v.is_held}
        if not dtypes:
            made = self.written(eqn, stack, values, reached)
            return [Value(x.array, is_held=is_float(x.array)) for x in made]
        if len(dtypes) == 1:
            made = self._in(dtypes.pop(), eqn, stack, values, reached)
        elif lost:
            self.keep(stack, CONSTANT.format(self.plan.narrow))
            made = self.written(eqn, stack, values, reached)
        else:
            return self.computed(eqn, stack, values, reached)
        if is_kept:
            made = [Value(x.array, is_float(x.array)) for x in made]
        return with_lost(made, lost)

    def spread(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        """As written, but that what is wider stays so: its derivative is a sum."""
        dtypes = [dtype_of(v.array) for v in values if is_float(v.array)]
        written = [var.aval.dtype for var in eqn.invars if is_float(var.aval)]
        if any(is_narrower(*pair) for pair in zip(dtypes, written)):
            made = self.written(eqn, stack, values, reached)
            return with_lost(made, most_lost(values))
        return self.moved(eqn, stack, values, reached)

    def summed(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        """As written but where an entry says more."""
        entry = self.matcher.entry(stack)
        if entry is None or not has_floats(eqn):
            made = self.written(eqn, stack, values, reached)
        else:
            made = self._in(entry.dtype, eqn, stack, values, reached)
        return with_lost(made, still_lost(eqn, values))

    def converted(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        """As written: a cast is the user's."""
        before, after = (x.aval.dtype for x in (eqn.invars[0], eqn.outvars[0]))
        entry = self.matcher.entry(stack)
        is_asked = Written(stack).is_asked
        if entry is not None and kind(after) == "float" and not is_asked:
            return self._in(entry.dtype, eqn, stack, values, reached)
        is_from_int = kind(before) != "float" and kind(after) == "float"
        if entry is not None and is_from_int and is_narrower(after, entry.dtype):
            return self._in(entry.dtype, eqn, stack, values, reached)
        (value,) = values
        made = self.written(eqn, stack, values, reached)
        is_kept = is_asked and is_narrower(before, after)
        is_kept = is_kept or (value.is_kept and not is_narrower(after, before))
        is_kept = is_kept and kind(after) == "float"
        return [Value(x.array, is_kept, *value[2:]) for x in made]

    def rounded(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        """`reduce_precision`: that of `jax.checkpoint` has the bits of its operand."""
        (value,) = values
        own, dtype = (bits_of(x) for x in (eqn.invars[0].aval.dtype, dtype_of(value.array)))
        if own is None or dtype is None or not own.items() <= eqn.params.items():
            return self.written(eqn, stack, values, reached)
        with scope_for(dtype_of(value.array)):
            made = bind(eqn, [value.array], {**eqn.params, **dtype})
        return [value._replace(array=x) for x in made]

    def multiplied(
        self, eqn: Equation, stack: Stack, values: list[Value], reached: Variables
    ) -> list[Value]:
        """A product or a convolution."""
        self.products += 1
        dtype = self.dtype_of_product(eqn, stack, values)
        if dtype is None:
            made = self.written(eqn, stack, values, reached)
            return [Value(x.array) for x in made]
        (out,) = eqn.outvars
        result = dtype
        if is_narrower(dtype, FLOAT32):
            # A gradient that leads to no product may be added up over devices.
            is_gradient = Written(stack).is_backward and out not in reached
            if is_gradient or self.asks_for_result(stack):
                result = out.aval.dtype
        if not is_narrower(dtype, FLOAT32) or not is_bilinear(eqn):
            return self._in(dtype, eqn, stack, values, reached)
        self.changes += 1
        operands = [value.array for value in values]
        narrow = [self._round(x, dtype) for x in operands]
        return [Value(product(eqn, operands, narrow, result))]

    def _round(self, array: Leaf, dtype: DType) -> Leaf:
        """An operand of a product, rounded once for all products of a function."""
        if not isinstance(array, Tracer):  # which would live longer than without
            return rounded(array, dtype)
        key = id(array), dtype
        if key not in self._rounded:
            self._rounded[key] = array, rounded(array, dtype)
        return self._rounded[key][1]


def rule_of(eqn: Equation) -> Callable[..., list[Value]]:
    """The rule of an equation without others inside."""
    name = eqn.primitive.name
    if name in _RULES:
        return _RULES[name]
    made, operands = ((*(v.aval for v in x),) for x in (eqn.outvars, eqn.invars))
    if has_no_wide_form(eqn) or not _are_floats(made, operands):
        return Emitter.written
    if not operands or not (name in _MOVED or primitives.moves(eqn, operands, made)):
        return Emitter.computed
    # `jax.export` has symbolic sizes, which can be equal, but have no order.
    is_repeated = name == "broadcast_in_dim" and made[0].size != operands[0].size
    is_spread = is_repeated or name in _SPREADS
    return Emitter.spread if is_spread else Emitter.moved


def _are_floats(made: Sequence[Aval], operands: Sequence[Aval]) -> bool:
    """Whether an equation computes with real numbers alone, and makes some."""
    kinds = [kind(getattr(x, "dtype", None)) for x in made]
    others = [kind(getattr(x, "dtype", None)) for x in operands]
    return "float" in kinds and not {"complex", None}.intersection((*kinds, *others))


_MOVED = ForeignNames("name")  # of `jax.ad_checkpoint.checkpoint_name`
# Their derivative is a sum, which is added up wide.
_SPREADS = ForeignNames("gather pvary@jax>=0.6.2 pbroadcast")
_RULES: dict[str, Callable[..., list[Value]]] = {
    **dict.fromkeys(PRODUCTS, Emitter.multiplied),
    **dict.fromkeys(SUMS, Emitter.summed),
    **dict.fromkeys(("eq", "ne", "max", "min", "reduce_max", "reduce_min"), Emitter.chosen),
    **dict.fromkeys(primitives.DEBUG, Emitter.written),
    **dict.fromkeys((*primitives.OF_BITS, "iota"), Emitter.written),
    "convert_element_type": Emitter.converted,
    "reduce_precision": Emitter.rounded,
}


# These may have other dtypes though no operand has.
ANY_DTYPES = frozenset([*PRODUCTS, "convert_element_type"])
