"""guard_step and strong: any step gives back the types of what it carries."""

import copy
import functools
import inspect
import pickle
import re
import unittest.mock
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, tree_util

from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard_step, strong
from tests.support.dtypes import BF16, F32, F64, I32
from tests.support.helpers import (
    assert_same,
    needs_explicit_x64,
    needs_x64_scope,
    set_explicit_x64,
    set_x64,
    types,
)
from tests.support.hlo import optimized_hlo

pytestmark = pytest.mark.third_party  # steps rely on standard promotion, as users' do
ONE, WIDE, NARROW = jnp.ones((), F32), jnp.ones(2, F32), jnp.ones(2, BF16)


class Moments(NamedTuple):
    mean: Any
    count: Any


def drifting(state, x=1.0):
    """A running mean in bfloat16 that comes back in float32, and its count."""
    mean = state["mean"] + 0.1 * jnp.asarray(x, F32)
    return {"mean": mean, "count": state["count"] + 1}, mean


def first():
    return {"mean": jnp.zeros(3, BF16), "count": jnp.zeros((), I32)}


def assert_kept(before, after):
    assert types(before) == types(after)


# What a bare step changes and a guarded one does not.
DRIFTS = {
    "average": (lambda c: 0.9 * c + c.astype(F32), NARROW),
    "weak": (lambda c: jnp.asarray(1.0), ONE),
    "a number": (lambda c: c * 2, 1.5),
    "numpy": (lambda c: c * ONE, np.ones(2, np.float16)),
    "named tuple": (
        lambda c: Moments(c.mean * ONE, c.count + 1),
        Moments(NARROW, 0),
    ),
}
STABLE = {
    "sum": (lambda c: c + 1, WIDE),
    "key": (lambda c: jax.random.split(c)[0], jax.random.key(0)),
    "none and functions": (lambda c: (c[0] * 2, None, c[2]), (jnp.ones(2), None, jnp.tanh)),
    "jit inside": (jax.jit(lambda c: {"a": jnp.sin(c["a"])}), {"a": jnp.ones(3, BF16)}),
}


def _type(aval):
    """Of what is traced: once a `ShapeDtypeStruct` did not tell a weak type."""
    return aval.dtype, aval.weak_type, aval.shape


@pytest.mark.parametrize("name", DRIFTS)
def test_carry_keeps_its_types(name):
    step, carry = DRIFTS[name]
    with set_x64(name in ("weak", "a number", "numpy")):
        carry = strong(carry)
        types_after = lambda step: [*map(_type, jax.make_jaxpr(step)(carry).out_avals)]
        assert types_after(step) != types_after(lambda carry: carry) or "number" in name
        guarded = guard_step(step)
        for after in (guarded(carry), jax.jit(guarded)(carry)):
            assert_kept(carry, after)
        looped, _ = lax.scan(lambda c, _: (guarded(c), None), carry, None, length=2)
        assert_kept(carry, looped)
        looped = lax.while_loop(lambda c: jnp.asarray(False), guarded, carry)
        assert_kept(carry, lax.cond(jnp.asarray(True), guarded, lambda c: c, looped))


@pytest.mark.parametrize("name", STABLE)
def test_stable_step_compiles_to_the_same_program(name):
    step, carry = STABLE[name]
    arrays, static = eqx.partition(carry, eqx.is_array)
    run = lambda f: lambda arrays: eqx.filter(f(eqx.combine(arrays, static)), eqx.is_array)
    bare, guarded = run(step), run(guard_step(step))
    assert optimized_hlo(guarded, arrays) == optimized_hlo(bare, arrays)
    assert_same(jax.jit(guarded)(arrays), jax.jit(bare)(arrays))


def test_the_other_results_are_left_alone():
    step = lambda c, x: (c * x, {"loss": x * 2, "step": 3, "f": jnp.tanh})
    new, others = guard_step(step)(NARROW, WIDE)
    assert (new.dtype, others["loss"].dtype) == (BF16, F32)
    assert (others["step"], others["f"]) == (3, jnp.tanh)


def test_statistics_of_numpy_on_the_host_stay_so():
    mean = guard_step(lambda mean: mean + 1)(np.ones(2))
    assert (type(mean), mean.dtype) == (np.ndarray, np.float64)


