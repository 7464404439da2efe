"""Runs a program by a plan: the one interpreter.

Equations run one by one, each in the dtypes of its entry, as JAX runs them outside of
`jit`. Loops of many turns, branches inside of them and shards are compiled.
"""

import contextlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.types import Aval, Equation, Leaf
from .._program.meshes import as_dtype, current_mesh, under_mesh, varying_as
from .arithmetic import Arithmetic, Either, Value
from .control import compiled
from .decisions import kind_of
from .formats import Formats
from .loops import Loops
from .nodes import (
    CALL,
    COMPUTED,
    OWN,
    SAMPLE,
    SKIPPED,
    SOLVE,
    STOCHASTIC,
    Block,
    Node,
)
from .primitives import is_inexact
from .probes import Counts as Counts, Noted as Noted, Probes
from .program import NumericProgram
from .propagate import WIDE, WidthPlan, solved


def run(
    program: NumericProgram,
    plan: WidthPlan,
    arrays: Sequence[Leaf],
    probes: Probes | None = None,
    formats: Formats | None = None,
    scale: float | None = None,
) -> list[Leaf]:
    """The results of a program by a plan.

    Args:
        program: the program.
        plan: what each equation computes in.
        arrays: its inputs.
        probes: what is noted beside.
        formats: the dtypes; those of the program by default.
        scale: see `Arithmetic`.
    """
    with np.errstate(over="ignore"):  # NumPy warns of constants: -1e9 in float16
        runner = _Run(program, plan, probes or Probes(), formats, scale)
        return runner.program_of(arrays)


def run_as_one(
    program: NumericProgram, plan: WidthPlan, arrays: Sequence[Leaf], formats: Formats
) -> list[Leaf]:
    """The same, compiled as one: XLA may compute it otherwise, and keeps nothing of it."""
    runner = _Run(program, plan, Probes(), formats, None, is_traced=True)
    return compiled(jax.jit(runner.program_of).lower([*arrays]))([*arrays])


