"""A branch that changes its operands in place, or leaves them where they are."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, tree_util
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from .._leaves.compat import barrier, zero_tangent
from .._leaves.types import PyTree


def run_if(
    pred: Any, function: Callable[[Any, Any], Any], consts: PyTree, carry: Any
) -> Any:
    """`lax.cond(pred, function, ...)` that copies nothing, whichever branch is taken.

    Where a branch cannot write over its operands, XLA gives the results of a conditional
    buffers of their own, and fills them on the other branch too; the carry of a loop stays
    in place there. So this is a loop of one turn or none, and where it is differentiated,
    which a loop cannot be backwards, a conditional.

    Args:
        pred: a scalar bool.
        function: of `consts` and `carry`, closed over no array that is traced; gives back
            a carry of the same types.
        consts: a tree of arrays.
        carry: another.

    Returns:
        `function(consts, carry)`, or `carry`. Under `jax.vmap` with a batched `pred` the
        function runs where any member's is true, and each gets its own of the two.
    """

    @jax.custom_jvp
    def run(pred, consts, carry):
        # Lion's update and its momentum each read what the other overwrites. Behind the
        # barrier XLA computes the update first, in the order in which it is written, and
        # copies the sums alone; else the momentum first, and copies that as well.
        def turn(state):
            _, carry = state
            return jnp.zeros_like(pred), function(consts, barrier(carry, derivative=False))

        return lax.while_loop(lambda state: state[0], turn, (pred, carry))[1]

    def run_jvp(primals, tangents):
        return _jvp(_conditional(_any_member(primals[0]), function), primals, tangents)

    run.defjvp(run_jvp, symbolic_zeros=True)
    return run(pred, consts, carry)


def _conditional(runs: Any, function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def branch(pred, consts, carry):
        # Members that do not run: neither their values nor a NaN in their derivatives.
        own = lambda new, old: tree_util.tree_map(
            lambda a, b: jnp.where(pred, a, b), new, old
        )
        turn = lambda carry: own(
            function(consts, own(carry, lax.stop_gradient(carry))), carry
        )
        return lax.cond(runs, turn, lambda carry: carry, carry)

    return branch


def _jvp(function: Callable[..., Any], primals: PyTree, tangents: PyTree) -> Any:
    """`jax.jvp` with respect to the leaves that have a tangent."""
    leaves, treedef = tree_util.tree_flatten(primals)
    tangents = treedef.flatten_up_to(tangents)
    moving = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

    def of_moving(*moved):
        new = dict(zip(moving, moved))
        new = [new.get(i, leaf) for i, leaf in enumerate(leaves)]
        return function(*tree_util.tree_unflatten(treedef, new))

    primals, tangents = ([tree[i] for i in moving] for tree in (leaves, tangents))
    outputs, changes = jax.jvp(of_moving, primals, tangents)
    has_none = lambda change: change.dtype == jax.dtypes.float0
    return outputs, tree_util.tree_map(
        lambda x, t: zero_tangent(x) if has_none(t) else t, outputs, changes
    )


@custom_vmap
def _any_member(pred):
    """`pred`; under vmap, one for all members: whether any one's is true.

    A conditional on a batched `pred` runs both branches, and JAX cannot transpose what it
    makes of one whose operands are tangents.
    """
    return pred


@_any_member.def_vmap
def _(axis_size, in_batched, pred):
    del axis_size, in_batched
    return _any_member(jnp.any(pred, axis=0)), False
