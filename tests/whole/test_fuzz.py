"""Hostile input: the contract holds, or an error that names the path; nothing else.

A short profile of fixed seeds runs with the suite. The long one, of at least 5,000
examples and new ones every time: `DTYPEGUARD_FUZZ=long pytest tests/whole/test_fuzz.py`.
Failures that it found stand as examples here, or as tests beside what they were in.
"""

import contextlib
import os
import warnings

import equinox as eqx
import fuzzing as fz
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same, set_x64
from hypothesis import HealthCheck, example, given, settings, strategies as st
from jax import lax, tree_util

from dtypeguard import (
    DtypeDriftError,
    DtypeGuardWarning,
    apply_updates,
    guard,
    record,
    restore,
)
from dtypeguard._leaves.compat import HAS_EXPLICIT_X64, set_explicit_x64

pytestmark = pytest.mark.third_party
LONG = os.environ.get("DTYPEGUARD_FUZZ") == "long"


def fuzz(short: int, long: int):
    """So many examples in either profile."""
    return settings(
        max_examples=long if LONG else short,
        derandomize=not LONG,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def flags(x64):
    """One of `MODES`, and a list that collects the warnings."""
    explicit = x64 if isinstance(x64, str) else "warn"
    with (
        set_x64(x64 is True),
        set_explicit_x64(explicit),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        yield caught


def tried(function, *args):
    """What a function returns and None, or None and its error."""
    try:
        return function(*args), None
    except Exception as error:
        return None, error


def family(leaf):
    """What casts keep: the kind of an array, the type of a key, "static" for the rest."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        if not isinstance(leaf, (bool, int, float, complex)):
            return "static"
        return {bool: "int", int: "int"}.get(type(leaf), type(leaf).__name__)
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return str(dtype)
    for name, kind in (("float", np.floating), ("complex", np.complexfloating)):
        if jnp.issubdtype(dtype, kind):
            return name
    is_int = jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.bool_)
    return "int" if is_int else "static"


def is_array(leaf):
    """Whether a leaf has one of the four kinds."""
    return family(leaf) in ("int", "float", "complex")


def dtype(leaf):
    """The dtype that JAX gives a leaf; that of a key as it is."""
    if hasattr(leaf, "dtype") and not isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.dtype
    held = leaf.dtype if hasattr(leaf, "dtype") else np.dtype(type(leaf))
    return jax.dtypes.canonicalize_dtype(held)


def by_path(tree):
    """Leaves by path."""
    return {tree_util.keystr(k): v for k, v in tree_util.tree_flatten_with_path(tree)[0]}


def changed_kinds(before, after):
    """The paths of leaves that no cast can bring back; all of them if the trees differ."""
    if tree_util.tree_structure(before) != tree_util.tree_structure(after):
        return {*by_path(before), *by_path(after), ""}
    pairs = zip(by_path(before).items(), tree_util.tree_leaves(after))
    moved = {
        path
        for (path, old), new in pairs
        if family(old) != family(new) or np.shape(old) != np.shape(new)
    }
    return moved - constants(before)


def constants(tree):
    """The paths of the Python numbers in Equinox modules: to Equinox no data."""
    is_module = lambda node: isinstance(node, eqx.Module)
    nodes = tree_util.tree_flatten_with_path(tree, is_leaf=is_module)[0]
    modules = tuple(tree_util.keystr(path) for path, node in nodes if is_module(node))
    return {
        path
        for path, leaf in by_path(tree).items()
        if isinstance(leaf, (bool, int, float, complex)) and path.startswith(modules)
        if not isinstance(leaf, np.generic)
    }


def assert_stable(before, after):
    """Every leaf has the dtype and shape that it had, and is strongly typed."""
    assert tree_util.tree_structure(before) == tree_util.tree_structure(after)
    fixed = constants(before)
    for (path, old), new in zip(by_path(before).items(), tree_util.tree_leaves(after)):
        if path in fixed:
            continue
        if family(old) == "static":
            assert family(new) == "static", path
            continue
        assert isinstance(new, (jax.Array, jax.ShapeDtypeStruct)), f"{path}: {type(new)}"
        # A Python scalar, or what jit makes of one, has the width of its surroundings.
        is_scalar = getattr(old, "weak_type", False) and np.ndim(old) == 0
        is_scalar = is_scalar or isinstance(old, (float, int, complex))
        held = new.dtype if is_scalar else dtype(old)
        assert (new.dtype, new.shape) == (held, np.shape(old)), path
        assert family(new) == family(old), path
        assert not getattr(new, "weak_type", False), path


def assert_updates_fit(updates, grads, params, *, strict=False):
    """The updates have the dtypes of their params, or without params of the gradients.

    A Python scalar is as wide as its surroundings, unless this is to be strict.
    """
    asked = by_path(grads) | {
        path: leaf for path, leaf in by_path(params).items() if is_array(leaf)
    }
    for path, update in by_path(updates).items():
        if isinstance(asked[path], (float, int, complex)) and not strict:
            continue
        if is_array(update) and is_array(asked[path]):
            assert dtype(update) == dtype(asked[path]), path


def assert_carries(update, state):
    """The state is the carry of a scan."""
    is_carried = tree_util.tree_map(eqx.is_array, state)
    arrays, static = eqx.partition(state, is_carried)

    def step(arrays, _):
        new_state = update(eqx.combine(arrays, static))
        return eqx.filter(new_state, is_carried), None

    jax.eval_shape(lambda arrays: lax.scan(step, arrays, None, length=2)[0], arrays)


def assert_named(error, found):
    """A drift error names leaves that did drift, each on its line, and what to write."""
    head, *lines = str(error).splitlines()
    rows = [line[2:] for line in lines if line.startswith("  ")]
    assert head.startswith("update "), error
    assert rows, error
    for row in rows:
        where = "state" if row.startswith("state") else "updates"
        path = row.removeprefix(where).split("  ")[0]
        assert row.startswith(where), row
        assert " -> " in row, row
        assert path in found[where], f"{row}, not in {found[where]}"


def assert_all_named(error, state, new_state, found):
    """In a tree that is what it was, each leaf of the state that no cast brings back."""
    if tree_util.tree_structure(state) == tree_util.tree_structure(new_state):
        rows = str(error).splitlines()[1:]
        named = {row.strip().removeprefix("state").split("  ")[0] for row in rows}
        if "changed the tree" not in str(error):
            assert found["state"] <= named, error


def assert_only_cast(bare_result, result, state, asked, *, values):
    """What was let through: each leaf is of the kind it was, and no more than cast."""
    (bare_updates, bare_state), (updates, new_state) = bare_result, result
    if tree_util.tree_structure(bare_state) == tree_util.tree_structure(state):
        assert changed_kinds(state, bare_state) == set()
        assert_cast(bare_state, new_state, values)
    given, asked = by_path(bare_updates), by_path(asked)
    for path, update in given.items():
        if is_array(update) and path in asked and is_array(asked[path]):
            assert family(update) == family(asked[path]), path
    if tree_util.tree_structure(bare_updates) == tree_util.tree_structure(updates):
        assert_cast(bare_updates, updates, values)


def assert_cast(tree, cast, values):
    """The second is the first, cast leaf by leaf."""
    fixed = constants(cast)
    for (path, leaf), new in zip(by_path(tree).items(), tree_util.tree_leaves(cast)):
        if is_array(leaf) and path not in fixed and values:
            expected = jnp.asarray(leaf).astype(new.dtype)
            assert np.asarray(expected).tobytes() == np.asarray(new).tobytes(), path


def same_error(one, other):
    """Whether two errors are the same to a user."""
    return type(one) is type(other) and str(one) == str(other)


def check_guard(make, params, grads, *, x64, traced, with_params, bits=True):
    """One transformation: the contract, or an error of its own, or a drift error."""
    with flags(x64) as caught:
        params, grads = fz.build(params), fz.build(grads)
        given_params = params if with_params else None
        run = eqx.filter_eval_shape if traced else lambda f, *args: f(*args)

        def once(opt, state):
            return run(lambda *args: opt.update(*args, given_params), grads, state)

        bare, guarded = make(), guard(make())
        state, error = tried(guarded.init, params)
        if error is not None:
            _, bare_error = tried(bare.init, params)
            assert same_error(error, bare_error), error
            return "init error"
        assert_stable(state, state)
        bare_state = make().init(params)
        result, error = tried(once, guarded, state)
        bare_result, bare_error = tried(once, bare, bare_state)
        if isinstance(error, DtypeDriftError):
            if isinstance(bare_error, DtypeDriftError):  # a guarded one inside
                assert same_error(error, bare_error), error
                return "refused"
            from_same, bare_error = tried(once, bare, state)
            if bare_error is not None:  # it was run in a wider dtype, and refused there
                assert _has_told(caught), error
                like_updates = params if with_params else grads
                leaves = {"state": by_path(state), "updates": by_path(like_updates)}
                assert_named(error, leaves)
                return "refused"
            new_updates, new_state = from_same
            found = {
                "state": changed_kinds(state, new_state),
                "updates": changed_kinds(params if with_params else grads, new_updates),
            }
            assert_named(error, found)
            assert_all_named(error, state, new_state, found)
            return "refused"
        if error is not None:
            assert same_error(error, bare_error), (error, bare_error)
            return "update error"
        if bare_error is not None:
            assert _has_told(caught) or x64 is True, f"{bare_error!r} was hidden"
        new_updates, new_state = result
        assert_stable(state, new_state)
        assert_updates_fit(new_updates, grads, given_params)
        assert_carries(lambda s: guarded.update(grads, s, given_params)[1], state)
        from_same, error = tried(once, bare, state)
        if error is None:
            asked = grads if given_params is None else params
            assert_only_cast(
                from_same, result, state, asked, values=not (traced or x64 is True)
            )
        if tree_util.tree_structure(bare_state) == tree_util.tree_structure(state):
            foreign, error = tried(once, guarded, bare_state)
            if error is None:
                assert_stable(bare_state, foreign[1])
        was_stable = bare_error is None and _is_stable(
            bare_state, bare_result, grads, given_params
        )
        if bits and was_stable and not (traced or x64 is True):
            assert_same(_arrays(bare_result), _arrays(result))
            return "same bits"
        return "rescued" if bare_error is not None else "held"


def _has_told(caught):
    return any(issubclass(warning.category, DtypeGuardWarning) for warning in caught)


def _is_stable(state, result, grads, params):
    try:
        strong = all(
            isinstance(leaf, jax.Array) and not getattr(leaf, "weak_type", False)
            for leaf in tree_util.tree_leaves((state, result))
        )
        assert strong
        assert_stable(state, result[1])
        assert_updates_fit(result[0], grads, params, strict=True)
        return True
    except AssertionError:
        return False


def _arrays(tree):
    return tree_util.tree_map(jnp.asarray, eqx.filter(tree, eqx.is_array))


# x64 off and on, and off where JAX lets one ask for 64 bits all the same, or for none.
MODES = [False, True, *(["allow", "error"] if HAS_EXPLICIT_X64 else [])]
FLAGS = {
    "x64": st.sampled_from(MODES),
    "traced": st.booleans(),
    "with_params": st.booleans(),
}


PLAIN = {"x64": False, "traced": False, "with_params": True}
W = {"w": fz.Leaf("float32", (3,), "jax")}
KEY = fz.Leaf("key", (), "key")
VECTOR = fz.Leaf("bfloat16", (3,), "jax")


# A Python scalar among the params: the update is as wide as the param's own dtype.
@example(
    fz.Drifting((), (("keep",),), (("keep",),)),
    fz.Leaf("float32", (), "python"),
    ("bfloat16",),
    PLAIN,
)
@fuzz(80, 2500)
@given(fz.DRIFTING, fz.PARAMS, fz.GRAD_DTYPES, st.fixed_dictionaries(FLAGS))
def test_any_drift_of_any_tree(drifting, params, dtypes, flags):
    check_guard(drifting.make, params, fz.like(params, dtypes), **flags)


# What a leaf of a state became without a word: nothing, so that those behind it were
# paired with others; a number for a key; a key for a text.
@example(fz.Drifting([KEY, VECTOR], (("none",), ("keep",)), (("keep",),)), PLAIN)
@example(
    fz.Drifting([VECTOR, VECTOR], (("none",), ("cast", "float32")), (("keep",),)), PLAIN
)
@example(fz.Drifting(KEY, (("python",),), (("keep",),)), PLAIN)
@example(fz.Drifting(fz.Node("text", "one"), (("key",),), (("keep",),)), PLAIN)
@fuzz(60, 1500)
@given(fz.DRIFTING_STATES, st.fixed_dictionaries(FLAGS))
def test_any_drift_of_any_state(drifting, flags):
    check_guard(drifting.make, W, W, **flags)


@fuzz(60, 600)
@example(  # a NumPy float64 among the params, which eval_shape takes for an array
    fz.Drifting(fz.Leaf("int64", (), "jax"), (("keep",),), (("keep",),)),
    fz.Leaf("float64", (), "scalar"),
    ["float32"],
    True,
)
@given(
    fz.DRIFTING, fz.PARAMS, st.lists(st.sampled_from(fz.DTYPES), min_size=1), st.booleans()
)
def test_any_state_is_restored_or_refused(drifting, params, dtypes, x64):
    """What comes back has the record's types and the values that were there."""
    with flags(x64):
        params = fz.build(params)
        recorded = record(drifting.make(), params)
        state = guard(drifting.make()).init(params)
        assert_stable(recorded, state)
        leaves, treedef = tree_util.tree_flatten(state)
        loaded = [
            np.asarray(_as(leaf, dtypes[i % len(dtypes)])) if is_array(leaf) else leaf
            for i, leaf in enumerate(leaves)
        ]
        loaded = tree_util.tree_unflatten(treedef, loaded)
        restored, error = tried(restore, loaded, recorded)
        if error is not None:
            assert isinstance(error, DtypeDriftError), error
            rows = str(error).splitlines()[1:]
            assert rows, error
            for row in rows:
                path = row.strip().removeprefix("state").split("  ")[0]
                assert path in by_path(state), row
                assert "cannot hold" in row, row
            return
        assert_stable(state, restored)
        for path, leaf in by_path(loaded).items():
            if is_array(leaf):  # small numbers: every dtype holds those that were held
                held = by_path(restored)[path]
                np.testing.assert_array_equal(_wide(leaf), _wide(held), path)


def _as(leaf, name):
    target = np.dtype(name)
    leaf = np.asarray(leaf)
    is_complex = jnp.issubdtype(leaf.dtype, np.complexfloating)
    if is_complex and not jnp.issubdtype(target, np.complexfloating):
        leaf = leaf.real
    if jnp.issubdtype(leaf.dtype, np.integer) and jnp.iinfo(leaf.dtype).bits < 8:
        leaf = leaf.astype(np.int8)  # NumPy has no cast between two of so few bits
    return leaf.astype(target)


def _wide(leaf):
    return np.asarray(leaf).astype(np.complex128)


def test_the_fuzz_sees_a_restore_that_loses_values():
    """A guard of the test above: 2 does not go into a bool, and the error says so."""
    _, error = tried(restore, {"a": np.int32(2)}, {"a": jnp.zeros((), bool)})
    assert "state['a']" in str(error)
    assert "bool cannot hold 2" in str(error)


@fuzz(40, 600)
@given(
    fz.trees(st.one_of(fz.leaves(), fz.STATIC)),
    st.lists(st.sampled_from((None, *fz.DTYPES)), min_size=1),
    st.booleans(),
    st.booleans(),
)
def test_any_updates_are_added_or_refused(params, dtypes, x64, with_key):
    """The params keep their types; within a kind the sum is the sum."""
    with flags(x64):
        params = fz.build(params)
        flat, treedef = tree_util.tree_flatten(params)
        updates = []
        for i, p in enumerate(flat):
            name = dtypes[i % len(dtypes)]
            update = None if name is None or not is_array(p) else fz.values(np.shape(p))
            updates.append(update if update is None else update.astype(np.dtype(name)))
        given = tree_util.tree_unflatten(treedef, updates)
        key = jax.random.key(0) if with_key else None
        moved, error = tried(lambda: apply_updates(params, given, key=key))
        complex_ones = {
            tree_util.keystr(path)
            for (path, p), u in zip(tree_util.tree_flatten_with_path(params)[0], updates)
            if u is not None and family(u) == "complex" != family(p)
        }
        if error is not None or complex_ones:
            assert isinstance(error, TypeError), error
            rows = str(error).splitlines()[1:]
            named = {row.strip().removeprefix("updates").split("  ")[0] for row in rows}
            assert named == complex_ones, error
            return
        for p, u, new in zip(flat, updates, treedef.flatten_up_to(moved)):
            if u is None:
                assert new is p
                continue
            assert np.shape(new) == np.shape(p)
            assert new.dtype == dtype(p)
            if family(p) == family(u) == "float":
                total = np.asarray(p, np.float64) + np.asarray(u, np.float64)
                np.testing.assert_allclose(np.asarray(new, np.float64), total, rtol=0.26)
