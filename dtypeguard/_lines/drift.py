"""Finds the leaves that leave a step with another type than they entered with."""

import dataclasses
from collections.abc import Collection, Iterator
from typing import Literal

import jax
import jax.numpy as jnp
from jax import tree_util

from .._guard.policy import dtype_of_update
from .._leaves.dtypes import broadcasts, dtype_of, fits, is_weak
from .._leaves.key_path import path_texts
from .._leaves.leaf_change import ABSENT, tree_changes
from .._leaves.leaf_type import LeafType, describe
from .._leaves.types import Aval, DType, Leaf
from .._program.trace import Program
from .._source.origin import Origin, Why
from .blame import Matches
from .tracebacks import line_of_tracer
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
    """

    path: str
    kind: Kind
    before: str
    after: str
    where: Where
    origin: Origin | None = None
    cause: Origin | None = None
    avals: tuple[Aval, ...] = dataclasses.field(default=(), repr=False, compare=False)

    @property
    def name(self) -> str:
        """The path, after the word "updates" for an update.

        The word "state" where the path is empty because the state is one leaf.
        """
        if self.where == "updates":
            return f"updates{self.path}"
        return self.path or "state"

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


_CONSTANT = "(a constant)"  # such as a Python number of an Equinox module


def drift_between(
    path: str,
    kind: Kind,
    before: Aval,
    after: Aval,
    where: Where = "carry",
    lines: Why | None = None,
) -> Drift:
    """A drift from one abstract value to another."""
    old = LeafType(before.dtype, is_weak(before), before.shape)
    new = LeafType(after.dtype, is_weak(after), after.shape)
    if kind == "shape":
        types = str(old), str(new)
    elif kind == "dtype":
        is_weak_told = where != "updates"
        types = old.without_shape if is_weak_told else str(old.dtype), str(new.dtype)
    else:
        types = old.without_shape, new.without_shape
    origin, cause, *_ = lines or Why()
    return Drift(path, kind, *types, where, origin, cause, avals=(before, after))


def find(program: Program, begun: Begun = lambda _: Why()) -> Iterator[Drift]:
    """Yields the leaves of a program that drift, with their lines."""
    where: Where = "state" if program.is_optimizer else "carry"
    for name, before, after in zip(program.names, program.carried, program.returned):
        if before.treedef != after.treedef:
            for change in tree_changes(name, before.tree, after.tree):
                row = change.row()
                yield Drift(row.path, "structure", row.before, row.after, where)
        elif before.paths != after.paths:
            old, new = (dict(zip(x.paths, x.arrays)) for x in (before, after))
            for path in (x for x in path_texts(before.tree) if (x in old) != (x in new)):
                was, is_now = (
                    describe(x[path]) if path in x else _CONSTANT for x in (old, new)
                )
                yield Drift(name + path, "structure", was, is_now, where)
    number, outputs = 0, program.step.outputs
    for name, before, after in zip(program.names, program.carried, program.returned):
        new = dict(zip(after.paths, zip(outputs, after.arrays)))
        outputs = outputs[len(after.arrays) :]
        for path in before.paths:
            if path in new:  # else its structure has changed
                yield from _of_leaf(program, begun, number, *new[path], name + path)
            number += 1
    if program.is_optimizer:
        yield from _of_updates(program, begun)


def _of_leaf(
    program: Program, begun: Begun, number: int, new: int, returned: Leaf, path: str
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
    """The updates that change the dtype or shape of their param under `p + u`."""
    graph = program.step
    gradients, params = (_argument(program, number) for number in (1, 2))
    yield from _of_other_tree(program, {*params} & {*gradients})
    start = sum(len(parts.arrays) for parts in program.returned)
    for path, output in zip(program.others.paths, graph.outputs[start:]):
        path = path.removeprefix("[0]")
        update = graph.avals[output]
        if path not in params:
            if path not in gradients:
                yield Drift(path, "structure", ABSENT, describe(update), "updates")
            continue
        leaves = params[path], gradients.get(path, params[path])
        param, gradient = (graph.avals[leaf] for leaf in leaves)
        bits = 1 << leaves[0] | 1 << leaves[1]
        # A batch of gradients, one for each example, may stay a batch.
        if not (broadcasts(update.shape, param.shape) or update.shape == gradient.shape):
            found = why(graph, output, Has("shape", update.shape), bits, begun)
            yield drift_between(path, "shape", param, update, "updates", found)
        asked = program.updates_dtype, param.dtype, gradient.dtype
        if update.dtype != dtype_of_update(*asked) and _promotes(param, update):
            found = Why()
            # An update as wide as its gradient was not promoted.
            if gradient.dtype != update.dtype:
                found = why(graph, output, Has("dtype", update.dtype), bits, begun)
            yield drift_between(path, "dtype", param, update, "updates", found)


def _of_other_tree(program: Program, wanted: Collection[str]) -> Iterator[Drift]:
    """The params without an update, or both trees: `p + u` needs that of the params.

    None is an update that leaves alone what is there.
    """
    updates, (_, gradients, params) = program.others.tree[0], program.rest.tree[0]
    structure = tree_util.tree_structure(updates)
    if structure in map(tree_util.tree_structure, (gradients, params)):
        return
    is_none = lambda node: node is None
    flat, _ = tree_util.tree_flatten_with_path(updates, is_leaf=is_none)
    nones = [path for path, leaf in flat if leaf is None]
    new, missing = path_texts(updates), []
    for path, leaf in tree_util.tree_flatten_with_path(params)[0]:
        name = tree_util.keystr(path)
        if name in wanted and name not in new:
            missing += [(name, leaf)] * all(path[: len(x)] != x for x in nones)
    for name, leaf in missing:
        yield Drift(name, "structure", describe(leaf), ABSENT, "updates")
    if wanted == {*new}:
        row = tree_changes("", params, updates)[0].row()
        yield Drift(row.path, "structure", row.before, row.after, "updates")


def _argument(program: Program, number: int) -> dict[str, int]:
    """The inputs of the graph that are the leaves of an argument, by path."""
    inputs, prefix = program.step.inputs[program.carried_inputs :], f"[0][{number}]"
    return {
        path.removeprefix(prefix): value
        for path, value in zip(program.rest.paths, inputs)
        if path.startswith(prefix)
    }


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
