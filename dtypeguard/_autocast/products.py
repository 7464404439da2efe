"""Products on narrow operands, whose gradients are added up in the dtype of the operands.

A product of bfloat16 operands in JAX has gradients in bfloat16, and so has the all-reduce
that a partitioner makes of the gradient of a weight. With a wide result it has wide
products in its backward pass. `product` has neither: the derivative for an operand has the
operand's own dtype, made by a product of narrow values that is added up in that dtype.

Its value is JAX's own product of rounded operands, which policies of `jax.checkpoint` look
for. Its tangents are of `TANGENT`, which defines its transpose.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad, batching, mlir

from .._leaves.compat import Primitive
from .._leaves.types import DType, Equation, Leaf
from .._numbers.evaluate import as_dtype, evaluate_in
from .._program.graph import open_jaxpr
from .derivatives import bind

BILINEAR = "dot_general", "conv_general_dilated"
TANGENT = Primitive("autocast_tangent")


class Product(NamedTuple):
    """The product of an equation, computed in another dtype.

    Attributes:
        axes: those of its operands over which it is mapped, the inner ones first.
    """

    eqn: Equation
    dtype: DType
    result: DType
    axes: tuple[tuple[int | None, ...], ...] = ()

    def __repr__(self) -> str:
        return f"{self.eqn.primitive} in {self.dtype}, to {self.result}"

    def of(self, left: Leaf, right: Leaf) -> Leaf:
        """The product of JAX, of rounded operands."""
        function = lambda *pair: evaluate_in(self.eqn, pair, self.dtype, self.result)[0]
        for axes in self.axes:
            function = jax.vmap(function, axes)
        return function(left, right)


def product(of: Product, *operands: Leaf) -> Leaf:
    """A product whose derivatives have the dtypes of its operands."""
    function = jax.custom_jvp(of.of)
    function.defjvp(functools.partial(_with_tangent, of), symbolic_zeros=True)
    return function(*operands)


def _with_tangent(of: Product, primals: Sequence[Leaf], tangents: Sequence[Any]):
    narrow = [as_dtype(jnp.asarray(x), of.dtype) for x in primals]
    value = of.of(*narrow)
    parts = [
        TANGENT.bind(*[*narrow[:place], each, *narrow[place + 1 :]], of=of)
        for place, each in enumerate(tangents)
        if not isinstance(each, SymbolicZero)
    ]
    return value, functools.reduce(lax.add, parts) if parts else jnp.zeros_like(value)


def _transposed(cotangent: Leaf, *pair: Any, of: Product, place: int) -> Leaf:
    """The derivative for one operand, of the other and the cotangent.

    It is what JAX makes of the narrow product, but that the product in it has the dtype of
    the operand as its result.
    """
    linear = pair[place].aval
    given = [as_dtype(x, of.dtype) for x in (cotangent, pair[1 - place])]
    narrow = of._replace(result=of.dtype)

    def transposed(cotangent, other):
        function = lambda x: narrow.of(*((x, other) if place == 0 else (other, x)))
        aval = linear.update(dtype=of.dtype, weak_type=False)
        return jax.linear_transpose(function, aval)(cotangent)

    jaxpr = open_jaxpr(jax.make_jaxpr(transposed)(*given))
    known = dict(zip(jaxpr.invars, given))
    for eqn in jaxpr.eqns:
        values = [x.val if hasattr(x, "val") else known[x] for x in eqn.invars]
        made = (
            evaluate_in(eqn, values, of.dtype, linear.dtype)
            if eqn.primitive.name in BILINEAR
            else bind(eqn, values, eqn.params)
        )
        known |= zip(eqn.outvars, made)
    return known[jaxpr.outvars[0]]


def _mapped(pair: Sequence[Leaf], axes: Sequence[int | None], *, of: Product):
    return TANGENT.bind(*pair, of=of._replace(axes=(*of.axes, (*axes,)))), 0


_tangent = lambda *pair, of: of.of(*pair)
TANGENT.def_impl(_tangent)
TANGENT.def_abstract_eval(lambda *x, of: jax.make_jaxpr(of.of)(*x).out_avals[0])
mlir.register_lowering(TANGENT, mlir.lower_fun(_tangent, multiple_results=False))
batching.primitive_batchers[TANGENT] = _mapped
ad.defbilinear(TANGENT, *(functools.partial(_transposed, place=n) for n in (0, 1)))
