"""Products on narrow operands, whose gradients are added up in the dtype of the operands.

A product of bfloat16 operands in JAX has gradients in bfloat16, and so has the all-reduce
that a partitioner makes of the gradient of a weight. With a wide result it has wide
products in its backward pass. `PRODUCT` has neither: it takes operands as they come and
rounds them itself, so that the derivative for an operand has the operand's own dtype, made
by a product of narrow values that is added up in that dtype.

Where it is differentiated, JAX's own product computes the result: policies of
`jax.checkpoint` look for that one. It stays in tangents, whose transpose it defines.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .._leaves.types import Aval, DType, Equation, Jaxpr, Leaf
from .._program.graph import open_jaxpr
from .._program.meshes import as_dtype

_POLICIES = jax.checkpoint_policies
_OF_RESULT = "preferred_element_type"
# The primitives of JAX that are emitted so, by name.
_PRIMITIVES = {each.name: each for each in (lax.dot_general_p, lax.conv_general_dilated_p)}
PRODUCT, FAN_OUT = Primitive("autocast_product"), Primitive("autocast_fan_out")
FAN_OUT.multiple_results = True


class Product(NamedTuple):
    """A product of JAX, and in which dtypes it is computed.

    Attributes:
        name: of JAX's primitive.
        params: those of the primitive.
        dtype: of its operands.
        result: of what it returns.
    """

    name: str
    params: tuple[tuple[str, Any], ...]
    dtype: DType
    result: DType

    def __repr__(self) -> str:
        return f"{self.name} in {self.dtype}, to {self.result}"

    def of(self, left: Leaf, right: Leaf) -> Leaf:
        """The product of JAX, on operands as they come."""
        narrow = [as_dtype(each, self.dtype) for each in (left, right)]
        return self.bind(narrow, self.result)

    def bind(self, narrow: Sequence[Leaf], result: DType) -> Leaf:
        params = {**dict(self.params), _OF_RESULT: result}
        return _PRIMITIVES[self.name].bind(*narrow, **params)


def is_bilinear(eqn: Equation) -> bool:
    """Whether `product` can emit an equation."""
    return eqn.primitive.name in _PRIMITIVES


def product(eqn: Equation, operands: Sequence[Leaf], dtype: DType, result: DType) -> Leaf:
    """The product of an equation, computed in another dtype.

    Args:
        eqn: the equation, of one of JAX's primitives for products.
        operands: its operands, as they come.
        dtype: what they are rounded to.
        result: the dtype of the result.
    """
    of = Product(eqn.primitive.name, (*sorted(eqn.params.items()),), dtype, result)
    return PRODUCT.bind(*operands, of=of)


def policy_of(policy: Any) -> Any:
    """A policy of `jax.checkpoint` that takes `PRODUCT` for JAX's own product."""
    if policy in (None, _POLICIES.everything_saveable, _POLICIES.nothing_saveable):
        return policy

    def of_products(primitive, *avals, **params):
        if primitive is not PRODUCT:
            return policy(primitive, *avals, **params)
        of = params["of"]
        return policy(_PRIMITIVES[of.name], *avals, **dict(of.params))

    return of_products


def _abstract(left: Aval, right: Aval, *, of: Product) -> Aval:
    avals = [each.update(dtype=of.dtype, weak_type=False) for each in (left, right)]
    params = {**dict(of.params), _OF_RESULT: of.result}
    return _PRIMITIVES[of.name].abstract_eval(*avals, **params)[0]


def _jvp(primals: Sequence[Leaf], tangents: Sequence[Leaf], *, of: Product):
    narrow = [as_dtype(each, of.dtype) for each in primals]
    made = of.bind(narrow, of.result)
    parts = [
        PRODUCT.bind(*[*narrow[:side], tangent, *narrow[side + 1 :]], of=of)
        for side, tangent in enumerate(tangents)
        if type(tangent) is not ad.Zero
    ]
    return made, functools.reduce(lax.add, parts)


def _transpose(cotangent: Leaf, left: Leaf, right: Leaf, *, of: Product):
    side = 0 if ad.is_undefined_primal(left) else 1
    linear, other = (left, right) if side == 0 else (right, left)
    if type(cotangent) is ad.Zero:
        made = ad.Zero(linear.aval)
    else:
        other, cotangent = (as_dtype(x, of.dtype) for x in (other, cotangent))
        aval = linear.aval.update(dtype=of.dtype, weak_type=False)
        jaxpr = _transposed(of, side, aval, jax.typeof(other), jax.typeof(cotangent))
        (made,) = _run(jaxpr, [other, cotangent], linear.aval.dtype)
    return (made, None) if side == 0 else (None, made)


