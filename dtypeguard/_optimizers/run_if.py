"""A branch that changes its operands in place, or leaves them where they are."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax, tree_util
from jax.custom_batching import custom_vmap


def run_if(pred: Any, function: Callable[[Any], Any], carry: Any) -> Any:
    """`lax.cond(pred, function, lambda carry: carry, carry)` that copies nothing.

    XLA gives a conditional's results buffers of their own, copied to on either branch; a
    loop's carry stays in place. So this is a loop of one turn or none, and where it is
    differentiated, which a loop cannot be backwards, a conditional again.

    Args:
        pred: a scalar bool.
        function: maps a tree of arrays to one of the same types.
        carry: that tree.

    Returns:
        `function(carry)`, or `carry`. Under `jax.vmap` with a batched `pred` the function
        runs where any member's is true, and each member gets its own of the two.
    """
    return _run_if(pred, eqx.filter_closure_convert(function, carry), carry)


@eqx.filter_custom_jvp
def _run_if(pred, function, carry):
    turn = lambda state: (jnp.zeros_like(pred), function(state[1]))
    return lax.while_loop(lambda state: state[0], turn, (pred, carry))[1]


@_run_if.def_jvp
def _(primals, tangents):
    runs = _any_member(primals[0])

    def branch(pred, function, carry):
        # Members that do not run: neither their values nor a NaN in their derivatives.
        own = lambda new, old: tree_util.tree_map(
            lambda a, b: jnp.where(pred, a, b), new, old
        )
        turn = lambda carry: own(function(own(carry, lax.stop_gradient(carry))), carry)
        return lax.cond(runs, turn, lambda carry: carry, carry)

    return eqx.filter_jvp(branch, primals, tangents)


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