def test_decorator():
    @guard_step
    def step(state, x=1.0):
        """A docstring."""
        return drifting(state, x)

    assert_kept(first(), step(first())[0])
    assert (step.__name__, step.__doc__) == ("step", "A docstring.")
    assert str(inspect.signature(step)) == "(state, x=1.0)"


def test_jit_inside_compiles_once_for_a_weak_carry():
    start = {"n": 0, "x": jnp.asarray(0.0)}

    def compilations(wrap):
        step = lambda state: {"n": state["n"] + jnp.ones((), I32), "x": state["x"] * 2.0}
        jitted, state = jax.jit(step), start
        run = wrap(jitted)
        for _ in range(3):
            state = run(state)
        return jitted._cache_size()

    assert compilations(lambda step: step) == 2
    assert compilations(guard_step) == 1
    assert start == {"n": 0, "x": 0.0}


@pytest.mark.parametrize("made", [lambda body: body, functools.partial])
def test_guarding_a_body_anew_in_each_turn_traces_it_once(made):
    traces = []

    def body(carry, x):
        traces.append(1)
        return carry + x, None

    body = made(body)
    for _ in range(3):
        for options in ({}, {"returned": 0}):
            lax.scan(
                guard_step(guard_step(body), **options),
                jnp.zeros(3, BF16),
                jnp.ones((2, 3), BF16),
            )
    assert len(traces) == 2
    assert guard_step(body) != guard_step(body, carry=1, returned=0)
    with pytest.raises(ValueError, match="carry=False"):  # which equals 0
        guard_step(body, carry=False)


@guard_step
def kept(state):
    return drifting(state)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_guarded_step_is_copied_and_pickled(copied):
    assert copied(kept) is kept
    # With a function by value, as cloudpickle takes it, goes what its attributes hold.
    guard_step(drifting)
    assert copied(vars(drifting)).keys() == vars(drifting).keys()


def test_a_step_may_have_any_attributes():
    assert guard_step(unittest.mock.Mock(return_value=0))(1) == 0


def test_a_jitted_step_that_raises_is_traced_once_with_x64_off():
    traces = []

    def step(carry, x):
        traces.append(x.shape)
        return carry + x

    guarded = guard_step(jax.jit(step))
    state = jnp.zeros(3)
    for _ in range(2):
        state = guarded(state, state)
    with pytest.raises(TypeError, match="incompatible shapes"):
        guarded(state, jnp.zeros(2))
    assert traces == [(3,), (2,)]


def test_guarding_twice_is_harmless():
    once = guard_step(drifting)
    assert guard_step(once) is once
    nested = guard_step(
        guard_step(lambda a, b: (a * ONE, b * ONE), returned=0), carry=1, returned=1
    )
    assert [x.dtype for x in nested(NARROW, NARROW)] == [BF16, BF16]
    wrapped = functools.wraps(drifting)(lambda state: (state, 0))  # copies attributes
    assert guard_step(wrapped)(first())[1] == 0
    assert_kept(first(), guard_step(once, policy=Policy(on_drift="error"))(first())[0])


# What it reports --------------------------------------------------------------------------


def test_refuses_what_cannot_be_brought_back_by_the_parameters_name():
    def step(x, state):
        return {"state": Moments(state.mean[:2], state.count + 0.5)}

    guarded = guard_step(step, carry=1, returned="state")
    state = Moments(jnp.zeros(3), jnp.ones((), I32))
    with pytest.raises(DtypeDriftError, match="step returned 2 leaves that") as error:
        jax.eval_shape(guarded, 0, state)
    assert [row.path for row in error.value.rows] == ["state.mean", "state.count"]
    assert 'guard_step(..., policy=dtypeguard.Policy(casting="unsafe"))' in str(error.value)
    unsafe = guard_step(step, carry=1, returned="state", policy=Policy(casting="unsafe"))
    assert unsafe(0, state._replace(mean=jnp.zeros(2)))["state"].count.dtype == I32


def test_on_drift():
    seen = guard_step(drifting, policy=Policy(on_drift="warn"))
    with pytest.warns(
        DtypeGuardWarning,
        match=r"drifting changed the dtype of 1 leaf:\n  state\['mean'\]  bfloat16",
    ) as caught:
        for _ in range(2):
            assert_kept(first(), seen(first())[0])
    assert len(caught) == 1
    refused = guard_step(drifting, policy=Policy(on_drift="error"))
    with pytest.raises(DtypeDriftError, match=r"bfloat16 rounds: (.|\n)*step\(\.\.") as e:
        refused(first())
    assert "another" not in str(e.value)  # its types alone are no sign of another carry


