"""guard_step and strong: any step gives back the types of what it carries."""

import copy
import functools
import inspect
import pickle
import re
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_same, needs_x64_scope, set_x64, types
from hlo import optimized_hlo
from jax import lax, tree_util

from dtypeguard import DtypeDriftError, DtypeGuardWarning, Policy, guard_step, strong

pytestmark = pytest.mark.third_party  # steps rely on standard promotion, as users' do
BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32


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
    "average": (lambda c: 0.9 * c + c.astype(F32), jnp.ones(2, BF16)),
    "counter": (lambda c: c.astype(jnp.int8), jnp.ones((), I32)),
    "flag": (lambda c: c + 1, jnp.asarray(True)),
    "weak": (lambda c: jnp.asarray(1.0), jnp.ones((), F32)),
    "a number": (lambda c: c * 2, 1.5),
    "numpy": (lambda c: c * jnp.ones((), F32), np.ones(2, np.float16)),
    "named tuple": (
        lambda c: Moments(c.mean * jnp.ones((), F32), c.count + 1),
        Moments(jnp.ones(2, BF16), 0),
    ),
    "module": (
        lambda c: tree_util.tree_map(lambda x: x * jnp.ones((), F32), c),
        eqx.filter(
            eqx.nn.Linear(2, 2, dtype=jnp.float16, key=jax.random.key(0)), eqx.is_array
        ),
    ),
}
STABLE = {
    "sum": (lambda c: c + 1, jnp.ones(2, F32)),
    "adam": (
        lambda c: (lambda u, s: (optax.apply_updates(c[0], u), s))(
            *optax.adam(0.1).update(c[0], c[1], c[0])
        ),
        (jnp.ones(3), optax.adam(0.1).init(jnp.ones(3))),
    ),
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
    x64 = name in ("weak", "a number", "numpy")
    with set_x64(x64):
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
    new, others = guard_step(step)(jnp.ones(2, BF16), jnp.ones(2, F32))
    assert new.dtype == BF16
    assert others["loss"].dtype == F32
    assert others["step"] == 3
    assert others["f"] is jnp.tanh


def test_decorator_with_and_without_arguments():
    @guard_step
    def plain(state, x=1.0):
        """A docstring."""
        return drifting(state, x)

    @guard_step(carry="state", returned=1)
    def named(x, state):
        return x, drifting(state, x)[0]

    assert_kept(first(), plain(first())[0])
    assert_kept(first(), named(2.0, first())[1])
    assert plain.__name__ == "plain"
    assert plain.__doc__ == "A docstring."
    assert str(inspect.signature(plain)) == "(state, x=1.0)"


class Trainer:
    """Methods, with a jit above and below."""

    scale = 2.0

    @guard_step
    def step(self, state, x):
        return drifting(state, self.scale * x)

    @functools.partial(jax.jit, static_argnums=0)
    @guard_step
    def jitted(self, state, x):
        return drifting(state, self.scale * x)

    @guard_step(carry="state")
    @functools.partial(jax.jit, static_argnames="self")
    def jit_inside(self, x, state):
        return drifting(state, self.scale * x)

    @guard_step
    @classmethod
    def class_above(cls, state, x):
        return drifting(state, cls.scale * x)

    @classmethod
    @guard_step
    def class_below(cls, state, x):
        return drifting(state, cls.scale * x)

    @guard_step
    @staticmethod
    def static(state, x):
        return drifting(state, 2 * x)


@pytest.mark.parametrize("name", ["step", "jitted", "class_above", "class_below", "static"])
def test_method(name):
    trainer = Trainer()
    new, mean = getattr(trainer, name)(first(), 1.0)
    assert_kept(first(), new)
    np.testing.assert_allclose(mean, 0.2, rtol=1e-6)
    looped, _ = lax.scan(getattr(trainer, name), first(), jnp.ones(3, F32))
    assert_kept(first(), looped)


def test_bound_method_is_traced_once_and_has_its_signature():
    trainer = Trainer()
    assert trainer.step == trainer.step
    assert hash(trainer.step) == hash(trainer.step)
    assert str(inspect.signature(trainer.step)) == "(state, x)"
    assert_kept(first(), Trainer.step(trainer, first(), 1.0)[0])
    assert_kept(first(), trainer.jit_inside(1.0, first())[0])
    assert_kept(first(), Trainer.jit_inside(trainer, 1.0, first())[0])
    assert_kept(first(), guard_step(trainer.jit_inside, carry=1)(1.0, first())[0])


def from_outside(self, state, x):
    return state + self.weight * x, x


class Module(eqx.Module):
    weight: jax.Array
    outside = guard_step(from_outside)

    @guard_step
    def step(self, state, x):
        return state + self.weight * x, x

    @guard_step(carry="self")
    def train(self, x):
        return tree_util.tree_map(lambda w: w - 0.1 * x, self)


@pytest.mark.parametrize("name", ["step", "outside"])
@pytest.mark.parametrize("wrap", [lambda f: f, eqx.filter_jit])
def test_method_of_a_module(wrap, name):
    module = Module(jnp.ones(3, F32))
    step = getattr(module, name)
    state, _ = wrap(step)(jnp.zeros(3, BF16), 1.0)
    assert state.dtype == BF16
    body = lambda state, x: step(state, x)  # lax.scan hashes what it is given
    assert lax.scan(body, state, jnp.ones(2, F32))[0].dtype == BF16
    # The module's arrays are arguments of a jit, and no constants in it.
    arrays = tree_util.tree_leaves(step)
    assert any(leaf is module.weight for leaf in arrays)
    trained = Module(jnp.ones(3, BF16)).train(jnp.ones((), F32))
    assert isinstance(trained, Module)
    assert trained.weight.dtype == BF16


def test_jit_inside_compiles_once_for_a_weak_carry():
    start = {"n": 0, "x": jnp.asarray(0.0)}

    def compilations(wrap):
        def step(state):
            return {"n": state["n"] + jnp.ones((), I32), "x": state["x"] * 2.0}

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
        lax.scan(guard_step(body), jnp.zeros(3, BF16), jnp.ones((2, 3), BF16))
    assert len(traces) == 1
    assert guard_step(body) is guard_step(body)
    assert guard_step(body) != guard_step(body, carry=1, returned=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_guarded_step_is_copied_and_pickled(copied):
    again = copied(guard_step(drifting, carry="state"))
    assert again == guard_step(drifting, carry="state")
    assert_kept(first(), again(first())[0])
    # With a function by value, as cloudpickle takes it, goes what its attributes hold.
    kept = copied(vars(drifting))["_dtypeguard_steps"]
    assert not kept.steps


def test_guarding_twice_is_harmless():
    once = guard_step(drifting)
    assert guard_step(once) is once
    nested = guard_step(
        guard_step(lambda a, b: (a * jnp.float32(1), b * jnp.float32(1)), returned=0),
        carry=1,
        returned=1,
    )
    assert [x.dtype for x in nested(jnp.ones(2, BF16), jnp.ones(2, BF16))] == [BF16, BF16]
    stricter = guard_step(once, policy=Policy(on_drift="error"))
    assert_kept(first(), stricter(first())[0])


def test_refuses_what_cannot_be_brought_back_by_the_parameters_name():
    class State(NamedTuple):
        done: Any
        at: Any

    def step(x, state):
        return {"state": State(state.done + 0.5, state.at[:2])}

    guarded = guard_step(step, carry=1, returned="state")
    with pytest.raises(DtypeDriftError) as error:
        jax.eval_shape(guarded, 0, State(jnp.zeros((), I32), jnp.zeros(3)))
    assert str(error.value) == (
        "step returned 2 leaves that cannot be brought back:\n"
        "  state.done  int32[]    -> float32[],weak  "
        "begin with jnp.float32 (integers beyond 2**24 are rounded), or "
        "return jnp.round(x).astype(jnp.int32) (the fraction is lost)\n"
        "  state.at    float32[3] -> float32[2]      return it in shape (3,)\n"
        "Safe casts stay within float, complex or int, or go between bool and int. To cast "
        'between all of them: guard_step(..., policy=dtypeguard.Policy(casting="unsafe")).'
        "\nMore on this: dtypeguard docs guard-a-step"
    )
    unsafe = guard_step(step, carry=1, returned="state", policy=Policy(casting="unsafe"))
    cast = unsafe(0, State(jnp.ones((), I32), jnp.zeros(2)))["state"]
    assert cast.done.dtype == I32


def test_on_drift():
    seen = guard_step(drifting, policy=Policy(on_drift="warn"))
    message = r"drifting changed the dtype of 1 leaf:\n  state\['mean'\]  bfloat16"
    with pytest.warns(DtypeGuardWarning, match=message) as caught:
        for _ in range(2):
            assert_kept(first(), seen(first())[0])
    assert len(caught) == 1
    refused = guard_step(drifting, policy=Policy(on_drift="error"))
    rounds = "A cast to bfloat16 rounds: dtypeguard.audit_precision measures what that"
    with pytest.raises(DtypeDriftError, match=rf"{rounds} loses\.\n.*guard_step\(\.\.\., "):
        refused(first())


@pytest.fixture
def mixes_under_x64():
    """A step that only traces with x64 off: its literal is 64-bit with it on."""

    def step(state):
        if "spoilt" in state:
            raise ValueError("the second attempt starts from what came in")
        state["spoilt"] = 1
        state = {name: leaf for name, leaf in state.items() if name != "spoilt"}
        return state | {"x": lax.add(state["x"], jnp.asarray(np.float64(1.0)))}

    return step


@needs_x64_scope
def test_runs_with_x64_off_where_it_fails_with_it_on(mixes_under_x64):
    guarded = guard_step(mixes_under_x64)
    with set_x64(True):
        state = {"x": jnp.ones((), F32)}
        with pytest.raises(TypeError, match="same dtypes"):
            mixes_under_x64(dict(state))
        message = "step failed with x64 on and was run with it off: lax.add requires"
        with pytest.warns(DtypeGuardWarning, match=message):
            assert guarded(state)["x"].dtype == F32
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            jax.jit(guarded)({"x": jnp.ones((), F32)})  # said once
            # A Python number among the inputs of a jit is no 64-bit input.
            jax.jit(guarded)({"x": jnp.ones((), F32), "calls": 1})
        # 64-bit input: the error that it has bare.
        with pytest.raises(TypeError, match="same dtypes"):
            guarded({"x": jnp.ones((), F32), "y": jnp.ones(2, jnp.float64)})


@needs_x64_scope
def test_the_first_error_stays_where_x64_is_not_to_blame():
    def step(state, x):
        calls.append(1)
        return lax.add(state, jnp.ones(2, jnp.int8))

    for x64, attempts in ((False, 1), (True, 2)):
        calls = []
        with set_x64(x64), pytest.raises(TypeError, match="float32, int8") as error:
            guard_step(step)(jnp.ones(2, F32), 1.0)
        assert error.value.__cause__ is None
        assert len(calls) == attempts
    calls = []
    with set_x64(True), pytest.raises(DtypeDriftError, match=r"float32.* -> int32"):
        guard_step(lambda c: calls.append(1) or c.astype(I32))(jnp.ones(2, F32))
    assert len(calls) == 1


def test_runs_under_the_callers_flags():
    step = guard_step(lambda c: (c, jnp.sum(jnp.asarray(np.ones(2)))))
    with set_x64(True):
        carry, total = step(jnp.ones(2, F32))
        assert (carry.dtype, total.dtype) == (F32, jnp.float64)
        assert step(jnp.ones(2, jnp.float64))[0].dtype == jnp.float64


def test_strong_makes_arrays_with_buffers_of_their_own():
    params = jnp.ones(8, BF16)
    tree = {
        "params": params,
        "average": params,
        "numbers": (1, 2.0, True, np.float32(3), np.ones(2, np.float16)),
        "weak": jnp.asarray(1.0),
        "key": jax.random.key(0),
        "others": (None, jnp.tanh, "text"),
    }
    made = strong(tree)
    assert tree_util.tree_structure(made) == tree_util.tree_structure(tree)
    assert made["others"] == tree["others"]
    arrays = [x for x in tree_util.tree_leaves(made) if isinstance(x, jax.Array)]
    assert len(arrays) == 9
    plain = [x for x in arrays if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    assert not any(x.weak_type for x in plain)
    dtypes = [x.dtype for x in made["numbers"]]
    assert dtypes == [I32, F32, jnp.bool_, F32, jnp.float16]
    buffers = {x.unsafe_buffer_pointer() for x in [*plain, params]}
    assert len(buffers) == len(plain) + 1
    assert_same(made["params"], params)
    jax.jit(lambda c: c, donate_argnums=0)(made["average"])
    assert_same(params, jnp.ones(8, BF16))
    (traced,) = jax.make_jaxpr(lambda: strong({"a": 1.0})["a"])().out_avals
    assert (traced.dtype, traced.weak_type) == (F32, False)


def test_strong_keeps_what_only_has_a_shape():
    weak = jax.eval_shape(lambda: {"a": jnp.asarray(1.0), "n": 0, "w": jnp.ones(3, BF16)})
    made = strong(weak | {"b": 2.0})
    assert [type(made[k]) for k in "anw"] == [jax.ShapeDtypeStruct] * 3
    carry = jax.make_jaxpr(lambda c: [c[k] for k in "anwb"])(made).out_avals
    assert [aval.dtype for aval in carry] == [F32, I32, BF16, F32]
    assert not any(aval.weak_type for aval in carry)


def test_a_weak_leaf_comes_back_in_a_type_that_does_not_promote_with_it():
    with pytest.raises(DtypeDriftError, match=r"float32\[\],weak -> int4\[\]"):
        guard_step(lambda state: jnp.zeros((), jnp.int4))(1.0)


# A loss that looks like the carry -------------------------------------------------------


def takes(step, *args, **options):
    """What a guarded step warns of, and the dtypes of its result."""
    guarded = guard_step(step, **options)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        results = [guarded(*args) for _ in range(3)]
    dtypes = [str(leaf.dtype) for leaf in tree_util.tree_leaves(results[-1])]
    return [str(each.message) for each in warned], dtypes


LOSS, EMA = jnp.ones((), F32), jnp.zeros((), BF16)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_loss_that_could_be_the_carry_is_asked_about(wrap):
    step = wrap(lambda ema, x: (x * x, ema.astype(F32) * x))
    (asked,), dtypes = takes(step, EMA, LOSS)
    assert dtypes == ["bfloat16", "float32"]
    assert "takes item 0 for the new ema and casts it, but item 1 could be ema" in asked
    remedies = dict(re.findall(r"returned=(\S+)\b\)? if (it is|not)", asked))
    assert remedies == {"1": "it is", "0": "not"}
    assert takes(step, EMA, LOSS, returned=1) == ([], ["float32", "bfloat16"])
    assert takes(step, EMA, LOSS, returned=0) == ([], ["bfloat16", "float32"])
    assert takes(step, LOSS, LOSS) == ([], ["float32", "float32"])  # nothing is cast


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

    asked, (dtype, *_) = takes(step, EMA, LOSS)
    assert (asked, dtype) == ([], "bfloat16")
