"""Products on narrow operands, whose gradients are added up in the dtype of the operands.

A product of bfloat16 operands in JAX has gradients in bfloat16, and so has the all-reduce
that a partitioner makes of the gradient of a weight. With a wide result it has wide
products in its backward pass. `product` has neither: the derivative for an operand has the
operand's own dtype, made by a product of narrow values that is added up in that dtype.

It is JAX's own product of rounded operands, which policies of `jax.checkpoint` look for,
without a derivative: `ROUND` has none. `RESULT` gives it one. Its tangents are of
`TANGENT`, a product that is linear in one operand and defines its transpose.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir

from .._leaves.compat import Primitive
from .._leaves.types import Aval, DType, Equation, Jaxpr, Leaf
from .._numbers.evaluate import as_dtype, bound_product
from .._program.graph import open_jaxpr

_RESULT = "preferred_element_type"
# The primitives of JAX that are emitted so, by name.
_PRIMITIVES = {each.name: each for each in (lax.dot_general_p, lax.conv_general_dilated_p)}
ROUND, RESULT = Primitive("autocast_round"), Primitive("autocast_result")
TANGENT = Primitive("autocast_tangent")


class Product(NamedTuple):
    """A product of JAX, in certain dtypes."""

    name: str
    params: tuple[tuple[str, Any], ...]
    dtype: DType
    result: DType
    # Those of its operands over which it is mapped, the inner ones first.
    axes: tuple[tuple[int | None, ...], ...] = ()

    def __repr__(self) -> str:
        return f"{self.name} in {self.dtype}, to {self.result}"

    def of(self, left: Leaf, right: Leaf) -> Leaf:
        """The product of JAX, of operands in its dtype."""
        return self._mapped_call(_bound, left, right)

    def plainly(self, left: Leaf, right: Leaf) -> Leaf:
        """The same as one product and moves alone, which `_run` runs."""
        bind = lambda name, pair, params: _PRIMITIVES[name].bind(*pair, **params)
        return self._mapped_call(bind, left, right)

    def _mapped_call(self, bind: Callable[..., Leaf], left: Leaf, right: Leaf) -> Leaf:
        params = {**dict(self.params), _RESULT: self.result}
        function = lambda *pair: bind(self.name, pair, params)
        for axes in self.axes:
            function = jax.vmap(function, in_axes=axes)
        return function(left, right)

    def of_narrow(self, *operands: Leaf) -> Leaf:
        """The product of operands that are rounded first."""
        return self.of(*(as_dtype(each, self.dtype) for each in operands))

    def mapped(self, axes: Sequence[int | None]) -> "Product":
        """The product that is mapped over one more axis, the first of its result."""
        return self._replace(axes=(*self.axes, (*axes,)))


def _bound(name: str, operands: Sequence[Leaf], params: dict[str, Any]) -> Leaf:
    """A product of JAX, as XLA can run it."""
    bind = _PRIMITIVES[name].bind
    if name == "dot_general":
        return bound_product(bind, operands, params)
    return bind(*operands, **params)


def is_bilinear(eqn: Equation) -> bool:
    """Whether `product` can emit an equation."""
    return eqn.primitive.name in _PRIMITIVES


def rounded(array: Leaf, dtype: DType) -> Leaf:
    """An operand of a product in its dtype, without a derivative."""
    return ROUND.bind(array, new_dtype=dtype)


def product(
    eqn: Equation, operands: Sequence[Leaf], narrow: Sequence[Leaf], result: DType
) -> Leaf:
    """The product of an equation, computed in another dtype."""
    params = (*sorted(eqn.params.items()),)
    of = Product(eqn.primitive.name, params, narrow[0].dtype, result)
    return RESULT.bind(of.of(*narrow), *operands, *narrow, of=of)


def _round_jvp(primals: Sequence[Leaf], _: object, *, new_dtype: DType):
    made = as_dtype(primals[0], new_dtype)
    return made, ad.Zero(jax.typeof(made))


def _round_batch(operands: Sequence[Leaf], axes: Sequence[int], *, new_dtype: DType):
    return ROUND.bind(*operands, new_dtype=new_dtype), axes[0]


def _result_of(value: Leaf, *_: Leaf, of: Product) -> Leaf:
    return value


def _result_jvp(primals: Sequence[Leaf], tangents: Sequence[Leaf], *, of: Product):
    value, _, _, left, right = primals
    _, of_left, of_right, _, _ = tangents
    parts = [
        TANGENT.bind(*pair, of=of)
        for pair in ((of_left, right), (left, of_right))
        if not any(type(each) is ad.Zero for each in pair)
    ]
    return value, functools.reduce(lax.add, parts) if parts else ad.Zero(jax.typeof(value))


def _result_batch(operands: Sequence[Leaf], axes: Sequence[int | None], *, of: Product):
    value, *others = operands
    size = next(x.shape[n] for x, n in zip(operands, axes) if n is not None)
    if axes[0] is None:  # the operands are mapped, but it does not depend on them
        value = jnp.broadcast_to(value, (size, *value.shape))
    else:
        value = jnp.moveaxis(value, axes[0], 0)
    pairs = [*zip((others[:2], others[2:]), (axes[1:3], axes[3:]))]
    (left, right), places = pairs[0]
    narrow, own = pairs[1]
    # What is rounded is mapped as what it is rounded of.
    moved = [
        x if a == b or a is None or b is None else jnp.moveaxis(x, a, b)
        for x, a, b in zip(narrow, own, places)
    ]
    return RESULT.bind(value, left, right, *moved, of=of.mapped(places)), 0


def _tangent_of(*operands: Leaf, of: Product) -> Leaf:
    return of.of_narrow(*operands)


def _tangent_aval(*operands: Aval, of: Product) -> Aval:
    avals = [each.update(dtype=of.dtype, weak_type=False) for each in operands]
    return _aval_of(of, *avals)


@functools.lru_cache(1000)
def _aval_of(of: Product, *avals: Aval) -> Aval:
    return jax.make_jaxpr(of.of)(*avals).out_avals[0]


def _tangent_jvp(primals: Sequence[Leaf], tangents: Sequence[Leaf], *, of: Product):
    parts = [
        TANGENT.bind(*[*primals[:side], each, *primals[side + 1 :]], of=of)
        for side, each in enumerate(tangents)
        if type(each) is not ad.Zero
    ]
    return TANGENT.bind(*primals, of=of), functools.reduce(lax.add, parts)


def _round_transpose(cotangent: Leaf, value: Leaf, *, new_dtype: DType):
    if type(cotangent) is ad.Zero:
        return [ad.Zero(value.aval)]
    return [as_dtype(cotangent, value.aval.dtype)]


def _result_transpose(
    cotangent: Leaf,
    value: Leaf,
    left: Leaf,
    right: Leaf,
    narrow_left: Leaf,
    narrow_right: Leaf,
    *,
    of: Product,
):
    """Of a product in a tangent, which is linear in one operand and in what it gives.

    The other operand is rounded anew: what was rounded has no derivative of an outer one.
    """
    return (None, *_tangent_transpose(cotangent, left, right, of=of), None, None)


def _tangent_transpose(cotangent: Leaf, left: Leaf, right: Leaf, *, of: Product):
    is_left = ad.is_undefined_primal(left)
    linear, other = (left, right) if is_left else (right, left)
    if type(cotangent) is ad.Zero:
        made = ad.Zero(linear.aval)
    else:
        other, cotangent = (as_dtype(x, of.dtype) for x in (other, cotangent))
        aval = linear.aval.update(dtype=of.dtype, weak_type=False)
        jaxpr = _transposed(of, is_left, aval, jax.typeof(other), jax.typeof(cotangent))
        made = _run(jaxpr, [other, cotangent], linear.aval.dtype)
    return (made, None) if is_left else (None, made)


@functools.lru_cache(1000)
def _transposed(
    of: Product, is_left: bool, linear: Aval, other: Aval, cotangent: Aval
) -> Jaxpr:
    """The derivative for one operand, of the other and the cotangent."""
    of = of._replace(result=of.dtype)

    def transposed(other, cotangent):
        pair = lambda x: (x, other) if is_left else (other, x)
        return jax.linear_transpose(lambda x: of.plainly(*pair(x)), linear)(cotangent)

    return jax.make_jaxpr(transposed)(other, cotangent)


def _run(jaxpr: Jaxpr, operands: Sequence[Leaf], result: DType) -> Leaf:
    """Runs a jaxpr of one product and of moves, in which the product has this result."""
    opened = open_jaxpr(jaxpr)
    known = dict(zip(opened.invars, operands))
    for eqn in opened.eqns:
        values = [x.val if hasattr(x, "val") else known[x] for x in eqn.invars]
        if is_bilinear(eqn):
            made = _bound(eqn.primitive.name, values, {**eqn.params, _RESULT: result})
        else:
            made = eqn.primitive.bind(*values, **eqn.params)
        known |= zip(eqn.outvars, made if eqn.primitive.multiple_results else [made])
    return known[opened.outvars[0]]


def _tangent_batch(operands: Sequence[Leaf], axes: Sequence[int | None], *, of: Product):
    return TANGENT.bind(*operands, of=of.mapped(axes)), 0


# By primitive: what it computes, its type, its derivative and how it is mapped.
_DEFINED = {
    ROUND: (
        lambda x, *, new_dtype: as_dtype(x, new_dtype),
        lambda aval, *, new_dtype: aval.update(dtype=new_dtype, weak_type=False),
        _round_jvp,
        _round_batch,
    ),
    RESULT: (_result_of, lambda aval, *_, of: aval, _result_jvp, _result_batch),
    TANGENT: (_tangent_of, _tangent_aval, _tangent_jvp, _tangent_batch),
}
for _primitive, (_computed, _typed, _jvp, _batched) in _DEFINED.items():
    _primitive.def_impl(_computed)
    _primitive.def_abstract_eval(_typed)
    ad.primitive_jvps[_primitive] = _jvp
    batching.primitive_batchers[_primitive] = _batched
    _lowering = mlir.lower_fun(_computed, multiple_results=False)
    mlir.register_lowering(_primitive, _lowering)
ad.primitive_transposes |= {
    ROUND: _round_transpose,
    RESULT: _result_transpose,
    TANGENT: _tangent_transpose,
}
