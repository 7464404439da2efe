"""The precision policy: what the inner optimizer sees, what is stored, what comes out."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax, tree_util

import dtypeguard
from dtypeguard import DtypeDriftError, Policy, RoundingState, guard
from tests.support.dtypes import BF16, C64, F16, F32, F64, I32
from tests.support.helpers import assert_same, dtypes, needs_x64_scope, set_x64, types
from tests.support.hlo import count_float64, optimized_hlo
from tests.support.one_leaf import NARROW, dict_leaf, transformation
from tests.support.optimizer_sweep.catalog import by_id

FLOAT8 = jnp.float8_e4m3fn
ALL_BF16 = Policy(compute_dtype=F32, state_dtype=BF16, rounding="stochastic")
third_party = pytest.mark.third_party
ADAM = optax.adam(1e-3)


def params_of(dtype=BF16):
    return {"w": jnp.linspace(-1, 1, 12).reshape(4, 3).astype(dtype)}


def grads_of(params, dtype=None):
    return tree_util.tree_map(
        lambda p: (p.astype(F32) * F32(0.37)).astype(dtype or p.dtype), params
    )


def spy(seen=None):
    """Notes the dtypes of what it is given; keeps a sum, a scalar and a float32 sum."""
    seen = {} if seen is None else seen

    def init(params):
        seen.setdefault("init", dtypes(params))  # the first time: later ones are looks
        (dtype,) = dtypes(params)
        return {
            "sum": tree_util.tree_map(jnp.zeros_like, params),
            "scale": jnp.ones((), dtype),
            "fixed": tree_util.tree_map(lambda p: jnp.zeros(p.shape, F32), params),
            "count": jnp.zeros((), I32),
        }

    def update(updates, state, params=None, **extra_args):
        seen["update"] = dtypes(updates) | dtypes(params)
        seen["state"] = {name: dtypes(part) for name, part in state.items()}
        seen["extra"] = extra_args
        add = lambda old, u: old + u.astype(old.dtype) * F32(0.1).astype(old.dtype)
        new = {x: tree_util.tree_map(add, state[x], updates) for x in ("sum", "fixed")}
        return updates, state | new

    return transformation(update, init)


def one_update(opt, params=None, grads=None, **extra_args):
    params = params_of() if params is None else params
    state = opt.init(params)
    grads = grads_of(params) if grads is None else grads
    return state, *opt.update(grads, state, params, **extra_args)


# The policy itself ----------------------------------------------------------------------


@third_party
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", [F16, FLOAT8], ids=lambda d: jnp.dtype(d).name)
def test_a_whole_state_below_the_range_of_bfloat16_is_refused(dtype, rounding):
    """Of Adam, `nu` underflows: to nearest for good, at random most of the time."""
    told = rf"state_dtype={jnp.dtype(dtype).name}\): .*state_dtype=jnp.bfloat16.*\*.mu\*"
    with pytest.raises(ValueError, match=told):
        Policy(compute_dtype=F32, state_dtype=dtype, rounding=rounding)
    opt = guard(optax.adam(1.0), policy=Policy(F32, "params", rounding=rounding))
    with pytest.raises(ValueError, match=r"='params'.*state_dtype=jnp.bfloat16"):
        opt.init(params_of(dtype))
    opt.init(params_of(BF16))
    # Who names leaves has the choice.
    opt = guard(optax.adam(1.0), policy=Policy(None, {"*.mu*": dtype}, rounding=rounding))
    state = opt.init(params_of(F32))
    adam = (state if rounding == "nearest" else state.inner_state)[0]
    assert (adam.mu["w"].dtype, adam.nu["w"].dtype) == (dtype, F32)


def test_str_equality_and_hash():
    rule = Policy(state_dtype={"*.mu*": BF16}, updates_dtype="grads")
    assert str(rule) == "Policy(state_dtype={'*.mu*': bfloat16}, updates_dtype='grads')"
    spellings = {F32, np.float32, "float32", np.dtype("float32"), jnp.dtype(F32)}
    assert len({Policy(compute_dtype=dtype) for dtype in spellings}) == 1
    assert Policy(compute_dtype=F64) != Policy()  # np.dtype("float64") == None
    rules = {"*.mu*": BF16, "*": F32}
    assert len({Policy(state_dtype=rules), Policy(state_dtype=dict(rules))}) == 1
    reverse = dict(reversed(rules.items()))  # of two that match, the first counts
    assert Policy(state_dtype=rules) != Policy(state_dtype=reverse)


def test_guarding_again_replaces_the_policy():
    opt = guard(guard(spy(), policy=ALL_BF16))
    assert isinstance(opt.init(params_of()), RoundingState)
    assert isinstance(guard(opt, policy=Policy()).init(params_of()), dict)


# What the inner optimizer sees ----------------------------------------------------------


@pytest.mark.parametrize(
    ("state_dtype", "rounding"),
    [(None, "nearest"), (BF16, "stochastic"), ("params", "nearest")],
)
def test_everything_is_seen_in_compute_dtype(state_dtype, rounding):
    seen, params = {}, params_of()
    policy = Policy(compute_dtype=F32, state_dtype=state_dtype, rounding=rounding)
    value_fn = lambda p: (types(p), jnp.ones((), BF16))
    _, updates, _ = one_update(
        guard(spy(seen), policy=policy), loss=jnp.ones((), F16), value_fn=value_fn
    )
    assert seen["init"] == seen["update"] == {"float32"}
    parts = {"sum": "float32", "scale": "float32", "fixed": "float32", "count": "int32"}
    assert seen["state"] == {name: {dtype} for name, dtype in parts.items()}
    assert seen["extra"]["loss"].dtype == F32
    assert seen["extra"]["value_fn"](params)[1].dtype == F32
    assert types(updates) == types(params)


def test_without_compute_dtype_only_the_state_is_widened():
    one_update(guard(spy(seen := {}), policy=Policy(state_dtype=BF16)))
    assert seen["init"] == seen["update"] == {"bfloat16"}
    assert seen["state"]["sum"] == seen["state"]["scale"] == {"float32"}


def test_float64_is_not_narrowed():
    with set_x64(True):
        params = params_of(F64)
        _, updates, _ = one_update(
            guard(spy(seen := {}), policy=Policy(compute_dtype=F32)),
            params,
            grads_of(params, BF16),
        )
        assert seen["init"] == seen["state"]["sum"] == {"float64"}
        assert seen["update"] == {"float32", "float64"}
        assert types(updates) == types(params)
        policy = Policy(compute_dtype=F64, state_dtype=BF16)
        state, *_ = one_update(guard(spy(seen := {}), policy=policy))
        assert state["sum"]["w"].dtype == BF16
        assert seen["init"] == seen["update"] == seen["state"]["sum"] == {"float64"}


@third_party
def test_computes_what_float32_computes():
    """With a float32 state, bit for bit: only the updates are rounded, once."""
    params = params_of()
    opt = guard(ADAM, policy=Policy(compute_dtype=F32, updates_dtype=F32))
    grads, wide = grads_of(params), grads_of(params, F32)
    state, wide_state = opt.init(params), ADAM.init(wide)
    for _ in range(3):
        updates, state = opt.update(grads, state, params)
        expected, wide_state = ADAM.update(
            tree_util.tree_map(lambda g: g.astype(F32), grads), wide_state, wide
        )
        assert_same((updates, state), (expected, wide_state))


# What is stored -------------------------------------------------------------------------

STORED = {
    "as init makes it": (None, "nearest", "float32"),
    "a dtype": (BF16, "stochastic", "bfloat16"),
    "float8": ({"*": FLOAT8}, "stochastic", "float8_e4m3fn"),
    "as the params": ("params", "nearest", "bfloat16"),
    "by another pattern": ({"*scale*": BF16}, "nearest", "float32"),
    "by its very path": ({"['sum']['w']": BF16}, "stochastic", "bfloat16"),
    "by the first that matches": ({"['s*": F16, "*['w']": BF16}, "nearest", "float16"),
}


@pytest.mark.parametrize("case", STORED)
def test_what_follows_the_params_is_stored_as_told(case):
    state_dtype, rounding, expected = STORED[case]
    policy = Policy(compute_dtype=F32, state_dtype=state_dtype, rounding=rounding)
    first, _, second = one_update(guard(spy(), policy=policy))
    assert types(first) == types(second)
    state = first.inner_state if rounding == "stochastic" else first
    assert str(state["sum"]["w"].dtype) == expected
    assert state["scale"].dtype == F32  # a scalar
    assert state["fixed"]["w"].dtype == F32  # does not follow
    assert state["count"].dtype == I32


def test_patterns_that_match_no_leaf():
    opt = guard(spy(), policy=Policy(state_dtype={"*sum*": BF16, "*nu*": BF16}))
    with pytest.raises(ValueError, match=r"match no leaf: '\*nu\*'.*\n") as error:
        opt.init(params_of())
    assert "  ['sum']['w']  bfloat16[4,3]" in str(error.value)
    # One for all leaves may match none.
    assert guard(transformation(), policy=Policy(state_dtype={"*": BF16})).init({}) == ()


@needs_x64_scope
def test_float64_updates_make_no_state_wider():
    counts = transformation(init=lambda params: jnp.zeros((), int))
    with set_x64(True):
        opt = guard(counts, policy=Policy(updates_dtype=F64))
        assert opt.init(params_of()).dtype == I32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state_dtype": F64}, r"float64 for \['s.* needs x64: store at most"),
        ({"state_dtype": {"*sum*": F64}}, r"float64 for \['s.* needs x64: store at most"),
        ({"compute_dtype": F64}, r"_dtype=float64\) needs x64: write"),
        ({"updates_dtype": F64}, r"_dtype=float64\) needs x64: write"),
    ],
)
def test_a_float64_policy_needs_x64(options, message):
    """JAX would give float32 and warn, and so it would where the guard hides the flag."""
    opt, params = guard(spy(), policy=Policy(**options)), params_of()
    with set_x64(True):
        state, updates, _ = one_update(opt)
        assert (state["sum"]["w"].dtype == F64) == ("updates_dtype" not in options)
        assert (updates["w"].dtype == F64) == ("updates_dtype" in options)
    call = (
        opt.init
        if "state_dtype" in options
        else functools.partial(opt.update, params, state)
    )
    with pytest.raises(ValueError, match=message):
        call(params)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_an_update_keeps_what_came(dtype):
    """`state_dtype` is for `init`; a state of another provenance keeps its dtypes."""
    params, policy = params_of(), Policy(compute_dtype=F32, state_dtype=BF16)
    state = optax.trace(0.9).init(params_of(dtype))
    _, new_state = guard(optax.trace(0.9), policy=policy).update(params, state, params)
    assert types(state) == types(new_state)


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize(("stored", "dtype"), [(None, F32), ("params", BF16)])
def test_a_policy_around_an_init_that_looks_at_values(stored, dtype, jitted):
    """Each floating leaf is then seen in `compute_dtype`, in updates that are traced."""

    def init(params):
        is_zero = not bool(jnp.any(params["w"] != 0))
        return jnp.zeros(3, F32) if is_zero else jnp.zeros_like(params["w"])

    def update(updates, state, params=None):
        return updates, state + updates["w"]  # under strict promotion

    opt = guard(
        transformation(update, init), policy=Policy(compute_dtype=F32, state_dtype=stored)
    )
    run = jax.jit(opt.update) if jitted else opt.update
    state = opt.init(NARROW)
    assert state.dtype == dtype
    assert_same(run(NARROW, state, NARROW)[1], jnp.ones(3, dtype))


# What comes out, and what is a drift ------------------------------------------------------


@third_party
@pytest.mark.parametrize(
    ("updates_dtype", "expected"),
    [(None, "bfloat16"), ("params", "bfloat16"), ("grads", "float16"), (F32, "float32")],
)
@pytest.mark.parametrize("options", [{"compute_dtype": F32}, {"state_dtype": BF16}])
def test_updates_dtype(options, updates_dtype, expected):
    """It is for floats alone."""
    opt = guard(optax.trace(0.9), policy=Policy(**options, updates_dtype=updates_dtype))
    params = params_of() | {"c": jnp.ones(2, C64)}
    _, updates, _ = one_update(opt, params, params | grads_of(params_of(), F16))
    assert (updates["w"].dtype, updates["c"].dtype) == (expected, C64)


def test_a_policy_of_dtypes_reports_no_cast_between_floats():
    returning = lambda **new: transformation(lambda u, s, p: (u, s | new), spy().init)
    for options in ({"compute_dtype": F32, "state_dtype": BF16}, {"state_dtype": BF16}):
        policy = Policy(**options, on_drift="error")
        for new in ({}, {"scale": jnp.ones((), F16)}, {"fixed": params_of()}):
            one_update(guard(returning(**new), policy=policy))
        with pytest.raises(DtypeDriftError, match=r"\['scale'\].* -> float32\[\],weak"):
            one_update(guard(returning(scale=jnp.asarray(1.0)), policy=policy))
    # A dtype for updates lets no state drift.
    opt = dict_leaf(lambda params: jnp.zeros(3, BF16), lambda leaf, _: leaf.astype(F32))
    with pytest.raises(DtypeDriftError, match=r"bfloat16.* -> float32"):
        one_update(guard(opt, policy=Policy(updates_dtype=F32, on_drift="error")))


# Stochastic rounding of the state -------------------------------------------------------


def slow_average(old, new):
    """It moves by less than half a spacing of bfloat16."""
    return (old * 0.999 + new.astype(old.dtype) * 0.001).astype(old.dtype)


@pytest.mark.parametrize("dtype", [BF16, FLOAT8])
def test_slow_averages_move(dtype):
    params = {"w": jnp.ones((200, 50), dtype)}
    grads = {"w": jnp.full((200, 50), 2, dtype)}
    update = lambda u, s, p=None: (u, tree_util.tree_map(slow_average, s, u))

    def run(rounding):
        # By name: below bfloat16's range a policy does not store all there is.
        policy = Policy(F32, state_dtype={"*w*": dtype}, rounding=rounding)
        opt = guard(transformation(update, lambda params: params), policy=policy)
        step = lambda s, _: (opt.update(grads, s, params)[1], None)
        state, _ = lax.scan(step, opt.init(params), None, length=100)
        return tree_util.tree_leaves(state)[0].astype(F32)

    np.testing.assert_array_equal(run("nearest"), 1)
    values = run("stochastic")
    error = np.sqrt(100 * 0.001 * float(jnp.finfo(dtype).eps) / values.size)
    assert abs(values.mean() - (2 - 0.999**100)) < 5 * error


@third_party
def test_reproducible_and_the_same_in_jit_and_scan():
    params = params_of()
    scanned = lambda step, state: lax.scan(step, state, None, length=9)[0]

    def looped(step, state):
        step = jax.jit(step)
        for _ in range(9):
            state, _ = step(state, None)
        return state

    def run(loop, seed=0, state=None):
        opt = guard(ADAM, policy=dataclasses.replace(ALL_BF16, seed=seed))
        step = lambda s, _: (opt.update(grads_of(params), s, params)[1], None)
        return loop(step, opt.init(params) if state is None else state)

    one, other = run(looped), run(looped, seed=1)
    assert_same(one, run(scanned))
    assert one.rounding_step == 9
    assert (other.inner_state[0].nu["w"] != one.inner_state[0].nu["w"]).any()
    # The seed is the state's: the policy only starts it.
    first = guard(ADAM, policy=ALL_BF16).init(params)
    assert_same(other, run(scanned, state=first._replace(rounding_seed=jnp.uint32(1))))
    # A loader without uint32 gives other integers, which stay so and give the same noise.
    loaded = first._replace(rounding_seed=I32(1), rounding_step=I32(0))
    assert_same(other.inner_state, run(scanned, state=loaded).inner_state)


@third_party
def test_checkpoints():
    opt, params = guard(ADAM, policy=ALL_BF16), params_of()
    grads = grads_of(params)
    _, _, state = one_update(opt)
    assert_same(
        opt.update(grads, state, params),
        opt.update(grads, tree_util.tree_map(np.asarray, state), params),
    )
    # From a float32 job.
    _, _, old = one_update(ADAM, params_of(F32))
    taken_over = opt.init(params)._replace(inner_state=old)
    taken_over = dtypeguard.restore(taken_over, dtypeguard.record(opt, params))
    assert types(taken_over) == types(state)
    assert_same(taken_over.inner_state[0].mu["w"], old[0].mu["w"].astype(BF16))
    # Without the noise, and back again.
    plain = guard(ADAM, policy=Policy(compute_dtype=F32))
    _, inner = plain.update(grads, state.inner_state, params)
    with pytest.raises(TypeError, match=r"_replace\(inner_state=state\)"):
        opt.update(grads, inner, params)
    opt.update(grads, opt.init(params)._replace(inner_state=inner), params)
    with pytest.raises(TypeError, match=r"got a RoundingState. Give it state.inner_state"):
        plain.update(grads, state, params)


@third_party
@pytest.mark.skipif(
    jax.default_backend() != "cpu" or jax.__version_info__ < (0, 7, 2),
    reason="XLA's CPU backend does so from JAX 0.7.2 on",
)
def test_donation_and_one_compilation():
    opt = guard(ADAM, policy=dataclasses.replace(ALL_BF16, updates_dtype=F32))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, grads, key):
        updates, state = opt.update(grads, state, params)
        return dtypeguard.apply_updates(params, updates, key=key), state

    # It copies nothing with the option that the docs name.
    params = {name: jnp.full((256, 256), 0.7, BF16) for name in "ab"}
    grads, key = grads_of(params), jax.random.key(0)
    args = params, opt.init(params), grads, key
    option = {"xla_cpu_copy_insertion_use_region_analysis": True}
    compiled = step.lower(*args).compile(compiler_options=option)
    # One of the four moments has 2**17 bytes.
    assert compiled.memory_analysis().temp_size_in_bytes < 2**14
    expected = step(*tree_util.tree_map(jnp.copy, args))
    assert_same(compiled(*args), expected)
    step(*expected, grads, key)
    assert step._cache_size() == 1


# In all of Optax, bare programs, and x64 -------------------------------------------------

EVERY_POLICY = [
    ALL_BF16,
    Policy(compute_dtype=F32),
    Policy(compute_dtype=F32, state_dtype="params", updates_dtype=F32),
    Policy(state_dtype=BF16),
    Policy(state_dtype={"*": BF16}, updates_dtype="grads"),
    Policy(state_dtype="params"),
    Policy(rounding="stochastic"),
]
QUICK = "optax.adamw", "dtypeguard.multi_steps"
SOME = "adafactor", "lion", "inject_hyperparams", "masked", "apply_if_finite", "flatten"
SOME = *QUICK, *(f"optax.{name}" for name in (*SOME, "MultiSteps", "contrib.muon"))
ENTRIES = [
    pytest.param(
        entry, id=entry.id, marks=[pytest.mark.exhaustive] * (entry.id not in QUICK)
    )
    for entry in by_id().values()
    if entry.id in (*SOME, "dtypeguard.prodigy")
]


@third_party
@pytest.mark.filterwarnings("ignore::dtypeguard.DtypeGuardWarning")
@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types")
@pytest.mark.parametrize("entry", ENTRIES)
def test_under_any_policy_a_carry_and_no_drift(entry):
    """(params, state) comes out with the types it went in with.

    No policy calls what it does itself a drift: bare, each leaf keeps its type.
    """
    for dtypes_of in ((BF16, BF16), (F16, F16), (F32, BF16)):
        inputs = entry.inputs(*dtypes_of)

        def run(policy, inputs=inputs):
            opt = guard(entry.build(), policy=policy)
            step = lambda *args: one_update(opt, *args, **inputs.extra_args)
            return jax.eval_shape(step, inputs.params, inputs.updates)

        try:
            run(Policy(on_drift="error"))
            reports = {"on_drift": "error"}
        except DtypeDriftError:
            reports = {}
        for policy in EVERY_POLICY:
            if policy.state_dtype == "params" and F16 in dtypes_of:
                continue  # which is refused
            state, updates, new_state = run(dataclasses.replace(policy, **reports))
            assert types(new_state) == types(state), policy
            if policy.updates_dtype is None:
                assert dtypes(updates) <= dtypes(inputs.params), policy


@third_party
def test_nothing_to_do_is_the_bare_program():
    params, bare = params_of(F32), optax.adamw(1e-3)
    opt = guard(bare, policy=Policy(compute_dtype=F32))
    args = (grads_of(params), opt.init(params), params)
    assert optimized_hlo(opt.update, *args) == optimized_hlo(bare.update, *args)


@third_party
@needs_x64_scope
def test_blind_to_the_x64_flag():
    results, params = [], params_of()
    for x64 in (False, True):
        with set_x64(x64):
            opt = guard(optax.adamw(1e-3), policy=ALL_BF16)
            args = (grads_of(params), opt.init(params), params)
            assert count_float64(opt.update, *args) == 0
            results.append(jax.jit(opt.update)(*args))
    assert_same(*results)


@third_party
@pytest.mark.parametrize("policy", [Policy(), ALL_BF16], ids=str)
def test_a_whole_equinox_model_as_params(policy):
    model = eqx.nn.MLP(2, 1, 4, 0, dtype=BF16, key=jax.random.key(0))
    params = eqx.filter(model, eqx.is_inexact_array)
    opt = guard(optax.trace(0.9), policy=policy)
    state = opt.init(params)
    assert_same(opt.update(params, state, model), opt.update(params, state, params))
