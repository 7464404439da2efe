"""An optimizer's `init` and `update`, or a step, traced for shapes and dtypes alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import tree_util

from .._guard.call import Call, Parts
from .._guard.carry import Carry
from .._leaves.dtypes import dtype_of
from .graph import Graph


class Refused(Exception):
    """What its one argument names does not trace: "init", "update", "step" or "inputs".

    `__cause__` tells why.
    """


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


Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]


def trace_step(
    step: Callable[..., Any],
    carry: Carry,
    make: Callable[[], Inputs],
    *,
    traced_inputs: bool = False,
    types: Mapping[str, Any] | None = None,
) -> Traced:
    """Traces a step.

    The inputs of its graph are the array leaves of what it carries, and of the rest.

    Args:
        step: the step.
        carry: which of its arguments come back.
        make: gives its arguments, by position and by name.
        traced_inputs: whether `make` is traced too, and not run.
        types: if given, the carry goes in strongly typed, its leaves in the dtypes that
            are given by path, the others in their own.

    Raises:
        Refused: if the step raises, or `make` where it is traced.
    """
    traced: dict[str, Any] = {}

    def first():
        try:
            args, kwargs = make()
        except Exception as error:
            raise Refused("inputs") from error
        call = Call(step, carry, args, kwargs)

        def run(arrays, other_arrays):
            bound, given = call.bind(arrays, other_arrays)
            try:
                result = bound()
            except Exception as error:
                raise Refused("step") from error
            traced["returned"] = call.returned(result, given)
            return [parts.arrays for parts in traced["returned"]]

        arrays = [parts.arrays for parts in call.carried]
        if types is not None:
            arrays = [
                [_strong(x, types.get(name + path)) for path, x in zip(p.paths, p.arrays)]
                for name, p in zip(call.names, call.carried)
            ]
        traced["step"] = Graph(jax.make_jaxpr(run)(arrays, call.rest.arrays))
        traced["carried"], traced["names"] = call.carried, call.names
        return arrays

    made = Graph(jax.make_jaxpr(first)()) if traced_inputs else first()
    graph = made if isinstance(made, Graph) else None
    return Traced(first=graph, start=0, **traced)


def _strong(leaf: Any, dtype: Any) -> jax.ShapeDtypeStruct:
    known = dtype_of(leaf)
    own = leaf.dtype if known is None else known
    return jax.ShapeDtypeStruct(jnp.shape(leaf), own if dtype is None else jnp.dtype(dtype))
