"""A conditional that updates its operands in place."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax, tree_util
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from .._leaves.compat import barrier, zero_tangent
from .._leaves.types import PyTree

_Function = Callable[[PyTree, PyTree], PyTree]


def run_if(pred: jax.Array, function: _Function, consts: PyTree, carry: PyTree) -> PyTree:
    """Like `lax.cond(pred, function, ...)`, but copies nothing in either branch.

    XLA (of JAX 0.10) gives the results of a conditional their own buffers if one branch
    cannot write over its operands, and then fills them in the other branch too. It updates
    the carry of a loop in place. So this runs a `lax.while_loop` of at most one iteration.
    Reverse mode cannot differentiate such a loop, so the derivative uses `lax.cond`.
    """

    @jax.custom_jvp
    def run(pred, consts, carry):
        # Lion's update and its momentum each read what the other overwrites. With the
        # barrier, XLA (of JAX 0.10) computes the update first, as written, and copies only
        # the sums; without it, the momentum comes first and is copied too.
        def turn(state):
            _, carry = state
            return jnp.zeros_like(pred), function(consts, barrier(carry, derivative=False))

        return lax.while_loop(lambda state: state[0], turn, (pred, carry))[1]

    def run_jvp(primals, tangents):
        return _jvp(_conditional(_any_member(primals[0]), function), primals, tangents)

    run.defjvp(run_jvp, symbolic_zeros=True)
    return run(pred, consts, carry)


def _conditional(runs: jax.Array, function: _Function) -> Callable[..., PyTree]:
    def branch(pred, consts, carry):
        # Keeps the values of members that do not run, and NaN out of their derivatives.
        own = lambda new, old: tree_util.tree_map(
            lambda a, b: jnp.where(pred, a, b), new, old
        )
        turn = lambda carry: own(
            function(consts, own(carry, lax.stop_gradient(carry))), carry
        )
        return lax.cond(runs, turn, lambda carry: carry, carry)

    return branch


def _jvp(
    function: Callable[..., PyTree], primals: PyTree, tangents: PyTree
) -> tuple[PyTree, PyTree]:
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
    """`pred`; under vmap, whether it is true for any member.

    A conditional on a batched `pred` runs both branches, and JAX cannot transpose the
    result if the operands are tangents.
    """
    return pred


@_any_member.def_vmap
def _(axis_size, in_batched, pred):
    del axis_size, in_batched
    return _any_member(jnp.any(pred, axis=0)), False
