"""Runs a program by a plan, to measure it.

Equations run one by one, as JAX runs them outside of `jit`. Loops and branches are compiled
as they stand, and so is a whole program for the runs that a user waits for.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.types import Leaf
from .._program.jaxprs import Arrays, Variable
from .._program.program import CALL, COND, LOOPS, Block, LoopOperands, Node, split_operands
from .._program.walk import Walk
from .arithmetic import Arithmetic, Either, Value, Values, own_form
from .compiled import call_compiled
from .evaluate import as_dtype, current_mesh, round_inwards, under_mesh
from .formats import Formats
from .integers import otherwise
from .plans import ROUNDED, WIDE, WRITTEN, WidthPlan
from .primitives import (
    COMPUTED,
    ROUNDINGS,
    SELECTS,
    WITHOUT_BLOCKS,
    Noted,
    Results,
    is_inexact,
)
from .probes import (
    DECISION,
    Probes,
    at_turn,
    chosen_by_turn,
    put_at_turn,
    results_following,
    zeros_like,
)
from .program import NumericProgram


@np.errstate(all="ignore")  # NumPy warns where XLA does not: of -1e9 in float16
def run(
    program: NumericProgram,
    plan: WidthPlan,
    arrays: Arrays,
    probes: Probes | None = None,
    formats: Formats | None = None,
    scale: float | None = None,
    is_compiled: bool = False,
) -> Results:
    """Returns the results of a program by a plan.

    Args:
        program: the program.
        plan: what its equations compute in.
        arrays: its inputs.
        probes: what to note.
        formats: the dtypes, those of the program by default.
        scale: see `Arithmetic`.
        is_compiled: whether XLA compiles it whole.
    """
    if formats is None:
        formats = program.formats
    if probes is None:
        probes = Probes()
    arithmetic = Arithmetic(program, formats, False, scale)
    whole_run = Run(plan, probes, arithmetic)
    variables = program.block.arguments
    # The first line may round the inputs alone.
    entry = WRITTEN
    if plan.is_wide_given:
        entry = WIDE
    inputs = map(jnp.asarray, arrays)
    arguments = whole_run.all_crossed(inputs, variables, entry)
    # What NumPy has computed goes to XLA, and a user may forbid such transfers.
    with jax.transfer_guard_host_to_device("allow"):
        if is_compiled:
            numbers = range(program.size)
            return whole_run.compiled(numbers, Run.outputs, arguments)
        return whole_run.outputs(arguments)


class Switch(NamedTuple):
    """Equations that compute by another plan, as a compiled program is told when it runs.

    Attributes:
        is_on: whether an equation does, by its number.
        plan: the other plan; what these make has the dtypes of the plan of the run.
    """

    is_on: Leaf
    plan: WidthPlan


@dataclasses.dataclass(eq=False)
class Run(Walk[Any]):
    """One run of a program, or of a body while JAX traces that.

    Args:
        plan: what equations compute in.
        probes: what to note.
        arithmetic: computes them.
        switch: of a trace for several plans, what may compute by another one.
    """

    plan: WidthPlan
    probes: Probes
    arithmetic: Arithmetic
    switch: Switch | None = None

    @property
    def program(self) -> NumericProgram:
        """The program."""
        return self.arithmetic.program

    def outputs(self, arguments: Arrays) -> Results:
        """Returns the results of the program."""
        block = self.program.block
        results = self.block(block, arguments)
        return self.all_crossed(results, block.outputs, None)

    def entry(self, node: Node) -> int:
        """Returns what an equation computes in."""
        return int(self.plan.entries[node.number])

    # What enters and leaves

    def all_crossed(
        self,
        values: Iterable[Value],
        variables: Iterable[Variable],
        entry: int | None,
    ) -> Results:
        """Returns values in the dtypes in which they enter or leave a block."""
        entries = itertools.repeat(entry)
        return list(map(self._crossed, values, variables, entries))

    def _crossed(self, value: Value, var: Variable, entry: int | None) -> Leaf:
        """Returns a value in the dtype in which it enters or leaves a block."""
        if entry is None:
            if not isinstance(value, Either):
                return value
            # Only one form of a value is carried, scanned or returned.
            entry = self._default_entry
        if not is_inexact(var.aval):
            return value
        width = self.plan.computes(entry) or entry
        rule = self.arithmetic.rule(width)
        form = rule.form(value)
        dtype = rule.makes(var.aval.dtype)
        return self.arithmetic.settled(form, dtype)

    @property
    def _default_entry(self) -> int:
        """The entry of what leaves a loop, if the plan names none."""
        if self.plan.is_rounding:
            return WIDE
        return WRITTEN

    def left(self, node, results):
        default = itertools.repeat(self._default_entry)
        entries = self.plan.carried.get(node.number, default)
        return list(map(self._crossed, results, node.eqn.outvars, entries))

    def _entered(self, node: Node, operands: Values) -> LoopOperands[Value]:
        """Returns the operands of a loop inside of it, in their groups.

        What all turns share is left as it is: each line inside has constants as they were
        meant, if it is wide.
        """
        groups = split_operands(node.eqn, operands)
        # What comes round again has one dtype in all turns.
        carry = self.left(node, groups.carry)
        count = len(groups.scanned)
        variables = node.eqn.invars[-count:]
        scanned = self.all_crossed(groups.scanned, variables, None)
        return groups._replace(carry=carry, scanned=scanned)

    def _inside(
        self, node: Node, block: Block, arguments: Values, followed: Noted
    ) -> tuple[Results, Noted]:
        """Returns the results of a body or a branch, and what is noted of it."""
        probes = self.probes.empty(followed)
        inner = dataclasses.replace(self, probes=probes)
        inner_results = inner.block(block, arguments)
        results = self.left(node, inner_results)
        return results, probes.noted

    # As the walk asks

    def add_results(self, node, values):
        with under_mesh(node.eqn):
            super().add_results(node, values)

    def read(self, user, place, var, values):
        """Returns an operand; a constant that was meant otherwise in the form to use."""
        intended = user.intended.get(place)
        if intended is None:
            return super().read(user, place, var, values)
        array = user.block.constant(var)
        constant: Any = self.constant(var, array, intended)
        if not isinstance(user, Node):
            return constant
        # What is inside of a call or a loop does not see that the line of it rounds.
        if self.entry(user) == ROUNDED:
            return constant.written
        if self.switch is None:
            return constant
        if user.rule in WITHOUT_BLOCKS:
            return constant
        chosen = _chosen(self.switch, user, constant.written, constant.wide)
        return constant._replace(wide=chosen)

    def constant(self, var, array, intended: np.ndarray | None = None):
        """Returns a constant of the program, made once for all runs under a mesh."""
        # Each run asks for it again.
        formats = self.arithmetic.formats
        literals = self.program.literals
        mesh = current_mesh()
        key = (id(var), id(intended), formats, mesh)
        if key not in literals:
            with jax.ensure_compile_time_eval():
                array = jnp.asarray(array, var.aval.dtype)
                wide = array
                if intended is not None:
                    wide = jnp.asarray(intended)
                literals[key] = self.arithmetic.both_forms(array, wide)
        return literals[key]

    # What is compiled

    def compiled(
        self,
        numbers: range,
        compute: Callable[["Run", list[Any]], Sequence[Any]],
        operands: list[Any],
    ) -> Results:
        """Returns the results of a part of the program that XLA compiles.

        Args:
            numbers: those of the equations in it.
            compute: returns the results of the part in a run that JAX traces.
            operands: what it is given.
        """
        probes = self.probes
        arithmetic = self.arithmetic
        plan = self.plan
        are_rounded = plan.entries == ROUNDED
        is_switched = self._is_switched(numbers)
        # Runs that measure lines differ in what rounds: one program serves all of them.
        if is_switched:
            plan = plan.with_all(WIDE)

        def traced(scale, is_on, followed, operands):
            switch = None
            if is_switched:
                switch = Switch(is_on, plan.with_all(ROUNDED))
            in_trace = dataclasses.replace(arithmetic, is_traced=True, scale=scale)
            probes_in_trace = probes.empty(followed)
            run = Run(plan, probes_in_trace, in_trace, switch)
            results = compute(run, operands)
            return results, probes_in_trace.noted

        part = plan.part(numbers.start, numbers.stop)
        key = (
            numbers,
            part,
            plan.is_wide_given,
            arithmetic.formats,
            probes.note,
            probes.changed,
        )
        arguments = [arithmetic.scale, are_rounded, probes.followed, operands]
        return call_compiled(self.program, key, traced, arguments, probes)

    def _is_switched(self, numbers: range) -> bool:
        """Returns whether a part is compiled with a switch for what rounds in it."""
        if not self.plan.is_rounding:
            return False
        # No line rounds where all is compiled.
        if numbers == range(self.program.size):
            return False
        return self.probes.note is None

    def node(self, node, operands):
        """Runs a node and notes what it makes."""
        # Values decide how often a loop turns, and which branch is taken.
        is_decided = node.rule in _DECIDED_BY_VALUES
        if is_decided and not self.arithmetic.is_traced:

            def compute(run, operands):
                return run.node(node, operands)

            first = node.inner[0].first
            numbers = range(first, node.number)
            return self.compiled(numbers, compute, operands)
        results = super().node(node, operands)
        if self.switch is not None:
            results = self._switched(self.switch, node, operands, results)
        # The equations inside of a call have noted the same values.
        if node.rule != CALL:
            self.probes.add_notes(node, operands, results)
        return results

    def _switched(
        self, switch: Switch, node: Node, operands: list[Value], results: Arrays
    ) -> Arrays:
        """Returns the results of an equation, by the plan of a switch where that is on."""
        if not _may_round(node, operands):
            return results
        run = dataclasses.replace(self, plan=switch.plan, switch=None)
        switched_results = run.node(node, operands)
        choose = functools.partial(_chosen, switch, node)
        return list(map(choose, switched_results, results))

    # Loops, branches and shards

    def visit_scan(self, node, operands):
        """Runs a `scan`, with the notes of all turns."""
        _, shared, carry, scanned = self._entered(node, operands)
        count = len(carry)
        body = node.inner[0]

        def turn(carry, rows):
            slices, followed = rows
            arguments = [*shared, *carry, *slices]
            results, notes = self._inside(node, body, arguments, followed)
            new_rows = (results[count:], notes)
            return results[:count], new_rows

        params = node.eqn.params
        rows = (scanned, self.probes.followed_inside(node))
        length = params["length"]
        is_reversed = params["reverse"]
        carry, rows = lax.scan(turn, carry, rows, length, is_reversed)
        results, notes = rows
        self.probes.noted.update(notes)
        return [*carry, *results]

    def visit_while(self, node, operands):
        """Runs a `while` loop, with room for the notes of some turns.

        Under `vmap` each element of the batch has turns of its own.
        """
        constants, shared, carry, _ = self._entered(node, operands)
        body, condition = node.inner
        probes = self.probes
        followed = probes.followed_inside(node)
        most_turns = probes.followed_at(node)

        def goes_on(turns, carry):
            # As often as the run that it follows, if any.
            if most_turns is not None:
                return turns < most_turns
            # The condition notes nothing: its comparisons are the number of turns.
            run = dataclasses.replace(self, probes=Probes())
            arguments = [*constants, *carry]
            (is_on,) = run.block(condition, arguments)
            return is_on

        def inside(number, carry):
            decisions = at_turn(followed, number)
            arguments = [*shared, *carry]
            return self._inside(node, body, arguments, decisions)

        def turn(state):
            turns, is_on, carry, notes = state
            number = jnp.max(turns)
            results, turn_notes = inside(number, carry)
            carry = chosen_by_turn(is_on, results, carry)
            turns = turns + is_on.astype(turns.dtype)
            notes = put_at_turn(notes, turn_notes, number)
            is_on = goes_on(turns, carry)
            return turns, is_on, carry, notes

        def any_goes_on(state):
            _, is_on, _, _ = state
            return jnp.any(is_on)

        (condition_output,) = condition.outputs
        shape = condition_output.aval.shape
        turns = jnp.zeros(shape, np.int32)
        is_on = goes_on(turns, carry)
        first_number = np.int32(0)
        _, shapes = jax.eval_shape(inside, first_number, carry)
        notes = zeros_like(shapes, node.room)
        state = (turns, is_on, carry, notes)
        turns, _, carry, notes = lax.while_loop(any_goes_on, turn, state)
        # How often it turns is a decision, which other runs follow.
        notes[node.number, DECISION] = turns
        probes.noted.update(notes)
        return carry

    def visit_cond(self, node, operands):
        """Runs the branch that is taken; the others have notes of zeros."""
        index, *arguments = operands
        followed = self.probes.followed_inside(node)
        blank = Noted()

        def run_branch(block):
            return self._inside(node, block, arguments, followed)

        def with_all_notes(block):
            results, notes = run_branch(block)
            return results, {**blank, **notes}

        branches = []
        for block in node.inner:
            run_block = functools.partial(run_branch, block)
            _, shapes = jax.eval_shape(run_block)
            blank.update(zeros_like(shapes))
            branch = functools.partial(with_all_notes, block)
            branches.append(branch)
        results, notes = lax.switch(index, branches)
        self.probes.noted.update(notes)
        return results

    def visit_shard_map(self, node, operands):
        """Runs shards as they stand."""
        # Collectives inside need their mesh, which op by op does not have.
        self.program.leave_out(node.stack)
        return self.visit_own(node, operands)

    def visit_call(self, node, operands):
        """Runs the body of a call where the call stands."""
        block = node.inner[0]
        results = self.block(block, operands)
        if node.number not in self.plan.carried:
            return results
        return self.left(node, results)

    # Equations

    def computed(self, node, operands):
        """Computes an equation in the dtypes of the plan."""
        entry = self.entry(node)
        decision = self.probes.followed_at(node)
        # The last operand tells which of the first to take.
        if decision is not None and node.name in SELECTS:
            *arrays, _ = operands
            operands = [*arrays, decision]
        width = self.plan.computes(entry) or entry
        settled, results = self.arithmetic.computed(node, operands, width)
        if decision is not None:
            results = results_following(node, results, decision)
        # An audit asks whether numbers that do not fit change any output.
        if node.number == self.probes.changed:
            return [otherwise(node, settled, results[0])]
        return results

    def visit_own(self, node, operands):
        """Computes an equation as it stands."""
        # An equation without a wide form gets what wide equations made, if all is wide.
        if self.entry(node) != WIDE:
            operands = list(map(own_form, operands))
        return self.arithmetic.own(node, operands)

    def visit_sample(self, node, operands):
        """Draws numbers, which are the same in wide types but for their digits."""
        results = self.arithmetic.own(node, operands)
        # Below 1 stays below 1: a uniform sample of 1.0 would make a logarithm of 0.
        samples: list[Value] = []
        for result in results:
            sample = self.arithmetic.both_forms(result, result, round_inwards)
            samples.append(sample)
        return samples

    # Roundings, which wide types leave out

    def _is_left_out(self, node: Node) -> bool:
        if self.arithmetic.formats.products is not None:
            return False
        return self.entry(node) == WIDE

    def visit_reduce_precision(self, node, operands):
        if self._is_left_out(node):
            return operands
        return self.computed(node, operands)

    def visit_stochastic(self, node, operands):
        """Rounds the first floating operand at random, as dtypeguard does."""
        variables = node.eqn.outvars
        if not self._is_left_out(node):
            results = self.visit_own(node, operands)
            return self.all_crossed(results, variables, WRITTEN)
        # A derivative has the tangent behind the random bits.
        floats: list[Value] = []
        for operand, var in zip(operands, node.eqn.invars):
            if is_inexact(var.aval):
                floats.append(operand)
        return self.all_crossed(floats, variables, WIDE)


def _chosen(switch: Switch, node: Node, switched: Leaf, result: Leaf) -> Leaf:
    """Returns what an equation makes by the plan of a switch where that is on."""
    switched = as_dtype(switched, result.dtype)
    number = node.number
    is_on = lax.index_in_dim(switch.is_on, number, keepdims=False)
    return lax.select(is_on, switched, result)


def _may_round(node: Node, operands: Values) -> bool:
    """Returns whether an equation gives another result where its line rounds."""
    if node.line is None:
        return False
    if node.rule not in ROUNDINGS | {COMPUTED}:
        return False
    if node.rounds:
        return True
    forms = map(type, operands)
    return Either in forms


_DECIDED_BY_VALUES = LOOPS | {COND}
