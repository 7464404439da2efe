"""What a guarded `jax.jit` costs: no guard where the last call was alike, and no leak."""

import gc
import pathlib
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import tree_util

import dtypeguard
from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard, guard_step
from tests.support.dtypes import BF16, F32, I32
from tests.support.helpers import needs_x64_scope, set_x64, types
from tests.support.one_leaf import either_policy, transformation

pytestmark = pytest.mark.third_party
NARROW, ONE = jnp.ones(3, BF16), jnp.ones((), F32)
tells_weak_types = pytest.mark.skipif(
    not hasattr(jax.eval_shape(lambda x: x, 1.0), "weak_type"), reason="eval_shape does not"
)
GUARDS = str(pathlib.Path(dtypeguard.__file__).parent / "_guard")


def counted(step, *args, **kwargs):
    """What a step returns, and whether a guard took its carry apart.

    Where it did, dozens of the guards' functions were called, else a few. Others may be,
    such as those that JAX tells of what it compiles once another test has asked for that.
    """
    calls = []

    def note(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(GUARDS):
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        result = step(*args, **kwargs)
    finally:
        sys.setprofile(None)
    return result, len(calls) > 9


def pair(state, x=0, *, scale=1):
    return {"mean": state["mean"] + x, "count": state["count"] * scale}, state["mean"]


def first():
    return {"mean": jnp.zeros(3, BF16), "count": jnp.ones((), I32)}


CALLS = {
    "positional": (jax.jit(pair), lambda n: ((), {})),
    "by name": (jax.jit(pair), lambda n: ((), {"x": NARROW, "scale": n})),
    "static": (jax.jit(pair, static_argnames="scale"), lambda n: ((), {"scale": n})),
    "donated": (jax.jit(pair, donate_argnums=0), lambda n: ((), {})),
}


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize(("step", "more"), CALLS.values(), ids=CALLS)
def test_a_call_like_the_last_one_needs_no_guard(step, more):
    guarded, state = guard_step(step), first()
    for number in range(3):
        args, kwargs = more(number)
        (state, _), is_guarded = counted(guarded, state, *args, **kwargs)
        assert is_guarded == (number == 0)
    assert types(state) == types(first())


def test_other_shapes_and_trees_are_alike():
    guarded = guard_step(jax.jit(lambda state: tree_util.tree_map(jnp.sin, state)))
    sizes = [counted(guarded, {"mean": jnp.zeros(size)})[1] for size in (2, 3, 4)]
    assert sizes == [True, False, False]
    for other in ([jnp.zeros(2)], {"mean": {"first": jnp.zeros(2)}}, {"mean": None}):
        assert types(guarded(other)) == types(other)


def test_a_carry_that_is_no_array_this_time_is_made_one():
    guarded = guard_step(jax.jit(lambda state, x: (state + x, x)))
    for state in (jnp.zeros(()), np.float32(0), jnp.zeros(()), 0.0, jnp.zeros(())):
        assert types(guarded(state, jnp.ones(()))[0]) == types(jnp.zeros(()))


@tells_weak_types
def test_a_weak_leaf_becomes_strong_beside_another_neighbor():
    step = jax.jit(lambda state, x: state * x)
    guarded, weak = guard_step(step), jnp.asarray(1.0)
    for x in (2.0, ONE, jnp.asarray(2.0)):
        for _ in range(2):
            assert guarded(weak, x).weak_type is getattr(x, "weak_type", True)
    assert guarded(weak, jnp.ones((), BF16)).dtype == step(1.0, jnp.ones((), BF16)).dtype


def test_a_drift_beside_another_argument_is_still_cast():
    step = jax.jit(lambda state, x: (state + x, x))
    guarded, state = guard_step(step, returned=0), NARROW
    for dtype in (BF16, BF16, F32, BF16, F32):
        state, x = guarded(state, jnp.ones(3, dtype))
        assert (state.dtype, x.dtype) == (BF16, dtype)
    assert np.all(np.asarray(state) == 6)
    strict = guard_step(step, policy=Policy(on_drift="error"))
    strict(state, NARROW)
    with pytest.raises(DtypeDriftError, match=r"state  bfloat16\[3\] -> float32\[3\]"):
        strict(state, jnp.ones(3, F32))
    with pytest.raises(DtypeDriftError, match="return it in shape"):
        guarded(state, jnp.ones((2, 3), BF16))


@needs_x64_scope
def test_a_repeated_call_that_fails_with_x64_on_runs_with_it_off():
    step = lambda state, x: jax.lax.add(state, x.sum() if x.ndim else jnp.ones(()))
    guarded = guard_step(jax.jit(step))
    with set_x64(True):
        for _ in range(2):
            guarded(ONE, jnp.ones(3, F32))
        with pytest.warns(DtypeGuardWarning, match="failed with x64 on"):
            assert guarded(ONE, ONE) == 2


def test_brackets_of_a_result_need_not_give_its_items():
    @tree_util.register_pytree_with_keys_class
    class Result:
        def __init__(self, state, x):
            self.state, self.x = state, x

        def tree_flatten_with_keys(self):
            return [("state", self.state), ("x", self.x)], None

        @classmethod
        def tree_unflatten(cls, _, items):
            return cls(*items)

        def __getitem__(self, key):
            return jnp.ones((), BF16)

    step = guard_step(jax.jit(lambda state, x: Result(state * x, x)), returned=0)
    for dtype in (BF16, F32):
        assert step(jnp.ones((), BF16), jnp.ones((), dtype)).state.dtype == BF16


def test_without_jit_a_repeated_step_changes_no_container_of_the_callers():
    @guard_step
    @jax.jit
    def step(state):
        state["mean"] = state["mean"] + 1
        return state

    state = {"mean": jnp.zeros(3)}
    for _ in range(2):
        step(state)
    with jax.disable_jit():
        step(state)
    assert not state["mean"].any()


def test_jit_outside_has_what_jit_alone_has():
    assert jax.jit(guard_step(lambda state: state * 2)).lower(1.0).compile()(1.0) == 2
    assert not hasattr(guard_step(jax.jit(lambda state: state)), "lower")


# Calls like the recorded one that are of another program --------------------------------


def at_trace_time(call, x):
    with jax.ensure_compile_time_eval():
        return call(x)


def total(tree):
    return sum(leaf.astype(F32).sum() for leaf in tree_util.tree_leaves(tree))


TRACED = {
    "grad": lambda call, x: jax.grad(lambda x: total(call(x)))(x),
    "vmap": lambda call, x: jax.vmap(call)(jnp.stack([x, x])),
    "jit": lambda call, x: jax.jit(call)(x),
    "scan": lambda call, x: jax.lax.scan(lambda c, x: (c, call(x)), 0, x[None]),
    "a constant of a jit": lambda call, x: jax.jit(lambda: call(x))(),
    "at trace time": lambda call, x: jax.jit(lambda: at_trace_time(call, x))(),
    "no trace": lambda call, x: call(x),
}


@pytest.mark.parametrize("trace", TRACED.values(), ids=TRACED)
@pytest.mark.parametrize("passes", [False, True])
def test_a_leaf_that_passes_through_a_trace_proves_nothing(trace, passes):
    """The first leaf may pass through, and the second is promoted by a wider `x`."""

    def drifting(state, x):
        first = state["first"] if passes else state["first"] + 1
        return {"first": first, "second": state["second"] + x}

    def call(x):
        found.append(types(guarded(state, x)))
        return guarded(state, x)

    guarded, found = guard_step(jax.jit(drifting)), []
    state = {"first": jnp.ones(3), "second": NARROW}
    expected = types(state)
    for _ in range(3):
        state = guarded(state, NARROW)
    trace(call, jnp.ones(3, F32))
    assert found == [expected]


# Nothing stays ----------------------------------------------------------------------------


class Held:
    """What a closure closes over."""


def guarded_and_run(step):
    guarded = guard_step(step)
    guarded(jnp.ones(3))
    return guarded, jax.jit(guarded)


@pytest.mark.parametrize("use", [lambda step: (guard_step(step),), guarded_and_run])
def test_what_a_guarded_closure_holds_goes_with_it(use):
    gc.freeze()  # what is there already is not looked at again
    held = Held()
    gone = weakref.ref(held)

    def step(state, held=held):
        return state * ONE

    made = use(step)
    assert guard_step(step) is made[0]
    del step, held
    assert gone() is not None
    assert made[0](NARROW).dtype == BF16
    del made
    gc.collect()
    assert gone() is None


@either_policy
def test_what_a_guarded_optimizer_holds_goes_with_it(policy):
    held = Held()
    gone = weakref.ref(held)
    opt = guard(transformation(lambda u, s, p=None, held=held: (u, s)), policy=policy)
    assert guard(opt) is opt
    del held
    assert gone() is not None
    del opt
    assert gone() is None
