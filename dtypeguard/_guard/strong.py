"""Makes a first state for control flow and donation: arrays with their own buffers."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import tree_util
from jax.core import Tracer

from .._carry.modules import closed, contents, objects, opened, put_contents
from .._carry.split import Snapshot
from .._leaves.arguments import shown
from .._leaves.compat import CAN_COPY
from .._leaves.dtypes import cast, dtype_of, native, wraps
from .._leaves.types import Leaf, Params, PyTree, State, public

_T = TypeVar("_T")


@public
def strong(tree: _T) -> _T:
    """Makes a first carry of strongly typed arrays, each with its own buffer.

    A step's first carry that holds `0.0`, or a weakly typed array from some package's
    reset, has other types than the second one, and a jitted step compiles twice. An array
    that is two leaves, such as params that are also their own first average, cannot be
    donated. `init` of a guarded optimizer solves both for its state; `strong` does so for
    any carry.

    Args:
        tree: the first carry. `None`, functions, dtypes, strings and JAX references stay,
            and so do the Python numbers of an Equinox module, which are constants to
            Equinox.

    Returns:
        The tree with each Python or NumPy number and each array as a strongly typed JAX
        array, in the dtype that it has or that JAX gives it. All are copies: you can still
        use `tree` after donating them. A `jax.ShapeDtypeStruct` stays one, strongly typed.
        A Flax NNX object, such as a module, stays the same object and holds such arrays
        from then on.

    Raises:
        OverflowError: if an integer does not fit the integers that JAX has under the
            current x64 flag.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp
        >>> params = {"w": jnp.ones(3, jnp.bfloat16)}
        >>> params, average, count = dtypeguard.strong((params, params, 0))
        >>> count.dtype, count.weak_type
        (dtype('int32'), False)
    """
    for path, node in objects(tree).items():
        put_contents(node, _strong(contents(node), path).values)
    return opened(_strong(closed(tree)))


def _strong(tree: PyTree, path: str = "") -> PyTree:
    remedy = "turn on jax_enable_x64, or start from a smaller number"
    arrays = as_arrays(tree, f"strong: tree{path}", remedy)
    return own_buffers(arrays, tree_util.tree_leaves(tree))


def as_arrays(
    state: State,
    where: str = "state",
    remedy: str = "turn on jax_enable_x64, or have init return a smaller number",
) -> State:
    """Makes JAX arrays of the Python and NumPy numbers of a state, except `constants`."""

    def array(path, leaf):
        dtype = dtype_of(leaf)
        is_ready = isinstance(leaf, jax.ShapeDtypeStruct) or hasattr(leaf, "weak_type")
        if dtype is None or is_ready:
            return leaf
        if wraps(leaf, dtype):
            raise OverflowError(
                f"{where}{tree_util.keystr(path)} is {shown(leaf)}, which does not fit "
                f"into {dtype}: {remedy}."
            )
        return jnp.array(native(leaf), dtype, copy=True)

    pairs, snapshot = tree_util.tree_flatten_with_path(state)[0], Snapshot(state)
    kept = snapshot.constants
    leaves = [x if i in kept else array(path, x) for i, (path, x) in enumerate(pairs)]
    return snapshot.with_leaves(leaves)


def own_buffers(state: State, params: Params) -> State:
    """Makes a first state of strongly typed arrays, each with its own buffer.

    Nothing says who else holds an array (a table of rates, a param), so each is copied, one
    after another; an array that nobody else holds is freed meanwhile.
    """
    seen = {id(leaf) for leaf in tree_util.tree_leaves(params)}

    def own(leaf):
        if isinstance(leaf, jax.ShapeDtypeStruct):  # of strong, for what is only traced
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        dtype = dtype_of(leaf)
        if dtype is None and not isinstance(leaf, jax.Array):
            return leaf
        made = leaf if dtype is None else cast(leaf, dtype)
        if made is leaf and (id(leaf) in seen or not isinstance(leaf, Tracer)):
            made = _copied(leaf)
        seen.add(id(leaf))
        return made

    snapshot = Snapshot(state)
    leaves = snapshot.leaves
    del state
    for i in range(len(leaves)):
        leaves[i] = leaves[i] if i in snapshot.constants else own(leaves[i])
    return snapshot.copy()


def _copied(leaf: Leaf) -> Leaf:
    is_here = not isinstance(leaf, Tracer) and leaf.is_fully_addressable
    if is_here and CAN_COPY:  # where it is, and nothing compiles
        copy = jax.device_put(leaf, may_alias=False)
    else:
        copy = jnp.array(leaf, copy=True)
    if isinstance(copy, Tracer) or copy.sharding == leaf.sharding:
        return copy
    # The copy of a host array is on the device, that of an array of keys on one of them.
    return jax.device_put(copy, leaf.sharding)
