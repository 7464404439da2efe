"""Hostile input: the contract holds, or an error that names the path; nothing else.

A short profile of fixed seeds runs with the suite. The long one, of at least 5,000
examples and new ones every time: `DTYPEGUARD_FUZZ=long pytest tests/test_fuzz.py`.
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
from hypothesis import HealthCheck, given, settings, strategies as st
from jax import lax, tree_util

from dtypeguard import DtypeDriftError, DtypeGuardWarning, guard

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
    """The x64 flag, and a list that collects the warnings."""
    with set_x64(x64), warnings.catch_warnings(record=True) as caught:
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
    return {
        path
        for (path, old), new in pairs
        if family(old) != family(new) or np.shape(old) != np.shape(new)
    }


def assert_stable(before, after):
    """Every leaf has the dtype and shape that it had, and is strongly typed."""
    assert tree_util.tree_structure(before) == tree_util.tree_structure(after)
    for (path, old), new in zip(by_path(before).items(), tree_util.tree_leaves(after)):
        if family(old) == "static":
            assert family(new) == "static", path
            continue
        assert isinstance(new, (jax.Array, jax.ShapeDtypeStruct)), f"{path}: {type(new)}"
        # A Python scalar has the width of its surroundings.
        held = new.dtype if isinstance(old, (float, int, complex)) else dtype(old)
        assert (new.dtype, new.shape) == (held, np.shape(old)), path
        assert family(new) == family(old), path
        assert not getattr(new, "weak_type", False), path


def assert_updates_fit(updates, grads, params):
    """The updates have the dtypes of their params, or without params of the gradients."""
    asked = by_path(grads) | {
        path: leaf for path, leaf in by_path(params).items() if is_array(leaf)
    }
    for path, update in by_path(updates).items():
        if isinstance(asked[path], (float, int, complex)):  # as wide as its surroundings
            continue
        if is_array(update) and is_array(asked[path]):
            assert dtype(update) == dtype(asked[path]), path


def assert_carries(update, state):
    """The state is the carry of a scan."""
    arrays, static = eqx.partition(state, eqx.is_array)

    def step(arrays, _):
        new_state = update(eqx.combine(arrays, static))
        return eqx.filter(new_state, eqx.is_array), None

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
            (new_updates, new_state), bare_error = tried(once, bare, state)
            found = {
                "state": changed_kinds(state, new_state),
                "updates": changed_kinds(params if with_params else grads, new_updates),
            }
            assert_named(error, found)
            return "refused"
        if error is not None:
            assert same_error(error, bare_error), (error, bare_error)
            return "update error"
        if bare_error is not None:
            told = any(issubclass(w.category, DtypeGuardWarning) for w in caught)
            assert told or x64, f"{bare_error!r} was hidden"
        new_updates, new_state = result
        assert_stable(state, new_state)
        assert_updates_fit(new_updates, grads, given_params)
        assert_carries(lambda s: guarded.update(grads, s, given_params)[1], state)
        if tree_util.tree_structure(bare_state) == tree_util.tree_structure(state):
            foreign, error = tried(once, guarded, bare_state)
            if error is None:
                assert_stable(bare_state, foreign[1])
        was_stable = bare_error is None and _is_stable(
            bare_state, bare_result, grads, given_params
        )
        if bits and was_stable and not (traced or x64):
            assert_same(_arrays(bare_result), _arrays(result))
            return "same bits"
        return "rescued" if bare_error is not None else "held"


def _is_stable(state, result, grads, params):
    try:
        strong = all(
            isinstance(leaf, jax.Array) and not getattr(leaf, "weak_type", False)
            for leaf in tree_util.tree_leaves((state, result))
        )
        assert strong
        assert_stable(state, result[1])
        assert_updates_fit(result[0], grads, params)
        return True
    except AssertionError:
        return False


def _arrays(tree):
    return tree_util.tree_map(jnp.asarray, eqx.filter(tree, eqx.is_array))


FLAGS = {"x64": st.booleans(), "traced": st.booleans(), "with_params": st.booleans()}


@fuzz(150, 2500)
@given(fz.DRIFTING, fz.PARAMS, fz.GRAD_DTYPES, st.fixed_dictionaries(FLAGS))
def test_any_drift_of_any_tree(drifting, params, dtypes, flags):
    check_guard(drifting.make, params, fz.like(params, dtypes), **flags)


@fuzz(100, 1500)
@given(fz.DRIFTING_STATES, st.fixed_dictionaries(FLAGS))
def test_any_drift_of_any_state(drifting, flags):
    params = {"w": fz.Leaf("float32", (3,), "jax")}
    check_guard(drifting.make, params, params, **flags)


@fuzz(40, 1500)
@given(fz.CHAINS, fz.FLOATING_PARAMS, fz.GRAD_DTYPES, st.fixed_dictionaries(FLAGS))
def test_any_chain(names, params, dtypes, flags):
    check_guard(lambda: fz.chain(names), params, fz.like(params, dtypes), **flags)


@fuzz(20, 500)
@given(fz.CHAINS, fz.PARAMS, fz.GRAD_DTYPES, st.fixed_dictionaries(FLAGS))
def test_any_chain_on_hostile_params(names, params, dtypes, flags):
    check_guard(lambda: fz.chain(names), params, fz.like(params, dtypes), **flags)
