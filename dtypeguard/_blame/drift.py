"""Finds the leaves that leave a step with another type than they entered with."""

import dataclasses
from collections.abc import Collection, Iterator
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
from .why import Begun, Has, of_weak_leaf, why

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
            cast explicitly, or if the operand is an input.
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
        """The dtype that the leaf keeps: a weak one takes that which comes back."""
        before, after = self.avals
        return after.dtype if self.was_weak else before.dtype


_UPDATES_NAME = TreeName("updates")
_CONSTANT = "(a constant)"  # such as a Python number of an Equinox module


def _drift(
    path: KeyPath,
    kind: Kind,
    types: tuple[str, str],
    where: Where,
    lines: Why | None = None,
    avals: tuple[Aval, ...] = (),
) -> Drift:
    origin, cause, *_ = lines or Why()
    # Users look up an update by its path in the updates.
    text = path_text(path[1:] if where == "updates" else path)
    return Drift(text, kind, *types, where, origin, cause, avals, path)


def _drift_of_structure(change: LeafChange, where: Where) -> Drift:
    row = change.row()
    return _drift(change.path, "structure", (row.before, row.after), where)


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
    if kind == "shape":
        types = str(old), str(new)
    elif kind == "weak_type":
        types = old.without_shape, new.without_shape
    elif where == "updates":
        types = str(old.dtype), str(new.dtype)
    else:
        types = old.without_shape, str(new.dtype)
    return _drift(path, kind, types, where, lines, (before, after))


def find(program: Program, begun: Begun = lambda _: Why()) -> Iterator[Drift]:
    """Yields the leaves of a program that drift, with their lines."""
    where: Where = "state" if program.is_optimizer else "carry"
    for name, before, after in zip(program.names, program.carried, program.returned):
        if before.treedef != after.treedef:
            for change in tree_changes(name, before.tree, after.tree):
                yield _drift_of_structure(change, where)
        elif before.key_paths != after.key_paths:
            for change in _changes_of_data(name, before, after):
                yield _drift_of_structure(change, where)
    number = 0
    outputs = program.step.outputs
    for name, before, after in zip(program.names, program.carried, program.returned):
        new = dict(zip(after.key_paths, zip(outputs, after.arrays)))
        outputs = outputs[len(after.arrays) :]
        for path in before.key_paths:
            if path in new:  # else its structure has changed
                place = (TreeName(name), *path)
                yield from _drifts_of_leaf(program, begun, number, *new[path], place)
            number += 1
    if program.is_optimizer:
        yield from _of_updates(program, begun)


def _changes_of_data(
    name: str, before: SplitTree, after: SplitTree
) -> Iterator[LeafChange]:
    """Yields the leaves of a tree that are data on one side alone."""
    old_leaves = dict(zip(before.key_paths, before.arrays))
    new_leaves = dict(zip(after.key_paths, after.arrays))
    for path in key_paths(before.tree):
        if (path in old_leaves) != (path in new_leaves):
            types = []
            for leaves in (old_leaves, new_leaves):
                types.append(type_or_class(leaves[path]) if path in leaves else _CONSTANT)
            yield LeafChange((TreeName(name), *path), *types)


def _drifts_of_leaf(
    program: Program, begun: Begun, number: int, new: int, returned: Leaf, path: KeyPath
) -> Iterator[Drift]:
    where: Where = "state" if program.is_optimizer else "carry"
    leaf = program.step.inputs[number]
    was, is_now = pair = program.step.avals[leaf], program.step.avals[new]

    def of(matches: Matches) -> Why:
        lines = why(program.step, new, matches, 1 << leaf, begun)
        # No equation makes a literal.
        return lines if lines.origin else lines._replace(origin=line_of_tracer(returned))

    if was.dtype != is_now.dtype:
        found = of(Has("dtype", is_now.dtype))
        yield drift_between(path, "dtype", *pair, where, found)
    if was.shape != is_now.shape:
        found = of(Has("shape", is_now.shape))
        yield drift_between(path, "shape", *pair, where, found)
    if was.dtype == is_now.dtype and is_weak(was) != is_weak(is_now):
        found = of_weak_leaf(program, number) if is_weak(was) else of(is_weak)
        yield drift_between(path, "weak_type", *pair, where, found)


def _of_updates(program: Program, begun: Begun) -> Iterator[Drift]:
    """Yields the updates that change the dtype or shape of their param under `p + u`."""
    graph = program.step
    gradients = _argument(program, 1)
    params = _argument(program, 2)
    yield from _of_other_tree(program, params.keys() & gradients.keys())
    start = sum(len(parts.arrays) for parts in program.returned)
    for other_path, output in zip(program.others.key_paths, graph.outputs[start:]):
        path = other_path[1:]  # of the updates: they are the first other result
        place = (_UPDATES_NAME, *path)
        update = graph.avals[output]
        if path not in params:
            if path not in gradients:
                change = LeafChange(place, None, leaf_type(update))
                yield _drift_of_structure(change, "updates")
            continue
        leaves = params[path], gradients.get(path, params[path])
        param, gradient = (graph.avals[leaf] for leaf in leaves)
        bits = 1 << leaves[0] | 1 << leaves[1]
        # A batch of gradients, one for each example, may stay a batch.
        if not (broadcasts(update.shape, param.shape) or update.shape == gradient.shape):
            found = why(graph, output, Has("shape", update.shape), bits, begun)
            yield drift_between(place, "shape", param, update, "updates", found)
        asked = program.updates_dtype, param.dtype, gradient.dtype
        if update.dtype != dtype_of_update(*asked) and _promotes(param, update):
            found = Why()
            # An update as wide as its gradient was not promoted.
            if gradient.dtype != update.dtype:
                found = why(graph, output, Has("dtype", update.dtype), bits, begun)
            yield drift_between(place, "dtype", param, update, "updates", found)


def _of_other_tree(program: Program, wanted: Collection[KeyPath]) -> Iterator[Drift]:
    """Yields the params without an update, or both trees: `p + u` needs the params' tree.

    None is an update that leaves alone what is there.
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
        is_missing = path in wanted and path not in new_paths
        if is_missing and all(path[: len(none)] != none for none in nones):
            change = LeafChange((_UPDATES_NAME, *path), type_or_class(leaf), None)
            yield _drift_of_structure(change, "updates")
    if wanted == new_paths:
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
