"""What each equation of a program computes in by a plan: the rules of `Propagation`.

What is narrow is a product and its operands, or all, and what an entry of the plan names.
What moves numbers keeps the dtype that they have, and sums are as written. What the source
asks for stays, and so does what a narrow dtype would lose.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from .._leaves.dtypes import bits, kind
from .._leaves.internals import ForeignNames
from .._leaves.types import Aval, DType, Equation, Jaxpr, Leaf
from .._numbers import primitives
from .._numbers.evaluate import bits_of
from .._numbers.nodes import has_no_wide_form
from .._numbers.plans import FIRST_DTYPE, WRITTEN, Computes, Propagation, WidthPlan
from .._numbers.program import NumericProgram
from .._program.jaxprs import PRODUCTS as OF_PRODUCTS, jaxprs_in, loop_parts, open_jaxpr
from .._program.program import Block, Node
from .._tracebacks.written import Written
from .matching import Matcher, key_of_line
from .plan import ALL, Plan, PlanEntry

FLOAT32 = np.dtype("float32")
_BY_A_CONSTANT = "by a constant that {} does not hold"

# These are added up in the dtype as written, whatever is narrow around them.
SUMS = ForeignNames(
    "reduce_sum reduce_prod cumsum cumprod cumlogsumexp reduce_window_sum reduce_window "
    "scatter-add scatter_add psum psum_invariant@jax>=0.7 reduce_scatter add_any"
)
# A number that is lost is so in what these make of it: a mask, until a softmax has it.
_PASS_LOSSES = SUMS | ForeignNames("add sub mul div sort top_k")
_CHECKPOINT_NAMES = ForeignNames("name")  # of `jax.ad_checkpoint.checkpoint_name`
# Their derivative is a sum, which is added up wide.
_SPREADS = ForeignNames("gather pvary@jax>=0.6.2 pbroadcast")
# The calls that are emitted, by the parameter that holds their jaxpr.
BODY_PARAMETERS: dict[str, str] = {
    **dict.fromkeys(ForeignNames("jit@jax>=0.7 pjit@jax<0.7 remat2"), "jaxpr"),
    **dict.fromkeys(
        ForeignNames("closed_call@jax<0.12 eval_jaxpr@jax>=0.4.31"), "call_jaxpr"
    ),
}
# Those with rules of derivatives of their own.
OWN_RULES = "custom_jvp_call", "custom_vjp_call"


class ValueType(NamedTuple):
    """What is known of a value.

    Attributes:
        dtype: its dtype, which may be another than that of the program.
        is_kept: whether it is wide by an explicit cast of the user's.
        is_lost: whether a number in it is 0 or infinite in the narrow dtype.
    """

    dtype: DType
    is_kept: bool = False
    is_lost: bool = False


Types = list[ValueType]


def may_ask(jaxpr: Jaxpr) -> bool:
    """Whether a program may ask for a dtype, which its other traces tell.

    Where a product does, it has the same result type as one that asks for nothing.
    """
    for eqn in open_jaxpr(jaxpr).eqns:
        if eqn.primitive.name in OF_PRODUCTS and is_float(eqn.outvars[0].aval):
            return True
        is_cast = eqn.primitive.name == "convert_element_type"
        if is_cast and is_float(eqn.invars[0].aval) and is_float(eqn.outvars[0].aval):
            return True
        if any(map(may_ask, jaxprs_in(eqn.params))):
            return True
    return False


def by_plan(program: NumericProgram, plan: Plan) -> WidthPlan:
    """What a program computes in by a plan.

    Raises:
        ValueError: if an entry matches nothing of it.
    """
    matcher = Matcher(plan)
    rules = ByPlan(program, plan, matcher, {})
    rules.block(program.block, [ValueType(own_dtype(x)) for x in program.jaxpr.in_avals])
    matcher.check()
    return rules.made


class ByPlan(Propagation[ValueType]):
    """The rules of a plan.

    Attributes:
        products: the numbers of the products.
        given: what is known of the operands of calls, by their numbers.
    """

    def __init__(
        self,
        program: NumericProgram,
        plan: Plan,
        matcher: Matcher,
        kept: dict[str, None],
        around: PlanEntry | None = None,
    ):
        super().__init__(program)
        self._plan, self._matcher, self._kept = plan, matcher, kept
        self._around = around
        self._dtypes: dict[Computes, int] = {}
        self.products = set[int]()
        self.given: dict[int, Types] = {}

    @property
    def made(self) -> WidthPlan:
        """What each equation computes in."""
        return WidthPlan(self.entries, False, False, self.carried, dtypes=(*self._dtypes,))

    # What holds other equations

    def constant(self, array: Leaf, aval: Aval) -> ValueType:
        dtype = own_dtype(aval)
        is_known = not isinstance(array, Tracer)
        is_known = is_known and getattr(array, "is_fully_addressable", True)
        if kind(dtype) != "float" or not is_known:
            return ValueType(dtype)
        value = np.asarray(array, dtype)
        if value.size != 1:  # of an array, its greatest finite number counts
            value = np.max(abs(value), initial=0, where=np.isfinite(value))
        with np.errstate(all="ignore"):
            narrow = value.astype(self._plan.narrow)
        is_lost = (narrow == 0) > (value == 0) or np.isfinite(value) > np.isfinite(narrow)
        return ValueType(dtype, is_lost=bool(is_lost))

    def node(self, node: Node, values: Types) -> Sequence[ValueType]:
        self._entry(node)  # which then has matched
        return super().node(node, values)

    def called(self, node: Node, values: Types) -> Sequence[ValueType]:
        if node.name not in BODY_PARAMETERS and node.name not in OWN_RULES:
            return self._written(node, values)
        self.given[node.number] = values
        made = self.leaving(node.inner[0], self.block(node.inner[0], values))
        if any(node.eqn.params.get("donated_invars", ())):
            # A buffer that is donated has room for a result of its own dtype.
            made = [widest(x, v.aval) for x, v in zip(made, node.eqn.outvars)]
        self.leave(node, made)
        return made

    def solve(self, node: Node, values: Types) -> Sequence[ValueType]:
        return self._written(node, values)

    def entering(self, node: Node, values: Types) -> Types:
        if node.rule != "scan":
            return values
        # The cotangent of what the turns share is added up in its dtype.
        shared = loop_parts(node.eqn).consts
        pairs = zip(values[:shared], node.eqn.invars)
        return [*(widest(x, v.aval) for x, v in pairs), *values[shared:]]

    def leaving(self, block: Block, values: Types) -> Types:
        pairs = zip(values, block.outputs)
        return [self.crossing(value, var.aval) for value, var in pairs]

    def crossing(self, value: ValueType, aval: Aval) -> ValueType:
        return value if self._plan.default == ALL else widest(value, aval)

    def joined(self, values: Sequence[ValueType], attempt: int) -> ValueType:
        dtypes = [value.dtype for value in values]
        # In the first turns of a loop the body tells; then the wider of both.
        dtype = dtypes[-1] if 0 < attempt < 3 else max(dtypes, key=bits)
        return ValueType(dtype, _is_kept(values), _is_lost(values))

    def entry_of(self, value: ValueType, aval: Aval) -> int:
        is_own = value.dtype == own_dtype(aval) or not is_float(aval)
        return WRITTEN if is_own else self._named(value.dtype)

    # Equations

    def opaque(self, node: Node, values: Types) -> Types:
        """As it stands, but the `reduce_precision` of `jax.checkpoint`."""
        is_rounding = node.name == "reduce_precision"
        own = bits_of(node.eqn.invars[0].aval.dtype) if is_rounding else None
        moves = own is not None and own.items() <= node.eqn.params.items()
        return (self._moved if moves else self._written)(node, values)

    def computed(self, node: Node, values: Types) -> Types:
        made = _rule_of_equation(node.eqn)(self, node, values)
        counted = values[: 1 if node.name == "div" else None]
        is_passed = node.name in _PASS_LOSSES and _is_lost(counted)
        return _with_flags(made, is_lost=True) if is_passed else made

    def _named(self, dtype: DType, result: DType = None) -> int:
        computes = Computes(dtype, dtype if result is None else result)
        return FIRST_DTYPE + self._dtypes.setdefault(computes, len(self._dtypes))

    def _entry(self, node: Node) -> PlanEntry | None:
        return self._matcher.entry(node.stack) or self._around

    def _keep(self, node: Node, by: str) -> None:
        """Notes a line that computes as written."""
        line = str(key_of_line(node.stack)) or "inside JAX"
        self._kept[f"{line}: kept {by}"] = None

    def _written(self, node: Node, values: Types) -> Types:
        """As it stands."""
        self.entries[node.number] = WRITTEN
        made = [ValueType(own_dtype(var.aval)) for var in node.eqn.outvars]
        return _with_flags(made, is_kept=_is_kept(values))

    def _in(self, dtype: DType, node: Node, values: Types, result: DType = None) -> Types:
        """In a dtype."""
        variables = *node.eqn.invars, *node.eqn.outvars
        is_own = all(v.aval.dtype == dtype for v in variables if is_float(v.aval))
        if is_own and result in (None, dtype):
            return self._written(node, values)
        self.entries[node.number] = self._named(dtype, result)
        made = dtype if result is None else result
        avals = [var.aval for var in node.eqn.outvars]
        return [ValueType(made if is_float(x) else own_dtype(x)) for x in avals]

    def _dtype_for(self, node: Node, values: Types) -> DType | None:
        """What an equation computes in by the plan; None if as written."""
        entry, eqn = self._entry(node), node.eqn
        is_product = node.name in OF_PRODUCTS
        if not any(is_float(var.aval) for var in eqn.outvars):
            return None
        if entry is not None and not is_narrower(entry.dtype, FLOAT32):
            return entry.dtype
        if entry is None and not (is_product or self._plan.default == ALL):
            return None
        dtype = self._plan.narrow if entry is None else entry.dtype
        allowed = (FLOAT32,) if is_product else (FLOAT32, self._plan.narrow)
        avals = [var.aval for var in (*eqn.invars, *eqn.outvars) if is_float(var.aval)]
        if (is_product or entry is None) and any(x.dtype not in allowed for x in avals):
            return None
        if Written(node.stack).is_of_sampler:
            return None
        if is_product and _asks_for_precision(eqn):
            return self._keep(node, "by the precision that it asks for")
        if _is_kept(values):
            return self._keep(node, "by its own cast")
        if _is_lost(values):
            return self._keep(node, _BY_A_CONSTANT.format(dtype))
        return dtype

    def _plain(self, node: Node, values: Types) -> Types:
        """In the dtype of its entry, or of what the plan makes narrow."""
        has_floats = any(kind(value.dtype) == "float" for value in values)
        dtype = self._dtype_for(node, values) if has_floats or self._entry(node) else None
        is_fixed = node.name in primitives.OF_OWN_DTYPES
        if dtype is None or (is_fixed and bits(dtype) < 32):
            return self._written(node, values)
        return self._in(dtype, node, values)

    def _moved(self, node: Node, values: Types) -> Types:
        """In the dtype that its operands have, which it rounds none of."""
        floats = [value for value in values if kind(value.dtype) == "float"]
        dtypes = {value.dtype for value in floats}
        if len(dtypes) == 1:
            made = self._in(dtypes.pop(), node, values)
        elif _is_lost(floats):
            self._keep(node, _BY_A_CONSTANT.format(self._plan.narrow))
            made = self._written(node, values)
        else:
            return self._plain(node, values)
        return _with_flags(made, is_kept=_is_kept(floats), is_lost=_is_lost(floats))

    def _spread(self, node: Node, values: Types) -> Types:
        """As written, but that what is wider stays so: its derivative is a sum."""
        pairs = zip(values, node.eqn.invars)
        return self._moved(node, [widest(value, v.aval) for value, v in pairs])

    def _summed(self, node: Node, values: Types) -> Types:
        """As written but where an entry says more."""
        if (entry := self._entry(node)) is None:
            return self._written(node, values)
        return self._in(entry.dtype, node, values)

    def _converted(self, node: Node, values: Types) -> Types:
        """As written: a cast is the user's."""
        before, after = (x.aval.dtype for x in (node.eqn.invars[0], node.eqn.outvars[0]))
        entry, is_asked = self._entry(node), node.is_asked
        if entry is not None and kind(after) == "float" and not is_asked:
            return self._in(entry.dtype, node, values)
        (value,) = values
        (made,) = self._written(node, values)
        is_kept = is_asked and is_narrower(before, after)
        if is_kept and node.follows is None:
            self._keep(node, "by a cast that may be asked for")
        is_kept = is_kept or (value.is_kept and not is_narrower(after, before))
        value = value._replace(dtype=made.dtype, is_kept=False)
        return _with_flags([value], is_kept=is_kept)

    def _multiplied(self, node: Node, values: Types) -> Types:
        """A product or a convolution."""
        self.products.add(node.number)
        dtype = self._dtype_for(node, values)
        if dtype is None:
            return [ValueType(x.dtype) for x in self._written(node, values)]
        result = node.eqn.outvars[0].aval.dtype
        # A product of narrow operands has a wide result where it asks for that.
        is_asked = node.asks_for_result or any(
            is_narrower(own_dtype(var.aval), result) for var in node.eqn.invars[:2]
        )
        # A gradient may be added up over devices.
        is_wide = node.is_backward or is_asked
        if not (is_wide and is_narrower(dtype, FLOAT32)):
            result = None
        return self._in(dtype, node, values, result)


