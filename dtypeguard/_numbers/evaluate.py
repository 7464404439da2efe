"""Evaluates an equation of a jaxpr in other dtypes than its own, and rounds its results."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, sharding

from .._leaves.compat import x64_enabled
from .._leaves.dtypes import kind
from .._leaves.internals import DTYPES
from .._leaves.types import DType, Equation, Jaxpr, Leaf
from .._program.jaxprs import Arrays, open_jaxpr, value_kind
from .._program.program import Block
from .._program.walk import Walk
from .arrays import numpy_for
from .primitives import Results

DtypeOf = Callable[[DType], DType]
_EqnParams = dict[str, Any]
# They have a hash, as far as each of them has one.
NamedParams = tuple[tuple[str, type, Any], ...]
_MeshContext = contextlib.AbstractContextManager[object]
_SINGLE_PRECISION = np.dtype("float32")


def unchanged_dtype(dtype: DType) -> DType:
    """Returns the dtype itself."""
    return dtype


def evaluate(eqn: Equation, operands: Arrays, dtype_of: DtypeOf) -> Results:
    """Returns the results of an equation on operands of other dtypes."""
    params = retyped_params(eqn, dtype_of)
    return bound(eqn.primitive, params, *operands)


class Computes(NamedTuple):
    """The dtypes of floating operands and results of an equation, whatever is written."""

    dtype: DType
    result: DType

    def of(self, dtype: DType) -> DType:
        """Returns the dtype of a result that is written in another."""
        if kind(dtype) != "float":
            return dtype
        return self.result

    def settled(self, operand: Leaf) -> Leaf:
        """Returns an operand in the dtype of floating ones."""
        if value_kind(operand) != "float":
            return operand
        array = jnp.asarray(operand)
        return as_dtype(array, self.dtype)


def evaluate_in(eqn: Equation, operands: Arrays, computes: Computes) -> Results:
    """Returns the results of an equation in some dtypes, whatever it is written in."""
    params = dict(eqn.params)
    if eqn.primitive.name == "reduce_precision":
        bits_of_operand = bits_of(computes.dtype)
        if bits_of_operand is not None:
            params.update(bits_of_operand)
    if params.get("preferred_element_type", 0) is None:
        # A ragged product, whose result has otherwise the dtype of its operands.
        written = eqn.outvars[0].aval.dtype
        params["preferred_element_type"] = computes.of(written)
    settled = map(computes.settled, operands)
    retyped = eqn.replace(params=params)
    return evaluate(retyped, list(settled), computes.of)


def bits_of(dtype: DType) -> dict[str, int] | None:
    """Returns the parameters of the `reduce_precision` that has the bits of a dtype."""
    if kind(dtype) != "float":
        return None
    info = jnp.finfo(dtype)
    return {"exponent_bits": info.nexp, "mantissa_bits": info.nmant}


def bound_product(primitive: Any, operands: Arrays, params: _EqnParams) -> Leaf:
    """Returns a `dot_general` or a convolution as XLA can run it.

    On a CPU, it refuses some of the first in bfloat16 with a float32 result, by the layout
    that it gives them: float32 copies have the same numbers. Two matrices need none where
    the first is multiplied by rows, behind barriers past which it moves no transposition.
    """
    if not _may_be_refused(primitive, operands, params):
        return primitive.bind(*operands, **params)
    if _is_by_rows(operands, params):
        behind_barrier = lax.optimization_barrier(tuple(operands))
        result = primitive.bind(*behind_barrier, **params)
        return lax.optimization_barrier(result)
    wide_operands = []
    for operand in operands:
        wide_operand = as_dtype(operand, _SINGLE_PRECISION)
        wide_operands.append(wide_operand)
    return primitive.bind(*wide_operands, **params)


def _may_be_refused(primitive: Any, operands: Arrays, params: _EqnParams) -> bool:
    """Returns whether a CPU may have no function for a product."""
    if primitive.name != "dot_general":
        return False
    if jax.default_backend() != "cpu":
        return False
    if params["preferred_element_type"] != _SINGLE_PRECISION:
        return False
    return operands[0].dtype != _SINGLE_PRECISION


def _is_by_rows(operands: Arrays, params: _EqnParams) -> bool:
    """Returns whether a product is of two matrices, the first multiplied by rows."""
    for operand in operands:
        if operand.ndim != 2:
            return False
        # What `vmap` maps has more axes than it shows. If it maps later, as around an inner
        # jit, a first matrix that is multiplied by columns is refused.
        if hasattr(operand, "batch_dim"):
            return False
    contracting, _ = params["dimension_numbers"]
    return contracting[0] == (1,)


def retyped_params(eqn: Equation, dtype_of: DtypeOf) -> NamedParams:
    """Returns the parameters of an equation in other dtypes, with names and types."""
    params: _EqnParams = {}
    for name, value in eqn.params.items():
        params[name] = _retyped_param(name, value, dtype_of)
    if eqn.primitive.name == "convert_element_type":
        # A weak result would take part in no promotion as the program has it.
        params["weak_type"] = False
    # NumPy holds None and float64 for equal, and so does JAX 0.10 where both are static.
    return tuple((name, type(value), value) for name, value in params.items())


def bound(primitive: Any, named_params: NamedParams, *operands: Leaf) -> Results:
    """Returns the results of a primitive, a product as XLA can run it."""
    params = {name: value for name, _, value in named_params}
    if primitive.name == "dot_general":
        return [bound_product(primitive, operands, params)]
    return bind(primitive, operands, params)


def bind(primitive: Any, operands: Arrays, params: _EqnParams) -> Results:
    """Returns the results of a primitive with the parameters of an equation."""
    functions: Sequence[Any] = ()
    bound_params = primitive.get_bind_params(params)
    if isinstance(bound_params, tuple):  # in some releases, functions come beside
        functions, bound_params = bound_params
    results = primitive.bind(*functions, *operands, **bound_params)
    if primitive.multiple_results:
        return list(results)
    return [results]


def _retyped_param(name: str, value: Any, dtype_of: DtypeOf) -> object:
    """Returns a parameter of an equation in other dtypes."""
    if value is None:
        return None
    if dtype_of is unchanged_dtype:
        return value
    if isinstance(value, np.dtype) or name in DTYPES:
        return dtype_of(jnp.dtype(value))
    if not hasattr(open_jaxpr(value), "eqns"):
        return value
    return _retyped_jaxpr(value, dtype_of, current_mesh(), x64_enabled())


@functools.lru_cache(256)  # JAX compiles an equation anew for each program inside of it
def _retyped_jaxpr(jaxpr: Jaxpr, dtype_of: DtypeOf, *_: object) -> Jaxpr:
    """Returns a jaxpr without constants, such as a sum of two numbers, in other dtypes."""
    walk = RetypedWalk(dtype_of)
    block = Block(jaxpr)
    arguments: Results = []
    for var in block.arguments:
        dtype = dtype_of(var.aval.dtype)
        argument = jax.ShapeDtypeStruct(var.aval.shape, dtype)
        arguments.append(argument)

    def run(*arrays):
        return walk.block(block, arrays)

    retyped = jax.make_jaxpr(run)(*arguments)
    # A parameter stays open or closed as JAX expects it.
    if open_jaxpr(jaxpr) is jaxpr:
        return retyped.jaxpr
    return retyped


@dataclasses.dataclass
class RetypedWalk(Walk[Leaf]):
    """Evaluates a jaxpr in other dtypes."""

    dtype_of: DtypeOf

    def constant(self, var, array):
        dtype = self.dtype_of(var.aval.dtype)
        return jnp.asarray(array, dtype)

    def node(self, node, operands):
        return evaluate(node.eqn, operands, self.dtype_of)


def rounded_as(
    written: Leaf, exact: Leaf, rounded: Leaf, from_narrow: Leaf, as_narrow: Leaf
) -> Leaf:
    """Returns a wide result, rounded as the program rounds its own.

    Where the program rounds nothing, as where it takes a state apart, nothing is rounded:
    the digits that a narrow result has lost were lost at the lines before.

    Args:
        written: the result of the program, for operands as written.
        exact: the wide result.
        rounded: the same, rounded.
        from_narrow: the wide result for operands as written.
        as_narrow: the same, rounded; it may be `written`.
    """
    numpy = numpy_for(exact)
    if as_narrow is not written:
        # The program may do more than round: bfloat16 sums, for example. That is added,
        # but for the sign's sake no more than half of the value: a variance stays
        # positive. What an earlier line has lost is not this one's to add.
        addition = written - as_narrow
        is_finite = numpy.isfinite(addition)
        addition = numpy.where(is_finite, addition, 0)
        if kind(exact.dtype) != "complex":
            half = 0.5 * abs(rounded)
            addition = numpy.clip(addition, -half, half)
        is_same_number = rounded == as_narrow
        with_addition = rounded + addition
        rounded = numpy.where(is_same_number, written, with_addition)
    rounds_nothing = written == from_narrow
    return numpy.where(rounds_nothing, exact, rounded)


def round_to(array: Leaf, dtype: DType) -> Leaf:
    """Returns a wide array rounded to a narrow dtype."""
    if array.dtype == dtype:
        return array
    is_single = array.dtype == _SINGLE_PRECISION
    if is_single and dtype == jnp.bfloat16:  # of the same range
        return lax.reduce_precision(array, 8, 7)
    narrow = _cast_behind_barrier(array, dtype)
    return lax.convert_element_type(narrow, array.dtype)


def _cast_behind_barrier(array: Leaf, dtype: DType) -> Leaf:
    """Returns an array in a dtype that XLA cannot leave out."""
    narrow = lax.convert_element_type(array, dtype)
    # Without a barrier XLA leaves out a rounding that is undone at once.
    return lax.optimization_barrier(narrow)


def round_inwards(array: Leaf, dtype: DType) -> Leaf:
    """Returns an array of real numbers in a narrow dtype, none of them further from 0.

    So what is below 1 stays below 1, and what is finite stays finite.
    """
    if array.dtype == dtype:
        return array
    narrow = _cast_behind_barrier(array, dtype)
    rounded = lax.convert_element_type(narrow, array.dtype)
    # NaN, which is no number to step from, is not outside.
    is_outside = abs(rounded) > abs(array)
    next_inwards = jnp.nextafter(narrow, 0)
    return lax.select(is_outside, next_inwards, narrow)


# The meshes of devices under which a program computes, which `auto_axes` changes.


def under_mesh(eqn: Equation) -> _MeshContext:
    """Returns a context with the mesh under which an equation was traced."""
    return _under(eqn.ctx.cur_abstract_mesh)


def of_mesh(array: Leaf) -> _MeshContext:
    """Returns a context with the mesh of an array."""
    mesh = jax.typeof(array).sharding.mesh
    if mesh.empty:
        return contextlib.nullcontext()
    return _under(mesh)


def _under(mesh: "sharding.AbstractMesh") -> _MeshContext:
    """Returns a context with a mesh."""
    # To enter the mesh that there is takes time.
    if mesh == sharding.get_abstract_mesh():
        return contextlib.nullcontext()
    return sharding.use_abstract_mesh(mesh)


def as_dtype(array: Leaf, dtype: DType) -> Leaf:
    """Returns an array in a dtype, converted under its own mesh."""
    if array.dtype == dtype:
        return array
    with of_mesh(array):
        return lax.convert_element_type(array, dtype)


def current_mesh() -> object:
    """Returns the mesh of the context, under which a new array is."""
    return sharding.get_abstract_mesh()
