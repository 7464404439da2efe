"""Runs a program by a plan, to measure it.

Equations run one by one, as JAX runs them outside of `jit`, and loops turn by turn. What is
compiled is the body of a loop of many turns, if no loop or branch is in it.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.types import Equation, Leaf
from .._program.jaxprs import loop_parts
from .._program.program import CALL, COND, SCAN, SHARD_MAP, SOLVE, WHILE, Block, Node
from .arithmetic import Arithmetic, Either, Value, own_form
from .evaluate import as_dtype, current_mesh, of_mesh, under_mesh
from .formats import Formats
from .nodes import (
    COMPUTED,
    OWN,
    REDUCE_PRECISION,
    SAMPLE,
    STOCHASTIC,
    Interpreter,
    Noted,
)
from .plans import ROUNDED, WIDE, WRITTEN, WidthPlan, solved
from .primitives import SELECTS, is_inexact
from .probes import (
    Notes,
    Probes,
    decision,
    following,
    stacked,
)
from .program import NumericProgram

# Of loops with more equations than these, over all turns, the bodies are compiled.
_MOST_EAGER, _MOST_UNROLLED = 2000, 400
_NESTED = frozenset(["scan", "while", "cond"])


def run(
    program: NumericProgram,
    plan: WidthPlan,
    arrays: Sequence[Leaf],
    probes: Probes | None = None,
    formats: Formats | None = None,
    scale: float | None = None,
) -> list[Leaf]:
    """The results of a program by a plan, in the dtypes of the program by default."""
    with np.errstate(over="ignore"):  # NumPy warns of constants: -1e9 in float16
        arithmetic = Arithmetic(program, formats or program.formats, False, scale)
        return _Run(plan, probes or Probes(), arithmetic).outputs(arrays)


class _Run(Interpreter):
    """One run of a program, or of a body while JAX traces that."""

    def __init__(self, plan: WidthPlan, probes: Probes, arithmetic: Arithmetic):
        self.plan, self.probes, self.arithmetic = plan, probes, arithmetic
        self.program, self.formats = arithmetic.program, arithmetic.formats

    def outputs(self, arrays: Sequence[Leaf]) -> list[Leaf]:
        block, entry = self.program.block, int(self.plan.is_wide_given)
        variables = block.inputs[len(block.consts) :]
        given = self.crossed(map(jnp.asarray, arrays), variables, itertools.repeat(entry))
        made = self.block(block, given)
        return self.crossed(made, block.outputs, itertools.repeat(None))

    # What enters and leaves

    def boundary(self, value: Value, var: Leaf, entry: int | None) -> Leaf:
        """A value that enters or leaves a block, in the dtype that it has there."""
        if entry is None and isinstance(value, Either):
            entry = int(self.plan.is_wide)
        if not is_inexact(var.aval) or entry is None:
            return value
        if computes := self.plan.computes(entry):
            return as_dtype(own_form(value), computes.result)
        settle = self.arithmetic.as_wide if entry else self.arithmetic.as_written
        return settle(value, var.aval.dtype)

    def crossed(
        self,
        values: Iterable[Value],
        variables: Sequence[Leaf],
        entries: Iterable[int | None],
    ) -> list[Leaf]:
        """All values that enter or leave a block together."""
        return [*map(self.boundary, values, variables, entries)]

    def _carried(self, node: Node) -> Sequence[int]:
        """What the results of an equation leave in."""
        default = (int(self.plan.is_wide),) * len(node.eqn.outvars)
        return self.plan.carried.get(node.number, default)

    def _entered(
        self, node: Node, values: Sequence[Value], first: int = 0, count: int = 0
    ) -> list[Leaf]:
        """The operands of a loop, of branches or shards; what is carried has its dtype."""
        entries: list[int | None] = [None] * len(values)
        entries[first : first + count] = self._carried(node)[:count]
        entered = self.crossed(values, node.eqn.invars, entries)
        # Each line inside has a constant of all turns as it was meant, if it is wide.
        for place, value in enumerate(values[:first]):
            if isinstance(value, Either) and value.meant is not None:
                entered[place] = value
        return entered

    def _inside(
        self, node: Node, block: Block, given: Sequence[Value], probes: Probes
    ) -> tuple[list[Leaf], Notes]:
        """The results of the body of a loop or of shards, and what is noted of them."""
        inside = _Run(self.plan, probes, self.arithmetic)
        return inside._left(node, block, given), probes.all_notes

    def _left(self, node: Node, block: Block, given: Sequence[Value]) -> list[Leaf]:
        made, entries = self.block(block, given), self._carried(node)
        return self.crossed(made, node.eqn.outvars, entries)

    def entered_block(self, block: Block, given: Sequence[Value]) -> list[Value]:
        return [*map(self.arithmetic.constant, block.consts), *given]

    def context(self, eqn: Equation) -> contextlib.AbstractContextManager[object]:
        return under_mesh(eqn)

    def kept(
        self, block: Block, node: Node, values: Sequence[Value], made: Sequence[Value]
    ) -> Sequence[Value]:
        if node.rule != CALL:
            self.probes.results(node.number, made, values)
        return made

    def literal(self, var: Leaf) -> Value:
        return self._constant(var, var.val, None)

    def constant_as_meant(
        self, block: Block, user: Node | Block, var: Leaf, meant: np.ndarray
    ) -> Value:
        value = var.val if hasattr(var, "val") else block.constants[var]
        # What is inside of a call or a loop does not see that the line of it rounds.
        is_rounded = isinstance(user, Node) and self._rounds_constants(user)
        constant = self._constant(var, value, meant)
        return own_form(constant) if is_rounded else constant

    def _constant(self, var: Leaf, value: Leaf, meant: np.ndarray | None) -> Value:
        """A constant of the program, made once for all runs under a mesh."""
        key = id(var), id(meant), self.formats, current_mesh()
        if key not in self.program.literals:
            with jax.ensure_compile_time_eval():
                array = jnp.asarray(value, var.aval.dtype)
                self.program.literals[key] = self.arithmetic.constant(array, meant)
        return self.program.literals[key]

    def _rounds_constants(self, node: Node) -> bool:
        """Whether the constants of an equation are rounded, if only these."""
        is_line = self.plan.entries[node.number] == ROUNDED
        return is_line or any((node.line, x) in self.plan.constants for x in node.constants)

    # Loops, branches and shards

    def scan(self, node: Node, values: list[Value]) -> list[Value]:
        _, _, consts, count = loop_parts(node.eqn)
        values = self._entered(node, values, consts, count)
        outside, carry, xs = split_by_sizes(values, consts, count)
        turns = node.eqn.params["length"]
        if not turns:
            outs = node.eqn.outvars
            made = [jnp.zeros(var.aval.shape, var.aval.dtype) for var in outs]
            return [*carry, *self.crossed(made, outs, self._carried(node))[count:]]
        given, order = self.probes.given_inside(node), [*range(turns)]
        call = self._caller(
            node, _Run.scan_turn, turns * equations_of_loop(node) > _MOST_EAGER
        )
        rows, notes = ([None] * turns for _ in range(2))
        for place in reversed(order) if node.eqn.params["reverse"] else order:
            made, notes[place] = call(outside, carry, xs, given, np.int32(place))
            carry, rows[place] = made[:count], made[count:]
        self.probes.add(notes)
        return [*carry, *map(stacked, zip(*rows))]

    def scan_turn(self, node, blank, outside, carry, xs, given, place):
        operands = [*outside, *carry, *(_at(x, place) for x in xs)]
        probes = blank.empty(given and _each(given, place))
        return self._inside(node, node.inner[0], operands, probes)

    def loop(self, node: Node, values: list[Value]) -> list[Value]:
        """A `while` loop, which notes its turns; under `vmap`, of each element."""
        _, before, consts, count = loop_parts(node.eqn)
        values = self._entered(node, values, before + consts, count)
        constants, outside, carry = split_by_sizes(values, before, consts)
        given = self.probes.given_inside(node)
        most = self.probes.given_for(node)
        turns = jnp.zeros(node.inner[1].outputs[0].aval.shape, jnp.int32)
        is_on = self._goes_on(node, constants, turns, carry, most)
        state, notes = (turns, carry, is_on), []
        call = self._caller(node, _Run.loop_turn, False)
        while jnp.any(state[-1]):
            if len(notes) == _MOST_EAGER // max(equations_of_loop(node), 1):
                call = self._caller(node, _Run.loop_turn, True)
            place = np.int32(len(notes))
            state, noted = call(constants, outside, state, given, most, place)
            notes.append(noted)
        self.probes.decide(node, lambda: state[0])
        self.probes.add(notes)
        return state[1]

    def loop_turn(self, node, blank, constants, outside, state, given, most, place):
        turns, carry, is_on = state
        probes = blank.empty(given and _each(given, place))
        made, noted = self._inside(node, node.inner[0], [*outside, *carry], probes)
        carry = _chosen(is_on, made, carry)
        turns = turns + is_on.astype(turns.dtype)
        is_on = self._goes_on(node, constants, turns, carry, most)
        return (turns, carry, is_on), noted

    def _goes_on(
        self,
        node: Node,
        constants: list[Leaf],
        turns: Leaf,
        carry: list[Leaf],
        most: Leaf | None,
    ) -> Leaf:
        """Whether a loop goes on: as often as the run that is followed, if one is."""
        if most is not None:
            return turns < most
        condition = _Run(self.plan, Probes(), self.arithmetic)
        return condition.block(node.inner[1], [*constants, *carry])[0]

    def _caller(
        self, node: Node, part: Callable[..., Any], is_long: bool
    ) -> Callable[..., Any]:
        """What runs a turn of a loop: equation by equation, or compiled."""
        blank, known = self.probes.empty(None), self.arithmetic
        if known.is_traced or not is_long or not _is_straight(node.inner):
            return functools.partial(part, self, node, blank)
        functions, plan = self.program.functions, self.plan
        of_plan = plan.part(node.inner[0].first, node.number)
        key = node.number, of_plan, self.formats, blank.key
        if key not in functions:

            def traced(scale, *operands):
                arithmetic = Arithmetic(known.program, known.formats, True, scale)
                with under_mesh(node.eqn):
                    return part(_Run(plan, blank, arithmetic), node, blank, *operands)

            # Quickly: it runs some dozen times only.
            is_on_cpu = jax.default_backend() == "cpu"
            options = {"xla_backend_optimization_level": "0"} if is_on_cpu else None
            functions[key] = jax.jit(traced, compiler_options=options)
        return functools.partial(functions[key], known.scale)

    def cond(self, node: Node, values: list[Value]) -> list[Value]:
        index, *operands = self._entered(node, values)
        number = min(max(int(index), 0), len(node.inner) - 1)
        return self._left(node, node.inner[number], operands)

    def shard_map(self, node: Node, values: list[Value]) -> list[Value]:
        self.program.leave_out(node.stack)
        return self.own(node, values)

    # Rules

    def computed(self, node: Node, values: list[Value]) -> list[Value]:
        plan, given = self.plan, self.probes.given_for(node)
        entry = int(plan.entries[node.number])
        if given is not None and node.name in SELECTS:
            values = [*values[:-1], given]
        if computes := plan.computes(entry):
            operands, made = self.arithmetic.named(node, values, computes)
        else:
            is_constant = any((node.line, x) in plan.constants for x in node.constants)
            operands, made = self.arithmetic.computed(node, values, entry, is_constant)
        if given is not None:
            made = following(node, operands, made, given)
        self.probes.decide(node, lambda: decision(node, operands, made))
        return list(self.probes.checked(node, operands, made))

    def own(self, node: Node, values: list[Value]) -> list[Value]:
        is_wide = self.plan.entries[node.number] == WIDE
        exact = values if is_wide else [own_form(value) for value in values]
        return [*self.arithmetic.own(node, exact)]

    def sample(self, node: Node, values: list[Value]) -> list[Value]:
        return [*map(self.arithmetic.sample, self.arithmetic.own(node, values))]

    def call(self, node: Node, values: list[Value]) -> list[Value]:
        made = self.block(node.inner[0], values)
        entries = self.plan.carried.get(node.number)
        if entries is None:
            return made
        return self.crossed(made, node.eqn.outvars, entries)

    def solve(self, node: Node, values: list[Value]) -> list[Value]:
        return self.block(node.inner[0], solved(node, values))

    def reduce_precision(self, node: Node, values: list[Value]) -> list[Value]:
        if self.plan.entries[node.number] == WIDE and not self.formats.is_own:
            return values
        return self.computed(node, values)

    def stochastic(self, node: Node, values: list[Value]) -> list[Value]:
        """A stochastic rounding of dtypeguard, of the first floating operand."""
        if self.formats.is_own or self.plan.entries[node.number] != WIDE:
            made, entry = self.own(node, values), WRITTEN
        else:
            pairs = zip(values, node.eqn.invars)
            made = [next(v for v, var in pairs if is_inexact(var.aval))]
            entry = WIDE
        return self.crossed(made, node.eqn.outvars, itertools.repeat(entry))


_Run.rules = {
    COMPUTED: _Run.computed,
    OWN: _Run.own,
    SAMPLE: _Run.sample,
    CALL: _Run.call,
    SCAN: _Run.scan,
    WHILE: _Run.loop,
    COND: _Run.cond,
    SHARD_MAP: _Run.shard_map,
    SOLVE: _Run.solve,
    REDUCE_PRECISION: _Run.reduce_precision,
    STOCHASTIC: _Run.stochastic,
}


def equations_of_loop(node: Node) -> int:
    """How many equations a loop has."""
    return node.number - node.inner[0].first


def _is_straight(blocks: Sequence[Block]) -> bool:
    """Whether blocks hold no branches, and no loop but of few turns, which is unrolled."""
    nodes = itertools.chain.from_iterable(block.all_nodes() for block in blocks)
    return not any(
        x.rule in _NESTED
        and (
            x.rule != "scan"
            or x.eqn.params["length"] * equations_of_loop(x) > _MOST_UNROLLED
        )
        for x in nodes
    )


def split_by_sizes(values: Sequence[Leaf], *sizes: int) -> list[list[Leaf]]:
    """Lists of these sizes, and one of the rest."""
    ends = [0, *itertools.accumulate(sizes)]
    return [[*values[a:b]] for a, b in zip(ends, [*ends[1:], None])]


def _at(x: Leaf, place: Leaf) -> Leaf:
    with of_mesh(x):
        return lax.dynamic_index_in_dim(x, place, keepdims=False)


def _each(given: Noted, place: Leaf) -> Noted:
    return {number: _at(x, place) for number, x in given.items()}


def _chosen(is_on: Leaf, new: Sequence[Leaf], old: Sequence[Leaf]) -> list[Leaf]:
    """What a loop carries: new where it goes on, if that differs between elements."""
    if not is_on.ndim:
        return [*new]
    shaped = lambda x: is_on.reshape(is_on.shape + (1,) * (x.ndim - is_on.ndim))
    return [jnp.where(shaped(x), x, y) for x, y in zip(new, old)]
