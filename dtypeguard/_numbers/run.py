"""Runs a program by a plan: the one interpreter.

Equations run one by one, each in the dtypes of its entry, as JAX runs them outside of
`jit`. Loops of many turns, branches inside of them and shards are compiled.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.types import Aval, Leaf
from .._program.graph import loop_parts, manual_axes
from .._program.meshes import of_mesh, under_mesh
from .arithmetic import Arithmetic, Either, Value
from .decisions import kind_of
from .formats import Formats
from .plans import WIDE, Plan, solved
from .primitives import is_inexact
from .program import CALL, COMPUTED, OWN, SAMPLE, SKIPPED, Block, Node, Program

# Loops with more equations, over all turns, are compiled.
_MOST_EAGER = 2000

# By the number of the equation; of a loop, with an axis for its turns.
Noted = dict[int, Leaf]
# By the equation and the place of the result; of a body's inputs by ("given", its number).
Counts = dict[tuple[object, int], Leaf]


@dataclasses.dataclass
class Probes:
    """What a run notes beside its results, and which decisions it is given.

    Attributes:
        decisions: what it decided; None if that is not noted.
        given: the decisions that it follows; None if it makes its own.
        finite: how many elements of each result are not finite, by the number of the
            equation and the place of the result; None if that is not noted.
        watch: called with each equation and its results.
    """

    decisions: Noted | None = None
    given: Noted | None = None
    finite: Counts | None = None
    watch: Callable[[Node, Sequence[Leaf]], None] | None = None

    def empty(self, given: Noted | None) -> "Probes":
        """The same with nothing noted yet."""
        none = lambda noted: None if noted is None else {}
        return Probes(none(self.decisions), given, none(self.finite), self.watch)

    def of_turn(self, turn: int) -> "Probes":
        """The probes of one turn of a loop."""
        given = self.given and {n: x[turn] for n, x in self.given.items() if np.ndim(x)}
        return self.empty(given)

    def given_within(self, node: Node) -> Noted | None:
        """The decisions that are given for a loop."""
        first, last = node.inner[0].first, node.number
        return self.given and {n: x for n, x in self.given.items() if first <= n < last}

    def add(self, decisions: Noted | None, finite: Counts | None) -> None:
        """Adds what was noted inside."""
        if self.decisions is not None and decisions:
            self.decisions |= decisions
        if self.finite is not None and finite:
            self.finite |= finite

    def join(self, turns: Sequence["Probes"]) -> None:
        """Adds what was noted in each turn of a loop, with an axis for the turns."""
        stack = lambda all_noted: {
            key: jnp.stack([noted[key] for noted in all_noted]) for key in all_noted[0]
        }
        if self.decisions is not None:
            self.decisions |= stack([each.decisions for each in turns])
        if self.finite is not None:
            self.finite |= stack([each.finite for each in turns])


def run(
    program: Program,
    plan: Plan,
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


class _Run:
    """One run of a program, or of a part of it while JAX traces that."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        probes: Probes,
        formats: Formats | None,
        scale: float | None,
        is_traced: bool = False,
    ):
        self.program, self.plan, self.probes = program, plan, probes
        self.formats = formats or program.formats
        self.scale, self.is_traced = scale, is_traced
        self.arithmetic = Arithmetic(self.formats, program.unknown, is_traced, scale)

    def program_of(self, arrays: Sequence[Leaf]) -> list[Leaf]:
        block, is_wide = self.program.block, self.plan.is_wide_given
        made = self.block(block, [self._input(x, is_wide) for x in arrays])
        return [
            self.boundary(block.number, n, value, var.aval, is_wide=None)
            for n, (value, var) in enumerate(zip(made, block.outputs))
        ]

    def _input(self, array: Leaf, is_wide: bool) -> Value:
        array = jnp.asarray(array)
        as_dtype_of = self.arithmetic.as_wide if is_wide else self.arithmetic.as_written
        return as_dtype_of(array, array.dtype)

    def boundary(
        self, number: int, place: int, value: Value, aval: Aval, is_wide: bool | None
    ) -> Leaf:
        """A value that enters or leaves a block, in the dtype that it has there.

        Args:
            number: of the block or the equation.
            place: of the value.
            value: the value.
            aval: what the program has.
            is_wide: whether it is wide there; None if it stays as it is.
        """
        is_rounded = (number, place) in self.plan.rounded
        if is_wide is None and isinstance(value, Either):
            is_wide = self.plan.is_wide
        if not is_inexact(aval) or (is_wide is None and not is_rounded):
            return value
        if is_wide:
            return self.arithmetic.as_wide(value, aval.dtype, is_rounded)
        return self.arithmetic.as_written(value, aval.dtype)

    def block(self, block: Block, given: Sequence[Value]) -> list[Value]:
        """The results of a block."""
        arithmetic = self.arithmetic
        consts = [*map(arithmetic.constant, block.consts)]
        known: dict[Any, Value] = dict(zip(block.inputs, (*consts, *given)))
        for node in block.nodes:
            values = [
                self._literal(v, node.meant.get(n)) if hasattr(v, "val") else known[v]
                for n, v in enumerate(node.eqn.invars)
            ]
            with under_mesh(node.eqn):
                made = _RULES[node.rule](self, node, values)
            known |= zip(node.eqn.outvars, made)
            if self.probes.finite is not None and not node.inner:
                self._count(node.number, made)
            if self.probes.watch is not None:
                self.probes.watch(node, made)
            for var in node.last:
                known.pop(var, None)
        return [
            self._literal(v, block.meant.get(n)) if hasattr(v, "val") else known[v]
            for n, v in enumerate(block.outputs)
        ]

    def _literal(self, var: Leaf, meant: float | None) -> Value:
        """A number that stands in an equation, made once for all runs."""
        key = id(var), meant, self.formats
        if key not in self.program.literals:
            with jax.ensure_compile_time_eval():
                array = jnp.asarray(var.val, var.aval.dtype)
                self.program.literals[key] = self.arithmetic.constant(array, meant)
        return self.program.literals[key]

    def _count(self, source: object, made: Sequence[Value]) -> None:
        """Notes how many elements are not finite, and how many are not a number."""
        assert self.probes.finite is not None
        for place, value in enumerate(made):
            array = value.wide if isinstance(value, Either) else value
            if is_inexact(array):
                bad, nan = ~jnp.isfinite(array), jnp.isnan(array)
                counts = jnp.stack([jnp.sum(bad), jnp.sum(nan)])
                self.probes.finite[source, place] = counts

    def _enters(self, block: Block, given: Sequence[Leaf]) -> None:
        if self.probes.finite is not None:
            self._count(("given", block.number), given)

    # Rules

    def computed(self, node: Node, values: list[Value]) -> list[Value]:
        plan, number = self.plan, node.number
        is_rounded = [(number, n) in plan.rounded for n in range(len(values))]
        is_constant = bool(plan.constants) and any(
            (node.line, x) in plan.constants for x in (*node.meant.values(), node.constant)
        )
        entry = int(plan.entries[number])
        operands, made = self.arithmetic.computed(
            node, values, entry, is_rounded, is_constant
        )
        return self._decided(node, operands, made)

    def _decided(self, node: Node, operands: list[Leaf], made: list[Leaf]) -> list[Value]:
        probes = self.probes
        if probes.decisions is None and probes.given is None:
            return made
        decides = kind_of(node)
        if decides is None:
            return made
        if probes.given is not None and node.number in probes.given:
            given = probes.given[node.number]
            made = decides.follow(node, operands, made, given)
        if probes.decisions is not None:
            probes.decisions[node.number] = decides.note(node, operands, made)
        return made

    def own(self, node: Node, values: list[Value]) -> list[Value]:
        exact = [v.own if self._takes_own(v, node) else v for v in values]
        return [*self.arithmetic.own(node, exact)]

    def _takes_own(self, value: Value, node: Node) -> bool:
        return isinstance(value, Either) and self.plan.entries[node.number] != WIDE

    def sample(self, node: Node, values: list[Value]) -> list[Value]:
        return [*map(self.arithmetic.sample, self.arithmetic.own(node, values))]

    def call(self, node: Node, values: list[Value]) -> list[Value]:
        return self.block(node.inner[0], values)

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

    # Loops, branches and shards

    def carried(self, node: Node) -> Sequence[bool]:
        """Which results of an equation are wide."""
        default = (self.plan.is_wide,) * len(node.eqn.outvars)
        return self.plan.carried.get(node.number, default)

    def entered(self, node: Node, values: Sequence[Value], first: int = 0) -> list[Leaf]:
        """The operands of a loop, of branches or shards; what is carried has its dtype.

        Args:
            node: the equation.
            values: its operands.
            first: the place of the first that is carried.
        """
        is_loop = node.rule in ("scan", "while")
        count = loop_parts(node.eqn).carried if is_loop else 0
        wide: list[bool | None] = [None] * len(values)
        wide[first : first + count] = self.carried(node)[:count]
        triples = zip(values, node.eqn.invars, wide)
        return [
            self.boundary(node.number, n, value, var.aval, is_wide)
            for n, (value, var, is_wide) in enumerate(triples)
        ]

    def left(self, node: Node, block: Block, made: Sequence[Value]) -> list[Leaf]:
        """The results of the body of a loop, of a branch or of shards."""
        triples = zip(made, node.eqn.outvars, self.carried(node))
        return [
            self.boundary(block.number, n, value, var.aval, is_wide)
            for n, (value, var, is_wide) in enumerate(triples)
        ]

    def compiled(self, node: Node, operands: Sequence[Leaf]) -> list[Leaf]:
        """The results of a loop or of shards, compiled once for each of their plans."""
        first, probes = node.inner[0].first, self.probes
        within = lambda number: first <= number <= node.number
        given = probes.given and {n: x for n, x in probes.given.items() if within(n)}
        types = [jax.typeof(x) for x in operands]
        notes = given is None, probes.decisions is None, probes.finite is None
        key = (
            node.number,
            self.plan.part(first, node.number),
            self.formats,
            (*types,),
            notes,
        )
        key = *key, tuple(given or ()), self.scale is None

        def function(operands, given, scale):
            noted = Probes(
                None if probes.decisions is None else {},
                given,
                None if probes.finite is None else {},
            )
            inside = dataclasses.replace(noted)
            runner = _Run(self.program, self.plan, inside, self.formats, scale, True)
            with under_mesh(node.eqn):
                made = _RULES[node.rule](runner, node, operands)
            return made, inside.decisions, inside.finite

        known = self.program.compiled
        if key not in known:
            lowered = jax.jit(function).lower(operands, given, self.scale)
            known[key] = compiled(lowered)
        made, decisions, finite = known[key](operands, given, self.scale)
        if probes.decisions is not None:
            probes.decisions |= decisions
        if probes.finite is not None:
            probes.finite |= finite
        return made

    def scan(self, node: Node, values: list[Value]) -> list[Value]:
        _, _, consts, count = loop_parts(node.eqn)
        values = self.entered(node, values, consts)
        turns = node.eqn.params["length"]
        if self.is_traced:
            return self._scan_in_trace(node, values, consts, count)
        if not 0 < turns * _size(node) <= _MOST_EAGER:
            return self.compiled(node, values)
        outside, carry, xs = split(values, consts, count)
        order = [*range(turns)]
        probes, noted, rows = self.probes, [], []
        for turn in reversed(order) if node.eqn.params["reverse"] else order:
            self.probes = probes.of_turn(turn)
            slices = [_at(x, turn) for x in xs]
            self._enters(node.inner[0], [*carry, *slices])
            made = self.block(node.inner[0], [*outside, *carry, *slices])
            made = self.left(node, node.inner[0], made)
            carry = made[:count]
            rows.append(made[count:])
            noted.append(self.probes)
        self.probes = probes
        if node.eqn.params["reverse"]:
            rows, noted = rows[::-1], noted[::-1]
        probes.join(noted)
        return [*carry, *map(_stacked, zip(*rows))]

    def _scan_in_trace(
        self, node: Node, values: list[Leaf], consts: int, count: int
    ) -> list[Value]:
        outside, carry, xs = split(values, consts, count)
        probes, params = self.probes, node.eqn.params

        def step(carry, given):
            xs, decisions = given
            self.probes = probes.empty(decisions)
            self._enters(node.inner[0], [*carry, *xs])
            made = self.block(node.inner[0], [*outside, *carry, *xs])
            made = self.left(node, node.inner[0], made)
            noted, self.probes = self.probes, probes
            return made[:count], (made[count:], noted.decisions, noted.finite)

        options = {"reverse": params["reverse"], "unroll": params.get("unroll", 1)}
        given = probes.given_within(node)
        carry, (ys, decisions, finite) = lax.scan(
            step, carry, (xs, given), params["length"], **options
        )
        probes.add(decisions, finite)
        return [*carry, *ys]

    def loop(self, node: Node, values: list[Value]) -> list[Value]:
        """A `while` loop; under `vmap`, each element goes on by itself."""
        _, before, consts, _ = loop_parts(node.eqn)
        values = self.entered(node, values, before + consts)
        if not self.is_traced:
            return self.compiled(node, values)
        body, condition = node.inner
        of_condition, outside, carry = split(values, before, consts)
        probes = self.probes
        axes = len(condition.outputs[0].aval.shape)
        given = None if probes.given is None else probes.given.get(node.number)

        def goes_on(turns, carry):
            if given is not None:  # as often as the run that it follows
                return turns < given
            with self._unheard():
                return self.block(condition, [*of_condition, *carry])[0]

        def made_of(carry):
            with self._unheard(counts=probes.finite is not None) as inside:
                self._enters(body, carry)
                made = self.block(body, [*outside, *carry])
                return self.left(node, body, made), inside.finite

        def step(state):
            turns, carry, counts = state
            made, new = made_of(carry)
            is_on = goes_on(turns, carry) if axes else jnp.bool_(True)
            if axes:
                made = [_where(is_on, x, y) for x, y in zip(made, carry)]
            counts = jax.tree_util.tree_map(jnp.add, counts, new)
            return turns + is_on.astype(turns.dtype), made, counts

        _, counts = jax.eval_shape(made_of, carry)
        none = jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), counts)
        turns = jnp.zeros(condition.outputs[0].aval.shape, jnp.int32)
        is_on = lambda state: jnp.any(goes_on(*state[:2]))
        turns, made, counts = lax.while_loop(is_on, step, (turns, carry, none))
        decisions = None if probes.decisions is None else {node.number: turns}
        probes.add(decisions, counts)
        return made

    def cond(self, node: Node, values: list[Value]) -> list[Value]:
        index, *operands = self.entered(node, values)
        if not self.is_traced:
            number = min(max(int(index), 0), len(node.inner) - 1)
            block = node.inner[number]
            return self.left(node, block, self.block(block, operands))
        has_counts = self.probes.finite is not None
        counted: Counts = {}

        def branch(block: Block):
            with self._unheard(counts=has_counts) as inside:
                made = self.left(node, block, self.block(block, operands))
                for key, x in (inside.finite or {}).items():
                    counted.setdefault(key, jnp.zeros(x.shape, x.dtype))
                return made, {**counted, **(inside.finite or {})}

        for block in node.inner * has_counts:
            jax.eval_shape(lambda block=block: branch(block)[0])
        branches = [lambda block=block: branch(block) for block in node.inner]
        made, counts = lax.switch(index, branches)
        self.probes.add(None, counts if has_counts else None)
        return made

    def shard_map(self, node: Node, values: list[Value]) -> list[Value]:
        values = self.entered(node, values)
        if not self.is_traced:
            return self.compiled(node, values)
        params, axes = node.eqn.params, manual_axes(node.eqn)
        everywhere = jax.sharding.PartitionSpec()
        has_counts = self.probes.finite is not None

        def body(values):
            with self._unheard(counts=has_counts) as inside:
                made = self.left(node, node.inner[0], self.block(node.inner[0], values))
                counts = {
                    n: lax.psum(x, (*axes,)) for n, x in (inside.finite or {}).items()
                }
                return made, counts

        made, counts = jax.shard_map(
            body,
            mesh=params["mesh"],
            in_specs=([*params["in_specs"]],),
            out_specs=([*params["out_specs"]], everywhere),
            axis_names={*axes},
            check_vma=params["check_vma"],
        )(values)
        self.probes.add(None, counts if has_counts else None)
        return made

    @contextlib.contextmanager
    def _unheard(self, counts: bool = False) -> Iterator[Probes]:
        """Runs what is traced more than once, or not each time: it notes no decisions."""
        outer, self.probes = self.probes, Probes(finite={} if counts else None)
        try:
            yield self.probes
        finally:
            self.probes = outer