def _rule_of_equation(eqn: Equation) -> Callable[..., Types]:
    """The rule of an equation without others inside."""
    name = eqn.primitive.name
    if name in _RULE_OF_PRIMITIVE:
        return _RULE_OF_PRIMITIVE[name]
    made, operands = ((*(v.aval for v in x),) for x in (eqn.outvars, eqn.invars))
    if has_no_wide_form(eqn) or not _are_floats(made, operands):
        return ByPlan._written
    if not operands or not (
        name in _CHECKPOINT_NAMES or primitives.moves(eqn, operands, made)
    ):
        return ByPlan._plain
    # `jax.export` has symbolic sizes, which can be equal, but have no order.
    is_repeated = name == "broadcast_in_dim" and made[0].size != operands[0].size
    return ByPlan._spread if is_repeated or name in _SPREADS else ByPlan._moved


def _are_floats(made: Sequence[Aval], operands: Sequence[Aval]) -> bool:
    """Whether an equation computes with real numbers alone, and makes some."""
    kinds = [kind(getattr(x, "dtype", None)) for x in made]
    others = [kind(getattr(x, "dtype", None)) for x in operands]
    return "float" in kinds and not {"complex", None}.intersection((*kinds, *others))


_RULE_OF_PRIMITIVE: dict[str, Callable[..., Types]] = {
    **dict.fromkeys(OF_PRODUCTS, ByPlan._multiplied),
    **dict.fromkeys(SUMS, ByPlan._summed),
    **dict.fromkeys((*primitives.OF_BITS, "iota"), ByPlan._written),
    "convert_element_type": ByPlan._converted,
}


