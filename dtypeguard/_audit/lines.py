"""The leaves of a carry that drifted, each with the lines of source behind it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import tree_util

from .._leaves.dtypes import fits, is_weak
from .._leaves.rows import describe, tree_rows, type_name
from .blame import blame, source
from .constants import Watch
from .drift import Drift, Where, WideOperation
from .graph import Graph, Step
from .origins import Origin, origin_of
from .traced import Parts, Traced

# Watching costs half as much again as tracing. Where there are more leaves than this it
# is done in a second trace, and only if a constant turns up.
_FEW = 50


def is_small(tree: Any) -> bool:
    """Whether a tree has so few leaves that its first trace is watched."""
    return len(tree_util.tree_leaves(tree)) <= _FEW


class Lines:
    """Finds the lines of source behind what was traced.

    Args:
        traced: what is to be told of.
        watch: what watched that trace; None if nothing did.
        again: traces once more.
        bound: what tells the line where a part of a given carry got its name.
    """

    def __init__(
        self,
        traced: Traced,
        watch: Watch | None,
        again: Callable[[], Traced],
        bound: Callable[[Any], Origin | None] = lambda _: None,
    ):
        self._traced = self._watched = traced
        self._watch = watch
        self._again = again
        self._bound = bound

    def of(
        self, output: int, matches: Callable[[Any], bool], leaves: int
    ) -> dict[str, Origin | None]:
        """The origin and the cause of a property of an output of the step."""
        graph = self._traced.step
        if output in graph.constants:
            return {"origin": self._of_constant(graph.outputs.index(output))}
        found = blame(graph, output, matches, leaves)
        cause = _origin(found.cause)
        if cause is not None and found.constant:
            cause = self._watching().maker(cause, matches)
        return {"origin": _origin(found.promotion), "cause": cause}

    def of_weak_leaf(self, number: int) -> Origin | None:
        """The line that made a leaf of the first carry weak."""
        first = self._traced.first
        if first is not None:
            made = _origin(source(first, first.outputs[number], is_weak))
            if made is not None:
                return made
        self._watching()
        nodes = _nodes(self._watched.carried, number)
        return self._made(nodes) or next(filter(None, map(self._bound, nodes)), None)

    def _of_constant(self, number: int) -> Origin | None:
        """The line that made an output of the step that no equation makes."""
        self._watching()
        return self._made(_nodes(self._watched.returned, number))

    def _made(self, nodes: Sequence[Any]) -> Origin | None:
        return next(filter(None, map(self._watching().made, nodes)), None)

    def _watching(self) -> Watch:
        if self._watch is None:
            self._watch = Watch()
            with self._watch:
                self._watched = self._again()
        return self._watch


def _nodes(trees: Sequence[Parts], number: int) -> Sequence[Any]:
    """An array leaf of some trees, and the nodes that it is in, from the inside out."""
    for parts in trees:
        if number < len(parts.arrays):
            return parts.arrays[number], *parts.holders(number)
        number -= len(parts.arrays)
    return ()


def carried_drifts(traced: Traced, lines: Lines | None, where: Where) -> Iterator[Drift]:
    """The leaves of all carries that changed; without their lines where these are None."""
    leaf, outputs = traced.start, traced.step.outputs
    for name, before, after in zip(traced.names, traced.carried, traced.returned):
        if before.treedef != after.treedef or before.paths != after.paths:
            for row in tree_rows(name, before.tree, after.tree, ""):
                yield Drift(row.path, "structure", row.before, row.after, where)
        new = dict(zip(after.paths, outputs))
        for path in before.paths:
            if path in new:
                yield from _leaf_drifts(traced, lines, leaf, new[path], name + path, where)
            leaf += 1
        outputs = outputs[len(after.arrays) :]


def _leaf_drifts(
    traced: Traced, lines: Lines | None, leaf: int, new: int, path: str, where: Where
) -> Iterator[Drift]:
    was, is_now = (traced.step.avals[value] for value in (leaf, new))
    of = lambda matches: lines.of(new, matches, 1 << leaf) if lines else {}
    if was.dtype != is_now.dtype:
        types = _dtype(was), str(is_now.dtype)
        yield Drift(path, "dtype", *types, where, **of(has("dtype", is_now.dtype)))
    if was.shape != is_now.shape:
        types = describe(was), describe(is_now)
        yield Drift(path, "shape", *types, where, **of(has("shape", is_now.shape)))
    if was.dtype == is_now.dtype and is_weak(was) != is_weak(is_now):
        if lines and is_weak(was):
            found = {"origin": lines.of_weak_leaf(leaf - traced.start)}
        else:
            found = of(is_weak)
        types = str(type_name(was)), str(type_name(is_now))
        yield Drift(path, "weak_type", *types, where, **found)


def _dtype(aval: Any) -> str:
    return f"{aval.dtype}{' (weak)' * is_weak(aval)}"


def is_castable(drift: Drift) -> bool:
    """Whether a guard casts a leaf back."""
    if drift.kind == "dtype":
        try:
            before = drift.before.removesuffix(" (weak)")
            return fits(jnp.dtype(before), jnp.dtype(drift.after))
        except TypeError:  # the name of a PRNG key's dtype is none of NumPy's
            return False
    return drift.kind == "weak_type"


def wide_operations(*graphs: Graph | None) -> Iterator[WideOperation]:
    """The floating operations of some graphs that are in 64 bits."""
    for graph in filter(None, graphs):
        for value, step in graph.made_by.items():
            aval = graph.avals[value]
            if str(getattr(aval, "dtype", "")) in ("float64", "complex128"):
                is_array, made = aval.shape != (), describe(aval).removesuffix(",weak")
                yield WideOperation(step.primitive, made, is_array, _origin(step))


def has(name: str, value: Any) -> Callable[[Any], bool]:
    """Whether an abstract value has this dtype or shape."""
    return lambda aval: getattr(aval, name, None) == value


def _origin(step: Step | None) -> Origin | None:
    return None if step is None else origin_of(step.equations)
