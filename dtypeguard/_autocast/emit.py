"""Emits the equations of a traced program again, in the dtypes of a plan.

The equations are bound under the trace that is current, with their lines, scopes, meshes
and effects. One that computes as written is bound exactly as it stands, and so is a call, a
loop or branches in which all is as written.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import source_info_util

from .._leaves.types import Aval, DType, Equation, Jaxpr, Leaf
from .._numbers.arithmetic import REFUSALS
from .._numbers.evaluate import as_dtype, bind, bits_of, evaluate_in, of_mesh
from .._numbers.formats import Formats
from .._numbers.nodes import Interpreter
from .._numbers.primitives import is_inexact
from .._numbers.program import NumericProgram
from .._program.aligned import NO_TRACES, SecondTraces
from .._program.jaxprs import Variable, loop_parts, manual_axes, open_jaxpr
from .._program.program import LOOPS, Block, Node
from .decide import (
    FLOAT32,
    OWN_RULES,
    ByPlan,
    PlannedType,
    PlannedTypes,
    body_parameter,
    dtype_or_none,
    is_floating,
    is_narrower,
)
from .derivatives import OwnRule
from .matching import Matcher
from .plan import Plan, PlanEntry
from .products import BILINEAR, multiply, product_of

# Of these XLA may leave out the rounding on one side.
_COMPARING = frozenset(["eq", "ne", "max", "min", "reduce_max", "reduce_min"])
# A long process may call a function with ever new shapes.
_MOST_EMITTED = 2000
_FORMATS = Formats(FLOAT32)


@contextlib.contextmanager
def _in_context(eqn: Equation) -> Iterator[None]:
    """Restores the line, the scopes and the mesh with which an equation was traced."""
    info = eqn.source_info
    names = source_info_util.current_name_stack() + info.name_stack
    with source_info_util.user_context(info.traceback, name_stack=names), eqn.ctx.manager:
        yield


class Emitter:
    """Emits programs by a plan.

    Attributes:
        plan: the plan.
        matcher: finds the entries of equations.
        notes: the lines that compute as written though the plan makes them narrow.
        emitted: the inner jaxprs that were emitted, by what decides them.
        has_product: whether a program has a product, narrow or not.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.matcher = Matcher(plan)
        self.notes: dict[str, None] = {}
        self.emitted: dict[object, Jaxpr] = {}
        self.has_product = False

    def emit(
        self,
        jaxpr: Jaxpr,
        arrays: Sequence[Leaf],
        types: Sequence[PlannedType] = (),
        default_entry: PlanEntry | None = None,
        traces: SecondTraces = NO_TRACES,
    ) -> tuple[list[Leaf], PlannedTypes]:
        """Returns the results of a closed jaxpr, and their types.

        Args:
            jaxpr: the jaxpr.
            arrays: its arguments.
            types: the types of the first ones, where they are not those of the arrays.
            default_entry: the entry of lines without one.
            traces: other traces of the jaxpr.
        """
        program = NumericProgram(jaxpr, _FORMATS, traces, is_measured=False)
        rules = ByPlan(program, self.plan, self.matcher, self.notes, default_entry)
        types = list(types)
        for array in arrays[len(types) :]:
            types.append(PlannedType(dtype_or_none(array)))
        result_types = rules.block(program.block, types)
        self.has_product = self.has_product or rules.has_product
        return Emission(rules, self).block(program.block, arrays), result_types

    def emit_as_returned(
        self, jaxpr: Jaxpr, arrays: Sequence[Leaf], traces: SecondTraces
    ) -> list[Leaf]:
        """Returns the results of a closed jaxpr in the types in which it returns them."""
        emitted, _ = self.emit(jaxpr, arrays, traces=traces)
        results: list[Leaf] = []
        for result, aval in zip(emitted, jaxpr.out_avals):
            results.append(_as_returned(result, aval))
        return results


