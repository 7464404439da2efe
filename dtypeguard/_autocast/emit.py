"""Emits the equations of a traced program again, in the dtypes of a plan.

The equations are bound under the trace that is current, with their lines, scopes, meshes
and effects. One that computes as written is bound exactly as it stands, and so is a call, a
loop or branches in which all is as written.
"""

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import source_info_util

from .._leaves.types import Aval, DType, Equation, Jaxpr, Leaf
from .._numbers.arithmetic import REFUSALS
from .._numbers.evaluate import as_dtype, bits_of, evaluate_in
from .._numbers.formats import Formats
from .._numbers.nodes import COMPUTED, OWN, STOCHASTIC, Interpreter
from .._numbers.plans import WidthPlan
from .._numbers.primitives import is_inexact
from .._numbers.program import NumericProgram
from .._program.aligned import SecondTraces
from .._program.jaxprs import loop_parts, manual_axes, open_jaxpr
from .._program.program import CALL, SOLVE, Block, Node
from .decide import (
    BODY_PARAMETERS,
    FLOAT32,
    OWN_RULES,
    ByPlan,
    Types,
    ValueType,
    is_float,
    is_narrower,
    own_dtype,
)
from .derivatives import OwnRule, bind
from .matching import Matcher, key_of_line
from .plan import Plan, PlanEntry
from .products import BILINEAR, Product, differentiable_product

# Of these XLA may leave out the rounding on one side.
_CHOOSES = frozenset(["eq", "ne", "max", "min", "reduce_max", "reduce_min"])
# So many jaxprs are kept, so that what was emitted once compiles once.
_MOST_EMITTED = 2000
_OWN = Formats(FLOAT32)
_ALONE = SecondTraces()


@contextlib.contextmanager
def _in_context(eqn: Equation) -> Iterator[None]:
    """The line, the scopes, the mesh and what else an equation was traced with."""
    info = eqn.source_info
    names = source_info_util.current_name_stack() + info.name_stack
    with source_info_util.user_context(info.traceback, name_stack=names), eqn.ctx.manager:
        yield


class Emitter:
    """Emits programs by a plan.

    Attributes:
        matcher: finds the entries of equations.
        kept: the lines that compute as written though the plan makes them narrow.
        inner: the jaxprs that were emitted, each with that of the program.
        products: how many products were seen, narrow or not.
    """

    def __init__(self, plan: Plan):
        self.plan, self.matcher = plan, Matcher(plan)
        self.kept: dict[str, None] = {}
        self.inner = OrderedDict[object, tuple[Jaxpr, Jaxpr]]()
        self.products = 0

    def emit(
        self,
        jaxpr: Jaxpr,
        arrays: Sequence[Leaf],
        known: Sequence[ValueType] = (),
        around: PlanEntry | None = None,
        traces: SecondTraces = _ALONE,
    ) -> tuple[list[Leaf], Types]:
        """The results of a closed jaxpr, and what is known of them.

        Of the first arguments something is known. Of a rule, the entry of its function is
        that of lines without one.
        """
        program = NumericProgram(jaxpr, _OWN, traces, is_measured=False)
        rules = ByPlan(program, self.plan, self.matcher, self.kept, around)
        operands = [ValueType(own_dtype(x)) for x in arrays[len(known) :]]
        made = rules.block(program.block, [*known, *operands])
        self.products += len(rules.products)
        return Emission(rules, self).block(program.block, arrays), made


