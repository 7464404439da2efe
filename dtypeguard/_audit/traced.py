"""An optimizer's `init` and `update`, or a step, traced for shapes and dtypes alone."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import tree_util

from .._guard.carry import Carry
from .._leaves.dtypes import dtype_of
from .graph import Graph


class Refused(Exception):
    """What its one argument names does not trace: "init", "update", "step" or "inputs".

    `__cause__` tells why.
    """


class Parts:
    """A tree, its array leaves, and the way back to it from other such leaves.

    Attributes:
        tree: the whole of it.
        treedef: its structure.
        arrays: its array leaves; Python scalars are among them, functions are not.
        paths: where these stand, as `jax.tree_util.keystr` prints it.

    Args:
        tree: any.
        static: types whose instances are none of these.
    """

    def __init__(self, tree: Any, static: Collection[type] = ()):
        self.tree = tree
        leaves, self.treedef = tree_util.tree_flatten_with_path(tree)
        self._leaves = [leaf for _, leaf in leaves]
        self._is_array = [
            _is_array(leaf) and type(leaf) not in static for leaf in self._leaves
        ]
        arrays = [pair for pair, is_array in zip(leaves, self._is_array) if is_array]
        self.arrays = [leaf for _, leaf in arrays]
        self.paths = [tree_util.keystr(path) for path, _ in arrays]

    def merged(self, arrays: Sequence[Any]) -> Any:
        """The tree with these for its array leaves."""
        remaining = iter(arrays)
        pairs = zip(self._leaves, self._is_array)
        leaves = [next(remaining) if is_array else leaf for leaf, is_array in pairs]
        return tree_util.tree_unflatten(self.treedef, leaves)

    def holders(self, number: int) -> list[Any]:
        """The nodes of the tree that an array leaf is in, the innermost first."""
        left = [n for n, is_array in enumerate(self._is_array) if is_array][number]
        node, holders = self.tree, []
        while not tree_util.all_leaves([node]):
            holders.insert(0, node)
            for child in tree_util.tree_leaves(node, is_leaf=lambda x, n=node: x is not n):
                size = len(tree_util.tree_leaves(child))
                if left < size:
                    node = child
                    break
                left -= size
        return holders


class Traced(NamedTuple):
    """What one audit sees.

    Attributes:
        first: the graph of what made the carry, `init` say, whose outputs are the array
            leaves of `carried`; None where it was given.
        step: that of `update` or of a step. Some of its inputs are the array leaves of
            `carried`, its outputs those of `returned`.
        start: the number of inputs before these.
        names: what each carry is called: the state of an optimizer is not.
        carried: what goes in.
        returned: as many trees that come out for it, and of an update the new updates.
    """

    first: Graph | None
    step: Graph
    start: int
    names: Sequence[str]
    carried: Sequence[Parts]
    returned: Sequence[Parts]


def trace(opt: Any, params: Any, updates: Any, extra_args: dict[str, Any]) -> Traced:
    """Traces `init`, and `update` on what it gives.

    The inputs of `update` are the leaves of the params, of the updates, of the state and
    of the extra args.

    Raises:
        Refused: if either raises.
    """
    extra = Parts(extra_args, static={bool})  # one chooses what is traced
    traced: dict[str, Any] = {}

    # Traced inside of init, update is given the types of init's state, weak ones too.
    def init(params, updates, extra_arrays):
        try:
            state = Parts(opt.init(params))
        except Exception as error:
            raise Refused("init") from error

        def update(params, updates, state_arrays, extra_arrays):
            extra_args = extra.merged(extra_arrays)
            try:
                new_updates, new_state = opt.update(
                    updates, state.merged(state_arrays), params, **extra_args
                )
            except Exception as error:
                raise Refused("update") from error
            traced["returned"] = Parts(new_state), Parts(new_updates)
            return [parts.arrays for parts in traced["returned"]]

        inputs = params, updates, state.arrays, extra_arrays
        traced["step"] = Graph(jax.make_jaxpr(update)(*inputs))
        traced["carried"] = (state,)
        return state.arrays

    first = Graph(jax.make_jaxpr(init)(params, updates, extra.arrays))
    start = len(tree_util.tree_leaves((params, updates)))
    return Traced(first=first, start=start, names=("",), **traced)


# Between the arguments of a step such a number may choose what is traced. As a constant it
# promotes as it does as an argument.
_NUMBERS = {bool, int, float, complex}

Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]


def trace_step(
    step: Callable[..., Any],
    carry: Carry,
    make: Callable[[], Inputs],
    *,
    traced_inputs: bool = False,
    strong: bool = False,
) -> Traced:
    """Traces a step.

    The inputs of its graph are the array leaves of what it carries, and of the rest.

    Args:
        step: the step.
        carry: which of its arguments come back.
        make: gives its arguments, by position and by name.
        traced_inputs: whether `make` is traced too, and not run.
        strong: whether the carry goes in strongly typed, whatever it is.

    Raises:
        Refused: if the step raises, or `make` where it is traced.
    """
    traced: dict[str, Any] = {}

    def first():
        try:
            args, kwargs = make()
        except Exception as error:
            raise Refused("inputs") from error
        values = carry.take(args, kwargs)
        carried = [Parts(value) for value in values]
        rest = Parts(carry.put(args, kwargs, (None,) * len(values)), static=_NUMBERS)

        def run(arrays, other_arrays):
            given = tuple(parts.merged(some) for parts, some in zip(carried, arrays))
            others, named = rest.merged(other_arrays)
            args, kwargs = carry.put(others, named, given)
            try:
                result = step(*args, **kwargs)
            except Exception as error:
                raise Refused("step") from error
            traced["returned"] = [Parts(x) for x in carry.find(result, values).values]
            return [parts.arrays for parts in traced["returned"]]

        arrays = [parts.arrays for parts in carried]
        if strong:
            arrays = tree_util.tree_map(_strong, arrays)
        traced["step"] = Graph(jax.make_jaxpr(run)(arrays, rest.arrays))
        traced["carried"] = carried
        return arrays

    made = Graph(jax.make_jaxpr(first)()) if traced_inputs else first()
    graph = made if isinstance(made, Graph) else None
    return Traced(first=graph, start=0, names=carry.labels, **traced)


def _strong(leaf: Any) -> jax.ShapeDtypeStruct:
    dtype = dtype_of(leaf)
    return jax.ShapeDtypeStruct(jnp.shape(leaf), leaf.dtype if dtype is None else dtype)


def _is_array(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    is_extended = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended)
    return is_extended or dtype_of(leaf) is not None
