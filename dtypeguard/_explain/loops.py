"""The leaves of a loop's carry that come back in another type, and the lines behind it."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._carry.call import SplitTree
from .._find.drift import Change, changes
from .._leaves.dtypes import dtype_of
from .._leaves.types import Aval, Jaxpr, Leaf, PyTree
from .._program.graph import Graph
from .._program.lines import Lines, has
from .._program.trace import Program
from .control_flow import Call, with_inputs
from .paths import users_path


class Loop(NamedTuple):
    """A loop as it was called.

    Attributes:
        body: the function that is given the carry.
        inputs: what it is given, the carry among it.
        carry: which of `inputs` is the carry.
        results: whether the body returns more than the carry, behind it.
    """

    body: Callable[..., Any]
    inputs: tuple[PyTree, ...]
    carry: int
    results: bool

    def carried(self) -> SplitTree:
        """The carry, its leaves standing for their types."""
        return SplitTree(tree_util.tree_map(_type, self.inputs[self.carry]))

    def trace(self) -> Program | None:
        """Traces the body once more; None where it does not trace any more."""
        found = retrace(self.body, self.inputs, self.results)
        return found and self.program(found[0], 0)._replace(returned=found[1:])

    def program(self, graph: Graph, skipped: int | None = None) -> Program:
        """The body as a step that was traced."""
        carried, none = self.carried(), SplitTree(())
        leaves = len(carried.arrays)
        behind = len(tree_util.tree_leaves(self.inputs[self.carry + 1 :]))
        if skipped is None:  # a `fori_loop` has its index in front, a `scan` results behind
            skipped = 0 if self.results else len(graph.outputs) - leaves
        outputs = [graph.avals[value] for value in graph.outputs[skipped:][:leaves]]
        return Program(
            first=None,
            step=graph,
            names=(_parameter(self.body, self.carry),),
            carried=(carried,),
            returned=(SplitTree(carried.merged(list(map(_type, outputs)))),),
            rest=none,
            others=none,
            start=len(graph.inputs) - behind - leaves,
            skipped=skipped,
        )


def loop_of(call: Call) -> Loop | None:
    """What was looped over; None if the traceback does not hold it any more."""
    given = call.arguments
    try:
        if call.name == "scan":
            xs = tree_util.tree_map(_slice, given.get("xs"))
            return Loop(given["f"], (given["init"], xs), 0, True)
        if call.name == "fori_loop":
            index = jax.ShapeDtypeStruct((), dtype_of(given["lower"]))
            return Loop(given["body_fun"], (index, given["init_val"]), 1, False)
        if "body_fun" not in given and call.is_equinox:
            # Equinox lets go of them. Where it compares what comes back, it has them.
            last = call.frames[-1].f_locals
            return Loop(last["body_fun"], (last["val"],), 0, False)
        return Loop(given["body_fun"], (given["init_val"],), 0, False)
    except (KeyError, AttributeError, IndexError):
        return None


def retrace(
    function: Callable[..., Any], inputs: tuple[PyTree, ...], is_first: bool
) -> tuple[Graph, SplitTree] | None:
    """Traces a function once more, on the types of what it was given.

    Args:
        function: a body or a branch.
        inputs: what it was given.
        is_first: whether the first item of its result is asked for, and not all of it.

    Returns:
        Its graph, and what it returned. None where it does not trace any more: over what
        is no longer alive, for example.
    """
    returned: list[SplitTree] = []

    def again(*inputs):  # JAX may have kept what it traced for the function itself
        result = function(*inputs)
        returned.append(SplitTree(result[0] if is_first else result))
        return returned[-1].arrays

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has said so before
            types = tree_util.tree_map(_type, inputs)
            return Graph(jax.make_jaxpr(again)(*types)), returned[-1]
    except Exception:
        return None


def changed(call: Call) -> list[Change]:
    """The leaves of the carry that come back in another type.

    Equinox's loops compare before a jaxpr is made, and where JAX's is not found the body
    is traced once more. That may fail, over what is no longer alive outside of a
    transformation: then there are no lines, and of JAX's no changes.
    """
    loop = loop_of(call)
    if loop is None:
        return []
    named = users_path(call.caller)
    return [each._replace(path=named(each.path)) for each in _changed(call, loop)]


def _changed(call: Call, loop: Loop) -> list[Change]:
    # A loop's condition may be next to its body.
    held = sorted(call.jaxprs(), key=lambda pair: "body" not in pair[0])
    for _, closed in held:
        found = list(_changes(loop, _program(loop, closed)))
        if found:
            return found
    traced = loop.trace() if call.is_equinox or not held else None
    if traced is not None:
        return list(_changes(loop, traced))
    return list(_compared(call, loop)) if call.is_equinox else []


def _program(loop: Loop, closed: Jaxpr) -> Program | None:
    """A jaxpr of the body. What it closed over, JAX gives it first; here it is constant."""
    given = len(tree_util.tree_leaves(loop.inputs))
    graph = Graph(with_inputs(closed, given))
    try:
        return loop.program(graph)
    except (ValueError, IndexError, StopIteration):  # the jaxpr of something else
        return None


def _changes(loop: Loop, program: Program | None) -> Iterator[Change]:
    if program is None or program.start < 0 or program.skipped < 0:
        return
    lines = Lines(program, None, lambda: loop.trace() or program)
    seen = set()
    for change in changes(program, lines):
        if change.kind in ("dtype", "shape") and change.path not in seen:
            seen.add(change.path)
            yield change


def _compared(call: Call, loop: Loop) -> Iterator[Change]:
    """What Equinox compares, without lines."""
    last = call.frames[-1].f_locals
    pair = last.get("buffer_val"), last.get("buffer_val2")
    if call.name == "scan":  # its loop carries an index and the results as well
        pair = tuple(each[1] for each in pair if isinstance(each, tuple) and len(each) == 3)
    before, after = map(tree_util.tree_leaves, pair)
    name = _parameter(loop.body, loop.carry)
    for path, old, new in zip(loop.carried().paths, before, after):
        if differ(old, new):
            kind = "shape" if _dtype(old) == _dtype(new) else "dtype"
            yield Change(name + path, kind, old, new)


def differ(before: Aval, after: Aval) -> bool:
    """Whether two abstract values are of other types, as loops and branches see it."""
    return _dtype(before) != _dtype(after) or np.shape(before) != np.shape(after)


def is_like(aval: Aval, other: Aval) -> Callable[[Aval], bool]:
    """Whether an abstract value has what `aval` has and `other` has not: dtype or shape."""
    name = "dtype" if _dtype(aval) != _dtype(other) else "shape"
    return has(name, getattr(aval, name, None))


def _dtype(value: Any) -> Any:
    return getattr(value, "dtype", None)


def _parameter(function: Callable[..., Any], position: int) -> str:
    """What a function calls what it is given there."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "carry"
    for number, parameter in enumerate(parameters[: position + 1]):
        if parameter.kind is parameter.VAR_POSITIONAL:
            return f"{parameter.name}[{position - number}]"
    return parameters[position].name if position < len(parameters) else "carry"


def _type(leaf: Leaf) -> jax.ShapeDtypeStruct:
    dtype = getattr(leaf, "dtype", None)
    is_extended = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype if is_extended else dtype_of(leaf))


def _slice(leaf: Leaf) -> jax.ShapeDtypeStruct:
    whole = _type(leaf)
    return jax.ShapeDtypeStruct(whole.shape[1:], whole.dtype)