def test_a_weak_leaf_comes_back_in_a_type_that_does_not_promote_with_it():
    with pytest.raises(DtypeDriftError, match=r"float32\[\],weak -> int4\[\]"):
        guard_step(lambda state: jnp.zeros((), jnp.int4))(1.0)


def takes(step, *args, **options):
    """What a guarded step warns of, and the dtypes of its result."""
    guarded = guard_step(step, **options)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        results = [guarded(*args) for _ in range(3)]
    dtypes = [str(leaf.dtype) for leaf in tree_util.tree_leaves(results[-1])]
    return [str(each.message) for each in warned], dtypes


EMA = jnp.zeros((), BF16)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_loss_that_could_be_the_carry_is_asked_about(wrap):
    step = wrap(lambda ema, x: (x * x, ema.astype(F32) * x))
    (asked,), dtypes = takes(step, EMA, ONE)
    assert dtypes == ["bfloat16", "float32"]
    assert "takes item 0 for the new ema and casts it, but item 1 could be ema" in asked
    remedies = dict(re.findall(r"returned=(\S+)\b\)? if (it is|not)", asked))
    assert remedies == {"1": "it is", "0": "not"}
    assert takes(step, EMA, ONE, returned=1) == ([], ["float32", "bfloat16"])
    assert takes(step, EMA, ONE, returned=0) == ([], ["bfloat16", "float32"])
    assert takes(step, ONE, ONE) == ([], ["float32", "float32"])  # nothing is cast
    body = guard_step(step)
    lax.scan(body, EMA, jnp.ones(3))  # what a loop's body returns first is sure
    lax.scan(lambda ema, x: body(ema, x), EMA, jnp.ones(3))

    def update(ema, x):  # whose result is not the body's
        return guard_step(lambda ema, x: (x * x, ema.astype(F32) * x))(ema, x)

    with pytest.warns(DtypeGuardWarning, match="item 1 could be ema"):
        lax.scan(lambda ema, x: update(ema, x), EMA, jnp.ones(3))


@pytest.mark.parametrize(
    "other",
    [
        lambda new, x: new,  # a scan stacks what it carries
        lambda new, x: {"loss": x},
        lambda new, x: x.astype(I32),
    ],
)
def test_an_item_that_cannot_be_the_carry_is_not_asked_about(other):
    def step(ema, x):
        new = ema.astype(F32) + x
        return new, other(new, x)

    asked, (dtype, *_) = takes(step, EMA, ONE)
    assert (asked, dtype) == ([], "bfloat16")


# The x64 flag -----------------------------------------------------------------------------


@needs_x64_scope
def test_runs_with_x64_off_where_it_fails_with_it_on():
    def step(state):
        state["count"] += 1  # the second attempt starts from what came in
        return state | {"x": lax.add(state["x"], jnp.asarray(np.float64(1.0)))}

    guarded, state = guard_step(step), {"x": ONE, "count": jnp.ones((), I32)}
    with set_x64(True):
        with pytest.raises(TypeError, match="same dtypes"):
            step(dict(state))
        with pytest.warns(
            DtypeGuardWarning,
            match="step failed with x64 on and was run with it off: lax.add requires",
        ):
            assert guarded(state) == {"x": 2, "count": 2}
        jax.jit(guarded)(state)  # said once
        jax.jit(guarded)(state | {"calls": 1})  # a Python number is no 64-bit input
        # 64-bit input: the error that it has bare.
        with pytest.raises(TypeError, match="same dtypes"):
            guarded(state | {"y": jnp.ones(2, F64)})


@needs_x64_scope
def test_both_attempts_of_a_step_warn_and_then_the_guard_says_what_it_did():
    def step(c):
        """Its loop only traces where its literals have the type of `c`."""
        warnings.warn(f"x64 is {jax.config.jax_enable_x64}", stacklevel=1)
        return lax.scan(lambda s, _: (s + jnp.ones(3).sum(), None), c, None, length=2)[0]

    with set_x64(True):
        (first_attempt, second_attempt, told, *_), _ = takes(step, WIDE)
    assert (first_attempt, second_attempt) == ("x64 is True", "x64 is False")
    assert told.startswith("step failed with x64 on and was run with it off")


