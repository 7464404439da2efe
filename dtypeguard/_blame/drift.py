"""Finds the leaves that leave a step with another type than they entered with."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jax import tree_util

from .._carry.split import SplitTree
from .._guard.policy import dtype_of_update
from .._leaves.dtypes import broadcasts, is_weak
from .._leaves.key_path import KeyPath, TreeName, key_paths, last_name, path_text
from .._leaves.leaf_change import LeafChange, tree_changes
from .._leaves.leaf_type import LeafType, type_or_class
from .._leaves.types import Aval, DType
from .._program.trace import Program
from .._source.origin import Origin, Why
from .._tracebacks.frames import line_of_tracer
from .why import Has, LinesOfValue, lines_beyond, of_weak_leaf, why

Kind = Literal["dtype", "weak_type", "shape", "structure"]
Where = Literal["state", "updates", "carry"]
# Where they are among the arguments of `update`: by position, behind the state.
_GRADIENTS = (tree_util.SequenceKey(0), tree_util.SequenceKey(1))
_PARAMS = (tree_util.SequenceKey(0), tree_util.SequenceKey(2))
_NO_LINES = Why()
_KINDS_OF_LEAVES: tuple[Kind, ...] = ("dtype", "shape", "weak_type")


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
        if self.where == "updates" or self.kind not in ("weak_type", "dtype"):
            return False
        return is_weak(self.avals[0])

    @property
    def dtype_to_cast_to(self) -> DType:
        """The dtype that the leaf keeps: the new one for a weak leaf."""
        before, after = self.avals
        if self.was_weak:
            return after.dtype
        return before.dtype


_CONSTANT = "(a constant)"  # such as a Python number of an Equinox module


def drift_between(
    path: KeyPath,
    kind: Kind,
    before: Aval,
    after: Aval,
    where: Where = "carry",
    lines: Why = _NO_LINES,
) -> Drift:
    """Returns the drift from one abstract value to another."""
    old = LeafType(before.dtype, is_weak(before), before.shape)
    new = LeafType(after.dtype, is_weak(after), after.shape)
    texts = (old.without_shape, new.without_shape)
    if kind == "shape":
        texts = (str(old), str(new))
    elif kind == "dtype":  # a weak leaf takes another dtype, weak or not
        texts = (old.without_shape, str(new.dtype))
    avals = (before, after)
    return _drift(path, kind, texts, where, lines, avals)


def _drift_of_structure(change: LeafChange, where: Where) -> Drift:
    row = change.row()
    texts = (row.before, row.after)
    return _drift(change.path, "structure", texts, where)


def _drift(
    path: KeyPath,
    kind: Kind,
    texts: tuple[str, str],
    where: Where,
    lines: Why = _NO_LINES,
    avals: tuple[Aval, ...] = (),
) -> Drift:
    text = path_text(path)
    if where == "updates":  # users look up an update by its path in the updates
        text = path_text(path[1:])
    before, after = texts
    return Drift(
        path=text,
        kind=kind,
        before=before,
        after=after,
        where=where,
        origin=lines.origin,
        cause=lines.cause,
        avals=avals,
        keys=path,
    )


def find(program: Program, beyond: LinesOfValue | None = None) -> Iterator[Drift]:
    """Yields the leaves of a program that drift, with their lines.

    Args:
        program: the traced step.
        beyond: the lines behind an input or a constant; by default the record is asked.
    """
    graph = program.step
    beyond = beyond or lines_beyond(graph)
    where: Where = "carry"
    if program.is_optimizer:
        where = "state"
    carries = list(zip(program.names, program.carried, program.returned))
    # First for all carries: a tree that changes is an error before any type is one.
    for name, before, after in carries:
        for change in changes_of_structure(name, before, after):
            yield _drift_of_structure(change, where)
    inputs = iter(graph.inputs)
    outputs = iter(graph.outputs)
    for name, before, after in carries:
        pairs = zip(after.arrays, outputs)
        returned = dict(zip(after.key_paths, pairs))
        for path, first, value in zip(before.key_paths, before.arrays, inputs):
            if path not in returned:  # its structure has changed
                continue
            array, output = returned[path]
            old = graph.avals[value]
            new = graph.avals[output]
            place = (TreeName(name), *path)
            for kind in _changed_kinds(old, new):
                if kind == "weak_type" and is_weak(old):
                    number = graph.inputs.index(value)
                    lines = of_weak_leaf(program, number, first, last_name(place))
                else:
                    matches = Has(kind, getattr(new, kind))
                    lines = why(graph, output, matches, 1 << value, beyond)
                    if lines.origin is None:  # no equation makes a literal
                        line = line_of_tracer(array)
                        lines = lines._replace(origin=line)
                yield drift_between(place, kind, old, new, where, lines)
    if program.is_optimizer:
        yield from _drifts_of_updates(program, beyond)


def changes_of_structure(
    name: str, before: SplitTree, after: SplitTree
) -> Sequence[LeafChange]:
    """Returns the leaves that one of two trees lacks, or has as a constant."""
    if before.treedef != after.treedef:
        return tree_changes(name, before.tree, after.tree)
    old_types = _types_by_path(before)
    new_types = _types_by_path(after)
    changes = []
    for path in key_paths(before.tree):
        if (path in old_types) != (path in new_types):
            place = (TreeName(name), *path)
            old = old_types.get(path, _CONSTANT)
            new = new_types.get(path, _CONSTANT)
            changes.append(LeafChange(place, old, new))
    return changes


def _types_by_path(parts: SplitTree) -> dict[KeyPath, LeafType | str]:
    return dict(zip(parts.key_paths, map(type_or_class, parts.arrays)))


def _changed_kinds(before: Aval, after: Aval) -> list[Kind]:
    """Returns what changed of a leaf: dtype, shape, weakness."""
    kinds: list[Kind] = []
    for kind in _KINDS_OF_LEAVES:
        if getattr(before, kind) != getattr(after, kind):
            kinds.append(kind)
    # A loop of JAX lets a weak leaf take another dtype: that is one change.
    if kinds[-1:] == ["weak_type"] and "dtype" in kinds:
        kinds.pop()
    return kinds


def _drifts_of_updates(program: Program, beyond: LinesOfValue) -> Iterator[Drift]:
    """Yields the updates that change the dtype or shape of their param under `p + u`."""
    graph = program.step
    for change in _changes_of_updates(program):
        yield _drift_of_structure(change, "updates")
    arguments = graph.inputs[program.carried_inputs :]
    value_at = dict(zip(program.rest.key_paths, arguments))
    start = 0  # of the outputs that are not carried
    for parts in program.returned:
        start += len(parts.arrays)
    outputs = graph.outputs[start:]
    for result_path, output in zip(program.others.key_paths, outputs):
        path = result_path[1:]  # the updates are the first of the other results
        param_value = value_at.get((*_PARAMS, *path))
        if param_value is None:  # what `_changes_of_updates` tells, if it is one
            continue
        gradient_value = value_at.get((*_GRADIENTS, *path), param_value)
        update = graph.avals[output]
        param = graph.avals[param_value]
        gradient = graph.avals[gradient_value]
        place = (TreeName("updates"), *path)
        for kind in _changed_kinds_of_update(program, update, param, gradient):
            lines = _NO_LINES
            # An update as wide as its gradient was not promoted.
            if kind == "shape" or gradient.dtype != update.dtype:
                bits = 1 << param_value | 1 << gradient_value
                matches = Has(kind, getattr(update, kind))
                lines = why(graph, output, matches, bits, beyond)
            yield drift_between(place, kind, param, update, "updates", lines)


def _changed_kinds_of_update(
    program: Program, update: Aval, param: Aval, gradient: Aval
) -> list[Kind]:
    """Returns what `p + u` would change of a param."""
    kinds: list[Kind] = []
    # A batch of gradients, one for each example, may stay a batch.
    is_batch = update.shape == gradient.shape
    if not is_batch and not broadcasts(update.shape, param.shape):
        kinds.append("shape")
    # A policy may ask for updates that are wider than their params.
    wanted_dtype = dtype_of_update(program.updates_dtype, param.dtype, gradient.dtype)
    if update.dtype != wanted_dtype and _promotes(param, update):
        kinds.append("dtype")
    return kinds


def _changes_of_updates(program: Program) -> list[LeafChange]:
    """Returns where the tree of the updates is none that `p + u` takes."""
    updates = program.others.tree[0]
    _, gradients, params = program.rest.tree[0]
    structure = tree_util.tree_structure(updates)
    for tree in (gradients, params):
        if structure == tree_util.tree_structure(tree):
            return []
    nodes = key_paths(updates, is_leaf=lambda node: node is None)
    nones = set(nodes).difference(key_paths(updates))
    changes = []
    for change in tree_changes("updates", params, updates):
        path = change.path[1:]
        # None is an update that leaves alone the params in its place.
        is_left_alone = any(path[: len(none)] == none for none in nones)
        if not is_left_alone:
            changes.append(change)
    return changes


def _promotes(param: Aval, update: Aval) -> bool:
    """Returns whether `p + u` has another dtype than the param."""
    try:
        with jax.numpy_dtype_promotion("standard"):
            total = jax.eval_shape(jnp.add, param, update)
    except (TypeError, ValueError):  # 8-bit floats promote with nothing: p + u fails
        return True
    return total.dtype != param.dtype
