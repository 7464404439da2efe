"""Runs a program by a plan as one that XLA compiles, for the runs that a user waits for.

No rounding is left out, as in a run equation by equation: what is narrow stands behind a
barrier. Sums may be in another order, by which float32 differs in its last digits.
"""

import functools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.types import Leaf
from .._program.program import COND, LOOPS, SCAN, WHILE, Block, Node
from .arithmetic import Arithmetic, Value
from .evaluate import as_dtype
from .nodes import Noted
from .plans import WidthPlan
from .primitives import is_inexact
from .probes import Probes
from .program import NumericProgram
from .run import QUICKLY, _Run
from .turns import chosen_by_turn

# A `while_loop` has room for the notes of so many turns at first.
_FEW_TURNS = 16
_BRANCH = "branch"
# What is noted of results or decisions, and of watched equations.
_AllNotes = tuple[Noted, Noted]


class CompiledRuns:
    """Runs one program by plans, each of which XLA compiles once.

    Args:
        program: the program.
    """

    def __init__(self, program: NumericProgram):
        self._program = program
        self._functions = dict[object, Any]()
        # For the notes of how many turns a loop has room, by its number.
        self._room = dict[int, int]()

    def run(
        self, plan: WidthPlan, arrays: Sequence[Leaf], probes: Probes | None = None
    ) -> list[Leaf]:
        """Returns the results, in the dtypes of the plan; the probes make no changes."""
        probes = probes or Probes(noted={})
        key = plan.part(0, self._program.size), plan.is_wide_given, probes.key
        if plan.is_wide_given:  # other inputs are of wider dtypes, and compile nothing new
            arrays = [self._widened(jnp.asarray(array)) for array in arrays]
        while True:
            if key not in self._functions:
                self._functions[key] = self._compiled(plan, probes)
            with np.errstate(over="ignore"):  # NumPy warns of constants: -1e9 in float16
                results, notes = jax.block_until_ready(self._functions[key](list(arrays)))
            noted, watched_notes = notes
            if not self._has_grown(noted, watched_notes):
                break
            del self._functions[key]
        if probes.noted is not None:
            probes.noted.update(self._trimmed(noted, noted))
        probes.watched_notes.update(self._trimmed(watched_notes, noted))
        return results

    def _widened(self, array: Leaf) -> Leaf:
        if not is_inexact(array):
            return array
        return as_dtype(array, self._program.formats.widened(array.dtype))

    def _compiled(self, plan: WidthPlan, probes: Probes) -> Any:
        arithmetic = Arithmetic(self._program, self._program.formats, True, None)

        def compute(arrays: list[Leaf]) -> tuple[list[Leaf], _AllNotes]:
            program_run = _CompiledRun(plan, probes.empty(None), arithmetic, self._room)
            outputs = program_run.outputs(arrays)
            return outputs, program_run.notes_in_order()

        # At this level XLA contracts no product with a sum: each equation rounds.
        is_on_cpu = jax.default_backend() == "cpu"
        return jax.jit(compute, compiler_options=QUICKLY if is_on_cpu else None)

    def _has_grown(self, noted: Noted, watched_notes: Noted) -> bool:
        """Makes room for the turns of loops; returns whether there was not enough."""
        has_grown = False
        for node in self._program.block.all_nodes():
            if node.rule == WHILE and node.number in noted:
                turns = _most_turns(node, noted)
                numbers = range(node.inner[0].first, node.number)
                keys = [*noted, *watched_notes]
                has_notes = any(_number_of(key) in numbers for key in keys)
                if has_notes and turns > self._room.get(node.number, _FEW_TURNS):
                    self._room[node.number] = 2 ** (turns - 1).bit_length()
                    has_grown = True
        return has_grown

    def _trimmed(self, notes: Noted, noted: Noted) -> Noted:
        """Returns notes without those of branches not taken, and of turns not made."""
        trimmed = {key: x for key, x in notes.items() if not _is_of_branch(key)}
        for node in self._program.block.all_nodes():
            loops = sum(x.primitive.name in LOOPS for x in node.stack[1:])
            index = noted.get((node.number, _BRANCH))
            if index is not None and not loops:
                branch = min(max(int(index), 0), len(node.inner) - 1)
                for place, block in enumerate(node.inner):
                    if place != branch:
                        _remove(trimmed, range(block.first, block.number + 1))
            if node.rule == WHILE and node.number in noted:
                turns = _most_turns(node, noted)
                numbers = range(node.inner[0].first, node.number)
                if not turns:
                    _remove(trimmed, numbers)
                for key, rows in trimmed.items():
                    if _number_of(key) in numbers:
                        trimmed[key] = lax.slice_in_dim(rows, 0, turns, axis=loops)
        return trimmed


def _number_of(key: Any) -> int:
    """Returns the number of the equation of which something is noted."""
    return key[0] if isinstance(key, tuple) else key


def _is_of_branch(key: Any) -> bool:
    return isinstance(key, tuple) and key[1] == _BRANCH


