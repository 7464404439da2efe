"""The leaves of a loop's carry that come back in another type, and the lines behind it."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from .._leaves.dtypes import dtype_of
from .blame import blame
from .constants import Watch
from .control_flow import Call, with_inputs
from .graph import Graph
from .lines import has
from .origins import Origin, origin_of


class Change(NamedTuple):
    """A leaf of a carry that comes back in another type.

    Attributes:
        path: with the name of the parameter first.
        before: its abstract value as it goes in.
        after: as it comes back.
        origin: the line that gave it that type.
        cause: the line that forced it.
    """

    path: str
    before: Any
    after: Any
    origin: Origin | None
    cause: Origin | None


class Loop(NamedTuple):
    """A loop as it was called.

    Attributes:
        body: the function that is given the carry.
        inputs: what it is given, the carry among it, leaves of it standing for their type.
        carry: which of `inputs` is the carry.
        results: whether the body returns more than the carry, behind it.
    """

    body: Callable[..., Any]
    inputs: tuple[Any, ...]
    carry: int
    results: bool

    def paths(self) -> list[str]:
        """The paths of the carry's leaves."""
        leaves = tree_util.tree_flatten_with_path(self.inputs[self.carry])[0]
        name = _parameter(self.body, self.carry)
        return [name + tree_util.keystr(path) for path, _ in leaves]


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


def changes(call: Call) -> list[Change]:
    """The leaves of the carry that come back in another type.

    Equinox's loops compare before a jaxpr is made, and where JAX's is not found the body
    is traced once more. That may fail, over what is no longer alive outside of a
    transformation: then there are no lines, and of JAX's no changes.
    """
    loop = loop_of(call)
    if loop is None:
        return []
    again = _Again(loop)
    # A loop's condition may be next to its body.
    held = sorted(call.jaxprs(), key=lambda pair: "body" not in pair[0])
    for _, closed in held:
        found = list(_changes(loop, _graph(loop, closed), again))
        if found:
            return found
    traced = again.jaxpr if call.is_equinox or not held else None
    if traced is not None:
        return list(_changes(loop, _graph(loop, traced), again))
    return list(_compared(call, loop)) if call.is_equinox else []


def _compared(call: Call, loop: Loop) -> Iterator[Change]:
    """What Equinox compares, without lines."""
    last = call.frames[-1].f_locals
    pair = last.get("buffer_val"), last.get("buffer_val2")
    if call.name == "scan":  # its loop carries an index and the results as well
        pair = tuple(each[1] for each in pair if isinstance(each, tuple) and len(each) == 3)
    before, after = map(tree_util.tree_leaves, pair)
    for path, old, new in zip(loop.paths(), before, after):
        if differ(old, new):
            yield Change(path, old, new, None, None)


def _graph(loop: Loop, closed: Any) -> Graph:
    """The graph of a body. What it closed over, JAX hands in first; here it is constant."""
    given = len(tree_util.tree_leaves(loop.inputs))
    return Graph(with_inputs(closed, given))


def _changes(loop: Loop, graph: Graph, again: "_Again") -> Iterator[Change]:
    paths = loop.paths()
    after_carry = sum(
        len(tree_util.tree_leaves(given)) for given in loop.inputs[loop.carry + 1 :]
    )
    first = len(graph.inputs) - after_carry - len(paths)
    # `fori_loop` has its index in front, and only a `scan` has results behind.
    skipped = 0 if loop.results else len(graph.outputs) - len(paths)
    if first < 0 or skipped < 0 or len(graph.outputs) < len(paths):
        return
    for number, path in enumerate(paths):
        leaf, new = graph.inputs[first + number], graph.outputs[skipped + number]
        before, after = graph.avals[leaf], graph.avals[new]
        if differ(before, after):
            if new in graph.constants:
                lines = again.made(number), None
            else:
                lines = _lines(graph, new, is_like(after, before), leaf, again)
            yield Change(path, before, after, *lines)


def _lines(
    graph: Graph, output: int, matches: Callable[[Any], bool], leaf: int, again: "_Again"
) -> tuple[Origin | None, Origin | None]:
    found = blame(graph, output, matches, 1 << leaf)
    origin, cause = (
        None if step is None else origin_of(step.equations)
        for step in (found.promotion, found.cause)
    )
    if cause is not None and found.constant:
        cause = again.maker(cause, matches)
    return origin, cause


class _Again:
    """The body traced once more, on the types of its arguments, while being watched."""

    def __init__(self, loop: Loop):
        self._loop = loop
        self._watch: Watch | None = None
        self._jaxpr: Any = None
        self._result: Any = None

    @property
    def jaxpr(self) -> Any:
        """What comes of it; None if it does not trace where it is now."""
        if self._watch is None:
            self._watch = Watch()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it has said so before
                try:
                    inputs = tree_util.tree_map(_type, self._loop.inputs)
                    with self._watch:
                        # By another function, since JAX may have kept what it traced.
                        self._jaxpr = jax.make_jaxpr(self._body)(*inputs)
                except Exception:
                    self._jaxpr = None
        return self._jaxpr

    def _body(self, *inputs: Any) -> Any:
        self._result = self._loop.body(*inputs)
        return self._result

    def made(self, number: int) -> Origin | None:
        """The line that made or returned a leaf of the carry which no equation makes."""
        if self.jaxpr is None or self._watch is None:
            return None
        leaf = tree_util.tree_leaves(self._result)[number]
        return self._watch.made(leaf) or self._watch.made(self._result)

    def maker(self, user: Origin, matches: Callable[[Any], bool]) -> Origin:
        """The line that made the constant that the line `user` uses, if it can be told."""
        if self.jaxpr is None or self._watch is None:
            return user
        return self._watch.maker(user, matches)


def differ(before: Any, after: Any) -> bool:
    """Whether two abstract values are of other types, as loops and branches see it."""
    return _dtype(before) != _dtype(after) or np.shape(before) != np.shape(after)


def is_like(aval: Any, other: Any) -> Callable[[Any], bool]:
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


def _type(leaf: Any) -> jax.ShapeDtypeStruct:
    dtype = getattr(leaf, "dtype", None)
    is_extended = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype if is_extended else dtype_of(leaf))


def _slice(leaf: Any) -> jax.ShapeDtypeStruct:
    whole = _type(leaf)
    return jax.ShapeDtypeStruct(whole.shape[1:], whole.dtype)
