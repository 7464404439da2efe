"""What is known of JAX's primitives, and the rule by which each equation is run."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.internals import ForeignNames
from .._leaves.types import Aval, DType, Equation, Leaf
from .._program.jaxprs import SHAPES, jaxprs_in, open_jaxpr, value_kind
from .._program.program import CALL, CLOSED, Node
from .._rounding.rounding import round_with

# The arrays that a function returns; it takes `Arrays`.
Results = list[Leaf]
# What a run notes, by the number of the equation and what it is (the place of a result, a
# name); of a loop, with an axis for its turns.
Noted = dict[tuple[int, Any], Leaf]

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

# How an equation is run: by its form, or as one of these.
COMPUTED = "computed"
OWN = "own"
SAMPLE = "sample"
STOCHASTIC = "stochastic"
REDUCE_PRECISION = "reduce_precision"
ROUNDINGS = frozenset([STOCHASTIC, REDUCE_PRECISION])
# Whatever jaxprs these have, none runs in their place.
WITHOUT_BLOCKS = ROUNDINGS | {COMPUTED, OWN, SAMPLE}

# How the equations of a primitive are run; the others by their form.
_PRIMITIVE_RULES = {REDUCE_PRECISION: REDUCE_PRECISION}
for _rule, _names in (
    (CALL, CALLS),
    (OWN, AS_WRITTEN),
    (COMPUTED, COMBINES),
):
    for _name in _names:
        _PRIMITIVE_RULES[_name] = _rule


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
    return floats or numbers


def is_key(value: Leaf) -> bool:
    """Returns whether a value holds random keys."""
    dtype = getattr(value, "dtype", np.float32)
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def moves(eqn: Equation, dtype_of: Callable[[DType], DType] = np.dtype) -> bool:
    """Returns whether an equation returns some of its operands' numbers, or exact ones.

    Args:
        eqn: the equation.
        dtype_of: returns the dtype in which it computes a value, by that in the program.
    """
    name = eqn.primitive.name
    if name in _MOVE_REALS:
        return value_kind(eqn.invars[0].aval) != "complex"
    if name == "scatter":  # what `x.at[i].apply` computes stands in its jaxpr
        jaxprs = jaxprs_in(eqn.params)
        return not any(open_jaxpr(jaxpr).eqns for jaxpr in jaxprs)
    if name == "convert_element_type":
        operand = eqn.invars[0].aval
        result = eqn.outvars[0].aval
        if not is_inexact(operand):
            return False
        return _holds(dtype_of(result.dtype), dtype_of(operand.dtype))
    return name in SHAPES or name in _MOVES


def _holds(wide: DType, narrow: DType) -> bool:
    """Returns whether a floating dtype has each number of another."""
    info = jnp.finfo(wide)
    narrow_info = jnp.finfo(narrow)
    has_its_range = info.minexp <= narrow_info.minexp and narrow_info.maxexp <= info.maxexp
    return has_its_range and narrow_info.nmant <= info.nmant


def rule_of(node: Node) -> str:
    """Returns how an equation is run."""
    eqn = node.eqn
    if has_reference(eqn):
        return OWN
    if eqn.params.get("name") == round_with.__name__:  # pyright: ignore[reportAttributeAccessIssue]: as of any function
        return STOCHASTIC
    rule = node.rule
    if jaxprs_in(eqn.params):
        # Of a call that does more than its jaxpr, the inside is left as it is.
        if rule in (CALL, CLOSED):
            rule = OWN
    # One that JAX expands has none, and its expansion says all that it computes.
    elif rule == CALL:
        return CALL
    elif rule == CLOSED:
        rule = COMPUTED
    return _PRIMITIVE_RULES.get(node.name, rule)


def has_reference(eqn: Equation) -> bool:
    """Returns whether an equation takes or gives a mutable reference."""
    variables = [*eqn.invars, *eqn.outvars]
    return any(hasattr(var.aval, "inner_aval") for var in variables)


def has_no_wide_form(eqn: Equation) -> bool:
    """Returns whether an equation that runs as it stands computes with floats."""
    variables = list(eqn.invars)
    # Of bits, it makes no more numbers than there are.
    if eqn.primitive.name not in OF_BITS:
        variables.extend(eqn.outvars)
    return any(is_inexact(var.aval) for var in variables)