def _remove(notes: Noted, numbers: range) -> None:
    """Removes the notes of some equations."""
    for key in list(notes):
        if _number_of(key) in numbers:
            del notes[key]


def _most_turns(node: Node, noted: Noted) -> int:
    return int(np.max(noted[node.number], initial=0))


class _CompiledRun(_Run):
    """A run that JAX traces, with its loops and branches.

    Attributes:
        room: for the notes of how many turns a loop has room, by its number.
    """

    def __init__(
        self, plan: WidthPlan, probes: Probes, arithmetic: Arithmetic, room: dict[int, int]
    ):
        super().__init__(plan, probes, arithmetic)
        self.room = room
        self.noted = Noted() if probes.noted is None else probes.noted

    def _turn(self, node, arguments, probes):
        return self._inside(node, node.inner[0], arguments)

    def _inside(
        self, node: Node, block: Block, arguments: Sequence[Value]
    ) -> tuple[list[Leaf], _AllNotes]:
        """Returns the results of a body or a branch, and what is noted of it."""
        probes = self.probes.empty(None)
        block_run = _CompiledRun(self.plan, probes, self.arithmetic, self.room)
        results = block_run._left(node, block, arguments)
        return results, block_run.notes_in_order()

    def notes_in_order(self) -> "_AllNotes":
        """Returns what is noted, whose keys JAX would sort: these are of several types."""
        return OrderedDict(self.noted), OrderedDict(self.probes.watched_notes)

    def _goes_on(self, node, constants, turns, carry, most_turns):
        condition = _CompiledRun(self.plan, Probes({}), self.arithmetic, self.room)
        return condition.block(node.inner[1], [*constants, *carry])[0]

    def _add(self, notes: _AllNotes) -> None:
        noted, watched_notes = notes
        self.noted.update(noted)
        self.probes.watched_notes.update(watched_notes)

    def scan(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs a `scan` as one."""
        _, shared, carry, scanned = self.entered_loop(node, operands)
        count = len(carry)

        def turn(carry, slices):
            arguments = [*shared, *carry, *slices]
            results, notes = self._inside(node, node.inner[0], arguments)
            return results[:count], (results[count:], notes)

        length = node.eqn.params["length"]
        is_reversed = node.eqn.params["reverse"]
        carry, (rows, notes) = lax.scan(turn, carry, scanned, length, is_reversed)
        self._add(notes)
        return [*carry, *rows]

    def loop(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs a `while` loop as one, with room for the notes of some turns."""
        constants, shared, carry, _ = self.entered_loop(node, operands)

        def inside(carry):
            return self._inside(node, node.inner[0], [*shared, *carry])

        def turn(state):
            number, turns, carry, is_on, notes = state
            results, turn_notes = inside(carry)
            carry = chosen_by_turn(is_on, results, carry)
            turns = turns + is_on.astype(turns.dtype)
            put_row = functools.partial(_put, number)
            notes = jax.tree.map(put_row, notes, turn_notes)
            is_on = self._goes_on(node, constants, turns, carry, None)
            return number + 1, turns, carry, is_on, notes

        room = self.room.get(node.number, _FEW_TURNS)
        _, shapes = jax.eval_shape(inside, carry)
        notes = jax.tree.map(lambda x: jnp.zeros((room, *x.shape), x.dtype), shapes)
        turns = jnp.zeros(node.inner[1].outputs[0].aval.shape, np.int32)
        is_on = self._goes_on(node, constants, turns, carry, None)
        state = (np.int32(0), turns, carry, is_on, notes)
        state = lax.while_loop(lambda state: jnp.any(state[3]), turn, state)
        _, turns, carry, _, notes = state
        self.probes.decide(node, lambda: turns)
        self._add(notes)
        return carry

    def cond(self, node: Node, operands: list[Value]) -> list[Value]:
        """Runs the branch that is taken; the others have notes of zeros."""
        index, *arguments = self._entered(node, operands)
        zeros: _AllNotes = ({}, {})
        for block in node.inner:
            branch = functools.partial(self._inside, node, block, arguments)
            _, shapes = jax.eval_shape(branch)
            for blank, noted in zip(zeros, shapes):
                for key, shape in noted.items():
                    blank[key] = jnp.zeros(shape.shape, shape.dtype)

        def filled(block):
            results, notes = self._inside(node, block, arguments)
            all_notes: list[Noted] = []
            for blank, noted in zip(zeros, notes):
                all_notes.append(OrderedDict([*blank.items(), *noted.items()]))
            return results, all_notes

        branches = [functools.partial(filled, block) for block in node.inner]
        results, notes = lax.switch(index, branches)
        self._add(notes)
        self.noted[node.number, _BRANCH] = index
        return results


def _put(number: Leaf, rows: Leaf, row: Leaf) -> Leaf:
    return lax.dynamic_update_index_in_dim(rows, row, number, 0)


_CompiledRun.rules = {
    **_Run.rules,
    SCAN: _CompiledRun.scan,
    WHILE: _CompiledRun.loop,
    COND: _CompiledRun.cond,
}
