"""What each equation of a program computes in by a plan: the rules of `Propagation`.

What is narrow is a product and its operands, or all, and what an entry of the plan names.
What moves numbers keeps the dtype that they have, and sums are as written. What the source
asks for stays, and so does what a narrow dtype would lose.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer

from .._leaves.dtypes import bits, kind
from .._leaves.internals import ForeignNames
from .._leaves.types import Aval, DType, Equation, Jaxpr
from .._numbers import primitives
from .._numbers.evaluate import bits_of
from .._numbers.plans import FIRST_DTYPE, WRITTEN, Computes, Propagation, WidthPlan
from .._numbers.program import NumericProgram
from .._program.jaxprs import (
    PRODUCTS as PRODUCT_NAMES,
    Variable,
    all_jaxprs,
    loop_parts,
    value_kind,
)
from .._program.program import Node
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
_PASS_LOSSES = SUMS | ForeignNames("add sub mul div sort top_k")
_CHECKPOINT_NAMES = ForeignNames("name")  # of `jax.ad_checkpoint.checkpoint_name`
# Their derivative is a sum, which is added up wide.
_SPREADS = ForeignNames("gather pvary@jax>=0.6.2 pbroadcast")
# Calls that take other jaxprs than they were traced with.
PLAIN_CALLS = ForeignNames(
    "jit@jax>=0.7 pjit@jax<0.7 remat2 closed_call@jax<0.12 eval_jaxpr@jax>=0.4.31"
)
# Those with rules of derivatives of their own.
OWN_RULES = ("custom_jvp_call", "custom_vjp_call")

_ASKING = PRODUCT_NAMES | {"convert_element_type"}

# Why a value stays as wide as it is written: by an explicit cast of the user's, or for a
# number in it that is 0 or infinite in the narrow dtype.
_ASKED = "asked for"
_LOST = "lost"
_NO_REASONS: frozenset[str] = frozenset()


class PlannedType(NamedTuple):
    """What the rules know of a value.

    Attributes:
        dtype: its dtype by the plan.
        reasons: why it stays wide.
    """

    dtype: DType
    reasons: frozenset[str] = _NO_REASONS


PlannedTypes = list[PlannedType]


def may_ask(jaxpr: Jaxpr) -> bool:
    """Returns whether a program may ask for a dtype, which its sibling trace tells.

    A product that asks has the same result type as one that asks for nothing.
    """
    for inner in all_jaxprs(jaxpr):
        for eqn in inner.eqns:
            if eqn.primitive.name in _ASKING and is_floating(eqn.outvars[0].aval):
                return True
    return False


def by_plan(program: NumericProgram, plan: Plan) -> WidthPlan:
    """Returns what a program computes in by a plan.

    Raises:
        ValueError: if an entry matches nothing of it.
    """
    use = PlanUse(plan)
    rules = ByPlan(program, use)
    rules.block(program.block, planned_types(program.jaxpr.in_avals))
    # A plan whose entry names nothing belongs to other code, and must not pass for applied.
    use.check()
    return rules.width_plan


class ByPlan(Propagation[PlannedType]):
    """The rules of a plan.

    Args:
        program: the program.
        use: the plan in use.
        default_entry: the entry of lines without one.

    Attributes:
        call_operands: the types of the operands of calls, by their numbers.
    """

    def __init__(
        self, program: NumericProgram, use: PlanUse, default_entry: PlanEntry | None = None
    ):
        super().__init__(program)
        self._use = use
        self._plan = use.plan
        self._default_entry = default_entry
        # A width plan is an array of numbers: these are the dtypes that its numbers stand
        # for.
        self._dtypes: dict[Computes, int] = {}
        self.call_operands: dict[int, PlannedTypes] = {}

    @property
    def width_plan(self) -> WidthPlan:
        """What each equation computes in."""
        dtypes = tuple(self._dtypes)
        return WidthPlan(self.entries, False, carried=self.carried, dtypes=dtypes)

    # Values

    def constant(self, var, array):
        dtype = dtype_or_none(var.aval)
        # A tracer has no numbers to look at, and an array of several hosts not all of them.
        if kind(dtype) != "float" or isinstance(array, Tracer):
            return PlannedType(dtype)
        if not getattr(array, "is_fully_addressable", True):
            return PlannedType(dtype)
        # Of an array, its greatest finite number counts.
        numbers = np.abs(np.asarray(array, dtype))
        greatest = np.max(numbers, initial=0, where=np.isfinite(numbers))
        with np.errstate(all="ignore"):
            narrow = np.asarray(greatest).astype(self._plan.narrow)
        if greatest == 0 or 0 < narrow < np.inf:
            return PlannedType(dtype)
        return PlannedType(dtype, frozenset([_LOST]))

    def crossing(self, value, aval):
        if self._plan.default == ALL:
            return value
        # With narrow products alone, calls and loops have the dtypes as written outside.
        return widest(value, aval)

    def joined(self, values, attempt):
        dtypes = [value.dtype for value in values]
        dtype = max(dtypes, key=bits)
        # In the first turns of a loop the body tells; then the wider of both.
        if 0 < attempt < 3:
            dtype = dtypes[-1]
        return PlannedType(dtype, _reasons(values))

    def entry_of(self, value, aval):
        if value.dtype == dtype_or_none(aval) or not is_floating(aval):
            return WRITTEN
        return self._entry_for(Computes(value.dtype, value.dtype))

    # What holds other equations

    def node(self, node, operands):
        self._entry(node)  # a plan may name a whole loop: the entry has matched then
        return super().node(node, operands)

    def visit_call(self, node, values):
        if node.name == primitives.AUTOCAST_PRODUCT:  # the program is autocast already
            self._use.has_product = True
        if node.name not in PLAIN_CALLS and node.name not in OWN_RULES:
            return self._as_written(node, values)
        self.call_operands[node.number] = values
        results = self.inside(node.inner[0], values)
        if any(node.eqn.params.get("donated_invars", ())):
            # A buffer that is donated has room for a result of its own dtype.
            results = _widest_of_each(results, node.eqn.outvars)
        # A call has the dtypes inside that its results leave in.
        self.left(node, results)
        return results

    def entering(self, node, values):
        if node.rule != "scan":
            return values
        # The cotangent of what the turns share is added up in its dtype.
        count = loop_parts(node.eqn).consts
        shared = _widest_of_each(values[:count], node.eqn.invars)
        return shared + values[count:]

    def inside(self, block, arguments):
        results = self.block(block, arguments)
        return list(map(self.crossing, results, avals_of(block.outputs)))

    # Equations

    def visit_reduce_precision(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        params = bits_of(node.eqn.invars[0].aval.dtype)
        # That of `jax.checkpoint` has the bits of its operand, and rounds nothing.
        if params is not None and params.items() <= node.eqn.params.items():
            return self._moved(node, values)
        return self._as_written(node, values)

    def computed(self, node, values):
        results = _rule_of_equation(node.eqn)(self, node, values)
        # A lost divisor makes the quotient large, and loses no number of it.
        counted = values[:1] if node.name == "div" else values
        if node.name in _PASS_LOSSES and _LOST in _reasons(counted):
            return _replace_floats(results, reasons=_reasons(results) | {_LOST})
        return results

    def _entry(self, node: Node) -> PlanEntry | None:
        return self._use.entry(node.stack) or self._default_entry

    def _entry_for(self, computes: Computes) -> int:
        return FIRST_DTYPE + self._dtypes.setdefault(computes, len(self._dtypes))

    def _as_written(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        self.entries[node.number] = WRITTEN
        return _result_types(node, reasons=_reasons(values) & {_ASKED})

    visit_own = _as_written
    visit_sample = _as_written
    visit_stochastic = _as_written
    visit_custom_linear_solve = _as_written

    def _in_dtype(
        self, node: Node, values: PlannedTypes, dtype: DType, result: DType = None
    ) -> PlannedTypes:
        """Computes in a dtype, with a result of the same or of another one."""
        if dtype is None:
            return self._as_written(node, values)
        result = result or dtype
        # Nothing changes: bound as it stands, the equation compiles to the same HLO.
        if result == dtype and _float_dtypes(node) == {dtype}:
            return self._as_written(node, values)
        computes = Computes(dtype, result)
        self.entries[node.number] = self._entry_for(computes)
        return _result_types(node, dtype=result)

    def _dtype_for(self, node: Node, values: PlannedTypes) -> DType | None:
        """Returns what an equation computes in by the plan; None if as written."""
        if not any(map(is_floating, avals_of(node.eqn.outvars))):
            return None
        entry = self._entry(node)
        is_product = node.name in PRODUCT_NAMES
        dtype = self._plan.narrow if entry is None else entry.dtype
        if not is_narrower(dtype, FLOAT32):
            # To be wide harms nothing of what the source asks for.
            return dtype
        if entry is None and not is_product:
            has_floats = any(map(is_floating, values))
            if self._plan.default != ALL or not has_floats:
                return None
        # A product of narrow operands is as the source has it.
        narrowed = {FLOAT32} if is_product else {FLOAT32, self._plan.narrow}
        may_be_narrow = _float_dtypes(node) <= narrowed
        if (is_product or entry is None) and not may_be_narrow:
            return None
        # Other bits would be other draws.
        is_draw = Written(node.stack).is_of_sampler
        if is_draw or node.name in primitives.OF_OWN_DTYPES:
            return None
        reasons = _reasons(values)
        if is_product and precision_of_product(node.eqn):
            self._use.note(node.stack, "by the precision that it asks for")
        elif _ASKED in reasons:
            self._use.note(node.stack, "by its own cast")
        elif _LOST in reasons:
            self._use.note(node.stack, f"by a constant that {dtype} does not hold")
        else:
            return dtype
        return None

    def _plain(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """In the dtype of its entry, or of what the plan makes narrow."""
        return self._in_dtype(node, values, self._dtype_for(node, values))

    def _moved(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """In the dtype of its operands, which it does not round."""
        floats = [value for value in values if is_floating(value)]
        dtypes = {value.dtype for value in floats}
        if len(dtypes) == 1:
            (dtype,) = dtypes
        else:
            dtype = self._dtype_for(node, values)
        results = self._in_dtype(node, values, dtype)
        return _replace_floats(results, reasons=_reasons(floats))

    def _spread(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """As its operands, but wide ones stay so: the derivative is a sum."""
        return self._moved(node, _widest_of_each(values, node.eqn.invars))

    def _summed(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """As written but where an entry says more."""
        entry = self._entry(node)
        return self._in_dtype(node, values, None if entry is None else entry.dtype)

    def _converted(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """As written: a cast is the user's."""
        before = node.eqn.invars[0].aval.dtype
        after = node.eqn.outvars[0].aval.dtype
        entry = self._entry(node)
        if entry is not None and kind(after) == "float" and not node.is_asked:
            return self._in_dtype(node, values, entry.dtype)
        reasons = values[0].reasons
        if is_narrower(after, before):
            reasons = reasons - {_ASKED}
        elif node.is_asked and is_narrower(before, after):
            reasons = reasons | {_ASKED}
            if node.follows is None:
                self._use.note(node.stack, "by a cast that may be asked for")
        return _replace_floats(self._as_written(node, values), reasons=reasons)

    def _multiplied(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """A product or a convolution."""
        self._use.has_product = True
        dtype = self._dtype_for(node, values)
        if dtype is None:
            # A product may follow one that asks for float32, and is not asked for itself.
            return self._as_written(node, [])
        result = node.eqn.outvars[0].aval.dtype
        operands = avals_of(node.eqn.invars[:2])
        widens = any(is_narrower(operand.dtype, result) for operand in operands)
        # A product of narrow operands has a wide result where it asks for that. A gradient
        # may be added up over devices.
        is_wide = node.is_backward or node.asks_for_result or widens
        if not is_wide or not is_narrower(dtype, FLOAT32):
            result = dtype
        return self._in_dtype(node, values, dtype, result)


_EquationRule = Callable[[ByPlan, Node, PlannedTypes], PlannedTypes]


def _rule_of_equation(eqn: Equation) -> _EquationRule:
    """Returns the rule of an equation that holds no others."""
    name = eqn.primitive.name
    if name in PRODUCT_NAMES:
        return ByPlan._multiplied
    if name in SUMS:
        return ByPlan._summed
    if name == "convert_element_type":
        return ByPlan._converted
    operands = avals_of(eqn.invars)
    results = avals_of(eqn.outvars)
    kinds = {value_kind(aval) for aval in [*operands, *results]}
    # A narrow dtype cannot count: bfloat16 has no 257.
    if name == "iota" or not kinds.isdisjoint(["complex", None]):
        return ByPlan._as_written
    moves = name in _CHECKPOINT_NAMES or primitives.moves(eqn, operands, results)
    if not operands or not moves:
        return ByPlan._plain
    # `jax.export` has symbolic sizes, which can be equal, but have no order.
    is_larger = eqn.outvars[0].aval.size != eqn.invars[0].aval.size
    if name in _SPREADS or (name == "broadcast_in_dim" and is_larger):
        return ByPlan._spread
    return ByPlan._moved


def precision_of_product(eqn: Equation) -> str:
    """Returns what a product asks for: "highest", "high/default" or an algorithm.

    "" if it asks for nothing.
    """
    setting = eqn.params.get("precision")
    precisions = setting if isinstance(setting, tuple) else (setting,)
    names: list[str] = []
    for precision in precisions:
        name = str(getattr(precision, "name", precision)).lower()
        if precision is not None and name not in names:
            names.append(name)
    return "" if names == ["default"] else "/".join(names)


def _float_dtypes(node: Node) -> set[DType]:
    """Returns the dtypes of the floating operands and results of an equation."""
    avals = avals_of([*node.eqn.invars, *node.eqn.outvars])
    return {aval.dtype for aval in avals if is_floating(aval)}


def widest(value: PlannedType, aval: Aval) -> PlannedType:
    """Returns a value in no narrower dtype than the program has it."""
    dtype = dtype_or_none(aval)
    if is_narrower(value.dtype, dtype):
        return value._replace(dtype=dtype)
    return value


def _widest_of_each(values: PlannedTypes, variables: Sequence[Any]) -> PlannedTypes:
    return list(map(widest, values, avals_of(variables)))


def planned_types(values: Sequence[Any]) -> PlannedTypes:
    """Returns the types of arrays or abstract values as they are."""
    return [PlannedType(dtype_or_none(value)) for value in values]


def avals_of(variables: Sequence[Variable]) -> list[Aval]:
    """Returns the types of the variables of a jaxpr."""
    return [var.aval for var in variables]


def _result_types(node: Node, **fields: Any) -> PlannedTypes:
    """Returns the types of results as written, but for fields of the floating ones."""
    types = planned_types(avals_of(node.eqn.outvars))
    return _replace_floats(types, **fields)


def _reasons(values: Sequence[PlannedType]) -> frozenset[str]:
    """Returns all reasons for which some of the values stay wide."""
    return _NO_REASONS.union(*(value.reasons for value in values))


def _replace_floats(values: PlannedTypes, **fields: Any) -> PlannedTypes:
    """Returns types with other fields of the floating ones."""
    # Indices and masks beside the floats keep their own dtypes.
    types: PlannedTypes = []
    for value in values:
        if is_floating(value):
            value = value._replace(**fields)
        types.append(value)
    return types


def dtype_or_none(value: Any) -> DType:
    """Returns the dtype of an array or an abstract value; None if it has none."""
    return getattr(value, "dtype", None)


def is_floating(value: Any) -> bool:
    """Returns whether an array or an abstract value is a floating one."""
    return value_kind(value) == "float"


def is_narrower(dtype: DType, reference_dtype: DType) -> bool:
    """Returns whether a dtype has fewer bits than another one of its kind."""
    return 0 < bits(dtype) < bits(reference_dtype)
