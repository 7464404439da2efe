"""Looks into equations that JAX expands when it compiles, as JAX 0.12 does.

`lax.custom_root` is one. Such an equation holds no jaxpr, but an object that makes one.
"""

import weakref

import jax

from .._leaves.types import Equation, Jaxpr

# By the identity of the object: equal ones may have operands of other types. An equation
# has one jaxpr, whoever asks: others know its equations by it.
_EXPANDED: dict[int, Jaxpr] = {}


def expanded(eqn: Equation) -> Jaxpr | None:
    """What such an equation computes, as a closed jaxpr; None for another one."""
    made = eqn.params.get("_prim")
    if not hasattr(made, "expand"):
        return None
    if id(made) not in _EXPANDED:

        def run(*operands):
            results = made.expand(*jax.tree_util.tree_unflatten(made.in_tree, operands))
            return jax.tree_util.tree_leaves(results)

        try:
            jaxpr = jax.make_jaxpr(run)(*(var.aval for var in eqn.invars))
            weakref.finalize(made, _EXPANDED.pop, id(made), None)
        except Exception:  # another release has other objects
            return None
        _EXPANDED[id(made)] = jaxpr
    return _EXPANDED[id(made)]