class Emission(Interpreter):
    """Emits one program under the current trace.

    Attributes:
        plan: what each equation computes in.
    """

    def __init__(self, rules: ByPlan, emitter: Emitter):
        self.emitter = emitter
        self.plan: WidthPlan = rules.made
        self.given = rules.given

    def entered_block(self, block: Block, given: Sequence[Leaf]) -> list[Any]:
        values = [*block.consts, *given]
        return [self._kept(block, *pair) for pair in zip(block.inputs, values)]

    def context(self, eqn: Equation) -> contextlib.AbstractContextManager[None]:
        return _in_context(eqn)

    def kept(
        self, block: Block, node: Node, values: Sequence[Leaf], made: Sequence[Leaf]
    ) -> Sequence[Any]:
        return [self._kept(block, *pair) for pair in zip(node.eqn.outvars, made)]

    def _kept(self, block: Block, var: Any, value: Leaf) -> Leaf:
        """A value; a narrow one of many uses in its own dtype, as cotangents are added."""
        return _widened(value, var.aval) if block.uses[var] > 1 else value

    def written(self, node: Node, values: Sequence[Leaf]) -> list[Leaf]:
        """As it stands."""
        pairs = zip(values, node.eqn.invars)
        own = [to_dtype(x, v.aval.dtype) if is_inexact(v.aval) else x for x, v in pairs]
        return bind(node.eqn, own, node.eqn.params)

    def computed(self, node: Node, values: list[Leaf]) -> list[Leaf]:
        if node.name in _CHOOSES:
            values = [_widened(x, v.aval) for x, v in zip(values, node.eqn.invars)]
        computes = self.plan.computes(int(self.plan.entries[node.number]))
        if computes is None:
            return self.written(node, values)
        dtype, result = computes
        if node.name in BILINEAR and is_narrower(dtype, FLOAT32):
            return [differentiable_product(Product.made(node.eqn, dtype, result))(*values)]
        try:
            return evaluate_in(node.eqn, values, dtype, result)
        except REFUSALS:  # it takes no operands of this dtype
            made = self.written(node, values)
            return [to_dtype(x, result) if is_float(x) else x for x in made]

    # What holds other equations

    def held(self, node: Node, values: list[Leaf]) -> list[Leaf]:
        """A call, a loop or branches, with other jaxprs inside."""
        if not self.is_changed(node, values):
            return self.written(node, values)
        params = dict(node.eqn.params)
        if node.rule == "cond":
            own = params["branches"]
            inner = [self.inner(node, block, values[1:]) for block in node.inner]
            params["branches"] = (*map(_like, own, inner),)
        elif node.rule in ("scan", "while"):
            body, before, consts, count = loop_parts(node.eqn)
            values = self._entered(node, values, before + consts, count)
            name = "jaxpr" if node.rule == "scan" else "body_jaxpr"
            inner = self.inner(node, node.inner[0], values[before:])
            params[name] = _like(body, inner)
            if node.rule == "while":
                carry = values[before + consts :]
                goes_on = self.inner(None, node.inner[1], [*values[:before], *carry])
                params["cond_jaxpr"] = _like(params["cond_jaxpr"], goes_on)
        else:
            name = BODY_PARAMETERS[node.name]
            inner = self.inner(node, node.inner[0], values)
            params[name] = _like(params[name], inner)
        return bind(node.eqn, values, params)

    def call(self, node: Node, values: list[Leaf]) -> list[Leaf]:
        if node.name in BODY_PARAMETERS:
            return self.held(node, values)
        may_differ = node.name == "custom_vjp_call" or self.is_changed(node, values)
        if node.name not in OWN_RULES or not may_differ:
            return self.written(node, values)
        settled = lambda results: self._settled(node, results)
        # The lines of a rule are traced as that of its call.
        entry = self.emitter.matcher.entry
        found = dict.fromkeys(entry(x.stack) for x in node.inner[0].all_nodes())
        around = next((x for x in found if x is not None and x.expression is None), None)
        left = [x for x in found if x not in (around, None, entry(node.stack))]
        reason = "not in its rule of derivatives"
        self.emitter.kept |= dict.fromkeys(f"{each}: {reason}" for each in left)
        emit = functools.partial(self.emitter.emit, around=around)
        rule = OwnRule(node.eqn, emit, self.given[node.number], settled)
        return rule.results(self.inner(node, node.inner[0], values), values)

    def shards(self, node: Node, values: list[Leaf]) -> list[Leaf]:
        if not self.is_changed(node, values):
            return self.written(node, values)
        params = node.eqn.params
        mapped = jax.shard_map(
            lambda arrays: self._results(node, node.inner[0], arrays),
            mesh=params["mesh"],
            in_specs=([*params["in_specs"]],),
            out_specs=[*params["out_specs"]],
            axis_names={*manual_axes(node.eqn)},
            check_vma=params["check_vma"],
        )
        return mapped([*values])

    def is_changed(self, node: Node, values: Sequence[Leaf]) -> bool:
        """Whether something inside of an equation, or what it is given, is narrow."""
        first = min(block.first for block in node.inner)
        inside = range(first, node.number + 1)
        is_other = lambda x, v: is_float(v.aval) and own_dtype(x) != v.aval.dtype
        return (
            bool(self.plan.entries[first : node.number + 1].any())
            or any(any(self.plan.carried.get(n, ())) for n in inside)
            or any(map(is_other, values, node.eqn.invars))
        )

    def inner(self, node: Node | None, block: Block, values: Sequence[Leaf]) -> Jaxpr:
        """A block as a closed jaxpr, for operands of the types of these."""
        variables = block.inputs[len(block.consts) :]
        avals = [_retyped_aval(v.aval, own_dtype(x)) for v, x in zip(variables, values)]
        leaves = () if node is None else self.plan.carried.get(node.number, ())
        stack = block.nodes[0].stack[1:] if block.nodes else ()
        around = key_of_line(stack) if self.emitter.plan.entries and stack else None
        part = self.plan.part(block.first, block.number)
        dtypes = (*map(own_dtype, avals),)
        key = id(open_jaxpr(block.jaxpr)), dtypes, part, leaves, around
        known = self.emitter.inner
        if key not in known:
            made = jax.make_jaxpr(lambda arrays: self._results(node, block, arrays))(avals)
            known[key] = made, block.jaxpr
            if len(known) > _MOST_EMITTED:
                known.popitem(last=False)
        return known[key][0]

    def _results(
        self, node: Node | None, block: Block, arrays: Sequence[Leaf]
    ) -> list[Leaf]:
        """The results of a block as they leave it."""
        made = self.block(block, arrays)
        return made if node is None else self._settled(node, made)

    def _settled(self, node: Node, values: Sequence[Leaf]) -> list[Leaf]:
        """What an equation leaves, in the dtypes that it leaves in."""
        entries = self.plan.carried[node.number]
        return [self._left(*each) for each in zip(values, node.eqn.outvars, entries)]

    def _left(self, value: Leaf, var: Any, entry: int) -> Leaf:
        if not is_float(var.aval):
            return value
        computes = self.plan.computes(entry)
        return to_dtype(value, var.aval.dtype if computes is None else computes.result)

    def _entered(
        self, node: Node, values: Sequence[Leaf], first: int, count: int
    ) -> list[Leaf]:
        """The operands of a loop, of which this many are carried."""
        entries, last = self.plan.carried[node.number], first + count
        carry = map(self._left, values[first:last], node.eqn.outvars, entries)
        shared = values[:first]
        if node.rule == "scan":  # their cotangents are added up
            shared = map(_widened, shared, (v.aval for v in node.eqn.invars))
        return [*shared, *carry, *values[last:]]


