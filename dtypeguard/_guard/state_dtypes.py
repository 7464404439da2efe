"""The dtypes that `Policy.state_dtype` stores a state in."""

import fnmatch
from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.compat import has_float64
from .._leaves.dtypes import dtype_of, kind
from .._leaves.rows import by_path, describe
from .._leaves.types import DType, Function, Leaf, State
from .policy import Unavailable, float_dtype, refuse_blanket, storable


def stored_dtypes(
    state_dtype: DType,
    state: State,
    following: Collection[str],
    own: Callable[[], dict[str, DType]],
) -> dict[str, DType]:
    """The dtype to store each floating leaf in that follows the params, by path."""
    leaves = {path: leaf for path, leaf in by_path(state).items() if path in following}
    leaves = {p: leaf for p, leaf in leaves.items() if kind(dtype_of(leaf)) == "float"}
    if state_dtype == "params":
        wanted = own()
    elif isinstance(state_dtype, dict):
        wanted = _by_pattern(state_dtype, leaves)
    elif float_dtype(state_dtype) is not None:
        wanted = dict.fromkeys(leaves, jnp.dtype(state_dtype))
    else:
        wanted = _by_function(state_dtype, leaves)
    single = jnp.dtype("float32")
    stored = {}
    for path, leaf in leaves.items():
        dtype = dtype_of(leaf) if wanted.get(path) is None else wanted[path]
        is_narrow_scalar = np.ndim(leaf) == 0 and dtype.itemsize < 4
        stored[path] = single if is_narrow_scalar else dtype
        if state_dtype == "params":
            refuse_blanket(stored[path], given=state_dtype)
        if stored[path] == np.float64 and not has_float64():
            raise Unavailable(
                f"state_dtype={stored[path]} for {path} needs x64: store at most float32, "
                "or turn on jax_enable_x64."
            )
    return stored


def _by_pattern(rule: dict[str, DType], leaves: dict[str, Leaf]) -> dict[str, DType]:
    # Escape brackets: paths are full of them.
    matches = lambda path, p: fnmatch.fnmatchcase(path, p.replace("[", "[[]"))
    idle = [p for p in rule if not any(matches(path, p) for path in leaves)]
    if idle:
        lines = [f"  {path}  {describe(leaf)}" for path, leaf in leaves.items()]
        remedy = (
            "Take them out, or match these paths:"
            if lines
            else ("Take them out: no floating leaf of this state follows the params.")
        )
        raise ValueError(
            f"state_dtype has patterns that match no leaf: {', '.join(map(repr, idle))}. "
            + "\n".join([remedy, *lines])
        )
    first = lambda path: next((rule[p] for p in rule if matches(path, p)), None)
    return {path: float_dtype(first(path)) for path in leaves}


def _by_function(rule: Function, leaves: dict[str, Leaf]) -> dict[str, DType]:
    wanted = {}
    for path, leaf in leaves.items():
        answer = rule(path, jax.ShapeDtypeStruct(np.shape(leaf), dtype_of(leaf)))
        wanted[path] = storable(answer)
        if answer is not None and wanted[path] is None:
            raise ValueError(
                f"state_dtype returned {answer!r} for {path}: return a floating dtype, "
                "such as jnp.bfloat16, or None."
            )
    return wanted
