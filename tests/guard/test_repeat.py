"""What a guarded `jax.jit` costs: no guard where the last call was alike, and no cycle."""

import functools
import gc
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import need, needs_x64_scope, set_x64, types

from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard, guard_step
from dtypeguard._guard import guard_step as module

pytestmark = pytest.mark.third_party
tells_weak_types = pytest.mark.skipif(
    not hasattr(jax.eval_shape(lambda x: x, 1.0), "weak_type"), reason="eval_shape does not"
)
BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32


@pytest.fixture
def guards(monkeypatch):
    """Counts the calls that the guard takes apart: each snapshots and settles its carry."""
    made = []
    take_apart = module.GuardedCall.__init__
    monkeypatch.setattr(
        module.GuardedCall,
        "__init__",
        lambda self, *args: made.append(1) or take_apart(self, *args),
    )
    return made


def pair(state, x=0, *, scale=1):
    return {"mean": state["mean"] + x, "count": state["count"] * scale}, state["mean"]


def first():
    return {"mean": jnp.zeros(3, BF16), "count": jnp.ones((), I32)}


CALLS = {
    "positional": (jax.jit(pair), lambda n: ((), {})),
    "batches of numpy": (jax.jit(pair), lambda n: ((np.ones(3, jnp.bfloat16),), {})),
    "a number that changes": (jax.jit(pair), lambda n: ((n,), {})),
    "by name": (jax.jit(pair), lambda n: ((), {"x": jnp.ones(3, BF16), "scale": n})),
    "static": (jax.jit(pair, static_argnames="scale"), lambda n: ((), {"scale": n})),
    "donated": (jax.jit(pair, donate_argnums=0), lambda n: ((), {})),
}


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize(("step", "more"), CALLS.values(), ids=CALLS)
def test_a_call_like_the_last_one_needs_no_guard(step, more, guards):
    guarded, state = guard_step(step), first()
    for number in range(4):
        args, kwargs = more(number)
        state, _ = guarded(state, *args, **kwargs)
    assert len(guards) == 1
    assert types(state) == types(first())


def test_other_shapes_are_alike_and_other_trees_are_not(guards):
    guarded = guard_step(jax.jit(lambda state: jax.tree_util.tree_map(jnp.sin, state)))
    for size in (2, 3, 4):
        guarded({"mean": jnp.zeros(size)})
    assert len(guards) == 1
    others = [jnp.zeros(2)], {"mean": {"first": jnp.zeros(2)}}, {"mean": None}
    for number, other in enumerate(others, 2):
        assert types(guarded(other)) == types(other)
        assert len(guards) == number


def test_a_carry_that_is_no_array_this_time_is_made_one(guards):
    guarded = guard_step(jax.jit(lambda state, x: (state + x, x)))
    for state in (jnp.zeros(()), np.float32(0), jnp.zeros(()), 0.0, jnp.zeros(())):
        assert types(guarded(state, jnp.ones(()))[0]) == types(jnp.zeros(()))
    assert len(guards) == 3  # the later arrays of JAX need none


@pytest.mark.skipif(
    jax.__version_info__ < (0, 5), reason="old releases read a type by a call of Python"
)
@pytest.mark.parametrize("leaves", [10, 100])
def test_a_repeated_call_flattens_and_compares_and_no_more(leaves):
    """As many calls of Python for any number of leaves; `overhead.py` times it."""
    state = {f"p{number}": jnp.ones(3, BF16) for number in range(leaves)}
    step = jax.jit(lambda state: {name: x * 2 for name, x in state.items()})
    assert calls(guard_step(step), state) - calls(step, state) < 8


def calls(step, state):
    """Python's calls in the quickest of a few repeated steps."""
    counts = []
    for _ in range(5):
        events = []
        sys.setprofile(lambda frame, event, arg, add=events.append: add(event))
        try:
            step(state)
        finally:
            sys.setprofile(None)
        counts.append(events.count("call"))
    return min(counts)


@tells_weak_types
def test_a_weak_leaf_becomes_strong_beside_another_neighbor():
    step = jax.jit(lambda state, x: state * x)
    guarded, weak = guard_step(step), jnp.asarray(1.0)
    for _ in range(3):
        assert guarded(weak, 2.0).weak_type
    for x in (jnp.ones((), F32), jnp.asarray(2.0)):
        for _ in range(2):
            assert guarded(weak, x).weak_type is x.weak_type
    narrow = guarded(weak, jnp.ones((), BF16))
    assert narrow.dtype == step(1.0, jnp.ones((), BF16)).dtype


def test_a_drift_beside_another_argument_is_still_cast(guards):
    step = jax.jit(lambda state, x: (state + x, x))
    guarded, state = guard_step(step, returned=0), jnp.ones(3, BF16)
    for dtype in (BF16, BF16, F32, BF16, F32):
        state, x = guarded(state, jnp.ones(3, dtype))
        assert (state.dtype, x.dtype) == (BF16, dtype)
    strict = guard_step(step, policy=Policy(on_drift="error"))
    strict(state, jnp.ones(3, BF16))
    with pytest.raises(DtypeDriftError, match=r"state  bfloat16\[3\] -> float32\[3\]"):
        strict(state, jnp.ones(3, F32))
    with pytest.raises(DtypeDriftError, match="return it in shape"):
        guarded(state, jnp.ones((2, 3), BF16))
    assert np.all(np.asarray(guarded(state, jnp.ones(3, BF16))[0]) == 7)