Emission.rules = {
    COMPUTED: Emission.computed,
    "reduce_precision": Emission.computed,
    **dict.fromkeys((OWN, SOLVE, STOCHASTIC), Emission.written),
    **dict.fromkeys(("scan", "while", "cond"), Emission.held),
    CALL: Emission.call,
    "shard_map": Emission.shards,
}


def narrowed(jaxpr: Jaxpr, plan: Plan, traces: SecondTraces) -> Jaxpr:
    """The closed jaxpr that `autocast` makes of one, beside its other traces, by a plan.

    Raises:
        ValueError: if an entry of the plan matches nothing in it.
    """
    emitter = Emitter(plan)

    def function(*arrays):
        made, _ = emitter.emit(jaxpr, arrays, traces=traces)
        pairs = zip(made, jaxpr.out_avals)
        return [to_dtype(x, v.dtype) if is_float(v) else x for x, v in pairs]

    made = jax.make_jaxpr(function)(*jaxpr.in_avals)
    emitter.matcher.check()
    return made


def to_dtype(array: Leaf, dtype: DType) -> Leaf:
    """An array, or a number of a jaxpr, in another dtype."""
    if own_dtype(array) == dtype:
        return array
    if isinstance(array, jax.Array):
        return as_dtype(array, dtype)
    return jnp.asarray(np.asarray(array).astype(dtype))


def _widened(array: Leaf, aval: Aval) -> Leaf:
    """A narrow array in its own dtype, of which XLA cannot leave out the rounding.

    It may do so on one side of `x == max(x, y)` too, which the gradient of a maximum asks
    for.
    """
    dtype = own_dtype(array)
    if not is_float(aval) or not is_narrower(dtype, aval.dtype):
        return array
    return lax.reduce_precision(to_dtype(array, aval.dtype), **bits_of(dtype) or {})


def _like(own: Jaxpr, made: Jaxpr) -> Jaxpr:
    """A closed jaxpr as the parameter that stood in its place."""
    return open_jaxpr(made) if open_jaxpr(own) is own else made


def _retyped_aval(aval: Aval, dtype: DType) -> Aval:
    """An abstract value with another dtype."""
    is_own = dtype in (None, own_dtype(aval))
    return aval if is_own else aval.update(dtype=dtype, weak_type=False)
