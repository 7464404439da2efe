"""Branches and shards of a program that is run by a plan, and what is compiled of it."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from .._leaves.compat import as_function
from .._leaves.types import Aval, Equation, Jaxpr, Leaf
from .._program.graph import loop_parts, manual_axes
from .._program.meshes import under_mesh
from .arithmetic import Value
from .decisions import kind_of
from .formats import Formats
from .nodes import Block, Node
from .probes import Counts, Noted, Probes
from .program import NumericProgram
from .propagate import WidthPlan


class Interpreter:
    """The way through a program by a plan: one equation after another.

    What runs it here measures: eager, with probes, or compiled where it has to be. What
    runs it traced, equation by equation as it stands, is `autocast`.

    Attributes:
        rules: by the rule of a node, what computes it.
    """

    rules: ClassVar[dict[str, Callable[..., Sequence[Any]]]]

    def entered_block(self, block: Block, given: Sequence[Any]) -> list[Any]:
        """The values of the constants and the inputs of a block."""
        raise NotImplementedError

    def literal(self, var: Leaf, meant: float | None) -> Any:
        """The value of a number that stands in an equation."""
        raise NotImplementedError

    def context(self, eqn: Equation) -> contextlib.AbstractContextManager[object]:
        """What an equation is computed under."""
        raise NotImplementedError

    def used(self, value: Any) -> Any:
        """A value as the next equation takes it."""
        return value

    def kept(self, block: Block, node: Node, made: Sequence[Any]) -> Sequence[Any]:
        """The results of an equation as they are kept until they are used."""
        return made

    def block(self, block: Block, given: Sequence[Any]) -> list[Any]:
        """The results of a block."""
        known = dict(zip(block.inputs, self.entered_block(block, given)))
        is_literal = lambda var: hasattr(var, "val")
        read = lambda var, meant: (
            self.literal(var, meant) if is_literal(var) else self.used(known[var])
        )
        for node in block.nodes:
            with self.context(node.eqn):
                values = [read(v, node.meant.get(n)) for n, v in enumerate(node.eqn.invars)]
                made = self.kept(block, node, self.made(node, values))
                known |= zip(node.eqn.outvars, made)
            for var in node.last:
                known.pop(var, None)
        return [read(v, block.meant.get(n)) for n, v in enumerate(block.outputs)]

    def made(self, node: Node, values: list[Any]) -> Sequence[Any]:
        """The results of an equation."""
        return self.rules[node.rule](self, node, values)


class Control(Interpreter):
    """Runs the equations that have others inside of them.

    Attributes:
        program: the program.
        plan: what each equation computes in.
        probes: what is noted beside.
        formats: the dtypes.
        scale: see `Arithmetic`.
        is_traced: whether JAX traces what is computed.
    """

    program: NumericProgram
    plan: WidthPlan
    probes: Probes
    formats: Formats
    scale: float | None
    is_traced: bool

    def boundary(
        self, number: int, place: int, value: Value, aval: Aval, entry: int | None
    ) -> Leaf:
        """A value that enters or leaves a block, in the dtype that it has there."""
        raise NotImplementedError

    def in_trace(self, probes: Probes) -> "Control":
        """The same where JAX traces what is computed."""
        raise NotImplementedError

    # What enters and leaves

    def carried(self, node: Node) -> Sequence[int]:
        """What the results of an equation leave in."""
        default = (int(self.plan.is_wide),) * len(node.eqn.outvars)
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
        entries: list[int | None] = [None] * len(values)
        entries[first : first + count] = self.carried(node)[:count]
        triples = zip(values, node.eqn.invars, entries)
        return [
            self.boundary(node.number, n, value, var.aval, entry)
            for n, (value, var, entry) in enumerate(triples)
        ]

    def inside(self, node: Node, block: Block, given: Sequence[Value]) -> list[Leaf]:
        """The results of the body of a loop, of a branch or of shards."""
        if self.probes.finite is not None:
            self.probes.count(block.number, given)
        triples = zip(self.block(block, given), node.eqn.outvars, self.carried(node))
        return [
            self.boundary(block.number, n, value, var.aval, entry)
            for n, (value, var, entry) in enumerate(triples)
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
        given = probes.given_within(first, node.number) or None
        # Decisions are noted though nobody asks: that is one program less to compile.
        is_decided = node.rule == "while" or decides(*node.inner)
        notes = given is None and probes.finite is None and is_decided
        notes |= probes.decisions is not None and is_decided
        noted = dataclasses.replace(probes, decisions={} if notes else None)
        part = self.plan.part(first, node.number)
        types = (*map(jax.typeof, operands),)
        key = node.number, part, self.formats, types, notes, probes.finite is None
        shapes = ((n, x.shape) for n, x in (given or {}).items())
        key = *key, (*shapes,), self.scale is None

        def function(operands, given, scale):
            inside = noted.empty(given)
            runner = self.in_trace(inside)
            runner.scale = scale
            with under_mesh(node.eqn):
                made = runner.made(node, [*operands])
            return made, inside.decisions, inside.finite

        known = self.program.compiled
        if key not in known:
            lowered = jax.jit(function).lower(operands, given, self.scale)
            known[key] = compiled(lowered)
        made, decisions, finite = known[key](operands, given, self.scale)
        probes.add(decisions, finite)
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

        # Each is traced once: in nested branches, twice would be 2^depth times.
        functions = [functools.partial(branch, block) for block in node.inner]
        traced = [jax.make_jaxpr(each, return_shape=True)() for each in functions]
        notes: list[Any] = [{}, {}]  # what some branch notes
        for _, (_, *noted) in traced:
            notes = [{**x, **(new or {})} for x, new in zip(notes, noted)]

        def filled(program: Jaxpr, shapes: Any) -> tuple[Any, ...]:
            noted: list[Any]
            leaves = as_function(program)()
            made, *noted = jax.tree_util.tree_structure(shapes).unflatten(leaves)
            zeros = [jax.tree_util.tree_map(zeros_like, x) for x in notes]
            return made, *({**x, **(new or {})} for x, new in zip(zeros, noted))

        branches = [functools.partial(filled, *each) for each in traced]
        made, *noted = lax.switch(index, branches)
        self.probes.add(*noted)
        return made

    def shard_map(self, node: Node, values: list[Value]) -> list[Value]:
        values = self.entered(node, values)
        if not self.is_traced:
            return self.compiled(node, values)
        params, axes = node.eqn.params, manual_axes(node.eqn)
        everywhere = jax.sharding.PartitionSpec()
        # Each device decides by itself: its decisions have an axis for the devices.
        by_device = jax.sharding.PartitionSpec((*axes,))
        tree_map = jax.tree_util.tree_map

        def body(values, given):
            probes = self.probes.empty(tree_map(lambda x: x[0], given))
            made, decisions, counts = self.noted(probes, node, node.inner[0], values)
            counts = tree_map(lambda x: lax.psum(x, (*axes,)), counts)
            return made, tree_map(lambda x: x[None], decisions), counts

        made, *noted = jax.shard_map(
            body,
            mesh=params["mesh"],
            in_specs=([*params["in_specs"]], by_device),
            out_specs=([*params["out_specs"]], by_device, everywhere),
            axis_names={*axes},
            check_vma=params["check_vma"],
        )(values, self.probes.given_inside(node))
        self.probes.add(*noted)
        return made


def decides(*blocks: Block) -> bool:
    """Whether something in one of these blocks decides by floating values."""
    nodes = itertools.chain.from_iterable(block.all_nodes() for block in blocks)
    return any(each.rule == "while" or kind_of(each) for each in nodes)


def split(values: Sequence[Leaf], *sizes: int) -> list[list[Leaf]]:
    """Lists of these sizes, and one of the rest."""
    ends = [0, *itertools.accumulate(sizes)]
    return [[*values[a:b]] for a, b in zip(ends, [*ends[1:], None])]


def compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles quickly: the program runs some dozen times only."""
    if jax.default_backend() != "cpu":
        return lowered.compile()
    return lowered.compile({"xla_backend_optimization_level": "0"})


def zeros_like(x: Leaf) -> Leaf:
    return jnp.zeros(x.shape, x.dtype)
