"""Tries what a note may say to write, on types alone."""

import ast
import contextlib
import io
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util
from jax.core import Tracer

from .._carry.modules import objects
from .._carry.split import SplitTree
from .._guard.guard_step import guard_step
from .._leaves.compat import set_x64
from .._leaves.dtypes import dtype_of, is_weak, kind
from .._leaves.types import Aval, DType, PyTree
from .._lines.body import Body, difference
from .._lines.retrace import traced_again
from .._lines.sites import Argument, Site
from .._program.trace import Program, strong_type
from .._source.origin import Origin
from .._source.syntax import evaluated, reads_dtypes
from .messages import names_a_type
from .odd import values_behind
from .pure import is_pure
from .retyped import files_of, follows, numbers_of, retyped, used_outside
from .rewritten import changed, computed, evaluable

# The first trials take place however long they take, more of them for so many seconds.
_FIRST, _SECONDS = 2, 1.0

# True if it mends, False if it does not, None if it was not tried.
Outcome = bool | None


class Trials:
    """Tries remedies for one error, as long as that takes little time."""

    def __init__(self) -> None:
        self._count, self._spent = 0, 0.0

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
            return _outcome(error)
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
            strong_type(types[number]) if number in types else _type(known[number])
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
        if (outcome := self._tried(trace)) is None:
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
        self, program: Program, lines: Sequence[Origin], places: Sequence[int], to: DType
    ) -> Outcome:
        """Whether leaves of a carry come back as they came if some lines cast.

        Args:
            program: the body.
            lines: that compute them.
            places: of the leaves.
            to: what the lines cast to; None for the dtype of the leaf that they make.
        """
        graph, (carried,) = program.step, program.carried
        wide = {dtype_of(graph.avals[graph.outputs[number]]) for number in places}
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

    def number(self, program: Program, line: Origin, number: float, place: int) -> Outcome:
        """Whether an int of a carry stays one if a line writes a number without a point."""
        graph, (carried,) = program.step, program.carried
        old = dtype_of(carried.arrays[place])
        changed = dict.fromkeys(numbers_of(graph, line, number), old)
        types = retyped(graph, changed) if changed else None
        return None if types is None else types[graph.outputs[place]] == old

    def expression(
        self,
        site: Site,
        changes: Mapping[ast.expr, str] = MappingProxyType({}),
        *,
        known: Sequence[Argument] = (),
        x64: bool | None = None,
        is_lowered: bool = False,
        names: Mapping[str, object] = MappingProxyType({}),
    ) -> Outcome:
        """Whether an expression that raised an error does not, once it is changed.

        Args:
            site: with the expression.
            changes: other text for parts of it.
            known: its arguments. What they are computed from does not run again.
            x64: the flag around it; None leaves it.
            is_lowered: whether to lower it as well.
            names: of what the other text uses.
        """
        frame, node = site.frame, evaluable(site.node)
        if node is None:
            return None
        node = changed(node, changes)
        given = {f"given_{n}": x for n, x in enumerate(known) if x.source and x.is_whole}
        sources = {ast.dump(x.source): name for name, x in given.items() if x.source}
        ours = {"jax": jax, "jnp": jnp, "dtypeguard": sys.modules["dtypeguard"]}
        known_values = ours | frame.f_globals | frame.f_locals | dict(names)
        known_values |= {name: argument.value for name, argument in given.items()}
        read = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        is_traced = any(
            isinstance(leaf, Tracer)
            for leaf in tree_util.tree_leaves([frame.f_locals.get(x) for x in read])
        )
        # What JAX traces has no effects.
        may_run = lambda call: is_traced or is_pure(call, frame, names)
        if (node := computed(node, sources, may_run)) is None:
            return None
        read = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        values = {name: known_values[name] for name in read & known_values.keys()}
        if objects([*values.values()]):
            return None  # which it may change
        leaves, tree = tree_util.tree_flatten(values)
        is_given = lambda x: isinstance(x, jax.Array) and (x.ndim or isinstance(x, Tracer))
        arrays = [_type(leaf) for leaf in leaves if is_given(leaf)]
        code = compile(ast.Expression(node), site.file, "eval")

        def run(arrays):
            left = iter(arrays)
            given = [next(left) if is_given(x) else x for x in leaves]
            return eval(code, frame.f_globals | tree_util.tree_unflatten(tree, given))

        def trace() -> None:
            with contextlib.nullcontext() if x64 is None else set_x64(x64):
                traced_again(run, (arrays,))
                if is_lowered:
                    jax.jit(run).lower(arrays)

        return self._tried(trace)

    def given(
        self, site: Site, convert: Callable[[PyTree], PyTree], x64: bool | None = None
    ) -> Outcome:
        """Whether a call does not raise an error if its arguments are converted.

        Args:
            site: of the call.
            convert: makes an argument of another.
            x64: the flag around it; None leaves it.
        """
        node = site.node
        if not isinstance(node, ast.Call):
            return None
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        given = [x.value if isinstance(x, ast.Starred) else x for x in given]
        owner = getattr(node.func, "value", None)  # of a method
        is_object = not isinstance(evaluated(owner, site.frame), (ModuleType, type(None)))
        given += [owner] if is_object and isinstance(owner, ast.expr) else []
        given = [x for x in given if not isinstance(x, ast.Lambda)]
        changes = {each: f"convert({ast.unparse(each)})" for each in given}
        return self.expression(site, changes, names={"convert": convert}, x64=x64)

    def wrapped(self, site: Site) -> Outcome:
        """Whether the `update` of a guarded optimizer raises no error."""
        function = getattr(site.node, "func", None)
        if not isinstance(function, ast.Attribute):
            return None
        text = f"dtypeguard.guard({ast.unparse(function.value)})"
        return self.expression(site, {function.value: text})

    def _tried(self, trace: Callable[[], object]) -> Outcome:
        if self._count >= _FIRST and self._spent > _SECONDS:
            return None
        self._count, start = self._count + 1, time.perf_counter()
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it has printed before
                trace()
        except Exception as error:
            return _outcome(error)
        finally:
            self._spent += time.perf_counter() - start
        return True


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


def _outcome(error: Exception) -> Outcome:
    """What an error in a trial means: not over types, it was not the remedy that failed."""
    needs_values = isinstance(error, (jax.errors.JAXTypeError, jax.errors.JAXIndexError))
    is_of_types = isinstance(error, (TypeError, ValueError, AssertionError))
    needs_values |= "Tracer" in str(error)
    is_of_types = is_of_types and names_a_type(str(error))
    return False if is_of_types and not needs_values else None


def _type(leaf: Aval) -> jax.ShapeDtypeStruct:
    with contextlib.suppress(TypeError):  # older releases have no weak ones
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=is_weak(leaf))
    return strong_type(leaf)