def split(values: Sequence[Leaf], *sizes: int) -> list[list[Leaf]]:
    """Lists of these sizes, and one of the rest."""
    ends = [0, *itertools.accumulate(sizes)]
    return [[*values[a:b]] for a, b in zip(ends, [*ends[1:], None])]


def compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles quickly: the program runs some dozen times only."""
    if jax.default_backend() != "cpu":
        return lowered.compile()
    return lowered.compile({"xla_backend_optimization_level": "0"})


def _size(node: Node) -> int:
    """How many equations a loop has."""
    return node.number - node.inner[0].first


def _at(x: Leaf, turn: int) -> Leaf:
    with of_mesh(x):
        return lax.dynamic_index_in_dim(x, np.int32(turn), keepdims=False)


def _stacked(rows: Sequence[Leaf]) -> Leaf:
    with of_mesh(rows[0]):
        return jnp.stack(rows)


def _where(is_on: Leaf, new: Leaf, old: Leaf) -> Leaf:
    return jnp.where(is_on.reshape(is_on.shape + (1,) * (new.ndim - is_on.ndim)), new, old)


_RULES: dict[str, Callable[[_Run, Node, list[Value]], list[Value]]] = {
    COMPUTED: _Run.computed,
    OWN: _Run.own,
    SAMPLE: _Run.sample,
    CALL: _Run.call,
    SKIPPED: _Run.skipped,
    "scan": _Run.scan,
    "while": _Run.loop,
    "cond": _Run.cond,
    "shard_map": _Run.shard_map,
    "custom_linear_solve": _Run.solve,
    "reduce_precision": _Run.reduce_precision,
    "stochastic": _Run.stochastic,
}
