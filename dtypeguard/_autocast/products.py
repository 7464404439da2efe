"""Products on narrow operands, whose gradients are added up in the dtype of the operands.

A product of bfloat16 operands in JAX has gradients in bfloat16, and so has the all-reduce
that a partitioner makes of the gradient of a weight. With a wide result it has wide
products in its backward pass. `multiply` has neither: the derivative for an operand has the
operand's own dtype, made by a product of narrow values that is added up in that dtype.

`multiply` is a primitive and no `jax.custom_jvp`, which takes fifteen times as long to
trace. Its derivative is JAX's own product of rounded operands, which policies of
`jax.checkpoint` look for, and a tangent of the primitive `TANGENT`, which is linear.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import source_info_util
from jax.interpreters import ad, batching, mlir

from .._leaves.compat import Primitive, x64_enabled
from .._leaves.types import Aval, DType, Equation, Jaxpr, Leaf
from .._numbers.evaluate import as_dtype, bind, bound_product, current_mesh
from .._numbers.primitives import AUTOCAST_PRODUCT
from .._program.jaxprs import open_jaxpr

BILINEAR = ("dot_general", "conv_general_dilated")
MULTIPLY = Primitive(AUTOCAST_PRODUCT)
TANGENT = Primitive("autocast_tangent")
_MOST_PRODUCTS = 2000


class Product(NamedTuple):
    """A product that rounds its operands, equal to another one by content.

    Attributes:
        primitive: `dot_general` or a convolution.
        params: the parameters of the equation, with the dtype of the result.
        dtype: the dtype to which the operands are rounded.
        mapped: the axes of `jax.vmap` for the operands and for the result, the inner ones
            first.
    """

    primitive: Any
    params: tuple[tuple[str, Any], ...]
    dtype: DType
    mapped: tuple[tuple[Sequence[int | None], int], ...] = ()

    def __repr__(self) -> str:
        return f"{self.primitive} in {self.dtype}"

    def with_result(self, result: DType) -> "Product":
        """Returns the same product with a result of another dtype."""
        params = {**dict(self.params), "preferred_element_type": result}
        return self._replace(params=tuple(params.items()))

    def compute(self, *operands: Leaf) -> Leaf:
        """Computes JAX's product of rounded operands."""
        function: Callable[..., Leaf] = self._compute_unmapped
        for in_axes, out_axis in self.mapped:
            function = jax.vmap(function, in_axes, out_axis)
        return function(*operands)

    def _compute_unmapped(self, *operands: Leaf) -> Leaf:
        rounded = [as_dtype(jnp.asarray(x), self.dtype) for x in operands]
        return bound_product(self.primitive, rounded, dict(self.params))


def product_of(eqn: Equation, dtype: DType, result: DType) -> Product:
    """Returns the product of an equation with operands and a result in these dtypes."""
    product = Product(eqn.primitive, tuple(eqn.params.items()), dtype)
    return product.with_result(result)


def multiply(product: Product, operands: Sequence[Leaf]) -> Leaf:
    """Multiplies; the derivatives have the dtypes of the operands."""
    avals = tuple(jax.typeof(x) for x in operands)
    # The jaxpr is for readers: audits, costs and `jax.make_jaxpr` see the rounding.
    jaxpr = _product_jaxpr(product, avals)
    return MULTIPLY.bind(*operands, product=product, jaxpr=jaxpr)


def _cached_trace(function: Callable[..., Jaxpr]) -> Callable[..., Jaxpr]:
    """Keeps the jaxprs that a function makes, by its arguments and JAX's context."""

    @functools.lru_cache(_MOST_PRODUCTS)
    def trace_in(context: object, *arguments):
        return function(*arguments)

    # What a trace makes of equal arguments depends on the context as well.
    def trace(*arguments):
        precision = getattr(jax.config, "jax_default_matmul_precision", None)
        return trace_in((current_mesh(), x64_enabled(), precision), *arguments)

    return trace


@_cached_trace
def _product_jaxpr(product: Product, avals: tuple[Aval, ...]) -> Jaxpr:
    closed = jax.make_jaxpr(product.compute)(*avals)
    # Other lines of the user's share this jaxpr, so its equations have no line themselves.
    no_source = source_info_util.new_source_info()
    eqns = [eqn.replace(source_info=no_source) for eqn in closed.jaxpr.eqns]
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=eqns))


