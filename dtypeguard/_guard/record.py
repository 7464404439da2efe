"""Records the dtypes of an optimizer's state, and restores them."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util
from jax.core import Tracer

from .._carry.split import Snapshot, eval_shape
from .._leaves.compat import Ref
from .._leaves.dtypes import cast, dtype_of, has_zero, kind, native
from .._leaves.errors import DtypeDriftError, more
from .._leaves.key_path import TreeName, key_paths
from .._leaves.leaf_change import leaf_changes
from .._leaves.leaf_type import describe
from .._leaves.table import FEW, Table, and_more, count
from .._leaves.types import DType, Leaf, Optimizer, Params, State, public
from .._source.warn import warn_caller
from .containers import pair
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
    guarded: Optimizer = guard(opt)
    if not hasattr(guarded, "init"):
        raise TypeError(f"record got {opt!r}. Call it first, as in optax.adam(1e-3).")
    return eval_shape(guarded.init, params)


@public
def restore(state: State, record: _T) -> _T:
    """Casts a state that something outside the optimizer changed to the types of a record.

    This is for a checkpoint in another precision, NumPy leaves, or integer counters that a
    mean over devices made floating. It is also for loaders that know no NamedTuples, such
    as Orbax without a target, which return dicts and lists.

    Args:
        state: an optimizer state whose leaves may have other dtypes than the record's.
            Its containers may differ from the record's as well, as long as keys, or
            positions of a list or tuple, say which leaf is which. Names count before
            positions: a list in place of a dict is refused. So is a list in place of a
            NamedTuple or a module if a shape or kind differs.
        record: from `dtypeguard.record`, or any state with the wanted dtypes.

    Returns:
        `state` with every array leaf as a strongly typed JAX array of its dtype in
        `record`. Floats and complex numbers round to nearest. Any other change of dtype
        has to keep the values: 3.0 becomes the int 3; 2.5 is an error. The tree is that of
        the record, with its static fields. A JAX array stays on its devices.

    Raises:
        DtypeDriftError: if a shape differs, or a dtype cannot hold a value (2.5 or 2**40
            for an int32, 1e30 for a float16, an infinity for a float8_e4m3fn). Names every
            such leaf. If the tree differs in more than containers; names the first place.

    Warns:
        DtypeGuardWarning: once, if containers differed; names those that it changed.

    Example:
        >>> import dtypeguard, jax.numpy as jnp, numpy as np, optax
        >>> opt = optax.scale_by_schedule(lambda step: 0.1 / (step + 1))
        >>> params = {"w": jnp.ones(3)}
        >>> averaged = opt.init(params)._replace(count=np.float32(7.0))
        >>> dtypeguard.restore(averaged, dtypeguard.record(opt, params)).count
        Array(7, dtype=int32)
    """
    tree, changes = state, []
    leaves, wanted = map(tree_util.tree_leaves, (state, record))
    if tree_util.tree_structure(state) != tree_util.tree_structure(record):
        (leaves, changes), tree = pair(record, state, (TreeName("state"),)), record
    outcomes = [_restored(leaf, like) for leaf, like in zip(leaves, wanted)]
    remedies = [remedy for _, remedy in outcomes]
    if any(remedies):
        refused = leaf_changes(key_paths(tree, "state"), wanted, leaves, remedies)
        table = Table(f"{count(refused)} cannot be restored:", refused)
        raise DtypeDriftError(f"{table}{more('checkpoints')}", table.rows())
    if changes:
        headline = "restore changed containers to those of the record:"
        rest = and_more(max(0, len(changes) - FEW), "container")
        lines = [str(Table(headline, changes[:FEW])), *(f"  {line}" for line in rest)]
        warn_caller("\n".join(lines) + more("checkpoints"))
    return Snapshot(tree).with_leaves([leaf for leaf, _ in outcomes])


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
        return leaf, _cannot_hold(dtype, leaf)
    same_kind = kind(held) == kind(dtype)
    rounds = same_kind and kind(dtype) in ("float", "complex") and has_zero(dtype)
    # A dtype of 8 bits or fewer may lack infinities, NaN or signs.
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
    # What was checked: XLA's own casts of 4 bits, on CPUs, give other numbers.
    if isinstance(leaf, jax.Array) and getattr(leaf, "committed", True):
        there = jax.device_put(there, leaf.sharding)
    return cast(there, dtype), ""


def _loaded_as(leaf: Leaf, like: Leaf) -> str:
    """What to load in place of a leaf that is no array, or that should be none."""
    if jnp.issubdtype(getattr(like, "dtype", object), jax.dtypes.prng_key):
        return "wrap it: jax.random.wrap_key_data(x)"
    held, wanted = getattr(leaf, "dtype", None), getattr(like, "dtype", None)
    if isinstance(held, np.dtype) and isinstance(wanted, np.dtype) and held.type is np.void:
        dtype = wanted if wanted.itemsize == held.itemsize else "bfloat16"
        return f"NumPy saved its bits alone: load x.view(jnp.{dtype}), if that it was"
    return "load what was recorded"


def _cannot_hold(dtype: DType, number: object) -> str:
    return f"{dtype} cannot hold {f'{number}'[:40]}: change it, or record a wider dtype"


def _overflows(values: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Which numbers became another infinity, NaN, sign or saturated when they rounded."""
    if kind(there.dtype) == "complex":
        real, imag = (_overflows(f(values), f(there)) for f in (np.real, np.imag))
        return real | imag
    info, most = jnp.finfo(there.dtype), float(jnp.finfo(there.dtype).max)
    half = 2.0 ** np.floor(np.log2(most)) * float(info.eps) / 2
    wide = values.dtype if values.dtype.itemsize >= 4 else np.float32
    old, new = (x.astype(wide, copy=False) for x in (values, there))
    is_other = np.isnan(new) != np.isnan(old)
    is_other |= np.isinf(new) != np.isinf(old)
    is_other |= np.isfinite(old) & (np.abs(old) > most + half)
    is_other |= np.sign(new) * np.sign(old) < 0
    return is_other


def _changes(values: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Which numbers are others in another kind of dtype."""
    parts = [(f(values), f(_astype(there, values.dtype))) for f in (np.real, np.imag)]
    same = [(old == new) | (np.isnan(old) & np.isnan(new)) for old, new in parts]
    # Between signed and unsigned, a wrapped value survives the way back.
    same.append(_negative(there) == _negative(values))
    same.append(np.isfinite(there) == np.isfinite(values))
    return ~np.logical_and.reduce(same)


def _negative(values: np.ndarray) -> np.ndarray:
    return np.real(values) < 0


def _astype(values: np.ndarray, dtype: DType) -> np.ndarray:
    values = values if kind(dtype) == "complex" else np.real(values)
    if not np.can_cast(values.dtype, dtype, "unsafe"):  # two of 8 bits or fewer
        values = values.astype(np.int32 if kind(values.dtype) == "int" else np.float32)
    return values.astype(dtype)