class _Run(Loops):
    """One run of a program, or of a part of it while JAX traces that."""

    def __init__(
        self,
        program: NumericProgram,
        plan: WidthPlan,
        probes: Probes,
        formats: Formats | None,
        scale: float | None,
        is_traced: bool = False,
    ):
        self.program, self.plan, self.probes = program, plan, probes
        self.formats = formats or program.formats
        self.scale, self.is_traced = scale, is_traced
        known = program.unknown, program.functions
        self.arithmetic = Arithmetic(self.formats, *known, is_traced, scale)

    def in_trace(self, probes: Probes) -> "_Run":
        parts = self.program, self.plan, probes, self.formats, self.scale
        return _Run(*parts, is_traced=True)

    def program_of(self, arrays: Sequence[Leaf]) -> list[Leaf]:
        block, is_wide = self.program.block, self.plan.is_wide_given
        made = self.block(block, [self._input(x, is_wide) for x in arrays])
        return [
            self.boundary(block.number, n, value, var.aval, None)
            for n, (value, var) in enumerate(zip(made, block.outputs))
        ]

    def _input(self, array: Leaf, is_wide: bool) -> Value:
        array = jnp.asarray(array)
        as_dtype_of = self.arithmetic.as_wide if is_wide else self.arithmetic.as_written
        return as_dtype_of(array, array.dtype)

    def boundary(
        self, number: int, place: int, value: Value, aval: Aval, entry: int | None
    ) -> Leaf:
        """A value that enters or leaves a block, in the dtype that it has there.

        Args:
            number: of the block or the equation.
            place: of the value.
            value: the value.
            aval: what the program has.
            entry: what it is in there; None if it stays as it is.
        """
        is_rounded = (number, place) in self.plan.rounded
        if entry is None and isinstance(value, Either):
            entry = int(self.plan.is_wide)
        if not is_inexact(aval) or (entry is None and not is_rounded):
            return value
        if entry and (computes := self.plan.computes(entry)):
            return as_dtype(
                value.own if isinstance(value, Either) else value, computes.result
            )
        if entry:
            return self.arithmetic.as_wide(value, aval.dtype, is_rounded)
        return self.arithmetic.as_written(value, aval.dtype)

    def entered_block(self, block: Block, given: Sequence[Value]) -> list[Value]:
        return [*map(self.arithmetic.constant, block.consts), *given]

    def context(self, eqn: Equation) -> contextlib.AbstractContextManager[object]:
        return under_mesh(eqn)

    def kept(self, block: Block, node: Node, made: Sequence[Value]) -> Sequence[Value]:
        if self.probes.finite is not None and node.rule not in _CALLS:
            self.probes.count(node.number, made)
        return made

    def literal(self, var: Leaf, meant: float | None) -> Value:
        """A number that stands in an equation, made once for all runs under a mesh."""
        key = id(var), meant, self.formats, current_mesh()
        if key not in self.program.literals:
            with jax.ensure_compile_time_eval():
                array = jnp.asarray(var.val, var.aval.dtype)
                self.program.literals[key] = self.arithmetic.constant(array, meant)
        return self.program.literals[key]

    # Rules

    def computed(self, node: Node, values: list[Value]) -> list[Value]:
        plan, number = self.plan, node.number
        is_rounded = [(number, n) in plan.rounded for n in range(len(values))]
        is_constant = bool(plan.constants) and any(
            (node.line, x) in plan.constants for x in (*node.meant.values(), node.constant)
        )
        probes, entry = self.probes, int(plan.entries[number])
        decides = kind_of(node) if probes.follows_or_notes else None
        given = probes.given.get(number) if decides and probes.given is not None else None
        if decides and given is not None:
            own = [v.own if isinstance(v, Either) else v for v in values]
            given = varying_as(given, own)
            values = decides.take(values, given)
        if computes := plan.computes(entry):
            operands, made = self.arithmetic.named(node, values, computes)
        else:
            operands, made = self.arithmetic.computed(
                node, values, entry, is_rounded, is_constant
            )
        if decides and given is not None:
            made = decides.follow(node, operands, made, given)
        if decides and probes.decisions is not None:
            probes.decisions[number] = decides.note(node, operands, made)
        return [*made]

    def own(self, node: Node, values: list[Value]) -> list[Value]:
        exact = [v.own if self._takes_own(v, node) else v for v in values]
        return [*self.arithmetic.own(node, exact)]

    def _takes_own(self, value: Value, node: Node) -> bool:
        return isinstance(value, Either) and self.plan.entries[node.number] != WIDE

    def sample(self, node: Node, values: list[Value]) -> list[Value]:
        return [*map(self.arithmetic.sample, self.arithmetic.own(node, values))]

    def call(self, node: Node, values: list[Value]) -> list[Value]:
        made, entries = (
            self.block(node.inner[0], values),
            self.plan.carried.get(node.number),
        )
        if entries is None:
            return made
        triples = zip(made, node.eqn.outvars, entries)
        return [
            self.boundary(node.number, n, value, var.aval, entry)
            for n, (value, var, entry) in enumerate(triples)
        ]

    def skipped(self, node: Node, values: list[Value]) -> list[Value]:
        return []

    def solve(self, node: Node, values: list[Value]) -> list[Value]:
        return self.block(node.inner[0], solved(node, values))

    def reduce_precision(self, node: Node, values: list[Value]) -> list[Value]:
        if self.plan.entries[node.number] == WIDE and not self.formats.is_own:
            return values
        return self.computed(node, values)

    def stochastic(self, node: Node, values: list[Value]) -> list[Value]:
        """A stochastic rounding of dtypeguard, of the first floating operand."""
        if self.formats.is_own or self.plan.entries[node.number] != WIDE:
            made = self.own(node, values)
            dtypes = [var.aval.dtype for var in node.eqn.outvars]
            return [self.arithmetic.as_written(x, d) for x, d in zip(made, dtypes)]
        pairs = zip(values, node.eqn.invars)
        value = next(v for v, var in pairs if is_inexact(var.aval))
        return [self.arithmetic.as_wide(value, v.aval.dtype) for v in node.eqn.outvars]


_CALLS = CALL, SOLVE
_Run.rules = {
    COMPUTED: _Run.computed,
    OWN: _Run.own,
    SAMPLE: _Run.sample,
    CALL: _Run.call,
    SKIPPED: _Run.skipped,
    "scan": _Run.scan,
    "while": _Run.loop,
    "cond": _Run.cond,
    "shard_map": _Run.shard_map,
    SOLVE: _Run.solve,
    "reduce_precision": _Run.reduce_precision,
    STOCHASTIC: _Run.stochastic,
}
