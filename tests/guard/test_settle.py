"""Nothing is lost silently: which drifts are cast, told or refused, and the advice."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import tree_util

from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard, guard_step
from tests.support.dtypes import BF16, C64, F32, I32
from tests.support.helpers import need, types
from tests.support.one_leaf import (
    NARROW,
    PARAMS,
    dict_leaf,
    one_update,
    transformation,
    widen,
)

ONE, KEY = jnp.ones((), F32), jax.random.key(0)
LOUD = Policy(on_drift="error")


def returning(new_state=None, updates=None):
    """An optimizer that returns these, whatever it is given."""
    keep = lambda new, old: old if new is None else new
    return transformation(lambda u, s, p=None: (keep(updates, u), keep(new_state, s)))


# Kinds: a leaf, what comes back, the types and the remedy that are told.
REFUSED = {
    "float_into_int": (I32(0), F32(0.5), "jnp.round(x).astype(jnp.int32)"),
    "complex_into_real": (
        jnp.zeros(2),
        jnp.zeros(2, C64),
        "jnp.real(x).astype(jnp.float32)",
    ),
    "real_into_complex": (C64(0), ONE, "x.astype(jnp.complex64)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_casts_stay_within_a_kind(case):
    first, new, remedy = REFUSED[case]
    of = lambda leaf: f"{leaf.dtype}[{2 if leaf.shape else ''}]"
    opt = dict_leaf(lambda params: first, lambda leaf, grads: new)
    with pytest.raises(
        DtypeDriftError,
        match=re.escape(f"state['leaf']  {of(first)} -> {of(new)}  return {remedy}"),
    ) as error:
        one_update(guard(opt))
    assert isinstance(error.value, TypeError)
    assert 'Policy(casting="unsafe")' in str(error.value)
    mended = eval(remedy, {"x": new, "jnp": jnp})
    one_update(guard(dict_leaf(lambda params: first, lambda leaf, grads: mended)))
    state, _, new_state = one_update(guard(opt, policy=Policy(casting="unsafe")))
    assert types(state) == types(new_state)


@pytest.mark.third_party
def test_every_offending_leaf_is_named_and_only_those():
    def update(updates, state, params=None):
        new = {"count": jnp.ones((), F32), "mu": jnp.ones(4), "ok": state["ok"].astype(F32)}
        return tree_util.tree_map(lambda u: u * 1j, updates), new

    state = {"count": I32(0), "mu": jnp.zeros(3), "ok": jnp.zeros(3, BF16)}
    opt = guard(transformation(update))
    with pytest.raises(DtypeDriftError, match="3 leaves that cannot be") as error:
        jax.eval_shape(opt.update, PARAMS, state, PARAMS)
    rows = error.value.rows
    assert [row.path for row in rows] == ["state['count']", "state['mu']", "updates['w']"]
    assert "['mu']     float32[3] -> float32[4]    return it in" in str(error.value)


def test_many_offending_leaves_share_a_line_by_types_and_pattern():
    def body(carry, _):
        widen = lambda x: x.astype(C64) if x.dtype == BF16 else x.astype(F32)
        return tree_util.tree_map(widen, carry), None

    layers = {f"w{n}": np.ones(n + 1, BF16) for n in range(40)}
    carry = {"mu": [layers, layers], "count": I32(0)}
    with pytest.raises(DtypeDriftError) as error:
        jax.lax.scan(guard_step(body), carry, None, 3)
    head, row, count, *_ = str(error.value).splitlines()
    assert head == "body returned 81 leaves that cannot be brought back:"
    assert re.match(r"  carry\['count'\] +int32\[\] +-> float32\[\] ", row)
    assert re.match(
        r"  80 leaves carry\['\*'\]\[\*\]\['\*'\]  bfloat16 +-> complex64  ", count
    )
    assert len({row.path for row in error.value.rows}) == 81
    assert error.value.rows[-1].before == "bfloat16[10]"


# Trees, shapes and leaves that no cast brings back ----------------------------------------

FLOAT_AND_INT = {"a": ONE, "b": I32(0)}
# A state, what comes back for it, and the line that names the leaf.
CHANGED_TREES = {
    "a new leaf": ({"a": ONE}, FLOAT_AND_INT, "state['b']  (absent) -> int32[]"),
    "a leaf less": (FLOAT_AND_INT, {"a": ONE}, "state['b']  int32[] -> (absent)"),
    "another node": ((ONE, ONE), [ONE, ONE], "state  PyTreeDef((*, *)) -> PyTreeDef([*"),
    # Each once passed for an empty node: leaves behind it were paired with those before.
    "None": (FLOAT_AND_INT, FLOAT_AND_INT | {"a": None}, "['a']  float32[] -> (absent)"),
}


@pytest.mark.parametrize("case", CHANGED_TREES)
def test_a_changed_tree_is_an_error(case):
    before, after, line = CHANGED_TREES[case]
    grads = {"w": None} if case == "a new leaf" else PARAMS
    with pytest.raises(DtypeDriftError, match=re.escape(line)) as error:
        guard(returning(after)).update(grads, before, PARAMS)
    assert "changed the tree of its state" in str(error.value)
    assert "return the tree that came in" in str(error.value)


CHANGED_LEAVES = {
    "a shape": (I32(0), jnp.zeros(4), "int32[] -> float32[4]  return it in shape ()"),
    "a string": (I32(0), "text", "int32[] -> str  return an array of jnp.int32"),
    "key to number": (KEY, ONE, "return it as it came in"),
    "another key": (KEY, jax.random.key(0, impl="rbg"), "return it as it came in"),
    "keys": (KEY, jax.random.split(KEY), "return it as it came in"),
    "string to number": ("text", 1.5, "return it as it came in"),
}


@pytest.mark.parametrize("case", CHANGED_LEAVES)
def test_a_leaf_that_no_cast_brings_back(case):
    before, after, line = CHANGED_LEAVES[case]
    for policy in (Policy(), Policy(casting="unsafe")):
        with pytest.raises(DtypeDriftError, match=re.escape(line)) as error:
            guard(returning((after,)), policy=policy).update(PARAMS, (before,), PARAMS)
        assert "unsafe" not in str(error.value)


WRONG_UPDATES = {
    "of no param": (PARAMS, PARAMS | {"new": ONE}, "updates['new']  (absent) -> float32[]"),
    "grown": (PARAMS, {"w": jnp.ones((2, 3))}, "return it in shape (3,)"),
    "of another gradient's shape": (
        PARAMS | {"b": jnp.ones((5, 3))},
        dict.fromkeys("wb", jnp.ones((5, 3))),
        "updates['w']  float32[3] -> float32[5,3]  return it in shape (3,)",
    ),
    "of integers": ({"n": jnp.ones(2, I32)}, {"n": jnp.ones(2)}, "return jnp.round(x)"),
}


@pytest.mark.parametrize("case", WRONG_UPDATES)
def test_updates_that_fit_no_param_are_an_error(case):
    params, updates, line = WRONG_UPDATES[case]
    with pytest.raises(DtypeDriftError, match=re.escape(line)):
        guard(returning(updates=updates)).update(params, (), params)
    scalar = guard(returning(updates={"w": ONE}))  # which broadcasts
    assert scalar.update(PARAMS, (), PARAMS)[0]["w"].shape == ()


@pytest.mark.parametrize("empty", [(), None, {}])
def test_any_empty_state_goes_for_another(empty):
    updates, state = guard(widen()).update(NARROW, empty)
    assert updates["w"].dtype == BF16
    assert type(state) is type(empty)  # a scan takes no EmptyState for a ()
    inside = guard(returning((optax.EmptyState(), ONE)))
    assert type(inside.update(PARAMS, (empty, ONE))[1][0]) is type(empty)


def test_an_empty_frozen_dict_goes_for_a_dict():
    step = lambda state: {"w": state["w"].astype(F32), "batch_stats": {}}
    empty = need("flax.core").FrozenDict()
    state = NARROW | {"batch_stats": empty}
    assert type(guard_step(step)(state)["batch_stats"]) is type(empty)


@tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Phase:
    n: int


@pytest.mark.parametrize("around", [lambda x: x, lambda x: {"a": [None, x]}])
def test_static_data_without_leaves_is_not_lost(around):
    """Bare, the program goes on with the new data. The guard's would be the old."""
    before, after = ((around(Phase(n)), None, jnp.zeros(3, BF16)) for n in (0, 4))
    headline = r"changed the tree of its (state|carry)(.|\n)*Phase\(n=0\).*-> .*Phase\(n=4"
    with pytest.raises(DtypeDriftError, match=headline):
        guard_step(lambda carry: after)(before)
    with pytest.raises(DtypeDriftError, match=headline):
        guard(returning(after)).update(PARAMS, before)
    # Beside it, containers without data go for one another.
    swapped = returning((before[0], optax.MaskedNode(), jnp.zeros(3)))
    assert types(guard(swapped).update(PARAMS, before)[1]) == types(before)


