"""The products of a program, by dtypes, and the operands of one."""

import jax
import numpy as np

from dtypeguard._program.program import Block

_ROWS = np.linspace(0, 1, 32).reshape(4, 8)
W, X, SIGNED = jax.device_put((np.eye(8) + 0.1, _ROWS, 2 * _ROWS - 1))


def equations(jaxpr):
    """Those of a jaxpr and of all inside it."""
    return [node.eqn for node in Block(jaxpr).all_nodes()]


def dots(function, *args):
    """The operands' and the results' dtypes of the products of a function.

    A CPU is given narrow operands in float32 where the result has that dtype.
    """
    eqns = equations(jax.make_jaxpr(function)(*args))
    casts = [x for x in eqns if x.primitive.name == "convert_element_type"]
    before = {x.outvars[0]: x.invars[0].aval.dtype for x in casts}
    dtype = lambda v: min(
        before.get(v, v.aval.dtype), v.aval.dtype, key=lambda x: x.itemsize
    )
    names = "dot_general", "conv_general_dilated"
    products = [eqn for eqn in eqns if eqn.primitive.name in names]
    types = lambda eqn: (*map(dtype, eqn.invars), eqn.outvars[0].aval.dtype)
    return [(*map(str, types(eqn)),) for eqn in products]
