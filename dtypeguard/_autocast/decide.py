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
from .._leaves.types import Aval, DType, Equation, Jaxpr, Leaf
from .._numbers import primitives
from .._numbers.evaluate import bits_of
from .._numbers.plans import FIRST_DTYPE, WRITTEN, Computes, Propagation, WidthPlan
from .._numbers.program import NumericProgram
from .._program.jaxprs import PRODUCTS as PRODUCT_NAMES, Variable, all_jaxprs, loop_parts
from .._program.program import Block, Node
from .._tracebacks.written import Written
from .matching import Matcher, key_of_line
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
_CALLS_WITH_JAXPR = ForeignNames("jit@jax>=0.7 pjit@jax<0.7 remat2")
_CALLS_WITH_CALL_JAXPR = ForeignNames("closed_call@jax<0.12 eval_jaxpr@jax>=0.4.31")
# Those with rules of derivatives of their own.
OWN_RULES = ("custom_jvp_call", "custom_vjp_call")


def body_parameter(primitive: str) -> str | None:
    """Returns the parameter of a call that holds its jaxpr; None of other primitives."""
    if primitive in _CALLS_WITH_JAXPR:
        return "jaxpr"
    if primitive in _CALLS_WITH_CALL_JAXPR:
        return "call_jaxpr"
    return None


class PlannedType(NamedTuple):
    """What the rules know of a value.

    Attributes:
        dtype: its dtype by the plan.
        is_asked: whether it is wide by an explicit cast of the user's.
        is_lost: whether a number in it is 0 or infinite in the narrow dtype.
    """

    dtype: DType
    is_asked: bool = False
    is_lost: bool = False


PlannedTypes = list[PlannedType]


def may_ask(jaxpr: Jaxpr) -> bool:
    """Returns whether a program may ask for a dtype, which its sibling trace tells.

    A product that asks has the same result type as one that asks for nothing.
    """
    for inner in all_jaxprs(jaxpr):
        for eqn in inner.eqns:
            name = eqn.primitive.name
            is_cast = name == "convert_element_type" and is_floating(eqn.invars[0].aval)
            if (is_cast or name in PRODUCT_NAMES) and is_floating(eqn.outvars[0].aval):
                return True
    return False


def by_plan(program: NumericProgram, plan: Plan) -> WidthPlan:
    """Returns what a program computes in by a plan.

    Raises:
        ValueError: if an entry matches nothing of it.
    """
    matcher = Matcher(plan)
    rules = ByPlan(program, plan, matcher, {})
    types = [PlannedType(dtype_or_none(aval)) for aval in program.jaxpr.in_avals]
    rules.block(program.block, types)
    # A plan whose entry names nothing belongs to other code, and must not pass for applied.
    matcher.check()
    return rules.width_plan


