"""What an audit of precision knows of JAX's primitives."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import kind
from .._leaves.internals import ForeignNames
from .._leaves.types import Aval, DType, Equation, Leaf
from .._program.jaxprs import SHAPES, Arrays, jaxprs_in, open_jaxpr, value_kind

# The arrays that a function returns; it takes `Arrays`.
Results = list[Leaf]

# These return some of the numbers that they are given, and round none of them.
_MOVES = ForeignNames(
    "dynamic_slice gather concatenate pad select_n neg max min reduce_max reduce_min clamp "
    "split@jax>=0.5 dynamic_update_slice real imag reduce_window_max reduce_window_min "
    "cummax cummin all_gather all_to_all ppermute pmax pmin pvary@jax>=0.6.2 pbroadcast "
    "unstack@jax>=0.10 stack@jax>=0.10 tile@jax>=0.7 sort top_k name "
    "floor ceil round select_if_vmap maybe_set nonbatchable"  # these three are Equinox's
)
_MOVE_REALS = ForeignNames("abs sign")
# A product of `dtypeguard.autocast`, with the jaxpr that rounds its operands.
AUTOCAST_PRODUCT = "autocast_product"
# Their jaxprs are run as if they stood where the call does.
_CALLS = ForeignNames(
    "jit@jax>=0.7 pjit@jax<0.7 closed_call@jax<0.12 remat2 custom_jvp_call custom_lin "
    "custom_vjp_call custom_vjp_call_jaxpr@jax<0.6 eval_jaxpr@jax>=0.4.31 "
    "composite@jax>=0.5 custom_vmap_call"
)
CALLS = _CALLS | {AUTOCAST_PRODUCT}
# Their jaxprs say how two numbers are combined.
COMBINES = ForeignNames(
    "reduce reduce_window scatter scatter-add scatter-mul scatter-min scatter-max "
    "scatter-sub@jax>=0.5"
)
# Their results have the dtype of the first operand, whatever that of the others.
IN_PLACE = COMBINES - {"reduce", "reduce_window"}
DEBUG = ForeignNames("debug_callback debug_print@jax>=0.7")
# Other orders come out of these in another dtype, or they take no other.
_UNCHANGEABLE = ForeignNames(
    "pure_callback io_callback eig schur geqp3@jax>=0.5 rng_uniform ffi_call@jax>=0.4.31 "
    "random_gamma call_hi_primitive@jax>=0.10"
)
# These take no dtype below float32.
OF_OWN_DTYPES = ForeignNames(
    "cholesky triangular_solve fft eigh svd qr lu geqrf householder_product hessenberg "
    "tridiagonal tridiagonal_solve complex"
)
SELECTS = ForeignNames("select_and_scatter_add select_and_gather_add")
OF_BITS = ForeignNames("bitcast_convert_type random_bits rng_bit_generator")
AS_WRITTEN = _UNCHANGEABLE | OF_BITS | DEBUG


def is_inexact(value: Leaf) -> bool:
    """Returns whether a value is floating or complex."""
    return value_kind(value) in ("float", "complex")


def is_integer(value: Leaf) -> bool:
    """Returns whether a value holds integers, and no bools."""
    return value_kind(value) in ("int", "uint")


def measured(avals: Sequence[Aval]) -> list[int]:
    """Returns the places of outputs to measure: the floating ones, or all numbers."""
    floats = []
    numbers = []
    for place, aval in enumerate(avals):
        # Keys and tokens are no numbers.
        if value_kind(aval) is not None:
            numbers.append(place)
        if is_inexact(aval):
            floats.append(place)
    if floats:
        return floats
    return numbers


def is_key(value: Leaf) -> bool:
    """Returns whether a value holds random keys."""
    dtype = getattr(value, "dtype", np.float32)
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def moves(eqn: Equation, operands: Arrays, results: Arrays) -> bool:
    """Returns whether an equation returns some of its operands' numbers, or exact ones."""
    name = eqn.primitive.name
    if name in _MOVE_REALS:
        return kind(operands[0].dtype) != "complex"
    if name == "scatter":  # what `x.at[i].apply` computes stands in its jaxpr
        jaxprs = jaxprs_in(eqn.params)
        return not any(open_jaxpr(jaxpr).eqns for jaxpr in jaxprs)
    if name == "convert_element_type":
        operand = operands[0]
        if not is_inexact(operand):
            return False
        result = results[0]
        return _holds(result.dtype, operand.dtype)
    return name in SHAPES or name in _MOVES


def _holds(wide: DType, narrow: DType) -> bool:
    """Returns whether a floating dtype has each number of another."""
    info = jnp.finfo(wide)
    narrow_info = jnp.finfo(narrow)
    if info.nmant < narrow_info.nmant:
        return False
    if info.maxexp < narrow_info.maxexp:
        return False
    return info.minexp <= narrow_info.minexp
