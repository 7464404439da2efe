"""A branch that changes its operands in place, or leaves them where they are."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, tree_util
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero


def run_if(pred: Any, function: Callable[[Any, Any], Any], consts: Any, carry: Any) -> Any:
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
        turn = lambda state: (jnp.zeros_like(pred), function(consts, _held(state[1])))
        return lax.while_loop(lambda state: state[0], turn, (pred, carry))[1]

    def run_jvp(primals, tangents):
        return _jvp(_conditional(_any_member(primals[0]), function), primals, tangents)

    run.defjvp(run_jvp, symbolic_zeros=True)
    return run(pred, consts, carry)


@custom_vmap
def _held(carry):
    """The carry, behind a barrier, which XLA takes away before it looks for copies.

    Until then it settles in which order the results are computed. Lion's update and its
    momentum each read what the other overwrites: with the update first, the sums alone are
    copied, else the momentum as well. The rule for vmap is for JAX 0.4, where a barrier has
    none.
    """
    return lax.optimization_barrier(carry)


@_held.def_vmap
def _(axis_size, in_batched, carry):
    del axis_size
    return carry, in_batched[0]


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


def _jvp(function: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """`jax.jvp` with respect to the leaves that have a tangent."""
    leaves, treedef = tree_util.tree_flatten(primals)
    tangents = treedef.flatten_up_to(tangents)
    moving = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

    def of_moving(*moved):
        new = dict(zip(moving, moved))
        new = [new.get(i, leaf) for i, leaf in enumerate(leaves)]
        return function(*tree_util.tree_unflatten(treedef, new))

    return jax.jvp(of_moving, [leaves[i] for i in moving], [tangents[i] for i in moving])


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