class Emission(Interpreter):
    """Emits one program under the current trace."""

    def __init__(self, rules: ByPlan, emitter: Emitter):
        self._emitter = emitter
        self._plan = rules.width_plan
        self._call_operands = rules.call_operands

    def enter(self, block: Block, arguments: Sequence[Leaf]) -> dict[Variable, Any]:
        values = super().enter(block, arguments)
        return dict(zip(values, self._widen_shared(block, list(values), values.values())))

    def context(self, eqn: Equation) -> contextlib.AbstractContextManager[None]:
        return _in_context(eqn)

    def node(self, node: Node, operands: list[Leaf]) -> list[Leaf]:
        results = super().node(node, operands)
        return self._widen_shared(node.block, node.eqn.outvars, results)

    def _widen_shared(
        self, block: Block, variables: Sequence[Variable], values: Iterable[Leaf]
    ) -> list[Leaf]:
        """Widens narrow values of several uses, since their cotangents are added up."""
        results: list[Leaf] = []
        for var, value in zip(variables, values):
            is_shared = block.uses[var] > 1
            results.append(_wide_but_rounded(value, var.aval) if is_shared else value)
        return results

    def written(self, node: Node, values: Sequence[Leaf]) -> list[Leaf]:
        """Binds an equation as it stands."""
        operands: list[Leaf] = []
        for value, var in zip(values, node.eqn.invars):
            is_number = is_inexact(var.aval)
            operands.append(to_dtype(value, var.aval.dtype) if is_number else value)
        return bind(node.eqn, operands, node.eqn.params)

    visit_own = written
    visit_stochastic = written
    visit_custom_linear_solve = written

    def computed(self, node: Node, values: Sequence[Leaf]) -> list[Leaf]:
        """Computes an equation that holds no others."""
        if node.name in _COMPARING:
            values = _all_wide_but_rounded(node.eqn.invars, values)
        computes = self._plan.computes(int(self._plan.entries[node.number]))
        if computes is None:
            return self.written(node, values)
        if node.name in BILINEAR and is_narrower(computes.dtype, FLOAT32):
            product = product_of(node.eqn, computes.dtype, computes.result)
            return [multiply(product, values)]
        try:
            return evaluate_in(node.eqn, values, computes)
        except REFUSALS:  # the primitive takes no operands of this dtype
            results = self.written(node, values)
            return [to_dtype(x, computes.result) if is_floating(x) else x for x in results]

    # What holds other equations

    def visit_call(self, node: Node, values: Sequence[Leaf]) -> list[Leaf]:
        """Emits a call, with its rule of derivatives if it has one."""
        if body_parameter(node.name) is not None:
            return self.inlined(node, values)
        # A backward pass may be narrow though the forward one is as written.
        may_differ = node.name == "custom_vjp_call" or self._is_changed(node, values)
        if node.name not in OWN_RULES or not may_differ:
            return self.written(node, values)
        emit = functools.partial(
            self._emitter.emit, default_entry=self._entry_of_rule(node)
        )
        settle = functools.partial(self._settled, node)
        rule = OwnRule(node.eqn, emit, self._call_operands[node.number], settle)
        return rule.call(self._inner_jaxpr(node, node.inner[0], values), values)

    def _entry_of_rule(self, node: Node) -> PlanEntry | None:
        """Returns the entry for the lines of a rule, which are traced as that of its call.

        The entry of its function stands for them; entries of its expressions are noted.
        """
        entry_of = self._emitter.matcher.entry
        entries: list[PlanEntry] = []
        for inner in node.inner[0].all_nodes():
            entry = entry_of(inner.stack)
            if entry is not None and entry not in entries:
                entries.append(entry)
        of_function = [entry for entry in entries if entry.expression is None]
        default_entry = of_function[0] if of_function else None
        for entry in entries:
            if entry not in (default_entry, entry_of(node.stack)):
                self._emitter.notes[f"{entry}: not in its rule of derivatives"] = None
        return default_entry

    def inlined(self, node: Node, values: Sequence[Leaf]) -> list[Leaf]:
        """Emits a jitted call, a loop or branches with other jaxprs inside."""
        if not self._is_changed(node, values):
            return self.written(node, values)
        params = dict(node.eqn.params)
        if node.rule == "cond":
            inner = [self._inner_jaxpr(node, x, values[1:]) for x in node.inner]
            params["branches"] = tuple(map(_like, params["branches"], inner))
            return bind(node.eqn, values, params)
        if node.rule in LOOPS:
            return self._loop(node, values, params)
        name = str(body_parameter(node.name))
        inner = self._inner_jaxpr(node, node.inner[0], values)
        params[name] = _like(params[name], inner)
        return bind(node.eqn, values, params)

    visit_scan = inlined
    visit_while = inlined
    visit_cond = inlined

    def _loop(
        self, node: Node, values: Sequence[Leaf], params: dict[str, Any]
    ) -> list[Leaf]:
        parts = loop_parts(node.eqn)
        first = parts.of_condition + parts.consts
        values = self._loop_operands(node, values, first, parts.carried)
        inner = self._inner_jaxpr(node, node.inner[0], values[parts.of_condition :])
        if node.rule == "scan":
            params["jaxpr"] = _like(parts.body, inner)
            return bind(node.eqn, values, params)
        params["body_jaxpr"] = _like(parts.body, inner)
        # A condition takes its own constants and the carry; those of the body lie in
        # between.
        arguments = values[: parts.of_condition] + values[first:]
        # It gives a bool, which leaves it in no other dtype.
        condition = self._inner_jaxpr(None, node.inner[1], arguments)
        params["cond_jaxpr"] = _like(params["cond_jaxpr"], condition)
        return bind(node.eqn, values, params)

    def _loop_operands(
        self, node: Node, values: Sequence[Leaf], first: int, count: int
    ) -> list[Leaf]:
        """Brings the operands of a loop to their dtypes; so many are carried."""
        shared = list(values[:first])
        if node.rule == "scan":  # the cotangents of what the turns share are added up
            shared = _all_wide_but_rounded(node.eqn.invars, shared)
        last = first + count
        carry = self._settled(node, values[first:last])
        return [*shared, *carry, *values[last:]]

    def visit_shard_map(self, node: Node, values: Sequence[Leaf]) -> list[Leaf]:
        """Emits a `shard_map`."""
        if not self._is_changed(node, values):
            return self.written(node, values)

        def run(arrays):
            return self._block_results(node, node.inner[0], arrays)

        params = node.eqn.params
        # The parameters of the primitive have other names in other releases.
        mapped = jax.shard_map(
            run,
            mesh=params["mesh"],
            in_specs=(list(params["in_specs"]),),
            out_specs=list(params["out_specs"]),
            axis_names=set(manual_axes(node.eqn)),
            check_vma=params["check_vma"],
        )
        return mapped(list(values))

    def _is_changed(self, node: Node, values: Sequence[Leaf]) -> bool:
        """Returns whether an equation, or one inside of it, has narrow values."""
        # Equations inside of another one have the numbers before its own.
        first = min(block.first for block in node.inner)
        if self._plan.entries[first : node.number + 1].any():
            return True
        for number in range(first, node.number + 1):
            if any(self._plan.carried.get(number, ())):
                return True
        for value, var in zip(values, node.eqn.invars):
            if is_floating(var.aval) and dtype_or_none(value) != var.aval.dtype:
                return True
        return False

    def _inner_jaxpr(
        self, node: Node | None, block: Block, values: Sequence[Leaf]
    ) -> Jaxpr:
        """Returns a block as a closed jaxpr, for operands of the types of these.

        Args:
            node: the equation whose results it has; None for the condition of a loop.
            block: the block.
            values: its arguments.
        """
        variables = block.inputs[len(block.consts) :]
        avals: list[Aval] = []
        for var, value in zip(variables, values):
            avals.append(_retyped_aval(var.aval, dtype_or_none(value)))
        # An equal jaxpr of another identity would compile once more.
        key = self._key_of_block(node, block, avals)
        emitted = self._emitter.emitted
        if key not in emitted:

            def run(arrays):
                return self._block_results(node, block, arrays)

            if len(emitted) > _MOST_EMITTED:
                emitted.clear()
            emitted[key] = jax.make_jaxpr(run)(avals)
        return emitted[key]

    def _key_of_block(
        self, node: Node | None, block: Block, avals: Sequence[Aval]
    ) -> tuple[object, ...]:
        """Returns what decides how a block is emitted."""
        carried: Sequence[int] = ()
        if node is not None:
            carried = self._plan.carried.get(node.number, ())
        dtypes = tuple(dtype_or_none(aval) for aval in avals)
        part = self._plan.part(block.first, block.number)
        return (open_jaxpr(block.jaxpr), dtypes, part, carried)

    def _block_results(
        self, node: Node | None, block: Block, arrays: Sequence[Leaf]
    ) -> list[Leaf]:
        results = self.block(block, arrays)
        if node is None:
            return results
        return self._settled(node, results)

    def _settled(self, node: Node, values: Sequence[Leaf]) -> list[Leaf]:
        """Brings results of an equation to the dtypes in which they leave it."""
        results: list[Leaf] = []
        entries = self._plan.carried[node.number]
        for value, var, entry in zip(values, node.eqn.outvars, entries):
            if is_floating(var.aval):
                computes = self._plan.computes(entry)
                dtype = var.aval.dtype if computes is None else computes.result
                value = to_dtype(value, dtype)
            results.append(value)
        return results


