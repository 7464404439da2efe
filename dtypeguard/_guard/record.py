"""Records the dtypes of an optimizer's state, and restores them."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util
from jax.core import Tracer

from .._carry.snapshot import Snapshot
from .._carry.split import eval_shape
from .._leaves.arguments import shown
from .._leaves.compat import Ref
from .._leaves.dtypes import cast, dtype_of, kind, native
from .._leaves.errors import DtypeDriftError, more
from .._leaves.groups import short_table
from .._leaves.public import public
from .._leaves.rows import Row, count, describe, paths, tree_rows
from .._leaves.types import DType, Leaf, Optimizer, Params, State
from .guard import guard

_T = TypeVar("_T")


@public
def record(opt: Optimizer, params: Params) -> State:
    """Records the shape and dtype of every leaf of a guarded optimizer's state.

    Nothing runs and nothing is allocated.

    Args:
        opt: a gradient transformation or an object with `init` and `update`, guarded or
            not.
        params: the argument of `init`: arrays or `jax.ShapeDtypeStruct`s.

    Returns:
        The tree of `dtypeguard.guard(opt).init(params)` with a `jax.ShapeDtypeStruct` for
        every array leaf. Other leaves are as `init` makes them.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp, optax
        >>> params = {"w": jax.ShapeDtypeStruct((3,), jnp.bfloat16)}
        >>> dtypeguard.record(optax.adam(1e-3), params)[0].mu["w"].dtype
        dtype(bfloat16)
    """
    if not (callable(opt) or hasattr(opt, "init")):
        raise TypeError(
            f"record got {shown(opt)} as the optimizer. Write record(opt, params)."
        )
    guarded: Optimizer = guard(opt)
    if not hasattr(guarded, "init"):
        raise TypeError(f"record got {opt!r}. Call it first, as in optax.adam(1e-3).")
    return eval_shape(guarded.init, params)


@public
def restore(state: State, record: _T) -> _T:
    """Casts a state that something outside the optimizer changed to the types of a record.

    This is for a checkpoint in another precision, NumPy leaves, or integer counters that a
    mean over devices made floating.

    Args:
        state: an optimizer state whose leaves may have other dtypes than the record's.
        record: from `dtypeguard.record`, or any state with the wanted dtypes.

    Returns:
        `state` with every array leaf as a strongly typed JAX array of its dtype in
        `record`. Floats and complex numbers round to nearest. Any other change of dtype
        has to keep the values: 3.0 becomes the int 3; 2.5 is an error.

    Raises:
        DtypeDriftError: if the tree or a shape differs, or a dtype cannot hold a value
            (2.5 or 2**40 for an int32, 1e30 for a float16, an infinity for a
            float8_e4m3fn). Names every such leaf.

    Example:
        >>> import dtypeguard, jax.numpy as jnp, numpy as np, optax
        >>> opt = optax.scale_by_schedule(lambda step: 0.1 / (step + 1))
        >>> params = {"w": jnp.ones(3)}
        >>> averaged = opt.init(params)._replace(count=np.float32(7.0))
        >>> dtypeguard.restore(averaged, dtypeguard.record(opt, params)).count
        Array(7, dtype=int32)
    """
    if tree_util.tree_structure(state) != tree_util.tree_structure(record):
        rows = tree_rows("state", record, state, "load into the recorded tree")
        headline = "The state has another tree than the record:"
        message = short_table(headline, rows) + more("checkpoints")
        raise DtypeDriftError(message, rows)
    leaves = tree_util.tree_leaves(state)
    wanted = tree_util.tree_leaves(record)
    outcomes = [_restored(leaf, like) for leaf, like in zip(leaves, wanted)]
    rows = [
        Row(f"state{path}", describe(like), describe(leaf), remedy)
        for path, leaf, like, (_, remedy) in zip(paths(state), leaves, wanted, outcomes)
        if remedy
    ]
    if rows:
        headline = f"{count(rows)} cannot be restored:"
        message = short_table(headline, rows) + more("checkpoints")
        raise DtypeDriftError(message, rows)
    return Snapshot(state).with_leaves([leaf for leaf, _ in outcomes])


def _restored(leaf: Leaf, like: Leaf) -> tuple[Leaf, str]:
    """A leaf in its recorded type and "", or the leaf and what to do about it."""
    dtype = dtype_of(like)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf, "load its values, not only its dtype"
    if isinstance(leaf, Ref):  # whose type nothing changes
        return leaf, "" if describe(leaf) == describe(like) else f"load {describe(like)}"
    leaf = native(leaf)
    if (dtype_of(leaf) is None) != (dtype is None):
        return leaf, _loaded_as(leaf, like)
    if np.shape(leaf) != np.shape(like):
        return leaf, f"load it in shape {np.shape(like)}"
    if dtype is None:
        same = getattr(leaf, "dtype", None) == getattr(like, "dtype", None)
        return leaf, "" if same else f"load {describe(like)}"
    values = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    held = values.dtype
    if kind(held) is None:  # a Python integer of more than 64 bits
        return _restored_large(leaf, dtype)
    same_kind = kind(held) == kind(dtype)
    rounds = same_kind and kind(dtype) in ("float", "complex")
    # A dtype of 8 bits or fewer may lack infinities, NaN, signs or zero.
    is_wider = rounds and jnp.finfo(held).max <= jnp.finfo(dtype).max and dtype.itemsize > 1
    if held == dtype or is_wider:
        return cast(leaf, dtype), ""
    if isinstance(leaf, Tracer) or not getattr(leaf, "is_fully_addressable", True):
        unknown = f"its values are not known here: convert it to {dtype} first"
        return cast(leaf, dtype), "" if same_kind else unknown
    values = np.asarray(values)
    with np.errstate(all="ignore"):
        there = _astype(values, dtype)
        lost = _overflows(values, there) if rounds else _changes(values, there)
    if lost.any():
        return leaf, _cannot_hold(dtype, values[lost].flat[0])
    # A JAX array is cast where it is: it may be on several devices.
    return cast(leaf if rounds and isinstance(leaf, jax.Array) else there, dtype), ""


def _loaded_as(leaf: Leaf, like: Leaf) -> str:
    """What to load in place of a leaf that is no array, or that should be none."""
    if jnp.issubdtype(getattr(like, "dtype", object), jax.dtypes.prng_key):
        return "wrap it: jax.random.wrap_key_data(x)"
    held, wanted = getattr(leaf, "dtype", None), getattr(like, "dtype", None)
    if isinstance(held, np.dtype) and isinstance(wanted, np.dtype) and held.char == "V":
        dtype = wanted if wanted.itemsize == held.itemsize else "bfloat16"
        return f"NumPy saved its bits alone: load x.view(jnp.{dtype}), if that it was"
    return "load what was recorded"


def _restored_large(number: int, dtype: DType) -> tuple[Leaf, str]:
    """The same for an integer that no dtype of integers holds."""
    if kind(dtype) in ("float", "complex") and abs(number) < 2**1023:
        with np.errstate(all="ignore"):
            made = np.asarray(float(number)).astype(dtype)
            if np.isfinite(made) and int(np.real(made)) == number:
                return cast(made, dtype), ""
    return number, _cannot_hold(dtype, number)


def _cannot_hold(dtype: DType, number: object) -> str:
    return f"{dtype} cannot hold {f'{number}'[:40]}: change it, or record a wider dtype"


def _overflows(values: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Which numbers became another infinity, NaN, sign or saturated when they rounded."""
    if kind(there.dtype) == "complex":
        real, imag = (_overflows(f(values), f(there)) for f in (np.real, np.imag))
        return real | imag
    info = jnp.finfo(there.dtype)
    back, most = there.astype(values.dtype), float(info.max)
    half = 2.0 ** np.floor(np.log2(most)) * float(info.eps) / 2
    is_other = np.isnan(back) != np.isnan(values)
    is_other |= np.isinf(back) != np.isinf(values)
    is_other |= np.isfinite(values) & (np.abs(values) > most + half)
    is_other |= np.sign(back) * np.sign(values) < 0
    return is_other | ((values == 0) & (back != 0))


def _changes(values: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Which numbers are others in another kind of dtype."""
    # Between signed and unsigned, a wrapped value survives the way back.
    is_other = _negative(there) != _negative(values)
    is_other |= np.isfinite(there) != np.isfinite(values)
    return is_other | (_astype(there, values.dtype) != values)


def _negative(values: np.ndarray) -> np.ndarray:
    return np.real(values) < 0


def _astype(values: np.ndarray, dtype: DType) -> np.ndarray:
    values = values if kind(dtype) == "complex" else np.real(values)
    if kind(values.dtype) == "int" and jnp.iinfo(values.dtype).bits < 8:
        values = values.astype(np.int8)  # NumPy has no cast between two of so few bits
    return values.astype(dtype)
