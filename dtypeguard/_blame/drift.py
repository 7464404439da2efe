"""Finds the leaves that leave a step with another type than they entered with."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from typing import Literal

import jax
import jax.numpy as jnp
from jax import tree_util

from .._carry.split import SplitTree
from .._guard.policy import dtype_of_update
from .._leaves.dtypes import broadcasts, dtype_of, fits, is_weak
from .._leaves.key_path import KeyPath, TreeName, by_path, key_paths, path_text
from .._leaves.leaf_change import LeafChange, tree_changes
from .._leaves.leaf_type import LeafType, leaf_type, type_or_class
from .._leaves.types import Aval, DType, Leaf
from .._program.trace import Program
from .._source.origin import Origin, Why
from .._tracebacks.frames import line_of_tracer
from .blame import Matches
from .why import Has, LinesOfValue, lines_beyond, of_weak_leaf, why

Kind = Literal["dtype", "weak_type", "shape", "structure"]
Where = Literal["state", "updates", "carry"]


@dataclasses.dataclass(frozen=True)
class Drift:
    """A leaf that left an update or a step with another type than it entered with.

    Attributes:
        path: of the leaf in the state or in the updates, as `jax.tree_util.keystr` prints
            it. In a carry it begins with the name of the parameter.
        kind: what changed: "structure", "shape", "dtype" or "weak_type". For updates,
            "shape" is one that does not broadcast to the param's, and "structure" a leaf
            without a param.
        before: its type before the step; for an update, the type of its param.
        after: its type after the step.
        where: "state" or "updates" of an optimizer, "carry" of a step.
        origin: the line of the promotion. For a leaf that was weak at first, the line that
            made it so, in `init` for example. None if no line promotes: an update may be as
            wide as its gradient.
        cause: the line that made the wider operand of that promotion. None if the leaf was
            cast explicitly, or if the operand is an input whose line is not recorded.
        avals: the abstract values before and after, which reports leave out; empty if the
            structure changed.
        keys: the path as keys of JAX, after the name of the tree; left out likewise.
    """

    path: str
    kind: Kind
    before: str
    after: str
    where: Where
    origin: Origin | None = None
    cause: Origin | None = None
    avals: tuple[Aval, ...] = dataclasses.field(default=(), repr=False, compare=False)
    keys: KeyPath = dataclasses.field(default=(), repr=False, compare=False)

    @property
    def name(self) -> str:
        """The path, after the word "updates" for an update.

        The word "state" where the path is empty because the state is one leaf.
        """
        return path_text(self.keys) or "state"

    @property
    def was_weak(self) -> bool:
        """Whether the leaf had not chosen its type: a loop of JAX lets it take another."""
        is_of_type = self.kind in ("weak_type", "dtype") and self.where != "updates"
        return is_of_type and is_weak(self.avals[0])

    @property
    def dtype_to_cast_to(self) -> DType:
        """The dtype that the leaf keeps: the new one for a weak leaf."""
        before, after = self.avals
        return after.dtype if self.was_weak else before.dtype


_UPDATES_NAME = TreeName("updates")
_CONSTANT = "(a constant)"  # such as a Python number of an Equinox module


def drift_between(
    path: KeyPath,
    kind: Kind,
    before: Aval,
    after: Aval,
    where: Where = "carry",
    lines: Why | None = None,
) -> Drift:
    """Returns the drift from one abstract value to another."""
    old = LeafType(before.dtype, is_weak(before), before.shape)
    new = LeafType(after.dtype, is_weak(after), after.shape)
    texts = _texts_of_types(kind, old, new, where)
    return _drift(path, kind, texts, where, lines or Why(), (before, after))


def _texts_of_types(
    kind: Kind, before: LeafType, after: LeafType, where: Where
) -> tuple[str, str]:
    if kind == "shape":
        return str(before), str(after)
    if kind == "weak_type":
        return before.without_shape, after.without_shape
    if where == "updates":
        return str(before.dtype), str(after.dtype)
    return before.without_shape, str(after.dtype)


def _drift(
    path: KeyPath,
    kind: Kind,
    texts: tuple[str, str],
    where: Where,
    lines: Why,
    avals: tuple[Aval, ...],
) -> Drift:
    before, after = texts
    # Users look up an update by its path in the updates.
    text = path_text(path[1:] if where == "updates" else path)
    return Drift(text, kind, before, after, where, lines.origin, lines.cause, avals, path)


def _drift_of_structure(change: LeafChange, where: Where) -> Drift:
    row = change.row()
    texts = (row.before, row.after)
    return _drift(change.path, "structure", texts, where, Why(), ())


def find(program: Program, beyond: LinesOfValue | None = None) -> Iterator[Drift]:
    """Yields the leaves of a program that drift, with their lines.

    Args:
        program: the traced step.
        beyond: the lines behind an input or a constant; by default the record is dtypes.
    """
    if beyond is None:
        beyond = lines_beyond(program.step)
    where: Where = "state" if program.is_optimizer else "carry"
    carries = list(zip(program.names, program.carried, program.returned))
    for name, before, after in carries:
        for change in _changes_of_structure(name, before, after):
            yield _drift_of_structure(change, where)
    leaves = iter(program.step.inputs)
    outputs = iter(program.step.outputs)
    number = 0
    for name, before, after in carries:
        returned = {path: (next(outputs), leaf) for path, leaf in _leaves_of(after)}
        for path in before.key_paths:
            leaf = next(leaves)
            if path in returned:  # else its structure has changed
                output, returned_leaf = returned[path]
                search = _Search(program, leaf, output, beyond)
                place = (TreeName(name), *path)
                yield from search.drifts(place, where, number, returned_leaf)
            number += 1
    if program.is_optimizer:
        yield from _drifts_of_updates(program, beyond)


def _leaves_of(tree: SplitTree) -> Iterable[tuple[KeyPath, Leaf]]:
    return zip(tree.key_paths, tree.arrays)


def _changes_of_structure(
    name: str, before: SplitTree, after: SplitTree
) -> Iterable[LeafChange]:
    if before.treedef != after.treedef:
        return tree_changes(name, before.tree, after.tree)
    if before.key_paths != after.key_paths:
        return _changes_of_data(name, before, after)
    return ()


def _changes_of_data(
    name: str, before: SplitTree, after: SplitTree
) -> Iterator[LeafChange]:
    """Yields the leaves of a tree that are data on one side alone."""
    old_leaves = dict(_leaves_of(before))
    new_leaves = dict(_leaves_of(after))
    for path in key_paths(before.tree):
        if (path in old_leaves) != (path in new_leaves):
            types = []
            for leaves in (old_leaves, new_leaves):
                types.append(type_or_class(leaves[path]) if path in leaves else _CONSTANT)
            yield LeafChange((TreeName(name), *path), *types)


@dataclasses.dataclass(frozen=True)
class _Search:
    """The search for what changed a leaf.

    Attributes:
        program: the traced step.
        leaf: the number of its input.
        output: the number of its output.
        beyond: the lines behind an input or a constant.
    """

    program: Program
    leaf: int
    output: int
    beyond: LinesOfValue

    def drifts(
        self, path: KeyPath, where: Where, number: int, returned: Leaf
    ) -> Iterator[Drift]:
        """Yields what changed: dtype, shape, weakness."""
        before = self.program.step.avals[self.leaf]
        after = self.program.step.avals[self.output]
        if before.dtype != after.dtype:
            lines = self._lines(Has("dtype", after.dtype), returned)
            yield drift_between(path, "dtype", before, after, where, lines)
        if before.shape != after.shape:
            lines = self._lines(Has("shape", after.shape), returned)
            yield drift_between(path, "shape", before, after, where, lines)
        if before.dtype == after.dtype and is_weak(before) != is_weak(after):
            if is_weak(before):
                lines = of_weak_leaf(self.program, number)
            else:
                lines = self._lines(is_weak, returned)
            yield drift_between(path, "weak_type", before, after, where, lines)

    def _lines(self, matches: Matches, returned: Leaf) -> Why:
        graph = self.program.step
        lines = why(graph, self.output, matches, 1 << self.leaf, self.beyond)
        # No equation makes a literal.
        return lines if lines.origin else lines._replace(origin=line_of_tracer(returned))


def _drifts_of_updates(program: Program, beyond: LinesOfValue) -> Iterator[Drift]:
    """Yields the updates that change the dtype or shape of their param under `p + u`."""
    graph = program.step
    gradients = _argument(program, 1)
    params = _argument(program, 2)
    yield from _params_without_update(program, params.keys() & gradients.keys())
    start = sum(len(parts.arrays) for parts in program.returned)
    for result_path, output in zip(program.others.key_paths, graph.outputs[start:]):
        path = result_path[1:]  # the updates are the first of the other results
        place = (_UPDATES_NAME, *path)
        update = graph.avals[output]
        if path not in params:
            if path not in gradients:
                change = LeafChange(place, None, leaf_type(update))
                yield _drift_of_structure(change, "updates")
            continue
        leaves = (params[path], gradients.get(path, params[path]))
        param = graph.avals[leaves[0]]
        gradient = graph.avals[leaves[1]]
        bits = 1 << leaves[0] | 1 << leaves[1]
        # A batch of gradients, one for each example, may stay a batch.
        if not (broadcasts(update.shape, param.shape) or update.shape == gradient.shape):
            lines = why(graph, output, Has("shape", update.shape), bits, beyond)
            yield drift_between(place, "shape", param, update, "updates", lines)
        dtypes = program.updates_dtype, param.dtype, gradient.dtype
        if update.dtype != dtype_of_update(*dtypes) and _promotes(param, update):
            lines = Why()
            # An update as wide as its gradient was not promoted.
            if gradient.dtype != update.dtype:
                lines = why(graph, output, Has("dtype", update.dtype), bits, beyond)
            yield drift_between(place, "dtype", param, update, "updates", lines)


def _params_without_update(
    program: Program, required_paths: Collection[KeyPath]
) -> Iterator[Drift]:
    """Yields the params without an update, or both trees: `p + u` needs the params' tree.

    None is an update that leaves alone the param in its place.
    """
    updates = program.others.tree[0]
    _, gradients, params = program.rest.tree[0]
    structure = tree_util.tree_structure(updates)
    if structure in map(tree_util.tree_structure, (gradients, params)):
        return
    nodes, _ = tree_util.tree_flatten_with_path(updates, is_leaf=lambda x: x is None)
    nones = [path for path, node in nodes if node is None]
    new_paths = set(key_paths(updates))
    for path, leaf in by_path(params).items():
        is_missing = path in required_paths and path not in new_paths
        if is_missing and all(path[: len(none)] != none for none in nones):
            change = LeafChange((_UPDATES_NAME, *path), type_or_class(leaf), None)
            yield _drift_of_structure(change, "updates")
    if required_paths == new_paths:
        yield _drift_of_structure(tree_changes("updates", params, updates)[0], "updates")


def _argument(program: Program, position: int) -> dict[KeyPath, int]:
    """Returns the inputs of the graph that are the leaves of an argument, by path."""
    inputs = program.step.inputs[program.carried_inputs :]
    start = (tree_util.SequenceKey(0), tree_util.SequenceKey(position))
    leaves = {}
    for path, value in zip(program.rest.key_paths, inputs):
        if path[:2] == start:
            leaves[path[2:]] = value
    return leaves


def _promotes(param: Aval, update: Aval) -> bool:
    if dtype_of(param) is None or dtype_of(update) is None or param.dtype == update.dtype:
        return False
    if is_weak(update) and fits(update.dtype, param.dtype):
        return False
    try:
        with jax.numpy_dtype_promotion("standard"):
            return jnp.promote_types(param.dtype, update.dtype) != param.dtype
    except (TypeError, ValueError):  # 8-bit floats promote with nothing: p + u fails
        return True