def _product_jvp(
    primals: Sequence[Leaf], tangents: Sequence[Any], *, product: Product, jaxpr: Jaxpr
) -> tuple[Leaf, Leaf]:
    # Rounded here, the narrow operands are what the backward pass keeps in memory.
    narrow = [as_dtype(jnp.asarray(x), product.dtype) for x in primals]
    parts: list[Leaf] = []
    for place, tangent in enumerate(tangents):
        if not isinstance(tangent, ad.Zero):
            operands = list(narrow)
            operands[place] = tangent
            parts.append(TANGENT.bind(*operands, product=product))
    return product.compute(*narrow), functools.reduce(lax.add, parts)


def _transposed(
    cotangent: Leaf,
    *operands: Any,
    product: Product,
    place: int,
    jaxpr: Jaxpr | None = None,
) -> Leaf:
    """Computes the derivative for one operand, of the other operand and the cotangent.

    It is JAX's derivative of the narrow product, but that the product in it has the dtype
    of the operand as its result.
    """
    linear = operands[place].aval
    other_operand = operands[1 - place]
    rounded = [as_dtype(x, product.dtype) for x in (cotangent, other_operand)]
    narrow_aval = linear.update(dtype=product.dtype, weak_type=False)
    avals = tuple(jax.typeof(x) for x in rounded)
    narrow_product = product.with_result(product.dtype)
    transpose = open_jaxpr(_transpose_jaxpr(narrow_product, place, narrow_aval, avals))
    # Equation by equation, since the product among them gets another result dtype.
    values = dict(zip(transpose.invars, rounded))
    for eqn in transpose.eqns:
        # A literal has its value with it.
        inputs = [x.val if hasattr(x, "val") else values[x] for x in eqn.invars]
        if eqn.primitive.name in BILINEAR:
            wide_product = product_of(eqn, product.dtype, linear.dtype)
            results = [wide_product.compute(*inputs)]
        else:
            results = bind(eqn, inputs, eqn.params)
        values |= zip(eqn.outvars, results)
    return values[transpose.outvars[0]]


@_cached_trace
def _transpose_jaxpr(
    product: Product, place: int, linear: Aval, avals: tuple[Aval, ...]
) -> Jaxpr:
    """Returns JAX's transpose of a product, of the cotangent and the other operand."""

    def transposed(cotangent, operand):
        def multiply_linear(x):
            if place == 0:
                return product.compute(x, operand)
            return product.compute(operand, x)

        return jax.linear_transpose(multiply_linear, linear)(cotangent)

    return jax.make_jaxpr(transposed)(*avals)


def _map_product(
    product: Product, operands: Sequence[Leaf], in_axes: Sequence[int | None]
) -> tuple[Product, int]:
    """Returns a product under `jax.vmap`, and the axis of its result that is mapped."""
    avals = tuple(jax.typeof(x) for x in operands)

    def map_to(axis: int) -> Product:
        return product._replace(mapped=(*product.mapped, (tuple(in_axes), axis)))

    *_, last = open_jaxpr(_product_jaxpr(map_to(0), avals)).eqns
    # JAX moves the axis to the front from where it has it, and there it needs no move.
    axis = last.params["permutation"][0] if last.primitive.name == "transpose" else 0
    return map_to(axis), axis


def _batch_product(operands, in_axes, *, product: Product, jaxpr: Jaxpr):
    mapped, axis = _map_product(product, operands, in_axes)
    return multiply(mapped, operands), axis


def _batch_tangent(operands, in_axes, *, product: Product):
    mapped, axis = _map_product(product, operands, in_axes)
    return TANGENT.bind(*operands, product=mapped), axis


def _compute(*operands, product: Product, jaxpr: Jaxpr | None = None):
    return product.compute(*operands)


def _product_aval(*avals, product: Product, jaxpr: Jaxpr | None = None):
    return _product_jaxpr(product, avals).out_avals[0]


for _primitive, _batch in ((MULTIPLY, _batch_product), (TANGENT, _batch_tangent)):
    _primitive.def_impl(_compute)
    _primitive.def_abstract_eval(_product_aval)
    mlir.register_lowering(_primitive, mlir.lower_fun(_compute, multiple_results=False))
    batching.primitive_batchers[_primitive] = _batch
    ad.defbilinear(
        _primitive,
        functools.partial(_transposed, place=0),
        functools.partial(_transposed, place=1),
    )
# A tangent is linear; the derivative of a product is made of JAX's own product as well.
ad.primitive_jvps[MULTIPLY] = _product_jvp