class ByPlan(Propagation[PlannedType]):
    """The rules of a plan.

    Args:
        program: the program.
        plan: the plan.
        matcher: finds the entries of equations.
        notes: the lines that compute as written though the plan makes them narrow.
        default_entry: the entry of lines without one.

    Attributes:
        has_product: whether it has a product, narrow or not.
        call_operands: the types of the operands of calls, by their numbers.
    """

    def __init__(
        self,
        program: NumericProgram,
        plan: Plan,
        matcher: Matcher,
        notes: dict[str, None],
        default_entry: PlanEntry | None = None,
    ):
        super().__init__(program)
        self._plan = plan
        self._matcher = matcher
        self._notes = notes
        self._default_entry = default_entry
        # A width plan is an array of numbers: these are the dtypes that its numbers stand
        # for.
        self._dtypes: dict[Computes, int] = {}
        self.has_product = False
        self.call_operands: dict[int, PlannedTypes] = {}

    @property
    def width_plan(self) -> WidthPlan:
        """What each equation computes in."""
        dtypes = tuple(self._dtypes)
        return WidthPlan(self.entries, False, False, self.carried, dtypes=dtypes)

    # Values

    def constant(self, var: Variable, array: Leaf) -> PlannedType:
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
        is_lost = not np.isfinite(narrow) or (narrow == 0 and greatest != 0)
        return PlannedType(dtype, is_lost=bool(is_lost))

    def crossing(self, value: PlannedType, aval: Aval) -> PlannedType:
        if self._plan.default == ALL:
            return value
        # With narrow products alone, calls and loops have the dtypes as written outside.
        return widest(value, aval)

    def joined(self, values: Sequence[PlannedType], attempt: int) -> PlannedType:
        dtypes = [value.dtype for value in values]
        # In the first turns of a loop the body tells; then the wider of both.
        dtype = dtypes[-1] if 0 < attempt < 3 else max(dtypes, key=bits)
        return PlannedType(dtype, _is_asked(values), _hold_lost_number(values))

    def entry_of(self, value: PlannedType, aval: Aval) -> int:
        if value.dtype == dtype_or_none(aval) or not is_floating(aval):
            return WRITTEN
        return self._entry_for(Computes(value.dtype, value.dtype))

    # What holds other equations

    def node(self, node: Node, operands: PlannedTypes) -> Sequence[PlannedType]:
        self._entry(node)  # a plan may name a whole loop: the entry has matched then
        return super().node(node, operands)

    def visit_call(self, node: Node, values: PlannedTypes) -> Sequence[PlannedType]:
        if node.name == primitives.AUTOCAST_PRODUCT:  # the program is autocast already
            self.has_product = True
        if body_parameter(node.name) is None and node.name not in OWN_RULES:
            return self._as_written(node, values)
        self.call_operands[node.number] = values
        body = node.inner[0]
        results = self.leaving(body, self.block(body, values))
        if any(node.eqn.params.get("donated_invars", ())):
            # A buffer that is donated has room for a result of its own dtype.
            results = _widest_of_each(results, node.eqn.outvars)
        # A call has the dtypes inside that its results leave in.
        self.left(node, results)
        return results

    def entering(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        if node.rule != "scan":
            return values
        # The cotangent of what the turns share is added up in its dtype.
        shared = loop_parts(node.eqn).consts
        return _widest_of_each(values[:shared], node.eqn.invars) + values[shared:]

    def leaving(self, block: Block, values: PlannedTypes) -> PlannedTypes:
        pairs = zip(values, block.outputs)
        return [self.crossing(value, var.aval) for value, var in pairs]

    # Equations

    def visit_reduce_precision(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        params = bits_of(node.eqn.invars[0].aval.dtype)
        # That of `jax.checkpoint` has the bits of its operand, and rounds nothing.
        if params is not None and params.items() <= node.eqn.params.items():
            return self._moved(node, values)
        return self._as_written(node, values)

    def computed(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        results = _rule_of_equation(node.eqn)(self, node, values)
        # A lost divisor makes the quotient large, and loses no number of it.
        counted = values[:1] if node.name == "div" else values
        if node.name in _PASS_LOSSES and _hold_lost_number(counted):
            return _with_flags(results, is_lost=True)
        return results

    def _entry(self, node: Node) -> PlanEntry | None:
        return self._matcher.entry(node.stack) or self._default_entry

    def _entry_for(self, computes: Computes) -> int:
        return FIRST_DTYPE + self._dtypes.setdefault(computes, len(self._dtypes))

    def _note(self, node: Node, reason: str) -> None:
        """Notes a line that computes as written though the plan makes it narrow."""
        line = str(key_of_line(node.stack)) or "inside JAX"
        self._notes[f"{line}: kept {reason}"] = None

    def _note_loss(self, node: Node, dtype: DType) -> None:
        self._note(node, f"by a constant that {dtype} does not hold")

    def _as_written(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        self.entries[node.number] = WRITTEN
        results = [PlannedType(dtype_or_none(var.aval)) for var in node.eqn.outvars]
        return _with_flags(results, is_asked=_is_asked(values))

    visit_own = _as_written
    visit_sample = _as_written
    visit_stochastic = _as_written
    visit_custom_linear_solve = _as_written

    def _in_dtype(
        self, node: Node, values: PlannedTypes, dtype: DType, result: DType | None = None
    ) -> PlannedTypes:
        """Computes in a dtype, with a result of the same or of another one."""
        result = dtype if result is None else result
        variables = [*node.eqn.invars, *node.eqn.outvars]
        floats = [var.aval for var in variables if is_floating(var.aval)]
        # Nothing changes: bound as it stands, the equation compiles to the same HLO.
        if result == dtype and all(aval.dtype == dtype for aval in floats):
            return self._as_written(node, values)
        self.entries[node.number] = self._entry_for(Computes(dtype, result))
        types: PlannedTypes = []
        for var in node.eqn.outvars:
            # Indices and masks beside the floats keep their own dtypes.
            result_dtype = result if is_floating(var.aval) else dtype_or_none(var.aval)
            types.append(PlannedType(result_dtype))
        return types

    def _dtype_for(self, node: Node, values: PlannedTypes) -> DType | None:
        """Returns what an equation computes in by the plan; None if as written."""
        entry = self._entry(node)
        is_product = node.name in PRODUCT_NAMES
        if not any(is_floating(var.aval) for var in node.eqn.outvars):
            return None
        if entry is None:
            if not is_product and self._plan.default != ALL:
                return None
            dtype = self._plan.narrow
        elif is_narrower(entry.dtype, FLOAT32):
            dtype = entry.dtype
        else:
            # To be wide harms nothing of what the source asks for.
            return entry.dtype
        if (is_product or entry is None) and not self._may_be_narrow(node, is_product):
            return None
        # Other bits would be other draws.
        if Written(node.stack).is_of_sampler:
            return None
        if is_product and precision_of_product(node.eqn):
            self._note(node, "by the precision that it asks for")
            return None
        if _is_asked(values):
            self._note(node, "by its own cast")
            return None
        if _hold_lost_number(values):
            self._note_loss(node, dtype)
            return None
        return dtype

    def _may_be_narrow(self, node: Node, is_product: bool) -> bool:
        """Returns whether an equation is in float32, or narrow already."""
        allowed = [FLOAT32] if is_product else [FLOAT32, self._plan.narrow]
        variables = [*node.eqn.invars, *node.eqn.outvars]
        return all(v.aval.dtype in allowed for v in variables if is_floating(v.aval))

    def _plain(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """In the dtype of its entry, or of what the plan makes narrow."""
        has_floats = any(kind(value.dtype) == "float" for value in values)
        if not has_floats and self._entry(node) is None:
            return self._as_written(node, values)
        dtype = self._dtype_for(node, values)
        needs_float32 = node.name in primitives.OF_OWN_DTYPES
        if dtype is None or (needs_float32 and bits(dtype) < 32):
            return self._as_written(node, values)
        return self._in_dtype(node, values, dtype)

    def _moved(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """In the dtype of its operands, which it does not round."""
        floats = [value for value in values if kind(value.dtype) == "float"]
        dtypes = {value.dtype for value in floats}
        if len(dtypes) == 1:
            results = self._in_dtype(node, values, dtypes.pop())
        elif _hold_lost_number(floats):
            self._note_loss(node, self._plan.narrow)
            results = self._as_written(node, values)
        else:
            return self._plain(node, values)
        return _with_flags(
            results, is_asked=_is_asked(floats), is_lost=_hold_lost_number(floats)
        )

    def _spread(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """As its operands, but wide ones stay so: the derivative is a sum."""
        return self._moved(node, _widest_of_each(values, node.eqn.invars))

    def _summed(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """As written but where an entry says more."""
        entry = self._entry(node)
        if entry is None:
            return self._as_written(node, values)
        return self._in_dtype(node, values, entry.dtype)

    def _converted(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """As written: a cast is the user's."""
        before = node.eqn.invars[0].aval.dtype
        after = node.eqn.outvars[0].aval.dtype
        entry = self._entry(node)
        if entry is not None and kind(after) == "float" and not node.is_asked:
            return self._in_dtype(node, values, entry.dtype)
        widens = node.is_asked and is_narrower(before, after)
        if widens and node.follows is None:
            self._note(node, "by a cast that may be asked for")
        was_asked = values[0].is_asked and not is_narrower(after, before)
        results = self._as_written(node, values)
        value = values[0]._replace(dtype=results[0].dtype, is_asked=False)
        return _with_flags([value], is_asked=widens or was_asked)

    def _multiplied(self, node: Node, values: PlannedTypes) -> PlannedTypes:
        """A product or a convolution."""
        self.has_product = True
        dtype = self._dtype_for(node, values)
        if dtype is None:
            results = self._as_written(node, values)
            # A product may follow one that asks for float32, and is not asked for itself.
            return [PlannedType(value.dtype) for value in results]
        result = node.eqn.outvars[0].aval.dtype
        operands = [dtype_or_none(var.aval) for var in node.eqn.invars[:2]]
        widens = any(is_narrower(operand, result) for operand in operands)
        # A product of narrow operands has a wide result where it asks for that. A gradient
        # may be added up over devices.
        is_wide = node.is_backward or node.asks_for_result or widens
        if is_wide and is_narrower(dtype, FLOAT32):
            return self._in_dtype(node, values, dtype, result)
        return self._in_dtype(node, values, dtype)


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
    # A narrow dtype cannot count: bfloat16 has no 257.
    if name == "iota":
        return ByPlan._as_written
    operands = [var.aval for var in eqn.invars]
    results = [var.aval for var in eqn.outvars]
    if not _are_real(operands, results):
        return ByPlan._as_written
    moves = name in _CHECKPOINT_NAMES or primitives.moves(eqn, operands, results)
    if not operands or not moves:
        return ByPlan._plain
    # `jax.export` has symbolic sizes, which can be equal, but have no order.
    repeats = name == "broadcast_in_dim" and results[0].size != operands[0].size
    if repeats or name in _SPREADS:
        return ByPlan._spread
    return ByPlan._moved


def _are_real(operands: Sequence[Aval], results: Sequence[Aval]) -> bool:
    """Returns whether an equation has real operands alone, and floating results."""
    result_kinds = {kind(dtype_or_none(aval)) for aval in results}
    kinds = result_kinds | {kind(dtype_or_none(aval)) for aval in operands}
    return "float" in result_kinds and kinds.isdisjoint(["complex", None])


def precision_of_product(eqn: Equation) -> str:
    """Returns what a product asks for: "highest", "high/default" or an algorithm.

    "" if it asks for nothing.
    """
    setting = eqn.params.get("precision")
    names: list[str] = []
    precisions = setting if isinstance(setting, tuple) else (setting,)
    for precision in precisions:
        name = str(getattr(precision, "name", precision)).lower()
        if precision is not None and name not in names:
            names.append(name)
    return "" if names == ["default"] else "/".join(names)


def widest(value: PlannedType, aval: Aval) -> PlannedType:
    """Returns a value in no narrower dtype than the program has it."""
    dtype = dtype_or_none(aval)
    if is_narrower(value.dtype, dtype):
        return value._replace(dtype=dtype)
    return value


def _widest_of_each(values: PlannedTypes, variables: Sequence[Any]) -> PlannedTypes:
    return [widest(value, var.aval) for value, var in zip(values, variables)]


def _hold_lost_number(values: Sequence[PlannedType]) -> bool:
    return any(value.is_lost for value in values)


def _is_asked(values: Sequence[PlannedType]) -> bool:
    return any(value.is_asked for value in values)


def _with_flags(values: PlannedTypes, **flags: bool) -> PlannedTypes:
    types: PlannedTypes = []
    for value in values:
        if kind(value.dtype) == "float":
            value = value._replace(**flags)
        types.append(value)
    return types


def dtype_or_none(value: Any) -> DType:
    """Returns the dtype of an array or an abstract value; None if it has none."""
    return getattr(value, "dtype", None)


def is_floating(value: Any) -> bool:
    """Returns whether an array or an abstract value is a floating one."""
    return kind(dtype_or_none(value)) == "float"


def is_narrower(dtype: DType, reference_dtype: DType) -> bool:
    """Returns whether a dtype has fewer bits than another one of its kind."""
    return 0 < bits(dtype) < bits(reference_dtype)
