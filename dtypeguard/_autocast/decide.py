"""Decides what each equation of a program computes in, by a plan."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from .._leaves.internals import ForeignNames
from .._leaves.types import DType, Equation, Jaxpr
from .._lines.equations import Written
from .._program.graph import Stack, jaxprs_in, open_jaxpr
from .entries import ALL
from .lost import Lost
from .matching import Matcher, key_of_line
from .plan import Plan
from .reach import Reach, Variables
from .values import FLOAT32, Value, dtype_of, is_float, is_narrower, most_lost

_ASKS_FOR_RESULT = "preferred_element_type"
_CAST, _OWN_PRECISION = "by its own cast", "by the precision that it asks for"
_RESULT = "the dtype of its result, by preferred_element_type"
CONSTANT = "by a constant that {} does not hold"

# These are added up in the dtype as written, whatever is narrow around them.
SUMS = ForeignNames(
    "reduce_sum reduce_prod cumsum cumprod cumlogsumexp reduce_window_sum reduce_window "
    "scatter-add scatter_add psum psum_invariant@jax>=0.7 reduce_scatter add_any"
)
_DRAWS = ForeignNames("random_bits random_unwrap threefry2x32 rng_bit_generator")


class Kept(NamedTuple):
    """A line that computes as written though a plan makes it narrow, and what keeps it."""

    line: str
    by: str

    def __str__(self) -> str:
        return f"{self.line}: kept {self.by}"


class Decisions:
    """What a plan says of equations.

    Attributes:
        plan: the plan.
        matcher: finds the entries of equations.
        reach: what leads to a product.
        kept: the lines that compute as written though the plan makes them narrow.
        draws: whether the program draws random numbers.
    """

    def __init__(self, plan: Plan, matcher: Matcher, kept: dict[Kept, None]):
        self.plan, self.matcher, self.kept = plan, matcher, kept
        self.reach = Reach()
        self.draws = True

    def keep(self, stack: Stack, by: str) -> None:
        """Notes a line that computes as written."""
        self.kept[Kept(str(key_of_line(stack)) or "inside JAX", by)] = None

    def dtype_for(
        self, eqn: Equation, stack: Stack, values: Sequence[Value], reached: Variables
    ) -> DType | None:
        """What an equation computes in; None if as written."""
        entry = self.matcher.entry(stack)
        if not has_floats(eqn):
            return None
        if entry is None and not self._is_narrow(eqn, values, reached):
            return None
        if self.draws and Written(stack).is_of_sampler:
            return None
        dtype = self.plan.narrow if entry is None else entry.dtype
        if not is_narrower(dtype, FLOAT32):
            return dtype
        if any(value.is_kept for value in values):
            return self.keep(stack, _CAST)
        if most_lost(values):
            return self.keep(stack, CONSTANT.format(dtype))
        return dtype

    def _is_narrow(
        self, eqn: Equation, values: Sequence[Value], reached: Variables
    ) -> bool:
        """Whether the default of the plan makes an equation narrow."""
        narrow = self.plan.narrow
        avals = [var.aval for var in (*eqn.invars, *eqn.outvars)]
        if any(x.dtype not in (FLOAT32, narrow) for x in avals if is_float(x)):
            return False
        if self.plan.default == ALL:
            return any(is_float(value.array) for value in values)
        if not any(var in reached for var in eqn.outvars):
            return False
        return any(dtype_of(value.array) == narrow for value in values)

    def settled(self, value: Value, var: Any, reached: Variables) -> DType | None:
        """The dtype of a result where it leaves a function, a branch or a loop."""
        if not is_float(var.aval):
            return None
        dtype, written = dtype_of(value.array), var.aval.dtype
        if not is_narrower(dtype, written):
            return dtype
        keeps = not hasattr(var, "val") and var in reached
        return dtype if keeps or self.plan.default == ALL else written

    def dtype_of_product(
        self, eqn: Equation, stack: Stack, values: list[Value]
    ) -> DType | None:
        entry = self.matcher.entry(stack)
        if entry is not None and not is_narrower(entry.dtype, FLOAT32):
            return entry.dtype if has_floats(eqn) else None
        dtype = self.plan.narrow if entry is None else entry.dtype
        if any(var.aval.dtype != FLOAT32 for var in (*eqn.invars[:2], *eqn.outvars)):
            return None
        if self.draws and Written(stack).is_of_sampler:
            return None
        if asks_for_precision(eqn):
            return self.keep(stack, _OWN_PRECISION)
        if any(value.is_kept for value in values):
            return self.keep(stack, _CAST)
        if most_lost(values) > Lost.NEAR_ZERO:
            return self.keep(stack, CONSTANT.format(dtype))
        return dtype

    def asks_for_result(self, stack: Stack) -> bool:
        line = key_of_line(stack)
        is_asked = _ASKS_FOR_RESULT in (line.expression or "")
        if is_asked:
            self.keep(stack, _RESULT)
        return is_asked


def draws(jaxpr: Jaxpr, known: set[int] | None = None) -> bool:
    """Whether a jaxpr, or one inside of it, draws random numbers."""
    known = set() if known is None else known
    opened = open_jaxpr(jaxpr)
    if id(opened) in known:
        return False
    known.add(id(opened))
    return any(
        eqn.primitive.name in _DRAWS
        or any(draws(each, known) for each in jaxprs_in(eqn.params))
        for eqn in opened.eqns
    )


def asks_for_precision(eqn: Equation) -> bool:
    """Whether a product asks for more than the precision by default."""
    precision = eqn.params.get("precision")
    each = precision if isinstance(precision, tuple) else (precision,)
    return any(x not in (None, jax.lax.Precision.DEFAULT) for x in each)


def still_lost(eqn: Equation, values: Sequence[Value]) -> Lost:
    """What is lost of the results of an equation that computes wide for a constant."""
    most = most_lost(values)
    passes = _PASSES.get(eqn.primitive.name) if most else None
    return passes([value.lost for value in values]) if passes else Lost.NOTHING


def _of_sum(operands: Sequence[Lost]) -> Lost:
    return Lost.INFINITE if Lost.INFINITE in operands else Lost.NEAR_ZERO


def _of_product(operands: Sequence[Lost]) -> Lost:
    return Lost.INFINITE if Lost.INFINITE in operands else Lost.NOTHING


def _of_quotient(operands: Sequence[Lost]) -> Lost:
    over, under = operands
    is_infinite = over == Lost.INFINITE or under == Lost.ZERO
    return Lost.INFINITE if is_infinite else Lost.NOTHING


_PASSES: dict[str, Callable[[Sequence[Lost]], Lost]] = {
    **dict.fromkeys((*SUMS, "add", "sub"), _of_sum),
    "mul": _of_product,
    "div": _of_quotient,
    **dict.fromkeys(ForeignNames("sort top_k"), max),
}


def has_floats(eqn: Equation) -> bool:
    return any(is_float(var.aval) for var in eqn.outvars)
