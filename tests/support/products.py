"""A program with the products of a device: an interpreter that rounds their operands."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtypeguard._program.program import split_operands

# Of the operands: bfloat16, and TF32.
DIGITS = {"bfloat16": 7, "tensorfloat32": 10}
DIGITS |= {"tpu": DIGITS["bfloat16"], "a100": DIGITS["tensorfloat32"]}


def as_on(device, f, *args):
    """The leaves of what a function returns whose float32 products have rounded operands.

    Args:
        device: a name of `DIGITS`; None rounds nothing.
        f: the function.
        *args: its arguments.
    """
    program = jax.make_jaxpr(f)(*args)
    return jax.jit(lambda *x: _run(program, DIGITS.get(device), x))(*jax.tree.leaves(args))


def errors(device, f, *args):
    """How far its floating outputs are from those without rounding, by path."""
    leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(f, *args))
    size = lambda x: np.linalg.norm(np.ravel(x).astype(complex))
    triples = zip(leaves, as_on(device, f, *args), as_on(None, f, *args))
    return {
        jax.tree_util.keystr(path): size(x - e) / size(e)
        for (path, _), x, e in triples
        if jnp.issubdtype(e.dtype, jnp.inexact)
    }


def off(device, f, *args, without=()):
    """The root mean square of the errors of outputs, without some of them."""
    known = errors(device, f, *args)
    return np.sqrt(np.mean([e**2 for path, e in known.items() if path not in without]))


def _run(closed, digits, args):
    jaxpr = getattr(closed, "jaxpr", closed)
    known = dict(zip(jaxpr.constvars, getattr(closed, "consts", ())))
    known |= zip(jaxpr.invars, args)
    read = lambda var: var.val if hasattr(var, "val") else known[var]
    for eqn in jaxpr.eqns:
        known |= dict(zip(eqn.outvars, _equation(eqn, digits, [*map(read, eqn.invars)])))
    return [*map(read, jaxpr.outvars)]


def _equation(eqn, digits, args):
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        _, shared, carry, xs = split_operands(eqn, args)

        def step(carry, xs):
            made = _run(params["jaxpr"], digits, [*shared, *carry, *xs])
            return made[: len(carry)], made[len(carry) :]

        carry, ys = lax.scan(step, carry, xs, params["length"], params["reverse"])
        return [*carry, *ys]
    if name == "while":
        before, shared, carry, _ = split_operands(eqn, args)
        test = lambda x: _run(params["cond_jaxpr"], digits, [*before, *x])[0]
        turn = lambda x: _run(params["body_jaxpr"], digits, [*shared, *x])
        return lax.while_loop(test, turn, carry)
    if name == "cond":
        branches = [lambda *x, b=b: _run(b, digits, x) for b in params["branches"]]
        return lax.switch(args[0], branches, *args[1:])
    for inside in (params.get(key) for key in ("jaxpr", "call_jaxpr", "fun_jaxpr")):
        if inside is not None:
            return _run(inside, digits, args)
    if name in ("dot_general", "conv_general_dilated") and digits:
        asked = (params["precision"] or [lax.Precision.DEFAULT])[0]
        rounded = lambda x: (
            lax.reduce_precision(x, 8, digits) if x.dtype == np.float32 else x
        )
        if asked == lax.Precision.HIGH and digits == 7:  # three passes on a TPU
            parts = [(rounded(x), rounded(x - rounded(x))) for x in args]
            pairs = [(parts[0][i], parts[1][j]) for i, j in ((0, 1), (1, 0), (0, 0))]
            return [sum(eqn.primitive.bind(*pair, **params) for pair in pairs)]
        args = args if asked == lax.Precision.HIGHEST else [*map(rounded, args)]
    bound = eqn.primitive.get_bind_params(params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    made = eqn.primitive.bind(*functions, *args, **params)
    return made if eqn.primitive.multiple_results else [made]
