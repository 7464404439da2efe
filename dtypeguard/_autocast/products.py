"""Products on narrow operands, whose gradients are added up in the dtype of the operands.

A product of bfloat16 operands in JAX has gradients in bfloat16, and so has the all-reduce
that a partitioner makes of the gradient of a weight. With a wide result it has wide
products in its backward pass. `multiply` has neither: the derivative for an operand has the
operand's own dtype, made by a product of narrow values that is added up in that dtype.

`multiply` is a primitive and no `jax.custom_jvp`, which takes fifteen times as long to
trace. It computes JAX's own product of rounded operands, which policies of
`jax.checkpoint` look for; its tangents are products by the primitive again.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend import source_info_util
from jax.interpreters import ad, batching, mlir

from .._leaves.compat import Primitive
from .._leaves.types import Aval, Jaxpr, Leaf
from .._numbers.evaluate import Computes, RetypedWalk, bound_product, current_mesh
from .._numbers.primitives import AUTOCAST_PRODUCT
from .._program.jaxprs import Arrays
from .._program.program import Block

_Avals = tuple[Aval, ...]

MULTIPLY = Primitive(AUTOCAST_PRODUCT)
_MOST_PRODUCTS = 2000


class Product(NamedTuple):
    """A product that rounds its operands, equal to another one by content.

    Attributes:
        primitive: `dot_general` or a convolution.
        params: the names and values of the parameters of its equation.
        computes: the dtypes of the rounded operands and of the result.
        mapped: the axes of `jax.vmap` for the operands, the inner ones first.
    """

    primitive: Any
    params: tuple[Any, ...]
    computes: Computes
    mapped: tuple[Sequence[int | None], ...] = ()

    def __repr__(self) -> str:
        return f"{self.primitive} in {self.computes.dtype}"

    def compute(self, *operands):
        """Computes JAX's product of rounded operands."""
        function = self._compute_unmapped
        for in_axes in self.mapped:
            function = jax.vmap(function, in_axes)
        return function(*operands)

    def _compute_unmapped(self, *operands):
        params = dict(self.params)
        params["preferred_element_type"] = self.computes.result
        rounded = self.rounded(operands)
        return bound_product(self.primitive, rounded, params)

    def rounded(self, operands: Arrays) -> list[Leaf]:
        """Returns operands in the dtype to which the product rounds them."""
        arrays = []
        for operand in operands:
            array = self.computes.settled(operand)
            arrays.append(array)
        return arrays


def multiply(product: Product, operands: Arrays) -> Leaf:
    """Multiplies; the derivatives have the dtypes of the operands."""
    # The jaxpr is for readers: audits, costs and `jax.make_jaxpr` see the rounding.
    avals = tuple(map(jax.typeof, operands))
    jaxpr = _product_jaxpr(product, avals, _context())
    return MULTIPLY.bind(*operands, product=product, jaxpr=jaxpr)


def _context() -> object:
    """Returns the part of JAX's context on which a trace of equal arguments depends."""
    precision = getattr(jax.config, "jax_default_matmul_precision", None)
    return current_mesh(), precision


@functools.lru_cache(_MOST_PRODUCTS)
def _product_jaxpr(product: Product, avals: _Avals, _: object) -> Jaxpr:
    trace = jax.make_jaxpr(product.compute)
    closed = trace(*avals)
    # Other lines of the user's share this jaxpr, so its equations have no line themselves.
    no_source = source_info_util.new_source_info()
    jaxpr = closed.jaxpr
    eqns = []
    for eqn in jaxpr.eqns:
        shared_eqn = eqn.replace(source_info=no_source)
        eqns.append(shared_eqn)
    shared_jaxpr = jaxpr.replace(eqns=eqns)
    return closed.replace(jaxpr=shared_jaxpr)


def _product_jvp(primals, tangents, *, product, jaxpr):
    # Rounded here, the narrow operands are what the backward pass keeps in memory.
    narrow = product.rounded(primals)
    parts = []
    for place, tangent in enumerate(tangents):
        if isinstance(tangent, ad.Zero):
            continue
        operands = list(narrow)
        operands[place] = tangent
        parts.append(multiply(product, operands))
    result_tangent = functools.reduce(lax.add, parts)
    return product.compute(*narrow), result_tangent


def _transposed(cotangent, *operands, product, place, jaxpr):
    """Computes the derivative for one operand, of the other operand and the cotangent.

    It is JAX's derivative of the narrow product, but that the product in it has the dtype
    of the operand as its result.
    """
    linear = operands[place].aval
    narrow = product.computes._replace(result=product.computes.dtype)
    narrow_linear = linear.update(dtype=narrow.dtype, weak_type=False)
    narrow_product = product._replace(computes=narrow)
    other_operand = operands[1 - place]
    rounded = product.rounded([cotangent, other_operand])
    avals = tuple(map(jax.typeof, rounded))
    # JAX knows the layouts of all products and convolutions; only dtypes differ.
    context = _context()
    transpose = _transpose_jaxpr(narrow_product, place, narrow_linear, avals, context)
    computes = narrow._replace(result=linear.dtype)
    walk = RetypedWalk(computes.of)
    (derivative,) = walk.block(Block(transpose), rounded)
    return derivative


@functools.lru_cache(_MOST_PRODUCTS)
def _transpose_jaxpr(
    product: Product, place: int, linear: Aval, avals: _Avals, _: object
) -> Jaxpr:
    """Returns JAX's transpose of a product, of the cotangent and the other operand."""

    def transposed(cotangent, operand):
        def multiply_linear(x):
            operands = [operand]
            operands.insert(place, x)
            return product.compute(*operands)

        return jax.linear_transpose(multiply_linear, linear)(cotangent)

    return jax.make_jaxpr(transposed)(*avals)


def _map_product(operands, in_axes, *, product, jaxpr):
    mapped = (*product.mapped, tuple(in_axes))
    mapped_product = product._replace(mapped=mapped)
    return multiply(mapped_product, operands), 0


def _compute(*operands, product, jaxpr):
    return product.compute(*operands)


def _result_aval(*operands, product, jaxpr):
    return jaxpr.out_avals[0]


MULTIPLY.def_impl(_compute)
MULTIPLY.def_abstract_eval(_result_aval)
_lower = mlir.lower_fun(_compute, multiple_results=False)
mlir.register_lowering(MULTIPLY, _lower)
batching.primitive_batchers[MULTIPLY] = _map_product
ad.defbilinear(
    MULTIPLY,
    functools.partial(_transposed, place=0),
    functools.partial(_transposed, place=1),
)
# The derivative of a product is made of JAX's own product as well.
ad.primitive_jvps[MULTIPLY] = _product_jvp
