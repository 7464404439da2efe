"""Runs a program by a plan, to measure it.

Equations run one by one, as JAX runs them outside of `jit`. Loops and branches are compiled
as they stand, and so is a whole program for the runs that a user waits for.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.types import Leaf
from .._program.jaxprs import LoopOperands, Variable, is_literal, loop_parts, split_operands
from .._program.program import (
    CALL,
    COND,
    LOOPS,
    Block,
    Node,
)
from .arithmetic import Arithmetic, Either, Value, own_form
from .compiled import FEW_TURNS, call_compiled
from .evaluate import as_dtype, current_mesh, under_mesh
from .formats import Formats
from .nodes import (
    COMPUTED,
    REDUCE_PRECISION,
    STOCHASTIC,
    WITHOUT_BLOCKS,
    Interpreter,
    Noted,
)
from .plans import ROUNDED, WIDE, WRITTEN, WidthPlan
from .primitives import SELECTS, is_inexact
from .probes import Notes, Probes, decision_of, results_following
from .program import NumericProgram
from .turns import at_turn, chosen_by_turn, put_at_turn, zeros_like


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


def run_compiled(
    program: NumericProgram,
    plan: WidthPlan,
    arrays: Sequence[Leaf],
    probes: Probes | None = None,
) -> list[Leaf]:
    """Returns the results of a program that XLA compiles whole."""
    formats = program.formats
    if plan.is_wide_given:  # inputs in wider dtypes compile nothing new
        arrays = [_widened(jnp.asarray(array), formats) for array in arrays]
    arithmetic = Arithmetic(program, formats, False, None)
    whole_run = _Run(plan, probes or Probes(), arithmetic)
    return whole_run.compiled(range(program.size), _Run.outputs, list(arrays))


def _widened(array: Leaf, formats: Formats) -> Leaf:
    return as_dtype(array, formats.widened(array.dtype)) if is_inexact(array) else array


class _Run(Interpreter):
    """One run of a program, or of a body while JAX traces that.

    Args:
        plan: what equations compute in.
        probes: what to note.
        arithmetic: computes them.
        flags: of a trace of all plans that differ in what rounds alone, whether an equation
            rounds, by its number.
    """

    def __init__(
        self,
        plan: WidthPlan,
        probes: Probes,
        arithmetic: Arithmetic,
        flags: Leaf | None = None,
    ):
        self.plan = plan
        self._flags = flags
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
            if isinstance(value, Either):
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

    def _with(self, probes: Probes) -> "_Run":
        return _Run(self.plan, probes, self.arithmetic, self._flags)

    def _inside_with_notes(
        self,
        node: Node,
        block: Block,
        arguments: Sequence[Value],
        followed: Noted | None = None,
    ) -> tuple[list[Leaf], Notes]:
        """Returns the results of a body or a branch, and what is noted of it."""
        inner = self._with(self.probes.empty(followed))
        return inner._left(node, block, arguments), inner.probes.notes

    # As the walk asks

    def context(self, eqn):
        return under_mesh(eqn)

    def constant(self, var, array):
        return self._constant(var, array, None)

    def read(self, user, place, var, values):
        intended = user.intended.get(place)
        if intended is None:
            return super().read(user, place, var, values)
        block = user if isinstance(user, Block) else user.block
        array = var.val if is_literal(var) else block.constants[var]
        constant = self._constant(var, array, intended)
        if not isinstance(user, Node):
            return constant
        # What is inside of a call or a loop does not see that the line of it rounds.
        if self._rounds_constants(user):
            return own_form(constant)
        if self._flags is None or user.rule in WITHOUT_BLOCKS:
            return constant
        rounded = as_dtype(constant.written, constant.wide.dtype)
        return constant._replace(wide=self._chosen(user, rounded, constant.wide))

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

    # What is compiled

    def compiled(
        self,
        numbers: range,
        compute: Callable[["_Run", list[Any]], Sequence[Any]],
        operands: list[Any],
    ) -> list[Leaf]:
        """Returns the results of a part of the program that XLA compiles.

        Args:
            numbers: those of the equations in it.
            compute: returns the results of the part in a run that JAX traces.
            operands: what it is given.
        """
        program = self.program
        probes = self.probes
        formats = self.formats
        plan = self.plan
        flags = None
        # Runs that measure lines differ in what rounds: one program serves all of them.
        if plan.is_rounding and probes.notes_nothing:
            flags = plan.entries == ROUNDED
            plan = plan.with_all(WIDE)

        def traced(scale, flags, followed, operands):
            arithmetic = Arithmetic(program, formats, True, scale)
            run = _Run(plan, probes.empty(followed), arithmetic, flags)
            return compute(run, operands), run.probes.notes

        part = plan.part(numbers.start, numbers.stop)
        key = (numbers, part, plan.is_wide_given, formats, probes.key)
        arguments = [self.arithmetic.scale, flags, probes.followed, operands]
        return call_compiled(program, key, traced, arguments, probes)

    def node(self, node, operands):
        # Values decide how often a loop turns, and which branch is taken.
        if node.rule in _DECIDED_BY_VALUES and not self.arithmetic.is_traced:
            numbers = range(node.inner[0].first, node.number)
            return self.compiled(numbers, lambda run, x: run.node(node, x), operands)
        if self._flags is not None and _may_round(node, operands):
            return self._flagged(node, operands)
        results = super().node(node, operands)
        # The equations inside of a call have noted the same values.
        if node.rule != CALL:
            self.probes.results(node.number, results, operands)
        return results

    def _flagged(self, node: Node, operands: list[Value]) -> list[Leaf]:
        """Returns the results of an equation, rounded if its flag says so."""
        rounding = _Run(self.plan.with_all(ROUNDED), self.probes, self.arithmetic)
        rounded = rounding.node(node, list(operands))
        results: list[Leaf] = []
        for exact, result in zip(super().node(node, operands), rounded):
            results.append(self._chosen(node, as_dtype(result, exact.dtype), exact))
        return results

    def _chosen(self, node: Node, rounded: Leaf, exact: Leaf) -> Leaf:
        """Returns what is rounded where the flag of an equation says so."""
        flags: Any = self._flags
        flag = lax.index_in_dim(flags, node.number, keepdims=False)
        return lax.select(flag, rounded, exact)

    # Loops, branches and shards

    def visit_scan(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs a `scan`."""
        _, shared, carry, scanned = self.entered_loop(node, operands)
        count = len(carry)

        def turn(carry, rows):
            slices, followed = rows
            arguments = [*shared, *carry, *slices]
            results, notes = self._inside_with_notes(
                node, node.inner[0], arguments, followed
            )
            return results[:count], (results[count:], notes)

        params = node.eqn.params
        rows = (scanned, self.probes.followed_inside(node))
        carry, (rows, notes) = lax.scan(
            turn, carry, rows, params["length"], params["reverse"]
        )
        self.probes.add(notes)
        return [*carry, *rows]

    def visit_while(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs a `while` loop, with room for the notes of some turns.

        Under `vmap` each element of the batch has turns of its own.
        """
        constants, shared, carry, _ = self.entered_loop(node, operands)
        followed = self.probes.followed_inside(node)
        most_turns = self.probes.followed_at(node)

        def goes_on(turns, carry):
            # As often as the run that it follows, if any.
            if most_turns is not None:
                return turns < most_turns
            # The condition notes nothing: its comparisons are the number of turns.
            condition = self._with(Probes())
            return condition.block(node.inner[1], [*constants, *carry])[0]

        def inside(number, carry):
            arguments = [*shared, *carry]
            decisions = at_turn(followed, number)
            return self._inside_with_notes(node, node.inner[0], arguments, decisions)

        def turn(state):
            number, turns, carry, is_on, notes = state
            results, turn_notes = inside(number, carry)
            carry = chosen_by_turn(is_on, results, carry)
            turns = turns + is_on.astype(turns.dtype)
            notes = put_at_turn(notes, turn_notes, number)
            return number + 1, turns, carry, goes_on(turns, carry), notes

        def is_on(state):
            _, _, _, is_on, _ = state
            return jnp.any(is_on)

        _, shapes = jax.eval_shape(inside, np.int32(0), carry)
        room = self.program.room.get(node.number, FEW_TURNS)
        notes = zeros_like(shapes, room)
        turns = jnp.zeros(node.inner[1].outputs[0].aval.shape, np.int32)
        state = (np.int32(0), turns, carry, goes_on(turns, carry), notes)
        _, turns, carry, _, notes = lax.while_loop(is_on, turn, state)
        # How often it turns is a decision, which other runs follow.
        self.probes.decide(node, lambda: turns)
        self.probes.add(notes)
        if jax.tree.leaves(notes):
            axis = sum(outer.primitive.name in LOOPS for outer in node.stack[1:])
            self.probes.counts[node.inner[0].first, node.number, axis] = turns
        return carry

    def visit_cond(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs the branch that is taken; the others have notes of zeros."""
        index, *arguments = self._entered(node, operands)
        followed = self.probes.followed_inside(node)
        branches: list[Callable[[], tuple[list[Leaf], Notes]]] = []
        blank = self.probes.empty(None).notes
        for block in node.inner:
            branch = functools.partial(
                self._inside_with_notes, node, block, arguments, followed
            )
            branches.append(branch)
            _, shapes = jax.eval_shape(branch)
            blank = blank.updated(zeros_like(shapes))

        def with_all_notes(branch):
            results, notes = branch()
            return results, blank.updated(notes)

        filled = [functools.partial(with_all_notes, branch) for branch in branches]
        results, notes = lax.switch(index, filled)
        self.probes.add(notes)
        if jax.tree.leaves(notes):
            # JAX clamps the index in the same way.
            branch_number = jnp.clip(index, 0, len(node.inner) - 1)
            for place, block in enumerate(node.inner):
                is_taken = (branch_number == place).astype(np.int32)
                self.probes.counts[block.first, block.number, None] = is_taken
        return results

    def visit_shard_map(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs shards as they stand."""
        # Collectives inside need their mesh, which op by op does not have.
        self.program.leave_out(node.stack)
        return self.visit_own(node, operands)

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

    def visit_own(self, node: Node, operands: list[Value]) -> list[Value]:
        """Computes an equation as it stands."""
        # An equation without a wide form gets what wide equations made, if all is wide.
        if self.plan.entries[node.number] != WIDE:
            operands = [own_form(operand) for operand in operands]
        return list(self.arithmetic.own(node, operands))

    def visit_sample(self, node: Node, operands: list[Value]) -> list[Value]:
        """Draws random numbers."""
        results = self.arithmetic.own(node, operands)
        return [self.arithmetic.sample(result) for result in results]

    def visit_call(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs a call."""
        results = self.block(node.inner[0], operands)
        entries = self.plan.carried.get(node.number)
        if entries is None:
            return results
        return self._all_crossed(results, node.eqn.outvars, entries)

    def visit_reduce_precision(self, node: Node, operands: list[Value]) -> list[Value]:
        """Rounds, but for wide types."""
        if self.plan.entries[node.number] == WIDE and not self.formats.is_own:
            return operands
        return self.computed(node, operands)

    def visit_stochastic(self, node: Node, operands: list[Value]) -> list[Value]:
        """Rounds the first floating operand as dtypeguard does, but for wide types."""
        if self.formats.is_own or self.plan.entries[node.number] != WIDE:
            results = self.visit_own(node, operands)
            entry = WRITTEN
        else:
            variables = node.eqn.invars
            are_floats = [is_inexact(var.aval) for var in variables]
            results = [operands[are_floats.index(True)]]
            entry = WIDE
        return self._all_crossed(results, node.eqn.outvars, itertools.repeat(entry))


def _may_round(node: Node, operands: Sequence[Value]) -> bool:
    """Returns whether an equation gives another result where its line rounds."""
    if node.line is None or node.rule not in (COMPUTED, REDUCE_PRECISION, STOCHASTIC):
        return False
    return node.rounds or any(isinstance(operand, Either) for operand in operands)


_DECIDED_BY_VALUES = LOOPS | {COND}
