"""Emits the equations of a traced program again, in the dtypes of a plan.

The equations are bound under the trace that is current, with their lines, scopes, meshes
and effects. One that computes as written is bound exactly as it stands, and so is a call, a
loop or branches in which all is as written.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax, tree_util
from jax.extend import source_info_util

from .._leaves.internals import ForeignNames
from .._leaves.types import Aval, Jaxpr, Leaf
from .._numbers.evaluate import bind, bits_of, evaluate_in
from .._numbers.plans import FIRST_DTYPE, WidthPlan
from .._numbers.primitives import COMPUTED, WITHOUT_BLOCKS, rule_of
from .._numbers.program import number_nodes
from .._program.aligned import NO_TRACES, SecondTraces
from .._program.jaxprs import Arrays, Variable, manual_axes, open_jaxpr
from .._program.program import CLOSED, WHILE, Block, Node, split_operands
from .._program.walk import Walk
from .decide import (
    DECIDED,
    FLOAT32,
    OWN_RULES,
    PLAIN_CALLS,
    ByPlan,
    PlannedType,
    PlannedTypes,
    dtype_or_none,
    is_floating,
    is_narrower,
    planned_types,
)
from .derivatives import Emitted, OwnRule, converted, in_types, to_dtype
from .matching import PlanUse
from .plan import Plan, PlanEntry
from .products import Product, multiply

# Of these XLA may leave out the rounding on one side.
_BILINEAR = ("dot_general", "conv_general_dilated")
_WITHOUT_BLOCKS = WITHOUT_BLOCKS | {CLOSED}
_COMPARING = ForeignNames("eq ne max min reduce_max reduce_min")
# A long process may call a function with ever new shapes.
_MOST_EMITTED = 2000


class Emitter:
    """Emits programs by a plan.

    Attributes:
        use: the plan in use.
        emitted: the inner jaxprs that were emitted, by what decides them.
    """

    def __init__(self, plan: Plan):
        self.use = PlanUse(plan)
        self.emitted = {}

    def emit(
        self,
        jaxpr: Jaxpr,
        arrays: Arrays,
        types: Sequence[PlannedType] = (),
        default_entry: PlanEntry | None = None,
        traces: SecondTraces = NO_TRACES,
    ) -> Emitted:
        """Returns the results of a closed jaxpr, and their types.

        Args:
            jaxpr: the jaxpr.
            arrays: its arguments.
            types: the types of the first ones, where they are not those of the arrays.
            default_entry: the entry of lines without one.
            traces: other traces of the jaxpr.
        """
        block = Block(jaxpr, traces=traces)
        _note_rules(block)
        size = number_nodes(block)
        rules = ByPlan(size, self.use, default_entry)
        remaining_types = planned_types(arrays[len(types) :])
        argument_types = [*types, *remaining_types]
        result_types = rules.block(block, argument_types)
        emission = Emission(self, rules.width_plan, rules.call_operands)
        results = emission.block(block, arrays)
        return results, result_types

    def emit_as_returned(
        self, jaxpr: Jaxpr, traces: SecondTraces, *arrays: Leaf
    ) -> list[Leaf]:
        """Returns the results of a closed jaxpr in the types in which it returns them."""
        results = []
        emitted, _ = self.emit(jaxpr, arrays, traces=traces)
        for array, aval in zip(emitted, jaxpr.out_avals):
            result = _as_returned(array, aval)
            results.append(result)
        return results


def _note_rules(block: Block) -> None:
    """Notes how what holds equations is emitted, and what nothing uses."""
    for node in block.nodes:
        if node.name in DECIDED:
            node.rule = COMPUTED
        elif node.rule != CLOSED:
            node.rule = rule_of(node)
        if node.rule in _WITHOUT_BLOCKS:
            node.inner = ()
        for inner in node.inner:
            _note_rules(inner)
    block.drop_unused()


@dataclasses.dataclass
class Emission(Walk[Leaf]):
    """Emits one program under the current trace."""

    _emitter: Emitter
    _plan: WidthPlan
    _operand_types_of_call: Mapping[int, PlannedTypes]

    def enter(self, block, arguments):
        values = super().enter(block, arguments)
        self._widen_shared(block, list(values), values)
        return values

    def constant(self, var, array):
        return array

    def add_results(self, node, values):
        # With the line, the scopes and the mesh with which the equation was traced.
        eqn = node.eqn
        info = eqn.source_info
        outer_names = source_info_util.current_name_stack()
        names = outer_names + info.name_stack
        line = source_info_util.user_context(info.traceback, name_stack=names)
        with line, eqn.ctx.manager:
            super().add_results(node, values)
            # The plan has left alone what is closed: none of its values is narrow.
            if node.rule != CLOSED:
                self._widen_shared(node.block, eqn.outvars, values)

    def node(self, node, operands):
        if node.inner and not self._may_differ(node, operands):
            return self.visit_own(node, operands)
        return super().node(node, operands)

    def visit_closed(self, node, values):
        """Binds an equation whose operands have the dtypes as written."""
        eqn = node.eqn
        return bind(eqn.primitive, values, eqn.params)

    def _widen_shared(
        self, block: Block, variables: Sequence[Variable], values: dict[Variable, Leaf]
    ) -> None:
        """Widens narrow values of several uses, since their cotangents are added up."""
        for var in variables:
            if block.uses[var] > 1:
                values[var] = _wide_but_rounded(values[var], var)

    def visit_own(self, node, values):
        """Binds an equation as it stands."""
        eqn = node.eqn
        operands = in_types(values, eqn.invars)
        return bind(eqn.primitive, operands, eqn.params)

    visit_stochastic = visit_own
    visit_custom_linear_solve = visit_own

    def computed(self, node, values):
        """Computes an equation that holds no others."""
        eqn = node.eqn
        if node.name in _COMPARING:
            values = list(map(_wide_but_rounded, values, eqn.invars))
        entry = int(self._plan.entries[node.number])
        computes = self._plan.computes(entry)
        if computes is None:
            return self.visit_own(node, values)
        if node.name in _BILINEAR and is_narrower(computes.dtype, FLOAT32):
            params = tuple(eqn.params.items())
            product = Product(eqn.primitive, params, computes)
            result = multiply(product, values)
            return [result]
        return evaluate_in(eqn, values, computes)

    # What holds other equations

    def visit_call(self, node, values):
        if node.name in PLAIN_CALLS:
            return self._rebound(node, values, [values])
        if node.name not in OWN_RULES:
            return self.visit_own(node, values)
        entry = self._entry_of_rule(node)
        emit = functools.partial(self._emitter.emit, default_entry=entry)
        body = node.inner[0]
        inner = self._inner_jaxpr(node, body, values)
        operand_types = self._operand_types_of_call[node.number]
        rule = OwnRule(node.eqn, inner, emit, operand_types)
        function = rule.function()
        return function(*values)

    def _entry_of_rule(self, node: Node) -> PlanEntry | None:
        """Returns the entry for the lines of a rule, which are traced as that of its call.

        It is that of its function: an expression of the function is none of the rule.
        """
        for inner in node.inner[0].all_nodes():
            entry = self._emitter.use.entry(inner.stack)
            if entry is None:
                continue
            if not entry.expression:
                return entry
        return None

    def visit_cond(self, node, values):
        # Behind the number of the branch.
        operands = values[1:]
        return self._rebound(node, values, itertools.repeat(operands))

    def visit_scan(self, node, values):
        eqn = node.eqn
        of_condition, shared, carry, scanned = split_operands(eqn, values)
        # A loop takes its first carry in the dtypes in which the body returns one.
        carry = self._settled(node, eqn.outvars, carry)
        if node.rule != WHILE:
            # The cotangents of what the turns share are added up.
            shared = map(_wide_but_rounded, shared, eqn.invars)
        of_body = [*shared, *carry, *scanned]
        operands = [*of_condition, *of_body]
        turn = [*of_condition, *carry]
        return self._rebound(node, operands, [of_body, turn])

    visit_while = visit_scan

    def _rebound(
        self, node: Node, values: Arrays, operands_by_block: Iterable[Arrays]
    ) -> list[Leaf]:
        """Binds an equation with the jaxprs that its blocks emit."""
        jaxprs = {}
        for block, operands in zip(node.inner, operands_by_block):
            identity = id(block.jaxpr)
            jaxprs[identity] = self._inner_jaxpr(node, block, operands)

        def emitted(param):
            identity = id(param)
            return jaxprs.get(identity, param)

        eqn = node.eqn
        params = tree_util.tree_map(emitted, eqn.params)
        return bind(eqn.primitive, values, params)

    def visit_shard_map(self, node, values):
        eqn = node.eqn
        params = eqn.params
        # The parameters of the primitive have other names in other releases.
        mapped = jax.shard_map(
            functools.partial(self._settled_block, node, node.inner[0]),
            mesh=params["mesh"],
            in_specs=(list(params["in_specs"]),),
            out_specs=list(params["out_specs"]),
            axis_names=set(manual_axes(eqn)),
            check_vma=params["check_vma"],
        )
        return mapped(list(values))

    def _may_differ(self, node: Node, values: Arrays) -> bool:
        """Returns whether an equation is given, or makes, values in other dtypes."""
        # Equations inside of another one have the numbers before its own.
        first = node.inner[0].first
        if self._plan.entries[first : node.number].any():
            return True
        # A backward pass may be narrow though the forward one is as written.
        if node.name == "custom_vjp_call":
            return True
        return any(map(_is_in_other_dtype, values, node.eqn.invars))

    def _inner_jaxpr(self, node: Node, block: Block, values: Arrays) -> Jaxpr:
        """Returns the jaxpr of a block of an equation with some operands."""
        # An equal jaxpr of another identity would compile once more.
        opened = open_jaxpr(block.jaxpr)
        avals = []
        for var, value in zip(opened.invars, values):
            aval = var.aval
            if _is_in_other_dtype(value, var):
                # No rounded number is a weak one: it would follow other operands.
                aval = aval.update(dtype=value.dtype, weak_type=False)
            avals.append(aval)
        # With the dtypes in which its results leave the equation.
        part = self._plan.part(block.first, node.number)
        key = (opened, tuple(avals), part)
        emitted = self._emitter.emitted
        if len(emitted) > _MOST_EMITTED:
            emitted.clear()
        if key not in emitted:
            run = functools.partial(self._settled_block, node, block)
            trace = jax.make_jaxpr(run)
            emitted[key] = trace(avals)
        narrow_jaxpr = emitted[key]
        # `jit` and loops hold closed jaxprs, `jax.checkpoint` an open one.
        if opened is block.jaxpr:
            return open_jaxpr(narrow_jaxpr)
        return narrow_jaxpr

    def _settled_block(self, node, block, arrays):
        """Returns the results of a block in the dtypes in which they leave its equation."""
        results = self.block(block, arrays)
        return self._settled(node, block.outputs, results)

    def _settled(
        self, node: Node, variables: Sequence[Variable], values: Arrays
    ) -> list[Leaf]:
        """Brings results of an equation to the dtypes in which they leave it."""
        results = []
        entries = self._plan.carried[node.number]
        for value, var, entry in zip(values, variables, entries):
            computes = self._plan.dtypes[entry - FIRST_DTYPE]
            written = dtype_or_none(var)
            dtype = computes.of(written)
            result = to_dtype(value, dtype)
            results.append(result)
        return results


def _as_returned(array: Leaf, aval: Aval) -> Leaf:
    """Returns a result in the type in which the function itself returns it."""
    if not hasattr(aval, "weak_type"):  # a reference
        return array
    dtype = aval.dtype
    array = jnp.asarray(array)
    is_weak = jax.typeof(array).weak_type
    if array.dtype == dtype and is_weak == aval.weak_type:
        return array
    return converted(array, dtype, aval.weak_type)


def _wide_but_rounded(array: Leaf, var: Variable) -> Leaf:
    """Returns a narrow array in its own dtype, still rounded.

    XLA leaves out a cast and its inverse, also on one side of `x == max(x, y)`, which the
    gradient of a maximum asks for. It keeps `reduce_precision`.
    """
    dtype = dtype_or_none(array)
    if not is_narrower(dtype, dtype_or_none(var)):
        return array
    wide = to_dtype(array, var.aval.dtype)
    bits = bits_of(dtype) or {}
    return lax.reduce_precision(wide, **bits)


def _is_in_other_dtype(value: Leaf, var: Variable) -> bool:
    if not is_floating(var):
        return False
    return value.dtype != var.aval.dtype
