"""Strategies of hostile input: trees, transforms that drift on purpose, Optax chains.

What is drawn are descriptions (`Leaf`), not arrays: arrays are made where they are used,
under the x64 flag that was drawn.
"""

import collections
import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st
from jax import tree_util

from dtypeguard._leaves.compat import has_float64

FLOATS = ("float32", "bfloat16", "float16", "float64")
SMALL_FLOATS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz")
INTS = ("int32", "uint32", "int8", "uint8", "int4", "uint4", "int64", "bool")
COMPLEX = ("complex64", "complex128")
DTYPES = (*FLOATS, *SMALL_FLOATS, *INTS, *COMPLEX)
SHAPES = ((), (3,), (2, 2), (0,), (1, 3))


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An array leaf to be made, and in which of its many forms."""

    dtype: str
    shape: tuple[int, ...]
    form: str  # "jax", "numpy", "weak", "python", "scalar", "key" or "raw_key"

    def make(self) -> Any:
        """The leaf, under the x64 flag as it is now."""
        if self.form == "key":
            return jax.random.split(jax.random.key(0), self.shape)
        if self.form == "raw_key":
            return jax.random.PRNGKey(0)
        array = values(self.shape).astype(np.dtype(self.dtype))
        if self.form == "numpy":
            return array
        if self.form == "scalar":
            return array.reshape(-1)[0] if array.size else array.dtype.type(1)
        if self.form == "python":
            return {"b": True, "i": 2, "c": 2j}.get(_letter(self.dtype), 1.5)
        if self.form == "weak":
            weak = {"b": True, "i": 2, "c": 2j}.get(_letter(self.dtype), 1.5)
            return weakly(weak, self.shape)
        return jnp.asarray(array, held(array.dtype))


def held(dtype: Any) -> Any:
    """The dtype of an array that is asked for in this one, the flags as they are."""
    dtype = np.dtype(dtype)
    return dtype if has_float64() else jax.dtypes.canonicalize_dtype(dtype)


def values(shape: tuple[int, ...]) -> np.ndarray:
    """Small numbers that every dtype holds."""
    return (np.arange(np.prod(shape, dtype=int)) % 3 + 1).reshape(shape)


def weakly(scalar: Any, shape: tuple[int, ...]) -> jax.Array:
    """A weakly typed array: what `jnp.where` makes of two Python scalars."""
    return jnp.where(np.ones(shape, bool), scalar, scalar)


def _letter(dtype: str) -> str:
    return "i" if dtype.lstrip("u").startswith("int") else dtype.replace("bf", "f")[0]


class Point(NamedTuple):
    """A NamedTuple."""

    x: Any
    y: Any


@functools.partial(
    tree_util.register_dataclass, data_fields=["left", "right"], meta_fields=["name"]
)
@dataclasses.dataclass
class Pair:
    """A registered dataclass."""

    left: Any
    right: Any
    name: str = "pair"


@tree_util.register_pytree_node_class
class Node:
    """A custom node without keys, that is strict about what it holds."""

    def __init__(self, child, kind):
        self.child, self.kind = child, kind

    def tree_flatten(self):
        """The child alone."""
        return (self.child,), self.kind

    @classmethod
    def tree_unflatten(cls, kind, children):
        """Back again."""
        (child,) = children
        return cls(child, kind)


class Module(eqx.Module):
    """An Equinox module, with a static field."""

    weight: Any
    inner: Any
    tag: str = eqx.field(static=True, default="module")


def _function(x):
    return x


STATIC = st.sampled_from(["a string", _function, jnp.tanh, object])


def _containers(children):
    return st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(
            st.sampled_from(["a", "b", "w.x", "[0]", ""]), children, max_size=3
        ),
        st.dictionaries(st.integers(0, 3), children, max_size=2),
        st.lists(children, min_size=1, max_size=2).map(
            lambda made: collections.OrderedDict(zip("zy", made))
        ),
        st.builds(Point, children, children),
        st.builds(Pair, children, children),
        st.builds(Node, children, st.sampled_from(["one", "two"])),
        st.builds(Module, children, children),
        st.just(optax.EmptyState()),
        st.just(optax.MaskedNode()),
        st.none(),
    )


def trees(leaves):
    """Nested containers of such leaves; maybe a single leaf, maybe none."""
    return st.recursive(leaves, _containers, max_leaves=6)


def leaves(dtypes=DTYPES, forms=("jax", "jax", "jax", "numpy", "weak", "python", "scalar")):
    """Leaves of these dtypes in these forms."""
    return st.builds(
        Leaf, st.sampled_from(dtypes), st.sampled_from(SHAPES), *[st.sampled_from(forms)]
    )


KEYS = st.sampled_from([Leaf("key", (), "key"), Leaf("uint32", (2,), "raw_key")])
STATES = trees(st.one_of(leaves(), leaves(), KEYS, STATIC))
PARAMS = trees(leaves((*FLOATS, *FLOATS, *DTYPES)))


def build(tree: Any) -> Any:
    """The tree with every description made into a leaf."""
    return tree_util.tree_map(lambda x: x.make() if isinstance(x, Leaf) else x, tree)


# What a drifting update does to a leaf: a name, and for casts a dtype.
CHANGES = st.one_of(
    st.just(("keep",)),
    st.just(("keep",)),
    st.tuples(st.just("cast"), st.sampled_from(FLOATS)),
    st.tuples(st.just("cast"), st.sampled_from(DTYPES)),
    st.sampled_from(
        [("weak",), ("numpy",), ("python",), ("grow",), ("wrap",), ("none",), ("string",)]
    ),
    st.just(("key",)),
)
UPDATE_CHANGES = st.one_of(
    st.just(("keep",)),
    st.tuples(st.just("cast"), st.sampled_from(FLOATS)),
    st.tuples(st.just("cast"), st.sampled_from(DTYPES)),
    st.sampled_from([("weak",), ("python",), ("grow",), ("none",)]),
)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def change(leaf: Any, how: tuple[str, ...]) -> Any:
    """A leaf as a careless optimizer might return it."""
    name = how[0]
    if name in _REPLACED:
        return _REPLACED[name]()
    if name == "wrap":
        return (leaf,)
    dtype = getattr(leaf, "dtype", None)
    is_key = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended)
    if name == "keep" or is_key or not _is_array(leaf):
        return leaf
    shape = np.shape(leaf)
    if name == "grow":
        return jnp.stack([leaf, leaf])
    if name == "weak":
        return weakly(1.5, shape)
    if name == "numpy":
        return np.ones(shape, leaf.dtype)
    target = held(how[1])
    if jnp.issubdtype(leaf.dtype, np.complexfloating):
        leaf = jnp.real(leaf) if not jnp.issubdtype(target, np.complexfloating) else leaf
    return jnp.asarray(leaf).astype(target)


_REPLACED = {
    "none": lambda: None,
    "string": lambda: "a string",
    "python": lambda: 1.5,
    "key": lambda: jax.random.key(1),
}


@dataclasses.dataclass(frozen=True)
class Drifting:
    """A transform to be made, whose update changes leaf number i as `changes[i]` says."""

    state: Any
    changes: tuple[tuple[str, ...], ...]
    update_changes: tuple[tuple[str, ...], ...]

    def make(self) -> optax.GradientTransformation:
        """It."""

        def init(params):
            del params
            return build(self.state)

        def update(updates, state, params=None):
            del params
            return _changed(updates, self.update_changes), _changed(state, self.changes)

        return optax.GradientTransformation(init, update)


def _changed(tree: Any, changes: tuple[tuple[str, ...], ...]) -> Any:
    flat, treedef = tree_util.tree_flatten(tree)
    pairs = ((leaf, changes[i % len(changes)]) for i, leaf in enumerate(flat))
    return tree_util.tree_unflatten(treedef, [change(*pair) for pair in pairs])


def _several(changes):
    return st.lists(changes, min_size=1, max_size=3).map(tuple)


DRIFTING = st.builds(Drifting, STATES, _several(CHANGES), _several(UPDATE_CHANGES))
# Those whose updates are what they should be, so that more of the state is seen.
DRIFTING_STATES = st.builds(Drifting, STATES, _several(CHANGES), st.just((("keep",),)))


def like(params: Any, dtypes: tuple[str | None, ...]) -> Any:
    """Gradients for params: in these dtypes, dealt in turn; None keeps the param's."""
    flat, treedef = tree_util.tree_flatten(params)
    grads = []
    for i, leaf in enumerate(flat):
        dtype = dtypes[i % len(dtypes)]
        if isinstance(leaf, Leaf):
            is_complex = leaf.dtype.startswith("complex")
            named = leaf.dtype if dtype is None or is_complex else dtype
            shape = leaf.shape if leaf.form in ("jax", "numpy", "weak") else ()
            leaf = Leaf(named, shape, "jax")
        grads.append(leaf)
    return tree_util.tree_unflatten(treedef, grads)


GRAD_DTYPES = st.lists(st.sampled_from((None, None, *FLOATS)), min_size=1, max_size=3).map(
    tuple
)
