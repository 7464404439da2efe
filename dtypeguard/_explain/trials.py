"""Tries what a note may say to write, on types alone."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._carry.split import SplitTree
from .._guard.guard_step import guard_step
from .._leaves.dtypes import dtype_of, is_weak, kind
from .._leaves.types import Aval, DType, Leaf
from .._lines.body import Body, difference
from .._lines.retrace import traced_again
from .._program.graph import open_jaxpr
from .._program.trace import Program, strong_type
from .._source.origin import Origin
from .._source.syntax import reads_dtypes
from .odd import values_behind
from .reruns import Outcome, Reruns, outcome_of, type_of
from .retyped import files_of, follows, numbers_of, retyped, used_outside

# What becomes of a leaf that a function returns.
Change = Callable[[Leaf], Leaf]


class Trials(Reruns):
    """Tries remedies for one error, as long as that takes little time."""

    def guarded(self, body: Body, program: Program, places: Sequence[int]) -> Outcome:
        """Whether a guard of a body keeps these leaves of its carry.

        It settles what the body has returned; the body does not run.
        """
        if any(number in places for number in _weak(program)):
            return False  # a guard leaves what JAX promotes in a loop
        (carried,), (returned,) = program.carried, program.returned
        pairs = enumerate(zip(carried.arrays, returned.arrays))
        types = [new if number in places else old for number, (old, new) in pairs]
        parts, position = SplitTree(body.inputs), body.carry or 0

        def step(*_):
            made = [jnp.zeros(x.shape, x.dtype) for x in types]
            tree = returned.merged(made)
            return (tree, None) if body.is_pair else tree

        def run(arrays):
            inputs = list(parts.merged(arrays))
            inputs[position] = carried.merged(
                [jnp.zeros(x.shape, x.dtype) for x in carried.arrays]
            )
            result = guard_step(step, carry=position)(*inputs)
            return SplitTree(result[0] if body.is_pair else result).arrays

        try:
            kept = jax.eval_shape(run, list(map(strong_type, parts.arrays)))
        except Exception as error:
            return outcome_of(error)
        return not any(map(difference, carried.arrays, kept))

    def begun(self, body: Body, program: Program, types: Mapping[int, Aval]) -> Outcome:
        """Whether leaves of a carry come back as these types if they begin so.

        Args:
            body: of the loop.
            program: as it was traced.
            types: of the leaves that begin in another type, by their places.
        """
        (carried,), (returned,) = program.carried, program.returned
        weak = _weak(program) - types.keys()
        known = [program.step.avals[value] for value in program.step.inputs]
        first = [
            strong_type(types[number]) if number in types else type_of(known[number])
            for number in range(len(carried.arrays))
        ]
        inputs = list(body.inputs)
        inputs[body.carry or 0] = carried.merged(first)
        again: list[SplitTree] = []

        def trace() -> None:
            again.append(traced_again(body.function, tuple(inputs), body.is_pair).returned)

        # The types alone are cheaper, and known where it cannot be traced again. They do
        # not tell that something is cast to the dtype that it has: `x.astype(a.dtype)`.
        pushed = _pushed(program, types)
        if pushed and not any(map(reads_dtypes, files_of(program.step))):
            return True
        if (outcome := self.tried(trace)) is None:
            return pushed
        if not outcome:
            return False
        before = map(difference, carried.arrays, returned.arrays)
        now = map(difference, first, again[0].arrays)
        return all(
            not what or number in weak or (number not in types and what == was)
            for number, (was, what) in enumerate(zip(before, now))
        )

    def cast(
        self,
        body: Body,
        program: Program,
        places: Sequence[int],
        lines: Sequence[Origin],
        to: DType,
        is_all: bool = False,
    ) -> Outcome:
        """Whether leaves of a carry come back as they came if some lines cast.

        Args:
            body: of the loop.
            program: as it was traced.
            places: of the leaves.
            lines: that compute them.
            to: what the lines cast to; None for the dtype of the leaf that they make.
            is_all: whether they cast all that they compute, of other dtypes too.
        """
        graph, (carried,) = program.step, program.carried
        values = range(len(graph.avals)) if is_all else [graph.outputs[n] for n in places]
        wide = {dtype_of(graph.avals[value]) for value in values}
        made = {x for line in lines for y in wide for x in used_outside(graph, line, y)}
        changed = dict.fromkeys(made, to)
        for number in places if to is None else ():
            own = dtype_of(carried.arrays[number])
            changed |= dict.fromkeys(
                made & values_behind(graph, graph.outputs[number]), own
            )
        changed = {value: dtype for value, dtype in changed.items() if dtype is not None}
        types = retyped(graph, changed) if changed else None
        if types is None:
            return None
        given = [dtype_of(leaf) for leaf in carried.arrays]
        before = [dtype_of(graph.avals[output]) for output in graph.outputs]
        return all(
            types[output] == (given if number in places else before)[number]
            for number, output in enumerate(graph.outputs)
        )

    def result(
        self, body: Body, change: Change, is_meant: Callable[[Aval], bool]
    ) -> Outcome:
        """Whether the one result of a function is what is meant, once it is changed."""
        found: list[Aval] = []
        outcome = self.tried(lambda: found.extend(_results(body, [0], change)))
        return outcome and is_meant(found[0])

    def returned(
        self, body: Body, program: Program, places: Sequence[int], change: Change
    ) -> Outcome:
        """Whether leaves of a carry come back as they came, once they are changed."""
        found: list[Aval] = []
        outcome = self.tried(lambda: found.extend(_results(body, places, change)))
        given = body.carried.arrays
        return outcome and not any(difference(given[n], found[n]) for n in places)

    def branches(
        self,
        bodies: Mapping[str, Body],
        places: Sequence[int],
        changes: Mapping[str, Change],
        operands: Mapping[int, DType] = {},
    ) -> Outcome:
        """Whether branches return some leaves in one type.

        Args:
            bodies: the branches, by name.
            places: of the leaves in what they return.
            changes: what becomes of these leaves, by the branch that is to change them.
            operands: the dtypes that leaves of the operands are given, by their places.
        """
        found: list[Sequence[Aval]] = []

        def trace() -> None:
            for name, body in bodies.items():
                if operands:
                    leaves, tree = tree_util.tree_flatten(body.inputs)
                    types = map(strong_type, leaves)
                    given = [
                        jax.ShapeDtypeStruct(x.shape, operands.get(n, x.dtype))
                        for n, x in enumerate(types)
                    ]
                    body = body._replace(inputs=tree.unflatten(given), jaxprs=())
                found.append(_results(body, places, changes.get(name)))

        if not (outcome := self.tried(trace)):
            return outcome
        first, *others = found
        return not any(difference(first[n], other[n]) for other in others for n in places)

    def number(
        self,
        body: Body,
        program: Program,
        places: Sequence[int],
        line: Origin,
        number: float,
    ) -> Outcome:
        """Whether an int of a carry stays one if a line writes a number without a point."""
        graph, (carried,), (place,) = program.step, program.carried, places
        old = dtype_of(carried.arrays[place])
        changed = dict.fromkeys(numbers_of(graph, line, number), old)
        types = retyped(graph, changed) if changed else None
        return None if types is None else types[graph.outputs[place]] == old


def _results(
    body: Body, places: Sequence[int], change: Change | None = None
) -> Sequence[Aval]:
    """The types of what a function returns, some of its leaves changed.

    It runs again only if JAX holds no jaxpr of it.
    """
    jaxpr = next(iter(body.jaxprs), None)
    if jaxpr is None:
        jaxpr = traced_again(body.function, body.inputs, body.is_pair).jaxpr
    found = [variable.aval for variable in open_jaxpr(jaxpr).outvars]
    if change is not None:
        for place in places:
            found[place] = jax.eval_shape(change, type_of(found[place]))
    return found


def _pushed(program: Program, types: Mapping[int, Aval]) -> Outcome:
    """Whether leaves of a carry come back as they begin, by the types of the equations.

    Not of another kind: JAX may refuse a float where an int stands, as in an index. Not
    where something may have been made, or cast, like such a leaf.
    """
    graph, (carried, *_) = program.step, program.carried
    pairs = [*zip(graph.inputs, graph.outputs)][: len(carried.arrays)]
    of = lambda leaf: (kind(dtype_of(leaf)), np.shape(leaf))
    if any(of(graph.avals[pairs[n][0]]) != of(leaf) for n, leaf in types.items()):
        return None
    new = {pairs[place][0]: dtype_of(leaf) for place, leaf in types.items()}
    if follows(graph, {dtype_of(graph.avals[value]) for value in new}):
        return None
    after = retyped(graph, new)
    was = [dtype_of(graph.avals[x]) == dtype_of(graph.avals[y]) for x, y in pairs]
    return (
        None
        if after is None
        else all(
            after[x] == after[y] or (place not in types and not is_same)
            for place, ((x, y), is_same) in enumerate(zip(pairs, was))
        )
    )


def _weak(program: Program) -> set[int]:
    """The places of the leaves of a carry that JAX promotes where they come back wider."""
    graph, (carried, *_) = program.step, program.carried
    count = len(carried.arrays)
    return {n for n, x in enumerate(graph.inputs[:count]) if is_weak(graph.avals[x])}
