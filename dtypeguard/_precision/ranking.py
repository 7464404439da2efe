"""What a plan may keep wide, ranked by runs of one compiled program.

Each part of the program has a flag, which is an argument: where it is on, the part rounds.
So a trial is a call. Of a large program, which takes long to compile, trials are eager.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._autocast.decide import by_plan
from .._autocast.emit import bind
from .._autocast.matching import MatchedLine, key_of_line
from .._autocast.plan import Plan, PlanEntry
from .._leaves.types import DType, Equation, Leaf
from .._numbers.evaluate import bits_of, under_mesh
from .._numbers.nodes import (
    CALL,
    COMPUTED,
    OWN,
    SAMPLE,
    SOLVE,
    STOCHASTIC,
    Interpreter,
    Node,
)
from .._numbers.plans import WidthPlan
from .._numbers.program import NumericProgram
from .._program.graph import loop_parts
from .planned import Trials

# A program of more equations is not compiled with flags.
MOST_EQUATIONS = 20_000
# To name a whole function, so much more of the work may become wide.
_LITTLE = 0.01


class Part(NamedTuple):
    """An expression of the source that a plan may keep wide.

    Attributes:
        place: the file and the function.
        expression: its text; None if the source is not known.
        scope: of `jax.named_scope`; None outside of all.
        nodes: its equations, by their numbers.
        work: its share of the multiply-adds.
    """

    place: str
    expression: str | None
    scope: str | None
    nodes: frozenset[int]
    work: float

    def __str__(self) -> str:
        return str(PlanEntry(self.place, self.expression, self.scope))

    def is_named(self, place: str, expression: str | None, scope: str | None) -> bool:
        """Whether an entry of a plan names it."""
        is_inside = self.place == place or self.place.startswith(f"{place}.")
        is_it = is_inside and expression in (None, self.expression)
        return is_it and scope in (None, self.scope)


class Ranking:
    """Runs of a program by a plan, with some parts of what is narrow wide.

    Attributes:
        parts: what may stay wide; sets of them are of their places in this list.
        count: how many runs were made.
        is_spent: whether one was asked for, and none was left.
    """

    def __init__(
        self, trials: Trials, plan: Plan, budget: int, show_status: Callable[[str], None]
    ):
        self._trials, self._plan, self._budget = trials, plan, budget
        self._show, self.count, self.is_spent = show_status, 0, False
        self._errors: dict[frozenset[int], float] = {}
        program, widths = trials.program, by_plan(trials.program, plan)
        by_line = defaultdict[MatchedLine, list[int]](list)
        for node in program.block.all_nodes():
            if node.rounds and trials.narrows(node, widths):
                by_line[key_of_line(node.stack)].append(node.number)
        self.parts = [
            Part(
                line.place,
                line.expression,
                line.scope or None,
                frozenset(numbers),
                sum(trials.work.get(number, 0.0) for number in numbers),
            )
            for line, numbers in by_line.items()
            if line.place
        ]
        self._function = None
        if program.size <= MOST_EQUATIONS and plan.loss_scale is None:
            # What cannot be named always rounds: its flag is the last one.
            places = {part.nodes: number for number, part in enumerate(self.parts)}
            flags = dict[int, int]()
            for numbers in by_line.values():
                place = places.get(frozenset(numbers), len(self.parts))
                flags |= dict.fromkeys(numbers, place)
            flagged = _Flagged(program, widths, flags)
            self._function = jax.jit(flagged.outputs)

    def error(self, wide: Collection[int]) -> float:
        """The error with some parts wide; infinity if no run is left."""
        key = frozenset(wide)
        if key not in self._errors:
            if self.count >= self._budget:
                self.is_spent = True
                return math.inf
            self.count += 1
            self._show(f"trying what stays wide: run {self.count}")
            self._errors[key] = self._error(key)
        return self._errors[key]

    def _error(self, wide: frozenset[int]) -> float:
        if self._function is None:
            entries = (*self._plan.entries, *self.entries(wide))
            plan = dataclasses.replace(self._plan, entries=entries)
            return self._trials.error(self._trials.eager(plan))
        flags = np.array([n not in wide for n in range(len(self.parts) + 1)])
        function = self._function
        return self._trials.error(lambda *arrays: function(flags, *arrays))

    def tried(self, wide: Collection[int]) -> float | None:
        """The error with some parts wide; None if no run is left."""
        error = self.error(wide)
        return error if frozenset(wide) in self._errors else None

    def alone(self, number: int) -> float | None:
        """The error where one part alone rounds; None if no run is left."""
        return self.tried({*range(len(self.parts))} - {number})

    def order(self) -> list[int]:
        """The parts, those first of which a wide one leaves most for its price."""
        worth = lambda n: min(self.alone(n) or 0.0, 1e18) ** 2 / (self.parts[n].work or 1.0)
        return sorted(range(len(self.parts)), key=worth, reverse=True)

    def whole(self, wide: Collection[int]) -> frozenset[int]:
        """These parts, and the rest of a function where that is little work."""
        made = {*wide}
        for place in {self.parts[n].place for n in wide}:
            rest = {*self._named(place, None, None)} - made
            if sum(self.parts[n].work for n in rest) <= _LITTLE:
                made |= rest
        return frozenset(made)

    def lines(self, wide: Collection[int]) -> frozenset[int]:
        """The numbers of the lines of some parts."""
        numbers = {number for n in wide for number in self.parts[n].nodes}
        nodes = self._trials.program.block.all_nodes()
        return frozenset(
            x.line for x in nodes if x.number in numbers and x.line is not None
        )

    def entries(
        self,
        wide: Collection[int],
        without: Callable[[frozenset[int]], float | None] = lambda _: None,
    ) -> tuple[PlanEntry, ...]:
        """Entries for some parts: a function, an expression, or that in a scope.

        `without` gives the error with an entry left out, of the parts that are wide then.
        """
        made = dict[Any, PlanEntry]()
        for number in sorted(wide):
            place, expression, scope, *_ = self.parts[number]
            keys = (
                (place, None, None),
                (place, expression, None),
                (place, expression, scope),
            )
            fits = lambda key: {*self._named(*key)} <= {*wide}
            key = next(filter(fits, keys), keys[-1])
            named = self._named(*key)
            error = without(frozenset(wide) - {*named})
            share = sum(self.parts[n].work for n in named)
            made[key] = PlanEntry(*key, error=error, share=share)
        return (*made.values(),)

    def _named(self, place: str, expression: str | None, scope: str | None) -> list[int]:
        parts = enumerate(self.parts)
        return [n for n, part in parts if part.is_named(place, expression, scope)]


class _Flagged(Interpreter):
    """A program of which each part rounds as by a plan where its flag is on; traced."""

    def __init__(self, program: NumericProgram, widths: WidthPlan, flags: dict[int, int]):
        self._program, self._widths, self._places = program, widths, flags

    def outputs(self, flags: Leaf, *arrays: Leaf) -> list[Leaf]:
        self._flags = flags
        return self.block(self._program.block, arrays)

    def context(self, eqn: Equation) -> Any:
        return under_mesh(eqn)

    def written(self, node: Node, values: Sequence[Leaf]) -> list[Leaf]:
        return bind(node.eqn, values, node.eqn.params)

    def computed(self, node: Node, values: Sequence[Leaf]) -> list[Leaf]:
        computes = self._widths.computes(int(self._widths.entries[node.number]))
        if computes is None or node.number not in self._places:
            return self.written(node, values)
        is_on = self._flags[self._places[node.number]]

        def rounded(x: Leaf, dtype: DType) -> Leaf:
            bits = bits_of(dtype) or {}
            is_wide = getattr(x, "dtype", None) == np.float32
            return jnp.where(is_on, lax.reduce_precision(x, **bits), x) if is_wide else x

        made = self.written(node, [rounded(x, computes.dtype) for x in values])
        return [rounded(x, computes.result) for x in made]

    # What holds other equations

    def call(self, node: Node, values: Sequence[Leaf]) -> list[Leaf]:
        return self.block(node.inner[0], values)

    def scan(self, node: Node, values: list[Leaf]) -> list[Leaf]:
        _, _, consts, count = loop_parts(node.eqn)
        params = {name: node.eqn.params[name] for name in ("length", "reverse")}

        def body(carry, xs):
            made = self.block(node.inner[0], [*values[:consts], *carry, *xs])
            return made[:count], made[count:]

        first, xs = values[consts : consts + count], values[consts + count :]
        carry, made = lax.scan(body, first, xs, **params)
        return [*carry, *made]

    def loop(self, node: Node, values: list[Leaf]) -> list[Leaf]:
        _, before, consts, _ = loop_parts(node.eqn)
        body, condition = node.inner
        if condition.outputs[0].aval.shape:  # of a `vmap`
            return self.written(node, values)
        goes_on = lambda carry: self.block(condition, [*values[:before], *carry])[0]
        outside = values[before : before + consts]
        turn = lambda carry: self.block(body, [*outside, *carry])
        return lax.while_loop(goes_on, turn, values[before + consts :])

    def cond(self, node: Node, values: list[Leaf]) -> list[Leaf]:
        branches = [lambda *x, block=block: self.block(block, x) for block in node.inner]
        return lax.switch(values[0], branches, *values[1:])


_Flagged.rules = {
    COMPUTED: _Flagged.computed,
    CALL: _Flagged.call,
    "scan": _Flagged.scan,
    "while": _Flagged.loop,
    "cond": _Flagged.cond,
    **dict.fromkeys(
        (OWN, SAMPLE, SOLVE, STOCHASTIC, "shard_map", "reduce_precision"), _Flagged.written
    ),
}