def narrowed(jaxpr: Jaxpr, plan: Plan, traces: SecondTraces) -> Jaxpr:
    """Returns the closed jaxpr that `autocast` makes of one by a plan.

    Raises:
        ValueError: if an entry of the plan matches nothing in it.
    """
    emitter = Emitter(plan)

    def run(*arrays):
        return emitter.emit_as_returned(jaxpr, arrays, traces)

    narrow_jaxpr = jax.make_jaxpr(run)(*jaxpr.in_avals)
    emitter.matcher.check()
    return narrow_jaxpr


def _as_returned(array: Leaf, aval: Aval) -> Leaf:
    """Returns a result in the type in which the function itself returns it."""
    if not hasattr(aval, "weak_type"):  # a reference
        return array
    if not isinstance(array, jax.Array):
        array = jnp.asarray(array, aval.dtype)
    if (array.dtype, jax.typeof(array).weak_type) == (aval.dtype, aval.weak_type):
        return array
    # No public function makes a weak type, and the cast of one would count as the user's
    # own in an autocast around this one.
    with of_mesh(array):
        return lax.convert_element_type_p.bind(
            array, new_dtype=aval.dtype, weak_type=aval.weak_type, sharding=None
        )


def to_dtype(array: Leaf, dtype: DType) -> Leaf:
    """Returns an array, or a number of a jaxpr, in a dtype."""
    if dtype_or_none(array) == dtype:
        return array
    if isinstance(array, jax.Array):
        return as_dtype(array, dtype)
    return jnp.asarray(np.asarray(array).astype(dtype))


