"""Nothing is lost silently: which drifts are cast, told or refused, and the advice."""

import dataclasses
import pickle
import re
import warnings

import jax
import jax.numpy as jnp
import optax
import pytest
from helpers import types
from jax import tree_util
from one_leaf import dict_leaf, one_update, transformation, widen

from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard, guard_step
from dtypeguard._leaves.rows import paths

BF16, F16, F32, I32 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32
PARAMS = {"w": jnp.ones(3, F32)}


REFUSED = {
    "float into an int counter": (
        lambda _: jnp.zeros((), I32),
        lambda leaf, _: jnp.asarray(0.5, F32),
        "state['leaf']  int32[] -> float32[]  return jnp.round(x).astype(jnp.int32)",
        lambda x: jnp.round(x).astype(jnp.int32),
    ),
    "complex into real": (
        lambda _: jnp.zeros(2, F32),
        lambda leaf, _: jnp.zeros(2, jnp.complex64),
        "state['leaf']  float32[2] -> complex64[2]  return jnp.real(x).astype(jnp.float32)",
        lambda x: jnp.real(x).astype(jnp.float32),
    ),
    "int into float": (
        lambda _: jnp.zeros((), F32),
        lambda leaf, _: jnp.asarray(1, I32),
        "state['leaf']  float32[] -> int32[]  return x.astype(jnp.float32)",
        lambda x: x.astype(F32),
    ),
    "real into complex": (
        lambda _: jnp.zeros((), jnp.complex64),
        lambda leaf, _: jnp.asarray(1, F32),
        "state['leaf']  complex64[] -> float32[]  return x.astype(jnp.complex64)",
        lambda x: x.astype(jnp.complex64),
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=lambda name: name.replace(" ", "_"))
def test_casts_stay_within_a_kind(case):
    init, update, line, remedy = REFUSED[case]
    with pytest.raises(DtypeDriftError, match=re.escape(line)) as error:
        one_update(guard(dict_leaf(init, update)))
    assert isinstance(error.value, TypeError)
    assert 'Policy(casting="unsafe")' in str(error.value)
    one_update(guard(dict_leaf(init, lambda leaf, grads: remedy(update(leaf, grads)))))
    unsafe = guard(dict_leaf(init, update), policy=Policy(casting="unsafe"))
    state, _, new_state = one_update(unsafe)
    assert types(state) == types(new_state)


def test_every_offending_leaf_is_named_and_only_those():
    def update(updates, state, params=None):
        new = {"count": jnp.ones((), F32), "mu": jnp.ones(4), "ok": state["ok"].astype(F32)}
        return tree_util.tree_map(lambda u: u * 1j, updates), new

    init = lambda params: {
        "count": jnp.zeros((), I32), "mu": jnp.zeros(3), "ok": jnp.zeros(3, BF16)
    }  # fmt: skip
    opt = guard(transformation(update, init))
    with jax.numpy_dtype_promotion("standard"), pytest.raises(DtypeDriftError) as error:
        jax.eval_shape(lambda p: opt.update(p, opt.init(p), p), {"w": jnp.ones(3)})
    lines = str(error.value).splitlines()
    assert lines[0] == "update returned 3 leaves that cannot be brought back:"
    assert [line.split()[0] for line in lines[1:4]] == [
        "state['count']", "state['mu']", "updates['w']"
    ]  # fmt: skip
    assert re.fullmatch(
        r" *state\['mu'\] +float32\[3\] -> float32\[4\] +return .*\(3,\)", lines[2]
    )
    assert len(lines) == 6
    assert lines[5] == "More on this: dtypeguard docs guard-an-optimizer"


def test_many_offending_leaves_share_a_line_by_types_and_pattern():
    def body(carry, _):
        widen = lambda x: x.astype(jnp.complex64) if x.dtype == BF16 else x.astype(F32)
        return tree_util.tree_map(widen, carry), None

    layers = {f"w{n}": jnp.ones(n + 1, BF16) for n in range(40)}
    carry = {"mu": [layers, layers], "count": I32(0)}
    with pytest.raises(DtypeDriftError) as error:
        jax.lax.scan(guard_step(body), carry, None, 3)
    head, row, count, *_ = str(error.value).splitlines()
    assert head == "body returned 81 leaves that cannot be brought back:"
    assert re.match(r"  carry\['count'\] +int32\[\] +-> float32\[\] ", row)
    assert re.match(
        r"  80 leaves carry\['\*'\]\[\*\]\['\*'\]  bfloat16 +-> complex64  ", count
    )
    rows = error.value.rows
    assert [each.path for each in rows] == [f"carry{path}" for path in paths(carry)]
    assert rows[-1].before == "bfloat16[10]"
    assert pickle.loads(pickle.dumps(error.value)).rows == rows


ONE, KEY = jnp.ones((), F32), jax.random.key(0)
FLOAT_AND_INT = {"a": ONE, "b": I32(0)}
# A state, what comes back for it, and the line that names the leaf.
CHANGED_TREES = {
    "a new leaf": ({"a": ONE}, FLOAT_AND_INT, "state['b']  (absent) -> int32[]"),
    "a leaf less": (FLOAT_AND_INT, {"a": ONE}, "state['b']  int32[] -> (absent)"),
    "a leaf of nothing": ((), {"a": ONE}, "state['a']  (absent) -> float32[]"),
    "another node": ((ONE, ONE), [ONE, ONE], "state  PyTreeDef((*, *)) -> PyTreeDef([*"),
    # Each once passed for an empty node: leaves behind it were paired with those before.
    "None": (FLOAT_AND_INT, FLOAT_AND_INT | {"a": None}, "['a']  float32[] -> (absent)"),
    "a tuple": (FLOAT_AND_INT, FLOAT_AND_INT | {"a": ()}, "['a']  float32[] -> (absent)"),
    "a dict": (FLOAT_AND_INT, FLOAT_AND_INT | {"a": {}}, "['a']  float32[] -> (absent)"),
}


@pytest.mark.parametrize("case", CHANGED_TREES.values(), ids=CHANGED_TREES)
def test_a_changed_tree_is_an_error(case):
    before, after, line = case
    opt = guard(transformation(lambda u, s, p=None: (u, after)))
    with pytest.raises(DtypeDriftError, match=re.escape(line)) as error:
        opt.update(PARAMS, before, PARAMS)
    assert "changed the tree of its state" in str(error.value)
    assert "return the tree that came in" in str(error.value)


def test_another_tree_beside_a_none_gradient_is_named():
    grows = transformation(lambda u, s, p=None: (u, {**s, "b": s["a"]}))
    with pytest.raises(DtypeDriftError, match=r"state\['b'\]  \(absent\) -> int32"):
        guard(grows).update({"w": None}, {"a": I32(0)}, PARAMS)


CHANGED_LEAVES = {
    "a shape": (I32(0), jnp.zeros(4), "int32[] -> float32[4]  return it in shape ()"),
    "a string": (I32(0), "text", "int32[] -> str  return an array of jnp.int32"),
    "key to number": (KEY, ONE, "return it as it came in"),
    "key to Python number": (KEY, 1.5, "return it as it came in"),
    "another key": (KEY, jax.random.key(0, impl="rbg"), "return it as it came in"),
    "keys": (KEY, jax.random.split(KEY), "return it as it came in"),
    "key to string": (KEY, "text", "return it as it came in"),
    "string to number": ("text", 1.5, "return it as it came in"),
    "string to key": ("text", KEY, "return it as it came in"),
}


@pytest.mark.parametrize("policy", [Policy(), Policy(casting="unsafe")], ids=str)
@pytest.mark.parametrize("case", CHANGED_LEAVES.values(), ids=CHANGED_LEAVES)
def test_a_leaf_that_no_cast_brings_back(case, policy):
    before, after, line = case
    opt = guard(transformation(lambda u, s, p=None: (u, (after,))), policy=policy)
    with pytest.raises(DtypeDriftError, match=re.escape(line)) as error:
        opt.update(PARAMS, (before,), PARAMS)
    assert "state[0]  " in str(error.value)
    assert "unsafe" not in str(error.value)


WRONG_UPDATES = {
    "of no param": (PARAMS, PARAMS | {"new": ONE}, "updates['new']  (absent) -> float32[]"),
    "grown": (PARAMS, {"w": jnp.ones((2, 3))}, "return it in shape (3,)"),
    "of another gradient's shape": (
        PARAMS | {"b": jnp.ones((5, 3))},
        {"w": jnp.ones((5, 3)), "b": jnp.ones((5, 3))},
        "updates['w']  float32[3] -> float32[5,3]  return it in shape (3,)",
    ),
    "of integers": (
        {"n": jnp.ones(2, I32)},
        {"n": jnp.ones(2)},
        "eqx.filter(params, eqx.is",
    ),
}


@pytest.mark.parametrize("case", WRONG_UPDATES.values(), ids=WRONG_UPDATES)
def test_updates_that_fit_no_param_are_an_error(case):
    params, updates, line = case
    opt = guard(transformation(lambda u, s, p=None: (updates, s)))
    with pytest.raises(DtypeDriftError, match=re.escape(line)):
        opt.update(params, (), params)


def test_updates_may_broadcast():
    scalar = transformation(lambda u, s, p=None: ({"w": ONE}, s))
    assert guard(scalar).update(PARAMS, (), PARAMS)[0]["w"].shape == ()


@pytest.mark.parametrize("empty", [(), None, {}])
def test_any_empty_state_goes_for_another(empty):
    updates, state = guard(widen()).update({"w": jnp.ones(3, BF16)}, empty)
    assert updates["w"].dtype == BF16
    assert state == empty
    assert type(state) is type(empty)  # a scan takes no EmptyState for a ()
    inside = transformation(lambda u, s, p=None: (u, (optax.EmptyState(), s[1])))
    _, state = guard(inside).update(PARAMS, (empty, ONE))
    assert type(state[0]) is type(empty)


@tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Phase:
    n: int


@pytest.mark.parametrize(
    "around",
    [lambda x: x, lambda x: (x, ()), lambda x: {"a": [None, x]}],
    ids=["alone", "in a tuple", "in a dict"],
)
def test_static_data_without_leaves_is_not_lost(around):
    """Bare, the program goes on with the new data. The guard's would be the old."""
    stay = lambda state, _: ((around(Phase(0)), state[1].astype(F32) + 1), None)
    change = lambda state, _: ((around(Phase(4)), state[1] + 1), None)
    state = around(Phase(0)), jnp.zeros(3, BF16)
    (same, _), _ = guard_step(stay)(state, None)
    assert same == around(Phase(0))
    assert change(state, None)[0][0] == around(Phase(4))
    headline = (
        r"changed the tree of its (state|carry)(.|\n)*Phase\(n=0\).* -> .*Phase\(n=4\)"
    )
    with pytest.raises(DtypeDriftError, match=headline):
        guard_step(change)(state, None)
    opt = transformation(lambda u, s, p=None: (u, change(s, None)[0]))
    with pytest.raises(DtypeDriftError, match=headline):
        guard(opt).update(PARAMS, state)
    # Beside it, containers without data go for one another.
    swap = transformation(lambda u, s, p=None: (u, (optax.MaskedNode(), *s[1:])))
    state = None, around(Phase(0)), jnp.zeros(3, BF16)
    _, new_state = guard(swap).update(PARAMS, state)
    assert new_state[:2] == state[:2]


def test_what_is_no_array_passes_through():
    key = jax.random.key(0)
    others = {"key": key, "f": abs, "s": "text", "none": None, "masked": optax.MaskedNode()}
    opt = guard(optax.GradientTransformation(lambda p: others, lambda u, s, p=None: (u, s)))
    state, _, new_state = one_update(opt)
    assert state["f"] is abs
    assert state["s"] == "text"
    assert tree_util.tree_structure(new_state) == tree_util.tree_structure(others)
    assert (
        jax.random.key_data(new_state["key"]).tolist() == jax.random.key_data(key).tolist()
    )


@pytest.mark.third_party
def test_on_drift_names_each_leaf_once():
    params, grads = {"w": jnp.ones(3, BF16)}, {"w": jnp.ones(3, F32)}
    opt = guard(optax.trace(0.9), policy=Policy(on_drift="warn"))
    state = opt.init(params)
    with pytest.warns(DtypeGuardWarning) as caught:
        jax.jit(opt.update)(grads, state, params)
        opt.update(grads, state, params)
    (warning,) = caught
    assert warning.filename == __file__
    _, *rows, rounds = str(warning.message).splitlines()
    assert [row.split()[0] for row in rows] == ["state.trace['w']", "updates['w']"]
    assert rounds.startswith("A cast to bfloat16 rounds: dtypeguard.audit_precision ")
    loud = guard(optax.trace(0.9), policy=Policy(on_drift="error"))
    with pytest.raises(DtypeDriftError, match="changed the dtype of 2 leaves"):
        loud.update(grads, state, params)
    quiet = tree_util.tree_map(lambda g: g.astype(BF16), grads)
    loud.update(quiet, state, params)
    assert types(loud.update(quiet, state, params)[1]) == types(state)


def test_what_has_another_librarys_dtype_passes():
    class Foreign:
        dtype, shape = "no such dtype", ()

    foreign = Foreign()
    opt = guard(transformation(init=lambda params: {"x": foreign}))
    assert opt.update(PARAMS, opt.init(PARAMS))[1]["x"] is foreign


def test_a_weak_leaf_is_a_drift_unless_it_came_in_weak():
    weak = lambda updates, state, params=None: (updates, jnp.asarray(1.0))
    opt = guard(transformation(weak), policy=Policy(on_drift="error"))
    with pytest.raises(DtypeDriftError, match=re.escape("float32[] -> float32[],weak")):
        opt.update(PARAMS, jnp.ones((), F32))
    for before in (jnp.asarray(1.0), 1.0):
        assert not opt.update(PARAMS, before)[1].weak_type


def test_weak_updates_are_made_strong_and_are_no_drift():
    half = transformation(lambda u, s, p=None: ({"w": jnp.full(3, 0.5)}, s))
    updates, _ = guard(half, policy=Policy(on_drift="error")).update(PARAMS, (), PARAMS)
    assert types(updates) == types(PARAMS)
    assert types(half.update(PARAMS, ())[0]) != types(PARAMS)


@pytest.mark.third_party
def test_said_once_by_a_factory_that_is_called_in_every_update():
    loud = guard(optax.trace, policy=Policy(on_drift="warn"))
    opt = optax.inject_hyperparams(loud)(decay=0.9)
    params, grads = {"w": jnp.ones(3, BF16)}, {"w": jnp.ones(3, F32)}
    state = opt.init(params)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            _, state = opt.update(grads, state, params)
    assert [w.category for w in caught] == [DtypeGuardWarning]


def test_a_warning_made_an_error_is_said_again():
    opt = guard(
        transformation(
            lambda u, s, p=None: (u, s.astype(F32)), lambda p: jnp.zeros((), BF16)
        ),
        policy=Policy(on_drift="warn"),
    )
    for _ in range(2):
        with pytest.raises(DtypeGuardWarning, match="1 leaf"):
            opt.update(PARAMS, opt.init(PARAMS))


@tree_util.register_pytree_with_keys_class
class Twins:
    """A node that gives both its children the same key."""

    def __init__(self, *children):
        self.children = children

    def tree_flatten_with_keys(self):
        return [(tree_util.GetAttrKey("x"), child) for child in self.children], None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_leaves_of_one_path_are_told_apart():
    widen = lambda u, s, p=None: (u, tree_util.tree_map(lambda x: x.astype(F32), s))
    opt = guard(transformation(widen), policy=Policy(on_drift="error"))
    with pytest.raises(DtypeDriftError, match="2 leaves"):
        opt.update(PARAMS, Twins(jnp.ones(2, BF16), jnp.ones(3, BF16)))


def test_a_bool_that_counts_is_told():
    count = transformation(
        lambda u, s, p=None: (u, s + 1), lambda params: jnp.asarray(False)
    )
    with jax.numpy_dtype_promotion("standard"):
        opt = guard(count, policy=Policy(on_drift="warn"))
        with pytest.warns(DtypeGuardWarning) as said:
            _, state = opt.update(PARAMS, opt.init(PARAMS))
        assert bool(state)
        opt = guard(count, policy=Policy(on_drift="error"))
        with pytest.raises(
            DtypeDriftError, match=r"bool.* -> int32.* holds no count"
        ) as error:
            opt.update(PARAMS, opt.init(PARAMS))
    line = next(line for line in str(said[0].message).splitlines() if "state" in line)
    assert line in str(error.value)
    assert "start from an int if it counts" in line
    # The remedy: it counts.
    ints = transformation(lambda u, s, p=None: (u, s + 1), lambda p: jnp.asarray(0, I32))
    opt = guard(ints, policy=Policy(on_drift="error"))
    _, state = opt.update(PARAMS, opt.init(PARAMS))
    assert opt.update(PARAMS, state)[1] == 2


@pytest.mark.parametrize("flag", [True, False])
def test_a_python_flag_stays_one_to_branch_on(flag):
    _, state = guard(transformation()).update(PARAMS, {"is_first": flag}, PARAMS)
    assert state["is_first"] is flag
