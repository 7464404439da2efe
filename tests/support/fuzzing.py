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
FLOATING_PARAMS = trees(leaves((*FLOATS, "complex64"), ("jax",)))
ANY_PARAMS = st.one_of(FLOATING_PARAMS, PARAMS)


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

_SCHEDULE = optax.linear_schedule(0.1, 0.0, 10)
LINKS: dict[str, Any] = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(0.1),
    "adam f32 mu": lambda: optax.scale_by_adam(mu_dtype=jnp.float32),
    "adamw": lambda: optax.adamw(0.1),
    "lion": lambda: optax.lion(0.1),
    "rmsprop": lambda: optax.rmsprop(0.1),
    "adafactor": lambda: optax.adafactor(0.1),
    "yogi": lambda: optax.yogi(0.1),
    "lamb": lambda: optax.lamb(0.1),
    "adagrad": lambda: optax.adagrad(0.1),
    "adadelta": lambda: optax.adadelta(0.1),
    "novograd": lambda: optax.novograd(0.1),
    "rprop": lambda: optax.rprop(0.1),
    "schedule": lambda: optax.scale_by_schedule(_SCHEDULE),
    "zero_nans": optax.zero_nans,
    "clip": lambda: optax.clip(1.0),
    "global_norm": lambda: optax.clip_by_global_norm(1.0),
    "block_rms": lambda: optax.clip_by_block_rms(1.0),
    "unitwise": lambda: optax.adaptive_grad_clip(0.1),
    "ema": lambda: optax.ema(0.9),
    "ema f32": lambda: optax.ema(0.9, accumulator_dtype=jnp.float32),
    "trace bf16": lambda: optax.trace(0.9, accumulator_dtype=jnp.bfloat16),
    "decay": lambda: optax.add_decayed_weights(0.1),
    "noise": lambda: optax.add_noise(0.1, 0.9, jax.random.PRNGKey(0)),
    "centralize": optax.centralize,
    "trust_ratio": optax.scale_by_trust_ratio,
    "apply_every": lambda: optax.apply_every(2),
    "scale": lambda: optax.scale(np.float32(0.5)),
    "numpy scale": lambda: optax.scale(np.float64(0.5)),
    "identity": optax.identity,
    "set_to_zero": optax.set_to_zero,
    "masked": lambda: optax.masked(
        optax.adam(0.1), lambda p: tree_util.tree_map(jnp.ndim, p)
    ),
    "inject": lambda: optax.inject_hyperparams(optax.adam)(0.1),
    "finite": lambda: optax.apply_if_finite(optax.adam(0.1), 2),
    "lookup": lambda: optax.MultiSteps(optax.adam(0.1), 2),
    "plateau": lambda: optax.contrib.reduce_on_plateau(),
    "prodigy": lambda: optax.contrib.prodigy(1.0),
    "dadapt": lambda: optax.contrib.dadapt_adamw(1.0),
    "schedule_free": lambda: optax.contrib.schedule_free_sgd(0.1),
    "muon": lambda: optax.contrib.muon(0.1),
    "lbfgs": lambda: optax.lbfgs(0.1, memory_size=2, linesearch=None),
    "complex": lambda: optax.contrib.split_real_and_imaginary(optax.adam(0.1)),
}
CHAINS = st.lists(st.sampled_from(sorted(LINKS)), min_size=1, max_size=3).map(tuple)


def chain(names: tuple[str, ...]) -> Any:
    """The chain of these links."""
    links = [LINKS[name]() for name in names]
    as_transformation = lambda link: (
        link.gradient_transformation() if isinstance(link, optax.MultiSteps) else link
    )
    return optax.chain(*map(as_transformation, links)) if len(links) > 1 else links[0]


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
