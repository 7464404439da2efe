"""Loops of a program that is run by a plan: turn by turn, or compiled."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._leaves.types import Leaf
from .._program.graph import loop_parts
from .._program.meshes import of_mesh
from .arithmetic import Value
from .control import Control, decides, split, zeros_like
from .nodes import Node
from .probes import Probes

# Loops with more equations, over all turns, are compiled.
_MOST_EAGER = 2000


class Loops(Control):
    """Runs loops, and all that `Control` does."""

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
            made, noted, counts = self.noted(probes, node, node.inner[0], operands)
            return made[:count], (made[count:], noted, counts)

        options = {"reverse": params["reverse"], "unroll": params.get("unroll", 1)}
        given = self.probes.given_inside(node)
        carry, (ys, decisions, finite) = lax.scan(
            step, carry, (xs, given), params["length"], **options
        )
        self.probes.add(decisions, finite)
        return [*carry, *ys]

    def loop(self, node: Node, values: list[Value]) -> list[Value]:
        """A `while` loop; under `vmap`, each element goes on by itself.

        It notes how many turns it took. Of many turns, it notes in how many a value was not
        finite, and no decisions inside.
        """
        _, before, consts, _ = loop_parts(node.eqn)
        values = self.entered(node, values, before + consts)
        if self.is_traced:
            return self._loop_in_trace(node, values)
        is_long = node.number in self.program.long and not self.probes.given_inside(node)
        made = None if is_long else self._turn_by_turn(node, values)
        return self.compiled(node, values) if made is None else made

    def _goes_on(self, node: Node, constants: list[Leaf]) -> Callable[..., Leaf]:
        """Whether a loop goes on, of the turns that it took and what it carries."""
        given = None if self.probes.given is None else self.probes.given.get(node.number)
        # As often as the run that it follows, if it decides as that inside as well. It may
        # otherwise be at its end earlier: a solver then divides by a step of 0.
        is_alone = self.is_traced and decides(node.inner[0])
        if given is not None and not is_alone:
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
        self.program.long.add(node.number)
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

        # To ask for shapes is to trace it twice: in nested loops, 2^depth times.
        _, counts = jax.eval_shape(made_of, carry) if has_counts else (None, None)
        turns = jnp.zeros(node.inner[1].outputs[0].aval.shape, jnp.int32)
        is_on = lambda state: jnp.any(goes_on(*state[:2]))
        state = turns, carry, jax.tree_util.tree_map(zeros_like, counts)
        turns, made, counts = lax.while_loop(is_on, step, state)
        self.probes.add({node.number: turns}, counts)
        return made


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


def _chosen(is_on: Leaf, new: Sequence[Leaf], old: Sequence[Leaf]) -> list[Leaf]:
    """What a loop carries: new where it goes on, if that differs between elements."""
    if not is_on.ndim:
        return [*new]
    shaped = lambda x: is_on.reshape(is_on.shape + (1,) * (x.ndim - is_on.ndim))
    return [jnp.where(shaped(x), x, y) for x, y in zip(new, old)]
