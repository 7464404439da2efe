"""Loops, branches and shards of a program that is run by a plan."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.types import Aval, Leaf
from .._program.graph import loop_parts, manual_axes
from .._program.meshes import of_mesh, under_mesh
from .arithmetic import Value
from .formats import Formats
from .plans import Plan
from .probes import Counts, Noted, Probes
from .program import Block, Node, Program

# Loops with more equations, over all turns, are compiled.
_MOST_EAGER = 2000


class Control:
    """Runs the equations that have others inside of them.

    Attributes:
        program: the program.
        plan: what each equation computes in.
        probes: what is noted beside.
        formats: the dtypes.
        scale: see `Arithmetic`.
        is_traced: whether JAX traces what is computed.
    """

    program: Program
    plan: Plan
    probes: Probes
    formats: Formats
    scale: float | None
    is_traced: bool

    def block(self, block: Block, given: Sequence[Value]) -> list[Value]:
        """The results of a block."""
        raise NotImplementedError

    def boundary(
        self, number: int, place: int, value: Value, aval: Aval, is_wide: bool | None
    ) -> Leaf:
        """A value that enters or leaves a block, in the dtype that it has there."""
        raise NotImplementedError

    def in_trace(self, probes: Probes) -> "Control":
        """The same where JAX traces what is computed."""
        raise NotImplementedError

    # What enters and leaves

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

    def inside(self, node: Node, block: Block, given: Sequence[Value]) -> list[Leaf]:
        """The results of the body of a loop, of a branch or of shards."""
        if self.probes.finite is not None:
            self.probes.count(block.number, given)
        triples = zip(self.block(block, given), node.eqn.outvars, self.carried(node))
        return [
            self.boundary(block.number, n, value, var.aval, is_wide)
            for n, (value, var, is_wide) in enumerate(triples)
        ]

    def noted(
        self, probes: Probes, node: Node, block: Block, given: Sequence[Value]
    ) -> tuple[list[Leaf], Noted | None, Counts | None]:
        """The results of a block, and what probes of its own note of it."""
        outer, self.probes = self.probes, probes
        try:
            made = self.inside(node, block, given)
            return made, probes.decisions, probes.finite
        finally:
            self.probes = outer

    def compiled(self, node: Node, operands: Sequence[Leaf]) -> list[Leaf]:
        """The results of a loop or of shards, compiled once for each of their plans."""
        first, probes = node.inner[0].first, self.probes
        given = probes.given_within(first, node.number)
        part = self.plan.part(first, node.number)
        types = (*map(jax.typeof, operands),)
        notes = probes.decisions is None, probes.finite is None, given is None
        key = node.number, part, self.formats, types, notes
        key = *key, (*(given or ()),), self.scale is None

        def function(operands, given, scale):
            inside = probes.empty(given)
            runner = self.in_trace(inside)
            runner.scale = scale
            with under_mesh(node.eqn):
                made = RULES[node.rule](runner, node, operands)
            return made, inside.decisions, inside.finite

        known = self.program.compiled
        if key not in known:
            lowered = jax.jit(function).lower(operands, given, self.scale)
            known[key] = compiled(lowered)
        made, decisions, finite = known[key](operands, given, self.scale)
        probes.add(decisions, finite)
        return made

    # Loops

    def scan(self, node: Node, values: list[Value]) -> list[Value]:
        _, _, consts, count = loop_parts(node.eqn)
        values = self.entered(node, values, consts)
        turns = node.eqn.params["length"]
        if self.is_traced:
            return self._scan_in_trace(node, values, consts, count)
        if not 0 < turns * size_of(node) <= _MOST_EAGER:
            return self.compiled(node, values)
        outside, carry, xs = split(values, consts, count)
        order = [*range(turns)]
        given = self.probes.given_inside(node)
        notes: list[Any] = [None] * turns
        rows: list[Any] = [None] * turns
        for turn in reversed(order) if node.eqn.params["reverse"] else order:
            at = functools.partial(_at, turn=turn)
            probes = self.probes.empty(given and {n: at(x) for n, x in given.items()})
            operands = [*outside, *carry, *map(at, xs)]
            made, *notes[turn] = self.noted(probes, node, node.inner[0], operands)
            carry, rows[turn] = made[:count], made[count:]
        self.probes.add(*map(_joined, zip(*notes)))
        return [*carry, *map(_stacked, zip(*rows))]

    def _scan_in_trace(
        self, node: Node, values: list[Leaf], consts: int, count: int
    ) -> list[Value]:
        outside, carry, xs = split(values, consts, count)
        params = node.eqn.params

        def step(carry, given):
            xs, decisions = given
            probes, operands = self.probes.empty(decisions), [*outside, *carry, *xs]
            made, *notes = self.noted(probes, node, node.inner[0], operands)
            return made[:count], (made[count:], *notes)

        options = {"reverse": params["reverse"], "unroll": params.get("unroll", 1)}
        given = self.probes.given_inside(node)
        carry, (ys, *notes) = lax.scan(
            step, carry, (xs, given), params["length"], **options
        )
        self.probes.add(*notes)
        return [*carry, *ys]

    def loop(self, node: Node, values: list[Value]) -> list[Value]:
        """A `while` loop; under `vmap`, each element goes on by itself.

        It notes how many turns it took. Of many turns, it notes none of the decisions
        inside, and in how many of them a value was not finite.
        """
        _, before, consts, _ = loop_parts(node.eqn)
        values = self.entered(node, values, before + consts)
        if self.is_traced:
            return self._loop_in_trace(node, values)
        made = self._turn_by_turn(node, values)
        return self.compiled(node, values) if made is None else made

    def _goes_on(self, node: Node, constants: list[Leaf]) -> Callable[..., Leaf]:
        """Whether a loop goes on, of the turns that it took and what it carries."""
        given = None if self.probes.given is None else self.probes.given.get(node.number)
        if given is not None:  # as often as the run that it follows
            return lambda turns, carry: turns < given

        def goes_on(turns: Leaf, carry: list[Leaf]) -> Leaf:
            outer, self.probes = self.probes, Probes()
            (is_on,) = self.block(node.inner[1], [*constants, *carry])
            self.probes = outer
            return is_on

        return goes_on

    def _turn_by_turn(self, node: Node, values: list[Leaf]) -> list[Leaf] | None:
        """The results of a `while` loop of few turns; None of one of many."""
        _, before, consts, _ = loop_parts(node.eqn)
        constants, outside, carry = split(values, before, consts)
        goes_on = self._goes_on(node, constants)
        given, notes = self.probes.given_inside(node), []
        most = _MOST_EAGER // max(size_of(node), 1)
        turns = jnp.zeros(node.inner[1].outputs[0].aval.shape, jnp.int32)
        while jnp.any(is_on := goes_on(turns, carry)):
            if len(notes) == most:
                return None
            at = functools.partial(_at, turn=len(notes))
            probes = self.probes.empty(given and {n: at(x) for n, x in given.items()})
            made, *noted = self.noted(probes, node, node.inner[0], [*outside, *carry])
            notes.append(noted)
            carry = _chosen(is_on, made, carry)
            turns = turns + is_on.astype(turns.dtype)
        self.probes.add({node.number: turns}, None)
        self.probes.add(*map(_joined, zip(*notes)) if notes else (None, None))
        return carry

    def _loop_in_trace(self, node: Node, values: list[Leaf]) -> list[Leaf]:
        _, before, consts, _ = loop_parts(node.eqn)
        constants, outside, carry = split(values, before, consts)
        goes_on, has_counts = self._goes_on(node, constants), self.probes.finite is not None

        def made_of(carry):
            inside = Probes(finite={} if has_counts else None)
            operands = [*outside, *carry]
            made, _, counts = self.noted(inside, node, node.inner[0], operands)
            is_bad = lambda x: (x > 0).astype(x.dtype)[None]
            return made, jax.tree_util.tree_map(is_bad, counts)

        def step(state):
            turns, carry, counts = state
            is_on = goes_on(turns, carry) if turns.ndim else jnp.bool_(True)
            made, new = made_of(carry)
            counts = jax.tree_util.tree_map(jnp.add, counts, new)
            return turns + is_on.astype(turns.dtype), _chosen(is_on, made, carry), counts

        _, counts = jax.eval_shape(made_of, carry)
        turns = jnp.zeros(node.inner[1].outputs[0].aval.shape, jnp.int32)
        is_on = lambda state: jnp.any(goes_on(*state[:2]))
        state = turns, carry, jax.tree_util.tree_map(_zeros, counts)
        turns, made, counts = lax.while_loop(is_on, step, state)
        self.probes.add({node.number: turns}, counts)
        return made

    # Branches and shards

    def cond(self, node: Node, values: list[Value]) -> list[Value]:
        index, *operands = self.entered(node, values)
        if not self.is_traced:
            number = min(max(int(index), 0), len(node.inner) - 1)
            return self.inside(node, node.inner[number], operands)

        def branch(block: Block) -> tuple[list[Leaf], Noted | None, Counts | None]:
            probes = self.probes.empty(self.probes.given)
            return self.noted(probes, node, block, operands)

        notes: list[Any] = [{}, {}]  # what some branch notes
        if self.probes.notes_any:
            for block in node.inner:
                _, *noted = jax.eval_shape(functools.partial(branch, block))
                notes = [{**x, **(new or {})} for x, new in zip(notes, noted)]

        def filled(block: Block) -> tuple[list[Leaf], ...]:
            made, *noted = branch(block)
            zeros = [jax.tree_util.tree_map(_zeros, x) for x in notes]
            return made, *({**x, **(new or {})} for x, new in zip(zeros, noted))

        branches = [functools.partial(filled, block) for block in node.inner]
        made, *noted = lax.switch(index, branches)
        self.probes.add(*noted)
        return made

    def shard_map(self, node: Node, values: list[Value]) -> list[Value]:
        values = self.entered(node, values)
        if not self.is_traced:
            return self.compiled(node, values)
        params, axes = node.eqn.params, manual_axes(node.eqn)
        everywhere = jax.sharding.PartitionSpec()

        def body(values):
            probes = Probes(finite=None if self.probes.finite is None else {})
            made, _, counts = self.noted(probes, node, node.inner[0], values)
            return made, jax.tree_util.tree_map(lambda x: lax.psum(x, (*axes,)), counts)

        made, counts = jax.shard_map(
            body,
            mesh=params["mesh"],
            in_specs=([*params["in_specs"]],),
            out_specs=([*params["out_specs"]], everywhere),
            axis_names={*axes},
            check_vma=params["check_vma"],
        )(values)
        self.probes.add(None, counts)
        return made


RULES: dict[str, Callable[[Any, Node, list[Value]], list[Value]]] = {
    "scan": Control.scan,
    "while": Control.loop,
    "cond": Control.cond,
    "shard_map": Control.shard_map,
}


def split(values: Sequence[Leaf], *sizes: int) -> list[list[Leaf]]:
    """Lists of these sizes, and one of the rest."""
    ends = [0, *itertools.accumulate(sizes)]
    return [[*values[a:b]] for a, b in zip(ends, [*ends[1:], None])]


def compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles quickly: the program runs some dozen times only."""
    if jax.default_backend() != "cpu":
        return lowered.compile()
    return lowered.compile({"xla_backend_optimization_level": "0"})


