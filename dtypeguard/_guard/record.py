"""Records the dtypes of an optimizer's state, and restores them."""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util
from jax.core import Tracer

from .._carry.split import Snapshot, eval_shape
from .._leaves.compat import Ref
from .._leaves.dtypes import cast, dtype_of, is_available, kind
from .._leaves.errors import DtypeDriftError, more
from .._leaves.key_path import key_paths
from .._leaves.leaf_change import LeafChange
from .._leaves.leaf_type import leaf_type, type_or_class
from .._leaves.table import Table, count
from .._leaves.types import Leaf, Optimizer, Params, State, public
from .._source.warn import warn_caller
from .containers import match_containers
from .conversion import CannotRestore, convert_values
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
    # The tree is that of the state, whose containers are as they were, where it can be.
    tree = state
    leaves = tree_util.tree_leaves(state)
    container_changes: list[LeafChange] = []
    if tree_util.tree_structure(state) != tree_util.tree_structure(record):
        tree = record
        matched = match_containers(record, state)
        leaves = matched.leaves
        container_changes = matched.changes

    restored = []
    refused = []
    recorded_leaves = tree_util.tree_leaves(record)
    paths = key_paths(tree, "state")
    for path, leaf, recorded in zip(paths, leaves, recorded_leaves):
        # One error names all leaves: a loop of load and restore would find one at a time.
        try:
            restored.append(_restore_leaf(leaf, recorded))
        except CannotRestore as error:
            types = (type_or_class(recorded), type_or_class(leaf))
            refused.append(LeafChange(path, *types, error.remedy))
    if refused:
        table = Table(f"{count(refused)} cannot be restored:", refused)
        raise DtypeDriftError(f"{table}{more('checkpoints')}", table.rows())
    if container_changes:
        headline = "restore changed containers to those of the record:"
        table = Table(headline, container_changes)
        warn_caller(f"{table}{more('checkpoints')}")
    return Snapshot(tree).with_leaves(restored)


def _restore_leaf(leaf: Leaf, recorded: Leaf) -> Leaf:
    """Returns a leaf in its recorded type, or raises `CannotRestore`."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise CannotRestore("load its values, not only its dtype")
    dtype = dtype_of(recorded)
    if dtype is None or isinstance(leaf, Ref):
        # A function or a key, or a reference, whose type nothing changes.
        return _check_same_type(leaf, recorded)
    if dtype_of(leaf) is None:
        raise CannotRestore(_remedy_for_other_leaf(leaf, recorded))
    if np.shape(leaf) != np.shape(recorded):
        raise CannotRestore(f"load it in shape {np.shape(recorded)}")
    if isinstance(leaf, jax.Array) and leaf.dtype == dtype:
        return cast(leaf, dtype)  # which may be weakly typed
    if not is_available(dtype):
        # JAX would truncate: 2**40 to 0, 1e300 to infinity.
        raise CannotRestore(f"JAX has no {dtype} now: turn on jax_enable_x64")
    # Under `jit`, or where other hosts hold a part, nobody here can look at the values.
    if isinstance(leaf, Tracer) or not getattr(leaf, "is_fully_addressable", True):
        if kind(dtype_of(leaf)) != kind(dtype):
            remedy = f"its values are not known here: convert it to {dtype} first"
            raise CannotRestore(remedy)
        return cast(leaf, dtype)
    values = convert_values(leaf, dtype)
    # XLA does not cast: its casts of 4 bits give other numbers on CPUs.
    if isinstance(leaf, jax.Array) and getattr(leaf, "committed", True):
        values = jax.device_put(values, leaf.sharding)
    return cast(values, dtype)


def _check_same_type(leaf: Leaf, recorded: Leaf) -> Leaf:
    """Returns a leaf that is no array if the record has its type."""
    if dtype_of(leaf) is not None:
        raise CannotRestore(_remedy_for_other_leaf(leaf, recorded))
    if leaf_type(leaf) != leaf_type(recorded):
        raise CannotRestore(f"load {type_or_class(recorded)}")
    return leaf


def _remedy_for_other_leaf(leaf: Leaf, recorded: Leaf) -> str:
    """Returns what to load where an array stands for another leaf, or the reverse."""
    dtype = getattr(recorded, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return "wrap it: jax.random.wrap_key_data(x)"
    is_of_numpy = isinstance(leaf, (np.ndarray, np.void))
    is_of_bits = is_of_numpy and leaf.dtype.type is np.void
    if is_of_bits and isinstance(dtype, np.dtype):
        # Bits of another size were saved in another precision, most often bfloat16.
        if dtype.itemsize != leaf.dtype.itemsize:
            dtype = "bfloat16"
        return f"NumPy saved its bits alone: load x.view(jnp.{dtype}), if that it was"
    return "load what was recorded"
