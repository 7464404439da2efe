"""What an audit of precision knows of JAX's primitives."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import kind
from .._leaves.types import Aval, DType, Equation, Jaxpr, Leaf
from .._program.graph import SHAPES, open_jaxpr


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


# These return some of the numbers that they are given, and round none of them.
_MOVES = SHAPES | _words(
    "dynamic_slice gather concatenate pad select_n neg max min reduce_max reduce_min clamp "
    "split dynamic_update_slice real imag reduce_window_max reduce_window_min cummax "
    "cummin all_gather all_to_all ppermute pmax pmin pvary pcast pbroadcast floor ceil "
    "round select_if_vmap maybe_set nonbatchable"  # the last three are Equinox's
)
_MOVE_REALS = _words("abs sign")
# XLA rounds these correctly on CPU (checked with JAX 0.10.2): what the program computes is
# the exact result, rounded. On an accelerator the last may be approximate.
_CORRECT = _words("add add_any sub mul square convert_element_type")
_CORRECT_ON_CPU = _words("sqrt")
# It divides by what it has broadcast by way of the reciprocal, which it rounds, but
# bfloat16 in float32.
_CORRECT_IN_BFLOAT16_ON_CPU = _words("div")
# Their jaxprs are run as if they stood where the call does.
CALLS = _words(
    "jit pjit closed_call core_call named_call checkpoint remat remat2 custom_jvp_call "
    "custom_vjp_call custom_vjp_call_jaxpr custom_lin eval_jaxpr"
)
# Their jaxprs say how two numbers are combined.
COMBINES = _words(
    "reduce reduce_window scatter scatter-add scatter_add scatter-mul scatter_mul "
    "scatter-min scatter_min scatter-max scatter_max scatter-sub scatter_sub"
)
CALLBACKS = _words("pure_callback io_callback")
DEBUG = _words("debug_callback debug_print")
# Other orders come out of these in another dtype, or they take no other.
AS_WRITTEN = CALLBACKS | _words("eig schur geqp3 rng_uniform ffi_call call_hi_primitive")
# These take no dtype below float32.
OF_OWN_DTYPES = _words(
    "cholesky triangular_solve fft eigh svd qr lu geqrf householder_product hessenberg "
    "tridiagonal tridiagonal_solve complex"
)
SELECTS = _words("select_and_scatter_add select_and_gather_add")
OF_BITS = _words("bitcast_convert_type random_bits rng_bit_generator")


def is_inexact(value: Aval) -> bool:
    """Whether a value is floating or complex."""
    return kind(getattr(value, "dtype", None)) in ("float", "complex")


def is_key(value: Leaf) -> bool:
    """Whether a value holds random keys."""
    return jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key)


def moves(eqn: Equation, operands: Sequence[Leaf], made: Sequence[Leaf]) -> bool:
    """Whether an equation returns some of the numbers that it is given, or exact ones."""
    name = eqn.primitive.name
    if name in _MOVE_REALS:
        return kind(operands[0].dtype) != "complex"
    if name == "scatter":  # what `x.at[i].apply` computes stands in its jaxpr
        return not any(open_jaxpr(each).eqns for each in jaxprs_in(eqn.params))
    if name == "convert_element_type":
        return is_inexact(operands[0]) and _holds(made[0], operands[0])
    return name in _MOVES


def is_correct(eqn: Equation, dtype: DType) -> bool:
    """Whether a result of this dtype is the exact one, rounded."""
    name = eqn.primitive.name
    if name == "integer_pow":
        return eqn.params["y"] == 2
    on_cpu = _CORRECT_ON_CPU
    if dtype == jnp.bfloat16:
        on_cpu |= _CORRECT_IN_BFLOAT16_ON_CPU
    return name in _CORRECT or (name in on_cpu and jax.default_backend() == "cpu")


def _holds(wide: Leaf, narrow: Leaf) -> bool:
    """Whether a floating dtype has each number of another."""
    wide, narrow = (jnp.finfo(x.dtype) for x in (wide, narrow))
    return (
        wide.nmant >= narrow.nmant
        and wide.maxexp >= narrow.maxexp
        and wide.minexp <= narrow.minexp
    )


def jaxprs_in(params: object) -> list[Jaxpr]:
    """The jaxprs among the parameters of an equation, also in tuples."""
    if hasattr(open_jaxpr(params), "eqns"):
        return [params]
    if isinstance(params, dict):
        params = list(params.values())
    values = params if isinstance(params, (tuple, list)) else ()
    return [jaxpr for value in values for jaxpr in jaxprs_in(value)]
