"""What several test files compare: structure, types and values together."""

import re
from typing import Any

import jax
import numpy as np
from jax import tree_util

from dtypeguard._compat import set_x64 as set_x64


def types(tree: Any) -> Any:
    """Dtype, weak type and shape of every leaf, in the tree."""
    describe = lambda leaf: (str(leaf.dtype), leaf.weak_type, leaf.shape)
    return tree_util.tree_map(describe, jax.eval_shape(lambda: tree))


def assert_same(one: Any, other: Any) -> None:
    """Two trees are equal in structure, types and bits."""
    assert tree_util.tree_structure(one) == tree_util.tree_structure(other)
    for (path, a), b in zip(
        tree_util.tree_flatten_with_path(one)[0], tree_util.tree_leaves(other)
    ):
        where = tree_util.keystr(path)
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        assert _bits(a) == _bits(b), f"{where}: {a} != {b}"


def _bits(leaf: Any) -> bytes:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()


def optimized_hlo(function: Any, *args: Any) -> str:
    """What XLA makes of a function, without metadata and the module's name."""
    text = jax.jit(function).lower(*args).compile().as_text()
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    # Newer XLA lists the source locations that metadata refers to in tables of their own.
    tables = r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(\d.*\n)*"
    text = re.sub(tables, "", text, flags=re.M)
    return re.sub(r"^HloModule [^,]*", "HloModule", text, flags=re.M)