def test_a_guard_leaves_what_shows_warnings():
    before, seen = warnings.showwarning, []
    with set_x64(True):
        guard_step(lambda c: seen.append(warnings.showwarning) or c)(WIDE)
    assert seen == [before]


@needs_x64_scope
def test_the_first_error_stays_where_x64_is_not_to_blame():
    def step(state, x):
        calls.append(1)
        return lax.add(state, jnp.ones(2, jnp.int8))

    for x64, attempts in ((False, 1), (True, 2)):
        calls = []
        with set_x64(x64), pytest.raises(TypeError, match="float32, int8") as error:
            guard_step(step)(WIDE, 1.0)
        assert error.value.__cause__ is None
        assert len(calls) == attempts
    calls = []
    with set_x64(True), pytest.raises(DtypeDriftError, match=r"float32.* -> int32"):
        guard_step(lambda c: calls.append(1) or c.astype(I32))(WIDE)
    assert len(calls) == 1


def test_runs_under_the_callers_flags():
    step = guard_step(lambda c: (c, jnp.sum(jnp.asarray(np.ones(2)))))
    with set_x64(True):
        carry, total = step(WIDE)
        assert (carry.dtype, total.dtype) == (F32, F64)
        assert step(jnp.ones(2, F64))[0].dtype == F64


@pytest.mark.parametrize(
    "wrap",
    [
        guard_step,
        lambda step: jax.jit(guard_step(step)),
        lambda step: guard_step(jax.jit(step)),
    ],
)
def test_a_64_bit_leaf_that_x64_off_would_narrow_is_refused(wrap):
    step = wrap(lambda state: state | {"w": state["w"].astype(F32)})
    with set_x64(True):
        state = {"w": jnp.ones(2, F64), "n": jnp.ones(2, jnp.int64)}
    message = (
        r"state\['w'\]  float64\[2\] -> float32\[2\]  .*within jax\.enable_x64\(True\)"
    )
    with pytest.raises(DtypeDriftError, match=message) as error:
        step(state)
    assert len(error.value.rows) == 1  # "n" comes back as it is
    with set_x64(True):
        assert_kept(state, step(state))


@needs_explicit_x64
def test_a_64_bit_leaf_comes_back_where_jax_makes_one():
    with set_x64(True):
        state = jnp.ones(2, F64)
    with set_explicit_x64("allow"):
        assert_kept(state, guard_step(lambda state: state * WIDE)(state))


# strong -----------------------------------------------------------------------------------


def test_strong_makes_arrays_with_buffers_of_their_own():
    params = jnp.ones(8, BF16)
    tree = {
        "params": params,
        "average": params,
        "numbers": (1, 2.0, True),
        "weak": jnp.asarray(1.0),
        "key": jax.random.key(0),
    }
    made = strong(tree)
    assert made.pop("key").dtype == tree.pop("key").dtype
    assert tree_util.tree_structure(made) == tree_util.tree_structure(tree)
    leaves = tree_util.tree_leaves(made)
    assert not any(x.weak_type for x in leaves)
    assert [x.dtype for x in made["numbers"]] == [I32, F32, jnp.bool_]
    assert len({x.unsafe_buffer_pointer() for x in [*leaves, params]}) == len(leaves) + 1
    assert_same(made["params"], params)
    (traced,) = jax.make_jaxpr(lambda: strong({"a": 1.0})["a"])().out_avals
    assert (traced.dtype, traced.weak_type) == (F32, False)


def test_strong_keeps_what_only_has_a_shape():
    made = strong(
        jax.eval_shape(lambda: {"a": jnp.asarray(1.0), "n": 0, "w": jnp.ones(3, BF16)})
    )
    assert {type(leaf) for leaf in made.values()} == {jax.ShapeDtypeStruct}
    carry = jax.make_jaxpr(lambda c: [c[k] for k in "anw"])(made).out_avals
    assert [(aval.dtype, aval.weak_type) for aval in carry] == [
        (dtype, False) for dtype in (F32, I32, BF16)
    ]