def _wide_but_rounded(array: Leaf, aval: Aval) -> Leaf:
    """Returns a narrow array in its own dtype, still rounded.

    XLA leaves out a cast and its inverse, also on one side of `x == max(x, y)`, which the
    gradient of a maximum asks for. It keeps `reduce_precision`.
    """
    dtype = dtype_or_none(array)
    if not is_floating(aval) or not is_narrower(dtype, aval.dtype):
        return array
    return lax.reduce_precision(to_dtype(array, aval.dtype), **bits_of(dtype) or {})


def _all_wide_but_rounded(
    variables: Sequence[Variable], values: Sequence[Leaf]
) -> list[Leaf]:
    return [_wide_but_rounded(value, var.aval) for value, var in zip(values, variables)]


def _like(original: Jaxpr, replacement: Jaxpr) -> Jaxpr:
    """Returns a closed jaxpr as the parameter in whose place it stands."""
    # `jit` and loops hold closed jaxprs, `jax.checkpoint` an open one.
    if open_jaxpr(original) is original:
        return open_jaxpr(replacement)
    return replacement


def _retyped_aval(aval: Aval, dtype: DType) -> Aval:
    if dtype in (None, dtype_or_none(aval)):
        return aval
    return aval.update(dtype=dtype, weak_type=False)