# on_drift, and weak types ---------------------------------------------------------------


@pytest.mark.third_party
def test_on_drift_names_each_leaf_once():
    opt = guard(optax.trace(0.9), policy=Policy(on_drift="warn"))
    state = opt.init(NARROW)
    with pytest.warns(DtypeGuardWarning) as caught:
        jax.jit(opt.update)(PARAMS, state, NARROW)
        opt.update(PARAMS, state, NARROW)
    (warning,) = caught
    assert warning.filename == __file__
    loud = guard(optax.trace(0.9), policy=LOUD)
    with pytest.raises(DtypeDriftError, match="changed the dtype of 2 leaves"):
        loud.update(PARAMS, state, NARROW)
    loud.update(NARROW, state, NARROW)


def test_a_weak_leaf_is_a_drift_unless_it_came_in_weak():
    opt = guard(returning(jnp.asarray(1.0)), policy=LOUD)
    with pytest.raises(DtypeDriftError, match=re.escape("float32[] -> float32[],weak")):
        opt.update(PARAMS, jnp.ones((), F32))
    for before in (jnp.asarray(1.0), 1.0):
        assert not opt.update(PARAMS, before)[1].weak_type
    half = returning(updates={"w": jnp.full(3, 0.5)})  # of updates it is none
    updates, _ = guard(half, policy=LOUD).update(PARAMS, (), PARAMS)
    assert types(updates) == types(PARAMS) != types(half.update(PARAMS, ())[0])


@pytest.mark.third_party
def test_a_bool_that_counts_is_told():
    opt = guard(transformation(lambda u, s, p=None: (u, s + 1)), policy=LOUD)
    with pytest.raises(DtypeDriftError, match=r"bool.* -> int32.* but 0 becomes True"):
        opt.update(PARAMS, jnp.asarray(False))
    assert opt.update(PARAMS, opt.update(PARAMS, I32(0))[1])[1] == 2
    # A flag to branch on promotes nothing.
    assert guard(transformation()).update(PARAMS, True)[1] is True
