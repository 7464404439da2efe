"""Wrong arguments to everything public: the message tells what was given, what to write."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dtypeguard
from dtypeguard import (
    DtypeDriftError,
    Policy,
    apply_updates,
    audit,
    audit_precision,
    audit_step,
    explain,
    fromage,
    guard,
    guard_step,
    multi_steps,
    prodigy,
    record,
    restore,
    strong,
    testing,
)
from dtypeguard.testing import (
    check_contract,
    check_precision,
    check_step,
    parametrize_with_checks,
)

pytestmark = pytest.mark.third_party
PARAMS = {"b": jnp.zeros(2), "w": jnp.ones(3)}
FEWER = {"w": jnp.ones(3)}
OTHER_SHAPE = {"b": jnp.zeros(2), "w": jnp.ones(4)}
ADAM = optax.adam(1e-3)
KEY = jax.random.key(0)


def step(carry):
    return carry


def state():
    return guard(ADAM).init(PARAMS)


def update(opt, *args):
    """One update with these arguments, where `...` is the first state."""
    first = opt.init(PARAMS)
    return opt.update(*(first if arg is ... else arg for arg in args))


def stochastic():
    return guard(ADAM, policy=Policy(rounding="stochastic"))


SWAPPED = r"got a state of type dict, not \w+State. Write update\(updates, state, params\)"
FOREIGN = SWAPPED.replace("dict", "tuple")
TREE = r"got updates in another tree than the params:\n  updates\['b'\]  float32\[2\] -> \("
SHAPE = (
    r"in other shapes than the params:\n  updates\['w'\]  float32\[3\] -> float32\[4\]  g"
)
NO_PARAMS = r"needs the params: write update\(updates, state, params\)"
NO_FLOATS = r"these are not:\n  params\['n'\]: int32\n(.|\n)*optax.masked"
RATE = "learning_rate=.*: write a number, such as 1e-3, or a function of the number of upd"
OPTIMIZER = "Give it a gradient transformation"
CALL_IT = r"Call it first, as in optax.adam\(1e-3\)"

# What is called, the error, and what its message says.
CASES = {
    # guard
    "guard(number)": (lambda: guard(3), TypeError, f"guard got 3. {OPTIMIZER}"),
    "guard(name)": (lambda: guard("adam"), TypeError, f"guard got 'adam'. {OPTIMIZER}"),
    "guard(params)": (lambda: guard(PARAMS), TypeError, OPTIMIZER),
    "guard(pair)": (lambda: guard((ADAM.init, ADAM.update)), TypeError, OPTIMIZER),
    "guard(Policy())": (
        lambda: guard(Policy()),
        TypeError,
        r"guard got Policy\(\). Give it a",
    ),
    "guard(policy=name)": (
        lambda: guard(ADAM, policy="warn"),
        TypeError,
        r"got policy='warn'. Write a dtypeguard.Policy, such as policy=dtypeguard.Policy\(",
    ),
    "guard(policy=class)": (
        lambda: guard(ADAM, policy=Policy),
        TypeError,
        "Write a dtypeguard.Policy",
    ),
    "guard(factory of no optimizer)": (
        lambda: guard(lambda: 3)(),
        TypeError,
        "which returned 3. A guarded function must return a gradient transformation",
    ),
    "stochastic: state without it": (
        lambda: stochastic().update(PARAMS, state(), PARAMS),
        TypeError,
        r"opt.init\(params\)._replace\(inner_state=state\)",
    ),
    # Policy
    "compute_dtype=unknown": (
        lambda: Policy("f99"),
        ValueError,
        r"Policy\(compute_dtype='f99'\): write compute_dtype=jnp.float32",
    ),
    "compute_dtype=bfloat16": (
        lambda: Policy(jnp.bfloat16),
        ValueError,
        "Write compute_dtype=jnp.float32, and state_dtype for",
    ),
    "state_dtype=grads": (
        lambda: Policy(state_dtype="grads"),
        ValueError,
        "state_dtype='grads'.*: write state_dtype=\"params\", a floating dtype",
    ),
    "updates_dtype=int32": (
        lambda: Policy(updates_dtype=jnp.int32),
        ValueError,
        'write updates_dtype="params", "grads" or a dtype such as jnp.float32',
    ),
    "rounding": (
        lambda: Policy(rounding="random"),
        ValueError,
        '\'random\'.*write rounding="nearest" or "stochastic"',
    ),
    "casting": (
        lambda: Policy(casting=True),
        ValueError,
        'casting=True.*write casting="same_kind" or "unsafe"',
    ),
    "on_drift": (
        lambda: Policy(on_drift="raise"),
        ValueError,
        '"cast" or "warn" or "error"',
    ),
    "seed=-1": (lambda: Policy(seed=-1), ValueError, r"write a seed from 0 to 2\*\*32 - 1"),
    "seed=key": (lambda: Policy(seed=KEY), ValueError, "write an int, such as seed=0"),
    # prodigy
    "prodigy(betas=number)": (
        lambda: prodigy(betas=0.9),
        TypeError,
        r"prodigy got betas=0.9: write two numbers, such as \(0.9, 0.999\)",
    ),
    "prodigy(three betas)": (
        lambda: prodigy(betas=(0.9, 0.99, 0.999)),
        TypeError,
        "write two numbers",
    ),
    "prodigy(beta1=1.5)": (
        lambda: prodigy(betas=(1.5, 0.9)),
        ValueError,
        r"prodigy got beta1=1.5: write a number in \[0, 1\)",
    ),
    "prodigy(beta3=-1)": (
        lambda: prodigy(beta3=-1),
        ValueError,
        "got beta3=-1: write a num",
    ),
    "prodigy(rate=text)": (lambda: prodigy("0.1"), TypeError, f"prodigy got {RATE}"),
    "prodigy(eps=-1)": (
        lambda: prodigy(eps=-1),
        ValueError,
        "got eps=-1: write a number fr",
    ),
    "prodigy(estim_lr0=0)": (
        lambda: prodigy(estim_lr0=0.0),
        ValueError,
        "got estim_lr0=0.0: write a small number above 0",
    ),
    "prodigy(estim_lr_coef=-1)": (
        lambda: prodigy(estim_lr_coef=-1.0),
        ValueError,
        "got estim_lr_coef=-1.0: write a number above 0",
    ),
    "prodigy(weight_decay=None)": (
        lambda: prodigy(weight_decay=None),
        TypeError,
        "got weight_decay=None: write a number",
    ),
    "prodigy(growth_rate=0.5)": (
        lambda: prodigy(growth_rate=0.5),
        ValueError,
        "got growth_rate=0.5: write a number from 1 to math.inf",
    ),
    "prodigy(slice_p=0)": (
        lambda: prodigy(slice_p=0),
        ValueError,
        "write slice_p=1 or above",
    ),
    "prodigy(slice_p=1.5)": (
        lambda: prodigy(slice_p=1.5),
        TypeError,
        "=1.5, .* write an int",
    ),
    "prodigy: integer params": (
        lambda: prodigy().init({"n": jnp.ones(2, jnp.int32)}),
        TypeError,
        NO_FLOATS,
    ),
    "prodigy: no params": (lambda: update(prodigy(), PARAMS, ...), ValueError, NO_PARAMS),
    "prodigy: swapped": (
        lambda: update(prodigy(), ..., PARAMS, PARAMS),
        TypeError,
        SWAPPED,
    ),
    "prodigy: another state": (
        lambda: update(prodigy(), PARAMS, state(), PARAMS),
        TypeError,
        FOREIGN,
    ),
    "prodigy: another tree": (
        lambda: update(prodigy(), FEWER, ..., PARAMS),
        ValueError,
        TREE,
    ),
    "prodigy: another shape": (
        lambda: update(prodigy(), OTHER_SHAPE, ..., PARAMS),
        ValueError,
        SHAPE,
    ),
    # fromage
    "fromage(rate=params)": (lambda: fromage(PARAMS), TypeError, f"fromage got {RATE}"),
    "fromage(rate=None)": (lambda: fromage(None), TypeError, f"fromage got {RATE}"),
    "fromage(min_norm=-1)": (
        lambda: fromage(0.1, -1.0),
        ValueError,
        "got min_norm=-1.0: write a number from 0 up",
    ),
    "fromage(p_bound=-1)": (
        lambda: fromage(0.1, p_bound=-1),
        ValueError,
        "got p_bound=-1: write a number from 0 up, or None for no bound",
    ),
    "fromage: integer params": (
        lambda: fromage(0.1).init({"n": jnp.ones(2, jnp.int32)}),
        TypeError,
        NO_FLOATS,
    ),
    "fromage: no params": (
        lambda: update(fromage(0.1), PARAMS, ...),
        ValueError,
        NO_PARAMS,
    ),
    "fromage: swapped": (
        lambda: update(fromage(0.1), ..., PARAMS, PARAMS),
        TypeError,
        SWAPPED,
    ),
    "fromage: another tree": (
        lambda: update(fromage(0.1), FEWER, ..., PARAMS),
        ValueError,
        TREE,
    ),
    "fromage: another shape": (
        lambda: update(fromage(0.1), OTHER_SHAPE, ..., PARAMS),
        ValueError,
        SHAPE,
    ),
    # multi_steps
    "multi_steps(k=0)": (lambda: multi_steps(ADAM, 0), ValueError, "=0: write 1 or more"),
    "multi_steps(k=-1)": (
        lambda: multi_steps(ADAM, -1),
        ValueError,
        "=-1: write 1 or more",
    ),
    **{
        f"multi_steps(k={k!r})": (
            lambda k=k: multi_steps(ADAM, k),
            TypeError,
            rf"every_k_schedule={re.escape(repr(k))}: write an int from 1 up, or a func",
        )
        for k in (2.5, None, "4", True)
    },
    "multi_steps(swapped)": (
        lambda: multi_steps(4, ADAM),
        TypeError,
        f"got 4. {OPTIMIZER}",
    ),
    "multi_steps(factory)": (lambda: multi_steps(optax.adam, 4), TypeError, CALL_IT),
    "multi_steps(dtype=int32)": (
        lambda: multi_steps(ADAM, 4, accumulator_dtype=jnp.int32),
        TypeError,
        "accumulator_dtype=.*int32.*: write a floating dtype, such as jnp.float32, or None",
    ),
    "multi_steps(dtype=unknown)": (
        lambda: multi_steps(ADAM, 4, accumulator_dtype="f99"),
        TypeError,
        "accumulator_dtype='f99': write a floating dtype",
    ),
    "multi_steps(skip=True)": (
        lambda: multi_steps(ADAM, 4, should_skip_update_fn=True),
        TypeError,
        "=True: write a function, such as optax.skip_not_finite, or None",
    ),
    "multi_steps: swapped": (
        lambda: update(multi_steps(ADAM, 4), ..., PARAMS, PARAMS),
        TypeError,
        SWAPPED,
    ),
    "multi_steps: another state": (
        lambda: update(multi_steps(ADAM, 4), PARAMS, state(), PARAMS),
        TypeError,
        FOREIGN,
    ),
    "multi_steps: another tree": (
        lambda: update(multi_steps(ADAM, 4), FEWER, ..., PARAMS),
        ValueError,
        TREE,
    ),
    "multi_steps: another shape": (
        lambda: update(multi_steps(ADAM, 4), OTHER_SHAPE, ..., PARAMS),
        ValueError,
        SHAPE,
    ),
    # apply_updates
    "apply_updates(None)": (
        lambda: apply_updates(None, PARAMS),
        ValueError,
        r"another tree than the params:\n  updates\['b'\]  \(absent\) -> float32\[2\]",
    ),
    "apply_updates: another tree": (lambda: apply_updates(PARAMS, FEWER), ValueError, TREE),
    "apply_updates: what update returned": (
        lambda: apply_updates(PARAMS, update(guard(ADAM), PARAMS, ..., PARAMS)),
        ValueError,
        r"updates\[0\]\['b'\] +\(absent\)   -> float32\[2\]  give one for each param",
    ),
    "apply_updates: another shape": (
        lambda: apply_updates(PARAMS, OTHER_SHAPE),
        TypeError,
        r"updates\['w'\]  float32\[3\] -> float32\[4\]  give it in shape \(3,\)",
    ),
    "apply_updates: a param would grow": (
        lambda: apply_updates({"w": jnp.ones(())}, FEWER),
        TypeError,
        r"updates\['w'\]  float32\[\] -> float32\[3\]  give it in shape \(\)",
    ),
    "apply_updates: complex to real": (
        lambda: apply_updates(FEWER, {"w": jnp.ones(3, jnp.complex64)}),
        TypeError,
        r"float32\[3\] -> complex64\[3\]  give jnp.real\(x\)",
    ),
    "apply_updates: text": (
        lambda: apply_updates(FEWER, {"w": "x"}),
        TypeError,
        r"updates\['w'\]  float32\[3\] -> str  give an array or None",
    ),
    "apply_updates: param is text": (
        lambda: apply_updates({"w": "x"}, FEWER),
        TypeError,
        r"updates\['w'\]  str -> float32\[3\]  give None",
    ),
    "apply_updates: param is a key": (
        lambda: apply_updates({"w": KEY}, {"w": jnp.ones(())}),
        TypeError,
        r"key<fry>\[\] -> float32\[\]  give None",
    ),
    **{
        f"apply_updates(key={name})": (
            lambda key=key: apply_updates(PARAMS, PARAMS, key=key),
            TypeError,
            "apply_updates got key=(.|\n)*Write one new key for every step, such as key=",
        )
        for name, key in {
            "0": 0,
            "keys": jax.random.split(KEY),
            "floats": np.ones(2, np.float32),
            "params": jnp.ones(3),
        }.items()
    },
    # record, restore
    "record(swapped)": (
        lambda: record(PARAMS, ADAM),
        TypeError,
        r"record got \{.* as the optimizer. Write record\(opt, params\)",
    ),
    "record(factory)": (lambda: record(optax.adam, PARAMS), TypeError, CALL_IT),
    "restore(swapped)": (
        lambda: restore(record(ADAM, PARAMS), state()),
        DtypeDriftError,
        r"state\[0\].count +int32\[\] .* load its values, not only its dtype",
    ),
    "restore(record=None)": (
        lambda: restore(state(), None),
        DtypeDriftError,
        r"another tree than the record:\n  state\[0\].count +\(absent\) -> int32\[\]",
    ),
    "restore(record=optimizer)": (
        lambda: restore(state(), ADAM),
        DtypeDriftError,
        r"state.init +function -> \(absent\)",
    ),
    # audit
    "audit(swapped)": (
        lambda: audit(PARAMS, ADAM),
        TypeError,
        r"audit got \{.*Give it a grad",
    ),
    "audit(factory)": (
        lambda: audit(optax.adam, PARAMS),
        TypeError,
        "not the function that makes it",
    ),
    "audit(params=text)": (
        lambda: audit(ADAM, {"w": "x"}),
        TypeError,
        r"params\['w'\]: 'x'\nWrite eqx.filter\(params, eqx.is_array\) or None",
    ),
    "audit(updates=optimizer)": (
        lambda: audit(ADAM, PARAMS, updates=ADAM),
        TypeError,
        "for updates; these are not:\n  updates.init: <function",
    ),
    "audit(extra_args=list)": (
        lambda: audit(ADAM, PARAMS, extra_args=["value"]),
        TypeError,
        r"extra_args=\['value'\]. Write a dict of keyword arguments of update",
    ),
    "audit(x64=on)": (
        lambda: audit(ADAM, PARAMS, x64="on"),
        TypeError,
        "audit got x64='on'. Write True, False or None",
    ),
    # testing
    "check_contract(number)": (lambda: check_contract(3), TypeError, f"got 3. {OPTIMIZER}"),
    "check_contract(swapped)": (
        lambda: check_contract(PARAMS, ADAM),
        TypeError,
        "for params; these are not:\n  params.init: <function",
    ),
    "check_contract(factory with arguments)": (
        lambda: check_contract(optax.adam),
        TypeError,
        r"adam, which needs learning_rate. Write check_contract\(lambda: adam\(...\)\)",
    ),
    "check_contract(factory of no optimizer)": (
        lambda: check_contract(lambda: 3),
        TypeError,
        "returned 3. Give it a function that returns an optimizer",
    ),
    "check_contract(rule)": (
        lambda: check_contract(ADAM, rules=["scna"]),
        ValueError,
        "no rule is called 'scna'; there are .*scan",
    ),
    "check_contract(rules=text)": (
        lambda: check_contract(ADAM, rules="scna"),
        ValueError,
        "no rule is called 'scna'; there are .*scan",
    ),
    "check_contract(configuration)": (
        lambda: check_contract(ADAM, configurations=["float32"]),
        ValueError,
        "no configuration is called 'float32'; there are bf16, ",
    ),
    "check_contract(configurations=number)": (
        lambda: check_contract(ADAM, configurations=16),
        TypeError,
        r"got configurations=16. Write a list, such as configurations=\['bf16'\]",
    ),
    "check_contract(extra_args=list)": (
        lambda: check_contract(ADAM, extra_args=["value"]),
        TypeError,
        "Write a dict of keyword arguments of update",
    ),
    "check_contract(params=text)": (
        lambda: check_contract(ADAM, "x"),
        TypeError,
        "these are not:\n  params: 'x'",
    ),
    "parametrize_with_checks(optimizer)": (
        lambda: parametrize_with_checks(ADAM),
        TypeError,
        r"Write a list, parametrize_with_checks\(\[my_optimizer\]\)",
    ),
    "parametrize_with_checks(number)": (
        lambda: parametrize_with_checks(3),
        TypeError,
        "got 3. Write a list",
    ),
    "parametrize_with_checks([number])": (
        lambda: parametrize_with_checks([3]),
        TypeError,
        f"got 3. {OPTIMIZER}",
    ),
    "parametrize_with_checks(option)": (
        lambda: parametrize_with_checks([ADAM], confgurations=["bf16"]),
        TypeError,
        "takes no confgurations; it takes params, updates, extra_args, configurations, rul",
    ),
    "parametrize_with_checks(rule)": (
        lambda: parametrize_with_checks([ADAM], rules=["scna"]),
        ValueError,
        "no rule is called 'scna'",
    ),
    # steps
    "guard_step(number)": (
        lambda: guard_step(3),
        TypeError,
        "guard_step got 3. Give it a step: a function that takes its carry",
    ),
    "guard_step(optimizer)": (
        lambda: guard_step(ADAM),
        TypeError,
        r"which is an optimizer. Write dtypeguard.guard\(optimizer\)",
    ),
    "guard_step(carry=list)": (
        lambda: guard_step(step, carry=[0]),
        TypeError,
        r"got carry=\[0\]. Write the position or the name of the argument",
    ),
    "guard_step(policy=precision)": (
        lambda: guard_step(step, policy=Policy(rounding="stochastic")),
        ValueError,
        r"Write policy=Policy\(\), and give the rest to dtypeguard.guard\(",
    ),
    "strong(too large)": (
        lambda: strong({"n": 1 << 40}),
        OverflowError,
        "which does not fit into int32: turn on jax_enable_x64",
    ),
    "explain(number)": (
        lambda: explain(3),
        TypeError,
        r"explain got 3. Write `with dtypeguard.explain\(\):` around the loop",
    ),
    "audit_step(optimizer)": (
        lambda: audit_step(ADAM, PARAMS),
        TypeError,
        r"which is an optimizer. Write dtypeguard.audit\(optimizer, params\)",
    ),
    "audit_step(unknown carry)": (
        lambda: audit_step(step, PARAMS, carry="c"),
        ValueError,
        r"but step takes \(carry\). Write carry=0 or \"carry\"",
    ),
    "check_step(optimizer)": (
        lambda: check_step(ADAM, PARAMS),
        TypeError,
        r"Write dtypeguard.testing.check_contract\(optimizer\)",
    ),
    "check_step(unknown rule)": (
        lambda: check_step(step, PARAMS, rules=["scna"]),
        ValueError,
        "no rule is called 'scna'; there are types, scan",
    ),
    # check_precision
    "check_precision(max_error)": (
        lambda: check_precision(jnp.sin, jnp.ones(2), max_error="1e-3"),
        TypeError,
        "Write the relative error that is allowed, such as max_error=0.01",
    ),
    "check_precision(max_wide_work)": (
        lambda: check_precision(jnp.sin, jnp.ones(2), max_wide_work="10%"),
        TypeError,
        "Write the share of work that may be wide, such as max_wide_work=0.1",
    ),
    "check_precision(nothing)": (
        lambda: check_precision(jnp.sin, jnp.ones(2)),
        TypeError,
        "got nothing to check. Write max_error=1e-2",
    ),
    "check_precision(shape)": (
        lambda: check_precision(
            jnp.sin, jax.ShapeDtypeStruct((2,), jnp.bfloat16), max_error=1e-2
        ),
        TypeError,
        "have no values. Give it arrays, or max_wide_work alone",
    ),
    # audit_precision
    "audit_precision(number)": (
        lambda: audit_precision(3),
        TypeError,
        r"audit_precision got 3. Write audit_precision\(f, \*args\)",
    ),
    "audit_precision(no float)": (
        lambda: audit_precision(lambda x: x > 0, jnp.ones(2)),
        TypeError,
        "returns no floating array: give it a function that returns",
    ),
    "audit_precision(narrow)": (
        lambda: audit_precision(jnp.sin, jnp.ones(2), narrow=jnp.int8),
        TypeError,
        "Write a floating dtype, such as narrow=jnp.bfloat16",
    ),
    "audit_precision(wide)": (
        lambda: audit_precision(jnp.sin, jnp.ones(2), wide=jnp.bfloat16),
        ValueError,
        "Write wide=jnp.float32 or jnp.float64",
    ),
    "audit_precision(not finite)": (
        lambda: audit_precision(lambda x: {"a": jnp.log(x)}, -jnp.ones(2, jnp.bfloat16)),
        ValueError,
        r"\['a'\] of .* is not finite in float32 either. Give it arguments for which it is",
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_message_says_what_to_write(case):
    call, error, match = CASES[case]
    with pytest.raises(error, match=match) as raised:
        call()
    assert type(raised.value) is error


def test_everything_public_is_in_the_table():
    """Classes that are only returned, and the errors, take no arguments of a user's."""
    made = {"AuditReport", "RoundingState", "FromageState", "ProdigyState"}
    made |= {"LineCost", "LineLoss", "PrecisionReport", "Work"}
    exported = {
        name: member for name, member in vars(dtypeguard).items() if callable(member)
    }
    exported |= {
        name: member
        for name, member in vars(testing).items()
        if getattr(member, "__module__", "") == testing.__name__
    }
    public = {
        name
        for name, member in exported.items()
        if not name.startswith("_")
        and not (inspect.isclass(member) and issubclass(member, Exception))
    }
    called = {re.match(r"\w+", case)[0] for case in CASES} | {"Policy"}
    assert public - made <= called
    assert {"guard", "apply_updates", "check_contract", "Policy"} <= public


@pytest.mark.parametrize(
    ("make", "params"),
    [
        (lambda: prodigy(jnp.float32(1.0), eps=np.float32(1e-8)), PARAMS),
        (lambda: prodigy(optax.constant_schedule(1.0), beta3=0), PARAMS),
        (lambda: fromage(np.float64(0.1), 0, p_bound=2), PARAMS),
        (lambda: optax.inject_hyperparams(prodigy, static_args="slice_p")(1.0), PARAMS),
        (lambda: optax.inject_hyperparams(fromage)(0.1), PARAMS),
        (lambda: multi_steps(ADAM, np.int64(2)), PARAMS),
        (lambda: multi_steps(ADAM, 2, accumulator_dtype=None), PARAMS),
    ],
)
def test_what_is_right_is_not_refused(make, params):
    opt = make()
    updates, _ = jax.jit(opt.update)(params, opt.init(params), params)
    assert jax.tree_util.tree_structure(updates) == jax.tree_util.tree_structure(params)
