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

from .._leaves.compat import Primitive, x64_enabled
from .._leaves.types import Aval, DType, Equation, Function, Jaxpr, Leaf
from .._numbers.evaluate import as_dtype, bound_product, current_mesh
from .._program.jaxprs import open_jaxpr
from .derivatives import bind

BILINEAR = "dot_general", "conv_general_dilated"
TANGENT = Primitive("autocast_tangent")
# So many products are kept, by their content alone.
_MOST = 2000


def _kept(function: Function) -> Function:
    """A function that traces, whose results are kept by the content of its arguments."""
    known = functools.lru_cache(_MOST)(lambda _, *given: function(*given))

    def of_context(*given):
        precision = getattr(jax.config, "jax_default_matmul_precision", None)
        return known((current_mesh(), x64_enabled(), precision), *given)

    return of_context


class Product(NamedTuple):
    """A product that rounds its operands, equal to others by content.

    Attributes:
        primitive: that of an equation.
        params: those of the equation, with the dtype of the result.
        dtype: what the operands are rounded to.
        axes: those of its operands over which it is mapped, the inner ones first.
    """

    primitive: Any
    params: tuple[tuple[str, Any], ...]
    dtype: DType
    axes: tuple[tuple[int | None, ...], ...] = ()

    @classmethod
    def made(cls, eqn: Equation, dtype: DType, result: DType) -> "Product":
        return cls(eqn.primitive, (*eqn.params.items(),), dtype).to(result)

    def __repr__(self) -> str:
        return f"{self.primitive} in {self.dtype}"

    def to(self, result: DType) -> "Product":
        """The same with a result of another dtype."""
        params = {**dict(self.params), "preferred_element_type": result}
        return self._replace(params=(*params.items(),))

    def of(self, left: Leaf, right: Leaf) -> Leaf:
        """The product of JAX, of rounded operands."""

        def function(*pair):
            rounded = [as_dtype(jnp.asarray(x), self.dtype) for x in pair]
            return bound_product(self.primitive, rounded, dict(self.params))

        for axes in self.axes:
            function = jax.vmap(function, axes)
        return function(left, right)


@functools.lru_cache(_MOST)
def differentiable_product(of: Product) -> Function:
    """A product as a function whose derivatives have the dtypes of its operands."""
    function = jax.custom_jvp(of.of)
    function.defjvp(functools.partial(_with_tangent, of), symbolic_zeros=True)
    return function


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
    aval = linear.update(dtype=of.dtype, weak_type=False)
    jaxpr = _transpose(of.to(of.dtype), place, aval, *map(jax.typeof, given))
    known = dict(zip(jaxpr.invars, given))
    for eqn in jaxpr.eqns:
        values = [x.val if hasattr(x, "val") else known[x] for x in eqn.invars]
        made = (
            [Product.made(eqn, of.dtype, linear.dtype).of(*values)]
            if eqn.primitive.name in BILINEAR
            else bind(eqn, values, eqn.params)
        )
        known |= zip(eqn.outvars, made)
    return known[jaxpr.outvars[0]]


@_kept
def _transpose(
    of: Product, place: int, linear: Aval, cotangent: Aval, other: Aval
) -> Jaxpr:
    """What JAX makes of a product for one operand."""

    def transposed(cotangent, other):
        function = lambda x: of.of(*((x, other) if place == 0 else (other, x)))
        return jax.linear_transpose(function, linear)(cotangent)

    return open_jaxpr(jax.make_jaxpr(transposed)(cotangent, other))


@_kept
def _made_product(of: Product, *pair: Aval) -> Aval:
    return jax.make_jaxpr(of.of)(*pair).out_avals[0]


def _mapped(pair: Sequence[Leaf], axes: Sequence[int | None], *, of: Product):
    return TANGENT.bind(*pair, of=of._replace(axes=(*of.axes, (*axes,)))), 0


_tangent = lambda *pair, of: of.of(*pair)
TANGENT.def_impl(_tangent)
TANGENT.def_abstract_eval(lambda *pair, of: _made_product(of, *pair))
mlir.register_lowering(TANGENT, mlir.lower_fun(_tangent, multiple_results=False))
batching.primitive_batchers[TANGENT] = _mapped
ad.defbilinear(TANGENT, *(functools.partial(_transposed, place=n) for n in (0, 1)))
