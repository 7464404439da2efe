"""Runs a program by a plan, to measure it.

Equations run one by one, as JAX runs them outside of `jit`, and loops turn by turn. What is
compiled is the body of a loop of many turns, if no loop or branch is in it.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.types import Leaf
from .._program.jaxprs import LoopOperands, Variable, is_literal, loop_parts, split_operands
from .._program.program import (
    CALL,
    COND,
    LOOPS,
    SCAN,
    SHARD_MAP,
    SOLVE,
    WHILE,
    Block,
    Node,
)
from .arithmetic import Arithmetic, Either, Value, own_form
from .evaluate import as_dtype, current_mesh, under_mesh
from .formats import Formats
from .nodes import (
    COMPUTED,
    OWN,
    REDUCE_PRECISION,
    SAMPLE,
    STOCHASTIC,
    Interpreter,
)
from .plans import ROUNDED, WIDE, WRITTEN, WidthPlan, solved
from .primitives import SELECTS, is_inexact
from .probes import Notes, Probes, decision_of, results_following
from .program import NumericProgram
from .turns import at_turn, chosen_by_turn, notes_at_turn, stacked

# Of loops with more equations than these, over all turns, the bodies are compiled.
_MOST_EAGER = 2000
# A loop with no more than these is unrolled where the loop around it is compiled.
_MOST_UNROLLED = 400
# A compiled body runs some dozen times, so it is compiled quickly.
QUICKLY = {"xla_backend_optimization_level": "0"}


def run(
    program: NumericProgram,
    plan: WidthPlan,
    arrays: Sequence[Leaf],
    probes: Probes | None = None,
    formats: Formats | None = None,
    scale: float | None = None,
) -> list[Leaf]:
    """Returns the results of a program by a plan.

    Args:
        program: the program.
        plan: what its equations compute in.
        arrays: its inputs.
        probes: what to note.
        formats: the dtypes, those of the program by default.
        scale: see `Arithmetic`.
    """
    arithmetic = Arithmetic(program, formats or program.formats, False, scale)
    with np.errstate(over="ignore"):  # NumPy warns of constants: -1e9 in float16
        return _Run(plan, probes or Probes(), arithmetic).outputs(arrays)


class _Run(Interpreter):
    """One run of a program, or of a body while JAX traces that."""

    def __init__(self, plan: WidthPlan, probes: Probes, arithmetic: Arithmetic):
        self.plan = plan
        self.probes = probes
        self.arithmetic = arithmetic
        self.program = arithmetic.program
        self.formats = arithmetic.formats

    def outputs(self, arrays: Sequence[Leaf]) -> list[Leaf]:
        """Returns the results of the program."""
        block = self.program.block
        variables = block.inputs[len(block.consts) :]
        # The first line may round the inputs alone.
        entry = WIDE if self.plan.is_wide_given else WRITTEN
        arguments: list[Leaf] = []
        for array, var in zip(arrays, variables):
            arguments.append(self.crossed(jnp.asarray(array), var, entry))
        results = self.block(block, arguments)
        return self._all_crossed(results, block.outputs, itertools.repeat(None))

    # What enters and leaves

    def crossed(self, value: Value, var: Variable, entry: int | None) -> Leaf:
        """Returns a value in the dtype in which it enters or leaves a block."""
        # Only one form of a value goes through a loop or a branch.
        if entry is None and isinstance(value, Either):
            entry = self._default_entry()
        if entry is None or not is_inexact(var.aval):
            return value
        computes = self.plan.computes(entry)
        if computes is not None:
            return as_dtype(own_form(value), computes.result)
        if entry == WRITTEN:
            return self.arithmetic.as_written(value, var.aval.dtype)
        return self.arithmetic.as_wide(value, var.aval.dtype)

    def _default_entry(self) -> int:
        return WIDE if self.plan.is_wide else WRITTEN

    def _all_crossed(
        self,
        values: Sequence[Value],
        variables: Sequence[Variable],
        entries: Iterable[int | None],
    ) -> list[Leaf]:
        triples = zip(values, variables, entries)
        return [self.crossed(value, var, entry) for value, var, entry in triples]

    def _carried(self, node: Node) -> Sequence[int]:
        """Returns what the results of an equation leave in."""
        entries = self.plan.carried.get(node.number)
        if entries is None:
            default = self._default_entry()
            return [default for _ in node.eqn.outvars]
        return entries

    def _entered(
        self, node: Node, values: Sequence[Value], first: int = 0, count: int = 0
    ) -> list[Leaf]:
        """Returns the operands of a loop, of branches or shards inside of it.

        Args:
            node: the loop.
            values: its operands.
            first: the place of the first one that is carried.
            count: how many are carried, which have the dtypes of the results.
        """
        entries: list[int | None] = [None for _ in values]
        # What comes round again has one dtype in all turns.
        entries[first : first + count] = self._carried(node)[:count]
        entered = self._all_crossed(values, node.eqn.invars, entries)
        # Each line inside has a constant of all turns as it was meant, if it is wide.
        for place, value in enumerate(values[:first]):
            if isinstance(value, Either) and value.intended is not None:
                entered[place] = value
        return entered

    def entered_loop(self, node: Node, operands: Sequence[Value]) -> LoopOperands[Leaf]:
        """Returns the operands of a loop inside of it, in their groups."""
        parts = loop_parts(node.eqn)
        first = parts.of_condition + parts.consts
        entered = self._entered(node, operands, first, parts.carried)
        return split_operands(node.eqn, entered)

    def _left(self, node: Node, block: Block, arguments: Sequence[Value]) -> list[Leaf]:
        """Returns the results of a block of an equation outside of it."""
        results = self.block(block, arguments)
        return self._all_crossed(results, node.eqn.outvars, self._carried(node))

    def _turn(
        self, node: Node, arguments: Sequence[Value], probes: Probes
    ) -> tuple[list[Leaf], Notes]:
        """Returns the results of a turn of a loop, and what is noted of it."""
        # Its notes are its own, and get an axis for the turns afterwards.
        turn = _Run(self.plan, probes, self.arithmetic)
        return turn._left(node, node.inner[0], arguments), probes.all_notes

    # As the walk asks

    def entered_block(self, block, arguments):
        constants = [self.arithmetic.constant(array) for array in block.consts]
        return [*constants, *arguments]

    def context(self, eqn):
        return under_mesh(eqn)

    def kept(self, block, node, operands, results):
        # The equations inside of a call have noted the same values.
        if node.rule != CALL:
            self.probes.results(node.number, results, operands)
        return results

    def literal(self, var):
        return self._constant(var, var.val, None)

    def constant_as_meant(self, block, user, var, intended):
        array = var.val if is_literal(var) else block.constants[var]
        constant = self._constant(var, array, intended)
        # What is inside of a call or a loop does not see that the line of it rounds.
        if isinstance(user, Node) and self._rounds_constants(user):
            return own_form(constant)
        return constant

    def _constant(self, var: Variable, array: Leaf, intended: np.ndarray | None) -> Value:
        """Returns a constant of the program, made once for all runs under a mesh."""
        # Each run asks for it again.
        key = (id(var), id(intended), self.formats, current_mesh())
        if key not in self.program.literals:
            with jax.ensure_compile_time_eval():
                array = jnp.asarray(array, var.aval.dtype)
                self.program.literals[key] = self.arithmetic.constant(array, intended)
        return self.program.literals[key]

    def _rounds_constants(self, node: Node) -> bool:
        """Returns whether the constants of an equation are rounded, if only these."""
        if self.plan.entries[node.number] == ROUNDED:
            return True
        return self._rounds_number(node)

    def _rounds_number(self, node: Node) -> bool:
        """Returns whether the plan rounds one of its Python numbers alone."""
        return any((node.line, x) in self.plan.constants for x in node.constants)

    # Loops, branches and shards

    def scan(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs a `scan` turn by turn."""
        _, shared, carry, scanned = self.entered_loop(node, operands)
        count = len(carry)
        # A `scan` of no turns has no row to take shapes from.
        turns = node.eqn.params["length"]
        if not turns:
            return [*carry, *self._empty_rows(node)[count:]]
        is_long = turns * equations_of_loop(node) > _MOST_EAGER
        run_turn = self._caller(node, _Run.scan_turn, is_long)
        followed = self.probes.followed_inside(node)
        order = list(range(turns))
        if node.eqn.params["reverse"]:
            order.reverse()
        rows: dict[int, list[Leaf]] = {}
        notes: dict[int, Notes] = {}
        for turn in order:
            results, notes[turn] = run_turn(
                shared, carry, scanned, followed, np.int32(turn)
            )
            carry = results[:count]
            # Rows keep their place, also where the loop runs backwards.
            rows[turn] = results[count:]
        self.probes.add([notes[turn] for turn in range(turns)])
        columns = zip(*(rows[turn] for turn in range(turns)))
        return [*carry, *(stacked(column) for column in columns)]

    def scan_turn(self, node, probes, shared, carry, scanned, followed, turn):
        """Returns the results of a turn, and what is noted of it."""
        slices = [at_turn(array, turn) for array in scanned]
        decisions = notes_at_turn(followed, turn) if followed else followed
        return self._turn(node, [*shared, *carry, *slices], probes.empty(decisions))

    def _empty_rows(self, node: Node) -> list[Leaf]:
        """Returns the results of a `scan` without a turn."""
        variables = node.eqn.outvars
        zeros = [jnp.zeros(var.aval.shape, var.aval.dtype) for var in variables]
        return self._all_crossed(zeros, variables, self._carried(node))

    def loop(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs a `while` loop, and notes its turns; under `vmap`, of each element."""
        constants, shared, carry, _ = self.entered_loop(node, operands)
        followed = self.probes.followed_inside(node)
        most_turns = self.probes.followed_at(node)
        turns = jnp.zeros(node.inner[1].outputs[0].aval.shape, jnp.int32)
        is_on = self._goes_on(node, constants, turns, carry, most_turns)
        state = (turns, carry, is_on)
        notes: list[Notes] = []
        run_turn = self._caller(node, _Run.loop_turn, False)
        while jnp.any(is_on):
            # How many turns there will be is not known, so it begins without compiling.
            if len(notes) == _MOST_EAGER // max(equations_of_loop(node), 1):
                run_turn = self._caller(node, _Run.loop_turn, True)
            number = np.int32(len(notes))
            state, turn_notes = run_turn(
                constants, shared, state, followed, most_turns, number
            )
            turns, carry, is_on = state
            notes.append(turn_notes)
        # How often it turns is a decision, which other runs follow.
        self.probes.decide(node, lambda: turns)
        self.probes.add(notes)
        return carry

    def loop_turn(self, node, probes, constants, shared, state, followed, most_turns, turn):
        """Returns the state after a turn, and what is noted of it."""
        turns, carry, is_on = state
        decisions = notes_at_turn(followed, turn) if followed else followed
        arguments = [*shared, *carry]
        results, notes = self._turn(node, arguments, probes.empty(decisions))
        carry = chosen_by_turn(is_on, results, carry)
        turns = turns + is_on.astype(turns.dtype)
        is_on = self._goes_on(node, constants, turns, carry, most_turns)
        return (turns, carry, is_on), notes

    def _goes_on(
        self,
        node: Node,
        constants: list[Leaf],
        turns: Leaf,
        carry: list[Leaf],
        most_turns: Leaf | None,
    ) -> Leaf:
        """Returns whether a loop goes on: as often as the run that it follows, if any."""
        if most_turns is not None:
            return turns < most_turns
        # The condition notes nothing: its comparisons are the number of turns.
        condition = _Run(self.plan, Probes(), self.arithmetic)
        return condition.block(node.inner[1], [*constants, *carry])[0]

    def _caller(
        self, node: Node, run_turn: Callable[..., Any], is_long: bool
    ) -> Callable[..., Any]:
        """Returns what runs a turn of a loop: equation by equation, or compiled."""
        probes = self.probes.empty(None)
        arithmetic = self.arithmetic
        # A branch or a loop of unknown length is decided by values, which a trace has not.
        if arithmetic.is_traced or not is_long or not _is_straight(node.inner):
            return functools.partial(run_turn, self, node, probes)
        functions = self.program.functions
        plan = self.plan
        plan_inside = plan.part(node.inner[0].first, node.number)
        key = (node.number, plan_inside, self.formats, probes.key)
        if key not in functions:

            def traced(scale, *operands):
                traced_arithmetic = Arithmetic(
                    arithmetic.program, arithmetic.formats, True, scale
                )
                turn = _Run(plan, probes, traced_arithmetic)
                with under_mesh(node.eqn):
                    return run_turn(turn, node, probes, *operands)

            # The option is of XLA for CPUs.
            is_on_cpu = jax.default_backend() == "cpu"
            options = QUICKLY if is_on_cpu else None
            functions[key] = jax.jit(traced, compiler_options=options)
        return functools.partial(functions[key], arithmetic.scale)

    def cond(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs the branch that is taken."""
        index, *arguments = self._entered(node, operands)
        # JAX clamps the index in the same way.
        number = min(max(int(index), 0), len(node.inner) - 1)
        return self._left(node, node.inner[number], arguments)

    def shard_map(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs shards as they stand."""
        # Collectives inside need their mesh, which op by op does not have.
        self.program.leave_out(node.stack)
        return self.own(node, operands)

    # Rules

    def computed(self, node: Node, operands: list[Value]) -> list[Value]:
        """Computes an equation in the dtypes of the plan."""
        entry = int(self.plan.entries[node.number])
        decision = self.probes.followed_at(node)
        # The last operand tells which of the first to take.
        if decision is not None and node.name in SELECTS:
            operands = [*operands[:-1], decision]
        computes = self.plan.computes(entry)
        if computes is not None:
            settled, results = self.arithmetic.named(node, operands, computes)
        else:
            rounds_number = self._rounds_number(node)
            settled, results = self.arithmetic.computed(
                node, operands, entry, rounds_number
            )
        if decision is not None:
            results = results_following(node, settled, results, decision)
        self.probes.decide(node, lambda: decision_of(node, settled, results))
        return list(self.probes.checked(node, settled, results))

    def own(self, node: Node, operands: list[Value]) -> list[Value]:
        """Computes an equation as it stands."""
        # An equation without a wide form gets what wide equations made, if all is wide.
        if self.plan.entries[node.number] != WIDE:
            operands = [own_form(operand) for operand in operands]
        return list(self.arithmetic.own(node, operands))

    def sample(self, node: Node, operands: list[Value]) -> list[Value]:
        """Draws random numbers."""
        results = self.arithmetic.own(node, operands)
        return [self.arithmetic.sample(result) for result in results]

    def call(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs a call."""
        results = self.block(node.inner[0], operands)
        entries = self.plan.carried.get(node.number)
        if entries is None:
            return results
        return self._all_crossed(results, node.eqn.outvars, entries)

    def solve(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs a linear solver."""
        return self.block(node.inner[0], solved(node, operands))

    def reduce_precision(self, node: Node, operands: list[Value]) -> list[Value]:
        """Rounds, but for wide types."""
        if self.plan.entries[node.number] == WIDE and not self.formats.is_own:
            return operands
        return self.computed(node, operands)

    def stochastic(self, node: Node, operands: list[Value]) -> list[Value]:
        """Rounds the first floating operand as dtypeguard does, but for wide types."""
        if self.formats.is_own or self.plan.entries[node.number] != WIDE:
            results = self.own(node, operands)
            entry = WRITTEN
        else:
            variables = node.eqn.invars
            are_floats = [is_inexact(var.aval) for var in variables]
            results = [operands[are_floats.index(True)]]
            entry = WIDE
        return self._all_crossed(results, node.eqn.outvars, itertools.repeat(entry))


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
    """Returns how many equations a loop has."""
    return node.number - node.inner[0].first


def _is_straight(blocks: Sequence[Block]) -> bool:
    """Returns whether no block holds branches, or a loop that cannot be unrolled."""
    for block in blocks:
        for node in block.all_nodes():
            if node.rule == COND or (node.rule in LOOPS and not _is_short_scan(node)):
                return False
    return True


def _is_short_scan(node: Node) -> bool:
    if node.rule != SCAN:
        return False
    return node.eqn.params["length"] * equations_of_loop(node) <= _MOST_UNROLLED
