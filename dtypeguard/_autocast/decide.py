"""What each equation of a program computes in by a plan: the rules of `Propagation`.

What is narrow is a product and its operands, or all, and what an entry of the plan names.
What moves numbers keeps the dtype that they have, and sums are as written. What the source
asks for stays, and so does what a narrow dtype would lose.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import tree_util

from .._leaves.dtypes import bits, kind
from .._leaves.internals import OPERATORS, ForeignNames
from .._leaves.types import Aval, DType, Equation
from .._numbers import primitives
from .._numbers.evaluate import bits_of
from .._numbers.plans import FIRST_DTYPE, WRITTEN, Computes, Propagation, WidthPlan
from .._numbers.primitives import rule_of
from .._numbers.program import NumericProgram
from .._program.jaxprs import (
    PRODUCTS as PRODUCT_NAMES,
    Variable,
)
from .._program.program import CLOSED, Node
from .._tracebacks.frames import frames_of, until_users
from .._tracebacks.written import Written
from .matching import PlanUse
from .plan import ALL, Plan, PlanEntry

FLOAT32 = np.dtype("float32")

# These are added up in the dtype as written, whatever is narrow around them.
SUMS = ForeignNames(
    "reduce_sum reduce_prod cumsum cumprod cumlogsumexp reduce_window_sum reduce_window "
    "scatter-add scatter_add psum psum_invariant@jax>=0.7 reduce_scatter add_any"
)
# A number that is lost is so in the results of these: a mask, until a softmax has it.
_PASS_LOSSES = SUMS | ForeignNames("add sub mul div")
# Their derivative is a sum, which is added up wide.
_SPREADS = ForeignNames("gather pvary@jax>=0.6.2 pbroadcast")
# Calls that take other jaxprs than they were traced with.
PLAIN_CALLS = ForeignNames(
    "jit@jax>=0.7 pjit@jax<0.7 remat2 closed_call@jax<0.12 eval_jaxpr@jax>=0.4.31"
)
# Those with rules of derivatives of their own.
OWN_RULES = ("custom_jvp_call", "custom_vjp_call")
# The plan reaches into these. Any other call keeps the types that it was traced with.
_ENTERED_CALLS = PLAIN_CALLS | set(OWN_RULES)

# Of these a plan of products says what they compute in, whatever they are given.
DECIDED = PRODUCT_NAMES | {"convert_element_type"}

# Why a value stays as wide as it is written: by an explicit cast of the user's, or for a
# number in it that is 0 or infinite in the narrow dtype.
_ASKED = "asked for"
_LOST = "lost"


class PlannedType(NamedTuple):
    """What the rules know of a value.

    Attributes:
        dtype: its dtype by the plan.
        reasons: why it stays wide.
    """

    dtype: DType
    reasons: frozenset[str] = frozenset()


PlannedTypes = list[PlannedType]
# Each value of a program asks for its type.
_as_written = functools.cache(PlannedType)


def by_plan(program: NumericProgram, plan: Plan) -> WidthPlan:
    """Returns what a program computes in by a plan.

    Raises:
        ValueError: if an entry matches nothing of it.
    """
    use = PlanUse(plan)
    rules = ByPlan(program.size, use)
    argument_types = planned_types(program.jaxpr.in_avals)
    rules.block(program.block, argument_types)
    # A plan whose entry names nothing belongs to other code, and must not pass for applied.
    use.check()
    return rules.width_plan


class ByPlan(Propagation[PlannedType]):
    """The rules of a plan.

    Args:
        size: how many numbers the equations of the program have.
        use: the plan in use.
        default_entry: the entry of lines without one.

    Attributes:
        call_operands: the types of the operands of calls, by their numbers.
    """

    def __init__(self, size: int, use: PlanUse, default_entry: PlanEntry | None = None):
        super().__init__(size)
        self._use = use
        plan = use.plan
        self._narrow = plan.narrow
        self._is_all_narrow = plan.default == ALL
        self._default_entry = default_entry
        # A width plan is an array of numbers: these are the dtypes that its numbers stand
        # for.
        self._dtypes = {}
        self.call_operands = {}

    @property
    def width_plan(self) -> WidthPlan:
        """What each equation computes in."""
        dtypes = tuple(self._dtypes)
        return WidthPlan(self.entries, False, carried=self.carried, dtypes=dtypes)

    # Values

    def constant(self, var, array):
        planned_type = PlannedType(dtype_or_none(var))
        if not is_floating(planned_type):
            return planned_type
        try:
            numbers = np.asarray(array, planned_type.dtype)
        # A tracer has no numbers to look at, and an array of several hosts not all of them.
        except (TypeError, RuntimeError):
            return planned_type
        # Of an array, its greatest finite number counts.
        is_finite = np.isfinite(numbers)
        sizes = np.abs(numbers)
        greatest = np.max(sizes, initial=0, where=is_finite)
        with np.errstate(all="ignore"):
            narrow = greatest.astype(self._narrow)
        # Zeros are zeros in each dtype.
        if greatest and narrow in (0, np.inf):
            reasons = frozenset([_LOST])
            return planned_type._replace(reasons=reasons)
        return planned_type

    def crossing(self, value, var):
        if self._is_all_narrow:
            return value
        # With narrow products alone, calls and loops have the dtypes as written outside.
        return _widest(value, var)

    def joined(self, values, attempt):
        dtypes = [value.dtype for value in values]
        dtype = dtypes[-1]
        # In the first turns of a loop the body tells; then the wider of both.
        if not 0 < attempt < 3:
            dtype = max(dtypes, key=bits)
        reasons = _reasons(values)
        return PlannedType(dtype, reasons)

    def entry_of(self, value, aval):
        computes = Computes(value.dtype, value.dtype)
        return self._entry_for(computes)

    # What holds other equations

    def node(self, node, operands):
        # A plan may name a whole loop: the entry has matched then.
        entry = self._entry(node)
        if node.rule == CLOSED:
            as_written = planned_types(node.eqn.invars)
            # A plan of products leaves alone what has no reason to stay wide either.
            if entry is None and operands == as_written and not self._is_all_narrow:
                return planned_types(node.eqn.outvars)
            node.rule = rule_of(node)
        return super().node(node, operands)

    def visit_call(self, node, values):
        # The program may be autocast already.
        if node.name == primitives.AUTOCAST_PRODUCT:
            self._use.has_product = True
        if node.name not in _ENTERED_CALLS:
            return self.visit_own(node, values)
        self.call_operands[node.number] = values
        body = node.inner[0]
        results = self.inside(body, values)
        are_donated = node.eqn.params.get("donated_invars", ())
        if any(are_donated):
            # A buffer that is donated has room for a result of its own dtype.
            results = list(map(_widest, results, node.eqn.outvars))
        # A call has the dtypes inside that its results leave in.
        return self.left(node, results)

    def inside(self, block, arguments):
        crossed = []
        results = self.block(block, arguments)
        for value, var in zip(results, block.outputs):
            result = self.crossing(value, var)
            crossed.append(result)
        return crossed

    # Equations

    def visit_reduce_precision(self, node, values):
        operand = node.eqn.invars[0].aval
        # That of `jax.checkpoint` has the bits of its operand, and rounds nothing.
        if node.eqn.params == bits_of(operand.dtype):
            return self._moved(node, values)
        return self.visit_own(node, values)

    def computed(self, node, values):
        name = node.name
        if name in PRODUCT_NAMES:
            return self._multiplied(node, values)
        if name == "convert_element_type":
            return self._converted(node, values)
        if primitives.moves(node.eqn):
            return self._moved(node, values)
        if name in SUMS:
            # As written but where an entry says more.
            entry = self._entry(node)
            dtype = dtype_or_none(entry)
        else:
            dtype = self._dtype_for(node, values)
        results = self._in_dtype(node, values, dtype)
        if name not in _PASS_LOSSES:
            return results
        # A lost divisor makes the quotient large, and loses no number of it.
        if name == "div":
            values = values[:1]
        lost = _reasons(values) & {_LOST}
        reasons = lost | _reasons(results)
        return _with_reasons(results, reasons)

    def _entry(self, node: Node) -> PlanEntry | None:
        entry = self._use.entry(node.stack)
        if entry is None:
            return self._default_entry
        return entry

    def _entry_for(self, computes: Computes) -> int:
        next_place = len(self._dtypes)
        place = self._dtypes.setdefault(computes, next_place)
        return FIRST_DTYPE + place

    def visit_own(self, node, values):
        self.entries[node.number] = WRITTEN
        results = planned_types(node.eqn.outvars)
        reasons = _reasons(values) & {_ASKED}
        return _with_reasons(results, reasons)

    visit_sample = visit_own
    visit_stochastic = visit_own
    visit_custom_linear_solve = visit_own

    def _in_dtype(
        self, node: Node, values: PlannedTypes, dtype: DType, result: DType = None
    ) -> PlannedTypes:
        """Computes in a dtype, with a result of the same or of another one."""
        if dtype is None:
            return self.visit_own(node, values)
        if result is None:
            result = dtype
        # Nothing changes: bound as it stands, the equation compiles to the same HLO.
        if result == dtype and _written_dtypes(node) == {dtype}:
            return self.visit_own(node, values)
        computes = Computes(dtype, result)
        self.entries[node.number] = self._entry_for(computes)
        results = []
        for written in planned_types(node.eqn.outvars):
            dtype = computes.of(written.dtype)
            results.append(PlannedType(dtype))
        return results

    def _dtype_for(self, node: Node, values: PlannedTypes) -> DType | None:
        """Returns what an equation computes in by the plan; None if as written."""
        if not _float_dtypes(node.eqn.outvars):
            return None
        entry = self._entry(node)
        dtype = self._narrow
        if entry is not None:
            dtype = entry.dtype
        # To be wide harms nothing of what the source asks for.
        if not is_narrower(dtype, FLOAT32):
            return dtype
        if not self._may_be_narrow(node, values, entry):
            return None
        reasons = _reasons(values)
        if node.name in PRODUCT_NAMES and precision_of_product(node.eqn):
            reason = "the precision that it asks for"
        elif _ASKED in reasons:
            reason = "its own cast"
        elif _LOST in reasons:
            reason = f"a constant that {self._narrow} does not hold"
        else:
            return dtype
        self._use.note(node.stack, reason)
        return None

    def _may_be_narrow(
        self, node: Node, values: PlannedTypes, entry: PlanEntry | None
    ) -> bool:
        """Returns whether the plan and the primitive let an equation be narrow."""
        dtypes = _written_dtypes(node)
        if node.name in PRODUCT_NAMES:
            # A product of narrow operands is as the source has it.
            return dtypes == {FLOAT32}
        # What makes numbers of none is as the source has it: a count, or a random draw.
        if not _float_dtypes(values):
            return False
        if entry is None:
            if not self._is_all_narrow:
                return False
            if not dtypes <= {FLOAT32, self._narrow}:
                return False
        if node.name in primitives.OF_OWN_DTYPES:
            return False
        # Other bits would be other draws.
        return not Written(node.stack).is_of_sampler

    def _moved(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """In the dtype of its operands, which it does not round."""
        if _is_spread(node):
            values = list(map(_widest, values, node.eqn.invars))
        dtypes = _float_dtypes(values)
        if len(dtypes) == 1:
            (dtype,) = dtypes
        else:
            # Operands of several dtypes meet in the one that the plan says.
            dtype = self._dtype_for(node, values)
        results = self._in_dtype(node, values, dtype)
        reasons = _reasons(values)
        return _with_reasons(results, reasons)

    def _converted(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """As written: a cast is the user's."""
        eqn = node.eqn
        before = eqn.invars[0].aval.dtype
        after = eqn.outvars[0].aval.dtype
        entry = self._entry(node)
        is_float = kind(after) == "float"
        if entry is not None and is_float and not node.is_asked:
            return self._in_dtype(node, values, entry.dtype)
        reasons = values[0].reasons
        if is_narrower(after, before):
            reasons -= {_ASKED}
        elif is_narrower(before, after) and node.is_asked:
            reasons |= {_ASKED}
            if node.follows is None:
                self._use.note(node.stack, "a cast that may be asked for")
        results = self.visit_own(node, values)
        return _with_reasons(results, reasons)

    def _multiplied(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """A product or a convolution."""
        self._use.has_product = True
        dtype = self._dtype_for(node, values)
        if dtype is None:
            # A product may follow one that asks for float32, and is not asked for itself.
            return self.visit_own(node, [])
        result = dtype
        # A gradient may be added up over devices.
        if node.is_backward or _asks_for_result(node):
            result = FLOAT32
        return self._in_dtype(node, values, dtype, result)


def _asks_for_result(node: Node) -> bool:
    """Returns whether the source asks for the dtype of the result of a product."""
    eqn = node.eqn
    if eqn.params["preferred_element_type"] is None:
        return False
    # JAX gives `x @ w` a type that nobody has asked for. The second trace is not made then.
    for frame in until_users(frames_of([eqn])):
        if OPERATORS.are_in(frame.function):
            return False
    return node.block.traces.sibling.asks_for_result(eqn)


def precision_of_product(eqn: Equation) -> str:
    """Returns what a product asks for: "highest", "high/default" or an algorithm.

    "" if it asks for nothing.
    """
    setting = eqn.params.get("precision")
    names = []
    # There is one for each operand, or one for both, or none.
    for precision in tree_util.tree_leaves(setting):
        name = getattr(precision, "name", precision)
        text = str(name).lower()
        if text not in names:
            names.append(text)
    if names == ["default"]:
        return ""
    return "/".join(names)


def _is_spread(node: Node) -> bool:
    """Returns whether an equation repeats its operand: the derivative is a sum."""
    if node.name != "broadcast_in_dim":
        return node.name in _SPREADS
    operand = node.eqn.invars[0].aval
    result = node.eqn.outvars[0].aval
    # `jax.export` has symbolic sizes, which can be equal, but have no order.
    return result.size != operand.size


def _written_dtypes(node: Node) -> set[DType]:
    """Returns the dtypes of the floating operands and results of an equation."""
    eqn = node.eqn
    variables = [*eqn.invars, *eqn.outvars]
    return _float_dtypes(variables)


def _float_dtypes(values: Sequence[Any]) -> set[DType]:
    """Returns the dtypes of the floating ones of some values."""
    dtypes = set()
    for value in values:
        if is_floating(value):
            dtypes.add(dtype_or_none(value))
    return dtypes


def _widest(value: PlannedType, var: Variable) -> PlannedType:
    """Returns a value in no narrower dtype than the program has it."""
    dtype = dtype_or_none(var)
    if is_narrower(value.dtype, dtype):
        return value._replace(dtype=dtype)
    return value


def planned_types(values: Sequence[Any]) -> PlannedTypes:
    """Returns the types of arrays, variables or abstract values as they are."""
    types = []
    for value in values:
        dtype = dtype_or_none(value)
        types.append(_as_written(dtype))
    return types


def avals_of(variables: Sequence[Variable]) -> list[Aval]:
    """Returns the types of the variables of a jaxpr."""
    return [var.aval for var in variables]


def _reasons(values: Sequence[PlannedType]) -> frozenset[str]:
    """Returns all reasons for which some of the floating values stay wide."""
    reasons = frozenset[str]()
    for value in values:
        if is_floating(value):
            reasons |= value.reasons
    return reasons


def _with_reasons(values: PlannedTypes, reasons: frozenset[str]) -> PlannedTypes:
    results = []
    for value in values:
        result = value._replace(reasons=reasons)
        results.append(result)
    return results


def dtype_or_none(value: Any) -> DType:
    """Returns the dtype of an array, a variable or an abstract value; None without one."""
    aval = getattr(value, "aval", value)
    return getattr(aval, "dtype", None)


def is_floating(value: Any) -> bool:
    """Returns whether an array, a variable or an abstract value is a floating one."""
    dtype = dtype_or_none(value)
    return kind(dtype) == "float"


@functools.cache
def is_narrower(dtype: DType, reference_dtype: DType) -> bool:
    """Returns whether a dtype has fewer bits than another one of its kind."""
    return 0 < bits(dtype) < bits(reference_dtype)
