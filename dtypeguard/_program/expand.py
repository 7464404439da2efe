"""Looks into equations that JAX expands when it compiles, from JAX 0.11 on.

`lax.custom_root` is one. Such an equation holds no jaxpr, but an object that makes one.
"""

import weakref

import jax

from .._leaves.types import Equation, Jaxpr

# By the object. An equation has one jaxpr, whoever asks: others know its equations by it.
_EXPANDED: weakref.WeakKeyDictionary[object, Jaxpr] = weakref.WeakKeyDictionary()


def expanded(eqn: Equation) -> Jaxpr | None:
    """What such an equation computes, as a closed jaxpr; None for another one."""
    made = eqn.params.get("_prim")
    if not hasattr(made, "expand"):
        return None
    if made not in _EXPANDED:

        def run(*operands):
            results = made.expand(*jax.tree_util.tree_unflatten(made.in_tree, operands))
            return jax.tree_util.tree_leaves(results)

        try:
            _EXPANDED[made] = jax.make_jaxpr(run)(*(var.aval for var in eqn.invars))
        except Exception:  # another release has other objects
            return None
    return _EXPANDED[made]
