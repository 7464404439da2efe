"""Evaluates an equation of a jaxpr in other dtypes than its own, and rounds its results."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, sharding

from .._leaves.compat import x64_enabled
from .._leaves.dtypes import kind
from .._leaves.internals import DTYPES
from .._leaves.types import DType, Equation, Jaxpr, Leaf
from .._program.jaxprs import open_jaxpr

DtypeOf = Callable[[DType], DType]


def own_dtype(dtype: DType) -> DType:
    return dtype


def evaluate(eqn: Equation, operands: Sequence[Leaf], dtype_of: DtypeOf) -> list[Leaf]:
    """The results of an equation on operands of other dtypes."""
    return binding(eqn, dtype_of)[1](*operands)


def evaluate_in(
    eqn: Equation, operands: Sequence[Leaf], dtype: DType, result: DType
) -> list[Leaf]:
    """The results of an equation in a dtype, whatever it is written in."""
    is_float = lambda x: kind(getattr(x, "dtype", None)) == "float"
    given = [as_dtype(jnp.asarray(x), dtype) if is_float(x) else x for x in operands]
    if eqn.primitive.name == "reduce_precision":  # with the bits of its operand
        eqn = eqn.replace(params={**eqn.params, **(bits_of(dtype) or {})})
    if eqn.params.get("preferred_element_type", 0) is None and is_float(
        eqn.outvars[0].aval
    ):
        # A ragged product, whose result has otherwise the dtype of its operands.
        eqn = eqn.replace(params={**eqn.params, "preferred_element_type": result})
    return evaluate(eqn, given, lambda x: result if kind(x) == "float" else x)


def bits_of(dtype: DType) -> dict[str, int] | None:
    """The parameters of the `reduce_precision` that has the bits of a dtype."""
    if kind(dtype) != "float":
        return None
    info = jnp.finfo(dtype)
    return {"exponent_bits": info.nexp, "mantissa_bits": info.nmant}


def bound_product(primitive: Any, operands: Sequence[Leaf], params: dict[str, Any]) -> Leaf:
    """A `dot_general` or a convolution as XLA can run it.

    On a CPU, it refuses some of the first in bfloat16 with a float32 result, by the layout
    that it gives them: float32 copies have the same numbers. Two matrices need none where
    the first is multiplied by rows, behind barriers past which it moves no transposition.
    """
    wide, result = np.dtype("float32"), params["preferred_element_type"]
    is_as_given = result == operands[0].dtype or result != wide
    is_as_given = is_as_given or primitive.name != "dot_general"
    if is_as_given or jax.default_backend() != "cpu":
        return primitive.bind(*operands, **params)
    # What `vmap` maps has more axes than it shows. If it maps later, as around an inner
    # jit, a first matrix that is multiplied by columns is refused.
    are_matrices = all(x.ndim == 2 and not hasattr(x, "batch_dim") for x in operands)
    if are_matrices and params["dimension_numbers"][0][0] == (1,):
        made = primitive.bind(*lax.optimization_barrier((*operands,)), **params)
        return lax.optimization_barrier(made)
    return primitive.bind(*(as_dtype(each, wide) for each in operands), **params)


def binding(eqn: Equation, dtype_of: DtypeOf) -> tuple[object, Callable[..., list[Leaf]]]:
    """What evaluates an equation, and a key that is the same for what computes the same."""
    primitive = eqn.primitive
    params = {key: _param(key, x, dtype_of) for key, x in eqn.params.items()}
    if primitive.name == "convert_element_type":
        params["weak_type"] = False
    bound = primitive.get_bind_params(params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)

    def run(*operands: Leaf) -> list[Leaf]:
        if primitive.name == "dot_general":
            return [bound_product(primitive, operands, params)]
        made = primitive.bind(*functions, *operands, **params)
        return made if primitive.multiple_results else [made]

    return (primitive, *functions, *params.items()), run


def _param(name: str, value: Leaf, dtype_of: DtypeOf) -> object:
    if isinstance(value, np.dtype) or name in DTYPES:
        return value if value is None else dtype_of(jnp.dtype(value))
    inside = open_jaxpr(value)
    if not hasattr(inside, "eqns") or dtype_of is own_dtype:
        return value
    variables = [*inside.invars, *(v for eqn in inside.eqns for v in eqn.outvars)]
    dtypes = (*((v.aval.dtype, dtype_of(v.aval.dtype)) for v in variables),)
    return _retyped_program(value, dtypes, current_mesh(), x64_enabled())


@functools.lru_cache(256)  # JAX compiles an equation anew for each program inside of it
def _retyped_program(
    jaxpr: Jaxpr, dtypes: tuple[tuple[DType, DType], ...], *_: object
) -> Jaxpr:
    """A program without constants, such as what combines two numbers, in other dtypes."""
    inside, others = open_jaxpr(jaxpr), dict(dtypes)
    dtype_of = lambda dtype: others.get(dtype, dtype)

    def run(*operands: Leaf) -> list[Leaf]:
        known = dict(zip(inside.invars, operands))

        def read(var: Leaf) -> Leaf:
            is_literal = hasattr(var, "val")
            own = dtype_of(var.aval.dtype)
            return jnp.asarray(var.val, own) if is_literal else known[var]

        for eqn in inside.eqns:
            known |= zip(eqn.outvars, evaluate(eqn, [*map(read, eqn.invars)], dtype_of))
        return [*map(read, inside.outvars)]

    avals = [var.aval for var in inside.invars]
    given = [jax.ShapeDtypeStruct(x.shape, dtype_of(x.dtype)) for x in avals]
    made = jax.make_jaxpr(run)(*given)
    return made.jaxpr if inside is jaxpr else made


@jax.jit
def rounded_as(narrow: Leaf, exact: Leaf, from_narrow: Leaf) -> Leaf:
    """A wide result, rounded as the program rounds its own.

    Where the program rounds nothing, as where it takes a state apart, nothing is rounded:
    the digits that a narrow result has lost were lost at the lines before.
    """
    rounded = round_to(exact, narrow.dtype)
    as_narrow = round_to(from_narrow, narrow.dtype)
    given = lax.convert_element_type(narrow, exact.dtype)
    # The program may do more than round: bfloat16 sums, for example. That is added, but
    # for the sign's sake no more than half of the value: a variance stays positive. What
    # an earlier line has lost is not this one's to add.
    more = lax.sub(given, as_narrow)
    more = lax.select(jnp.isfinite(more), more, lax.full_like(given, 0))
    if kind(exact.dtype) != "complex":
        half = lax.mul(lax.abs(rounded), lax.full_like(rounded, 0.5))
        more = lax.clamp(lax.neg(half), more, half)
    changed = lax.select(lax.eq(rounded, as_narrow), given, lax.add(rounded, more))
    return lax.select(lax.eq(given, from_narrow), exact, changed)


def round_to(array: Leaf, dtype: DType) -> Leaf:
    """A wide array rounded to a narrow dtype."""
    if array.dtype == dtype:
        return array
    if dtype == jnp.bfloat16 and array.dtype == np.float32:  # they have the same range
        return lax.reduce_precision(array, 8, 7)
    narrow = lax.optimization_barrier(lax.convert_element_type(array, dtype))
    return lax.convert_element_type(narrow, array.dtype)


def round_inwards(array: Leaf, dtype: DType) -> Leaf:
    """An array of real numbers in a narrow dtype, none of them further from 0.

    So what is below 1 stays below 1, and what is finite stays finite.
    """
    if array.dtype == dtype:
        return array
    made = lax.optimization_barrier(lax.convert_element_type(array, dtype))
    back = lax.convert_element_type(made, array.dtype)
    is_inside = (lax.abs(back) <= lax.abs(array)) | (array != array)
    return lax.select(is_inside, made, lax.nextafter(made, lax.full_like(made, 0)))


# The meshes of devices under which a program computes, which `auto_axes` changes.


def under_mesh(eqn: Equation) -> contextlib.AbstractContextManager[object]:
    """A context with the mesh under which an equation was traced."""
    return _under(eqn.ctx.cur_abstract_mesh)


def of_mesh(array: Leaf) -> contextlib.AbstractContextManager[object]:
    """A context with the mesh of an array."""
    mesh = jax.typeof(array).sharding.mesh
    return contextlib.nullcontext() if mesh.empty else _under(mesh)


def _under(mesh: "sharding.AbstractMesh") -> contextlib.AbstractContextManager[object]:
    is_it = mesh == sharding.get_abstract_mesh()
    return contextlib.nullcontext() if is_it else sharding.use_abstract_mesh(mesh)


def as_dtype(array: Leaf, dtype: DType) -> Leaf:
    """An array in a dtype, converted under its own mesh."""
    if array.dtype == dtype:
        return array
    with of_mesh(array):
        return lax.convert_element_type(array, dtype)


def current_mesh() -> object:
    """The mesh of the context, under which a new array is."""
    return sharding.get_abstract_mesh()