@functools.lru_cache(1000)
def _transposed(of: Product, side: int, linear: Aval, other: Aval, cotangent: Aval):
    """The jaxpr of the derivative for one operand, of the other and the cotangent."""

    def transposed(other, cotangent):
        def function(x):
            pair = (x, other) if side == 0 else (other, x)
            return of.bind(pair, of.dtype)

        return jax.linear_transpose(function, linear)(cotangent)

    return jax.make_jaxpr(transposed)(other, cotangent)


def _batch(operands: Sequence[Leaf], axes: Sequence[int | None], *, of: Product):
    avals = [_avals(x, of.dtype) for x in operands]
    function = jax.vmap(lambda *pair: of.bind(pair, of.result), in_axes=(*axes,))
    jaxpr = jax.make_jaxpr(function)(*avals)

    def bind(eqn: Equation, values: Sequence[Leaf]) -> Leaf:
        return product(eqn, values, of.dtype, of.result)

    return _run(jaxpr, operands, of.result, bind)[0], 0


def _avals(x: Leaf, dtype: DType) -> Aval:
    return jax.typeof(x).update(dtype=dtype, weak_type=False)


def _run(
    jaxpr: Jaxpr,
    operands: Sequence[Leaf],
    result: DType,
    bind: Callable[[Equation, Sequence[Leaf]], Leaf] | None = None,
) -> list[Leaf]:
    """Runs a jaxpr of one product and of moves; what comes after has another dtype."""
    opened = open_jaxpr(jaxpr)
    known = dict(zip(opened.invars, operands))
    for eqn in opened.eqns:
        values = [x.val if hasattr(x, "val") else known[x] for x in eqn.invars]
        if not is_bilinear(eqn):
            made = eqn.primitive.bind(*values, **eqn.params)
        elif bind is None:
            made = eqn.primitive.bind(*values, **{**eqn.params, _OF_RESULT: result})
        else:
            made = bind(eqn, values)
        known |= zip(eqn.outvars, made if eqn.primitive.multiple_results else [made])
    return [known[x] for x in opened.outvars]


def _lowered(*operands: Leaf, of: Product) -> Leaf:
    return of.of(*operands)


PRODUCT.def_impl(_lowered)
PRODUCT.def_abstract_eval(_abstract)
ad.primitive_jvps[PRODUCT] = _jvp
ad.primitive_transposes[PRODUCT] = _transpose
batching.primitive_batchers[PRODUCT] = _batch
mlir.register_lowering(PRODUCT, mlir.lower_fun(_lowered, multiple_results=False))


def fan_out(array: Leaf, count: int) -> list[Leaf]:
    """The same narrow value several times; its cotangents are added up in float32."""
    return FAN_OUT.bind(array, count=count)


def _copies(array: Leaf, *, count: int) -> list[Leaf]:
    return [array] * count


def _fan_jvp(primals: Sequence[Leaf], tangents: Sequence[Leaf], *, count: int):
    (tangent,) = tangents
    is_zero = type(tangent) is ad.Zero
    made = [tangent] * count if is_zero else FAN_OUT.bind(tangent, count=count)
    return [*primals] * count, made


def _fan_transpose(cotangents: Sequence[Leaf], array: Leaf, *, count: int):
    parts = [each for each in cotangents if type(each) is not ad.Zero]
    if not parts:
        return [ad.Zero(array.aval)]
    if len(parts) == 1:
        return parts
    wide = [as_dtype(each, jnp.dtype("float32")) for each in parts]
    return [as_dtype(functools.reduce(lax.add, wide), parts[0].dtype)]


def _fan_batch(operands: Sequence[Leaf], axes: Sequence[int | None], *, count: int):
    return FAN_OUT.bind(*operands, count=count), [*axes] * count


FAN_OUT.def_impl(_copies)
FAN_OUT.def_abstract_eval(lambda aval, *, count: [aval] * count)
ad.primitive_jvps[FAN_OUT] = _fan_jvp
ad.primitive_transposes[FAN_OUT] = _fan_transpose
batching.primitive_batchers[FAN_OUT] = _fan_batch
mlir.register_lowering(FAN_OUT, mlir.lower_fun(_copies, multiple_results=True))