def test_a_static_argument_may_change_what_comes_back():
    @functools.partial(jax.jit, static_argnums=1)
    def step(state, dtype):
        return state * jnp.ones((), dtype)

    guarded = guard_step(step)
    for dtype in ("bfloat16", "bfloat16", "float32", "bfloat16", "float32"):
        assert guarded(jnp.ones(3, BF16), dtype).dtype == BF16


@needs_x64_scope
def test_the_flag_may_change_between_calls():
    table = np.arange(3, dtype=np.float64)
    step = jax.jit(lambda state: state + jnp.asarray(table).sum())
    guarded, state = guard_step(step), jnp.ones(3, F32)
    for x64 in (False, False, True, True, False):
        with set_x64(x64):
            state = guarded(state)
            assert state.dtype == F32
    weak = guard_step(jax.jit(lambda state: state * jnp.asarray(table)[0]))
    for x64 in (False, False, True, True):
        with set_x64(x64):
            weak(jnp.asarray(1.0))


def test_modules_that_change_in_place_are_settled_in_each_call(guards):
    nnx = need("flax.nnx")

    @jax.jit
    def step(state, model):
        return state + 1

    model, guarded = nnx.Linear(2, 2, rngs=nnx.Rngs(0)), guard_step(step)
    if not jax.tree_util.tree_leaves(model):
        pytest.skip("modules of this Flax are no trees")
    for _ in range(3):
        guarded(jnp.ones(3), model)
    assert len(guards) == 3


# No cycle of references -----------------------------------------------------------------


class Held:
    """What a closure closes over."""


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def guarded_once(step):
    return (guard_step(step),)


def guarded_and_run(step):
    guarded = guard_step(step)
    guarded(jnp.ones(3))
    return guarded, jax.jit(guarded)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("use", [guarded_once, guarded_and_run])
def test_what_a_guarded_closure_holds_goes_with_it(use):
    def make():
        held = Held()

        def step(state):
            assert held
            return state * jnp.ones((), F32)

        return step, weakref.ref(held)

    step, gone = make()
    made = use(step)
    assert guard_step(step) is made[0]
    del step
    assert gone() is not None
    assert made[0](jnp.ones(3, BF16)).dtype == BF16
    del made
    assert gone() is None


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("policy", [Policy(), Policy(compute_dtype=F32)], ids=str)
def test_what_a_guarded_optimizer_holds_goes_with_it(policy):
    import optax

    held = Held()
    gone = weakref.ref(held)

    def update(updates, state, params=None, held=held):
        return updates, state

    init = lambda params: optax.EmptyState()
    opt = guard(optax.GradientTransformation(init, update), policy=policy)
    assert guard(opt) is opt
    del held, update
    assert gone() is not None
    del opt
    assert gone() is None


def test_what_jit_alone_has_is_told_where_to_get():
    def step(state):
        return state * 2

    with pytest.raises(AttributeError, match=r"'lower'\. .* of jax\.jit\(guard_step\(f"):
        guard_step(jax.jit(step)).lower(1.0)
    assert jax.jit(guard_step(step)).lower(1.0).compile()(1.0) == 2


# Calls like the recorded one that are of another program --------------------------------


def drifting(state, x, *, passes=False):
    """The first leaf passes through and the second is promoted by a wider `x`."""
    first = state["first"] if passes else state["first"] + 1
    return {"first": first, "second": state["second"] + x}


def drifting_state():
    return {"first": jnp.ones(3), "second": jnp.ones(3, BF16)}


def kept(guarded):
    """A state that came from guarded calls, the last of which was recorded."""
    state = drifting_state()
    for _ in range(3):
        state = guarded(state, jnp.ones(3, BF16))
    return state


WIDE = jnp.float32
TRACED = {
    "grad": lambda call, x: jax.grad(lambda x: total(call(x)))(x),
    "vmap": lambda call, x: jax.vmap(call, in_axes=0, out_axes=0)(jnp.stack([x, x])),
    "jit": lambda call, x: jax.jit(call)(x),
    "scan": lambda call, x: jax.lax.scan(lambda c, x: (c, call(x)), 0, x[None]),
    "a constant of a jit": lambda call, x: jax.jit(lambda: call(x))(),
    "at trace time": lambda call, x: jax.jit(lambda: at_trace_time(call, x))(),
    "no trace": lambda call, x: call(x),
}


def total(tree):
    return sum(leaf.astype(F32).sum() for leaf in jax.tree_util.tree_leaves(tree))


def at_trace_time(call, x):
    with jax.ensure_compile_time_eval():
        return call(x)


@pytest.mark.parametrize("trace", TRACED.values(), ids=TRACED)
def test_a_leaf_that_passes_through_a_trace_proves_nothing(trace):
    for passes in (False, True):
        step = jax.jit(functools.partial(drifting, passes=passes))
        guarded, found = guard_step(step), []
        state = kept(guarded)

        def call(x, guarded=guarded, state=state, found=found):
            new = guarded(state, x)
            found.append(types(new))
            return new

        trace(call, jnp.ones(3, WIDE))
        assert found == [types(drifting_state())]


@needs_x64_scope
def test_a_repeated_call_that_fails_with_x64_on_runs_with_it_off():
    step = lambda state, x: jax.lax.add(state, x.sum() if x.ndim else jnp.ones(()))
    guarded = guard_step(jax.jit(step))
    with set_x64(True):
        for _ in range(2):
            guarded(jnp.ones((), F32), jnp.ones(3, F32))
        with pytest.warns(DtypeGuardWarning, match="failed with x64 on"):
            assert guarded(jnp.ones((), F32), jnp.ones((), F32)) == 2