def size_of(node: Node) -> int:
    """How many equations a loop has."""
    return node.number - node.inner[0].first


def _at(x: Leaf, turn: int) -> Leaf:
    with of_mesh(x):
        return lax.dynamic_index_in_dim(x, np.int32(turn), keepdims=False)


def _stacked(rows: Sequence[Leaf]) -> Leaf:
    with of_mesh(rows[0]):
        return jnp.stack(rows)


def _joined(turns: Sequence[dict[Any, Leaf] | None]) -> dict[Any, Leaf] | None:
    """What was noted in each turn of a loop, with an axis for the turns.

    A branch that was not taken in one of them, or a loop that took fewer turns, has noted
    zeros.
    """
    noted = [x for x in turns if x is not None]
    every = {key for each in noted for key in each}
    return {key: _stacked(_filled([each.get(key) for each in noted])) for key in every}


def _filled(rows: Sequence[Leaf | None]) -> list[Leaf]:
    """Rows of one shape: what is missing is 0."""
    known = [x for x in rows if x is not None]
    shape = np.max([x.shape for x in known], axis=0).astype(int).tolist()
    more = lambda x: [(0, n - m) for n, m in zip(shape, x.shape)]
    zeros = jnp.zeros(shape, known[0].dtype)
    fits = lambda x: x.shape == zeros.shape
    return [zeros if x is None else x if fits(x) else jnp.pad(x, more(x)) for x in rows]


def _zeros(x: Leaf) -> Leaf:
    return jnp.zeros(x.shape, x.dtype)


def _chosen(is_on: Leaf, new: Sequence[Leaf], old: Sequence[Leaf]) -> list[Leaf]:
    """What a loop carries: new where it goes on, if that differs between elements."""
    if not is_on.ndim:
        return [*new]
    shaped = lambda x: is_on.reshape(is_on.shape + (1,) * (x.ndim - is_on.ndim))
    return [jnp.where(shaped(x), x, y) for x, y in zip(new, old)]