def _asks_for_precision(eqn: Equation) -> bool:
    """Whether a product asks for more than the precision by default."""
    precision = eqn.params.get("precision")
    each = precision if isinstance(precision, tuple) else (precision,)
    return any(x not in (None, jax.lax.Precision.DEFAULT) for x in each)


def widest(value: ValueType, aval: Aval) -> ValueType:
    """A value that is no narrower than the program has it."""
    dtype = own_dtype(aval)
    return value._replace(dtype=dtype) if is_narrower(value.dtype, dtype) else value


def _is_lost(values: Sequence[ValueType]) -> bool:
    return any(value.is_lost for value in values)


def _is_kept(values: Sequence[ValueType]) -> bool:
    return any(value.is_kept for value in values)


def _with_flags(values: Types, **flags: bool) -> Types:
    return [x._replace(**flags) if kind(x.dtype) == "float" else x for x in values]


def own_dtype(value: Any) -> DType:
    return getattr(value, "dtype", None)


def is_float(value: Any) -> bool:
    """Whether an array or an abstract value is a floating one."""
    return kind(own_dtype(value)) == "float"


def is_narrower(dtype: DType, other: DType) -> bool:
    """Whether a dtype has fewer bits than another of its kind."""
    return 0 < bits(dtype) < bits(other)
