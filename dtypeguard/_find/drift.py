"""Which leaves come out of a step with another type than they went in with."""

import dataclasses
from collections.abc import Iterator
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from .._leaves.dtypes import broadcasts, dtype_of, fits, is_weak
from .._leaves.rows import ABSENT, describe, tree_rows, type_name
from .._leaves.types import Aval
from .._program.lines import Lines, has
from .._program.origins import Origin
from .._program.trace import Program

Kind = Literal["dtype", "weak_type", "shape", "structure"]
Where = Literal["state", "updates", "carry"]


@dataclasses.dataclass(frozen=True)
class Drift:
    """A leaf that came out of an update or a step with another type than it went in with.

    Attributes:
        path: of the leaf, in the state or in the updates, as `jax.tree_util.keystr`
            prints it. In a carry with the name of the parameter before it.
        kind: what changed: "structure", "shape", "dtype" or "weak_type". Of updates, a
            shape that the param does not have and a leaf that there is no param for.
        before: what it was; for a leaf of the updates, what its param is.
        after: what it is then.
        where: "state" or "updates" of an optimizer, "carry" of a step.
        origin: the line of the promotion. For a leaf that was weak at first the line that
            made it so, in `init` for example. None if there is none: a gradient may be as
            wide.
        cause: the line that made the wider operand of that promotion. None if the leaf
            was cast explicitly, or if the operand is an input.
    """

    path: str
    kind: Kind
    before: str
    after: str
    where: Where
    origin: Origin | None = None
    cause: Origin | None = None

    @property
    def name(self) -> str:
        """The path, with the word "updates" before that of an update.

        The word "state" where the path is empty because the state is one leaf.
        """
        if self.where == "updates":
            return f"updates{self.path}"
        return self.path or "state"

    @property
    def was_weak(self) -> bool:
        """Whether the leaf had not chosen its type: a loop of JAX lets it take another."""
        return self.kind in ("weak_type", "dtype") and self.before.endswith(_WEAK)

    @property
    def is_castable(self) -> bool:
        """Whether a guard casts the leaf back."""
        if self.kind == "dtype":
            try:
                before = jnp.dtype(self.before.removesuffix(_WEAK))
                return fits(before, jnp.dtype(self.after))
            except TypeError:  # the name of a PRNG key's dtype is none of NumPy's
                return False
        return self.kind == "weak_type"


_WEAK = " (weak)"


class Change(NamedTuple):
    """A leaf of a carry that changed, as abstract values.

    Attributes:
        path: with the name of the carry first.
        kind: what changed.
        before: as it went in.
        after: as it came back.
        origin: see `Drift`.
        cause: likewise.
    """

    path: str
    kind: Kind
    before: Aval
    after: Aval
    origin: Origin | None = None
    cause: Origin | None = None


def find(program: Program, lines: Lines | None) -> Iterator[Drift]:
    """The leaves of a program that drift, with the lines behind them if these are given."""
    where: Where = "state" if program.is_optimizer else "carry"
    for name, before, after in zip(program.names, program.carried, program.returned):
        if before.treedef != after.treedef or before.paths != after.paths:
            for row in tree_rows(name, before.tree, after.tree, ""):
                yield Drift(row.path, "structure", row.before, row.after, where)
    for change in changes(program, lines):
        yield Drift(change.path, change.kind, *_types(change), where, *change[-2:])
    if program.is_optimizer:
        yield from _of_updates(program, lines)


def changes(program: Program, lines: Lines | None) -> Iterator[Change]:
    """The leaves of all carries that changed, those aside that only one side has."""
    leaf, outputs = program.start, program.step.outputs[program.skipped :]
    for name, before, after in zip(program.names, program.carried, program.returned):
        new = dict(zip(after.paths, outputs))
        for path in before.paths:
            if path in new:
                yield from _changes_of(program, lines, leaf, new[path], name + path)
            leaf += 1
        outputs = outputs[len(after.arrays) :]


def _changes_of(
    program: Program, lines: Lines | None, leaf: int, new: int, path: str
) -> Iterator[Change]:
    was, is_now = pair = [program.step.avals[value] for value in (leaf, new)]
    of = lambda matches: lines.of(new, matches, 1 << leaf) if lines else {}
    if was.dtype != is_now.dtype:
        yield Change(path, "dtype", *pair, **of(has("dtype", is_now.dtype)))
    if was.shape != is_now.shape:
        yield Change(path, "shape", *pair, **of(has("shape", is_now.shape)))
    if was.dtype == is_now.dtype and is_weak(was) != is_weak(is_now):
        if lines and is_weak(was):
            found = {"origin": lines.of_weak_leaf(leaf - program.start)}
        else:
            found = of(is_weak)
        yield Change(path, "weak_type", *pair, **found)


def _types(change: Change) -> tuple[str, str]:
    if change.kind == "shape":
        return describe(change.before), describe(change.after)
    if change.kind == "dtype":
        return f"{change.before.dtype}{_WEAK * is_weak(change.before)}", str(
            change.after.dtype
        )
    return str(type_name(change.before)), str(type_name(change.after))


def _of_updates(program: Program, lines: Lines | None) -> Iterator[Drift]:
    """The updates that change the dtype or shape of their param under `p + u`."""
    graph = program.step
    gradients, params = (_arguments(program, number) for number in (1, 2))
    start = sum(len(parts.arrays) for parts in program.returned)
    for path, output in zip(program.others.paths, graph.outputs[start:]):
        path = path.removeprefix("[0]")
        update = graph.avals[output]
        if path not in params:
            if path not in gradients:
                yield Drift(path, "structure", ABSENT, describe(update), "updates")
            continue
        param = graph.avals[params[path]]
        gradient = gradients.get(path, params[path])
        leaves = 1 << params[path] | 1 << gradient
        # A batch of gradients, one for each example, may stay one.
        shapes = (param.shape, graph.avals[gradient].shape)
        if not (broadcasts(update.shape, shapes[0]) or update.shape == shapes[1]):
            found = lines.of(output, has("shape", update.shape), leaves) if lines else {}
            types = describe(param), describe(update)
            yield Drift(path, "shape", *types, "updates", **found)
        if not _promotes(param, update):
            continue
        found: dict[str, Origin | None] = {}
        # One that is as wide as its gradient was not promoted.
        if lines and graph.avals[gradient].dtype != update.dtype:
            found = lines.of(output, has("dtype", update.dtype), leaves)
        yield Drift(path, "dtype", str(param.dtype), str(update.dtype), "updates", **found)


def _arguments(program: Program, number: int) -> dict[str, int]:
    """The inputs of the graph that are the leaves of an argument, by path."""
    start, prefix = program.carried_inputs, f"[0][{number}]"
    return {
        path.removeprefix(prefix): start + n
        for n, path in enumerate(program.rest.paths)
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
