"""Wrong arguments to everything public: the message tells what was given, what to write."""

import inspect
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dtypeguard
from dtypeguard import fromage, guard, multi_steps, prodigy, testing

pytestmark = pytest.mark.third_party
PARAMS = {"b": jnp.zeros(2), "w": jnp.ones(3)}
FEWER = {"w": jnp.ones(3)}
OTHER_SHAPE = {"b": jnp.zeros(2), "w": jnp.ones(4)}
INTS = {"n": jnp.ones(2, jnp.int32)}
KEY = jax.random.key(0)
ADAM = optax.adam(1e-3)
STATE = guard(ADAM).init(PARAMS)


def step(carry):
    return carry


def update(opt, *args):
    """One update with these arguments, where `...` is the first state."""
    first = opt.init(PARAMS)
    return opt.update(*(first if arg is ... else arg for arg in args))


# A call, and below it the error with what its message says; `...` stands for anything.
TABLE = """
guard(3)
    TypeError: guard got 3. Give it a gradient transformation
guard('adam')
    TypeError: guard got 'adam'. Give it a gradient transformation
guard(PARAMS)
    TypeError: Give it a gradient transformation
guard({'init': 1})
    TypeError: guard got {'init': 1}. Give it a gradient transformation
guard(Policy())
    TypeError: guard got Policy(). Give it a
guard(ADAM, policy='warn')
    TypeError: got policy='warn'. Write a dtypeguard.Policy, such as
    policy=dtypeguard.Policy(
guard(lambda: 3)()
    TypeError: which returned 3. A guarded function must return a gradient transformation
guard(ADAM, policy=Policy(rounding='stochastic')).update(PARAMS, STATE, PARAMS)
    TypeError: opt.init(params)._replace(inner_state=state)
Policy('f99')
    ValueError: Policy(compute_dtype='f99'): write compute_dtype=jnp.float32
Policy(jnp.bfloat16)
    ValueError: Write compute_dtype=jnp.float32, and state_dtype for
Policy(state_dtype='grads')
    ValueError: state_dtype='grads'...: write state_dtype="params", a floating dtype
Policy(updates_dtype=jnp.int32)
    ValueError: write updates_dtype="params", "grads" or a dtype such as jnp.float32
Policy(rounding='random')
    ValueError: 'random'...write rounding="nearest" or "stochastic"
Policy(casting='safe')
    ValueError: Policy(casting='safe'): write casting=
Policy(on_drift='ignore')
    ValueError: Policy(on_drift='ignore'): write on_drift=
Policy(seed=-1)
    ValueError: write a seed from 0 to 2**32 - 1
prodigy(betas=0.9)
    TypeError: prodigy got betas=0.9: write two numbers, such as (0.9, 0.999)
prodigy(betas=(1.5, 0.9))
    ValueError: prodigy got beta1=1.5: write a number in [0, 1)
prodigy(beta3=-1)
    ValueError: got beta3=-1: write a number
prodigy('0.1')
    TypeError: prodigy got learning_rate=...: write a number, such as 1e-3, or a
    function of the number of updates
prodigy(math.inf)
    ValueError: prodigy got learning_rate=inf: write a number, such as 1e-3
prodigy(1e39)
    ValueError: prodigy got learning_rate=1e+39: write a number
prodigy(eps=math.inf)
    ValueError: got eps=inf: write a number from 0 up
prodigy(estim_lr0=math.inf)
    ValueError: got estim_lr0=inf: write a small number above 0
prodigy(estim_lr_coef=math.inf)
    ValueError: got estim_lr_coef=inf: write a number above 0
prodigy(weight_decay=math.nan)
    ValueError: got weight_decay=nan: write a finite number
prodigy(growth_rate=math.nan)
    ValueError: got growth_rate=nan: write a number from 1 to 3e38, or math.inf
prodigy(mask='x')
    TypeError: takes bools in mask; these are not: ... mask: 'x'...Write True for each
prodigy(mask={'w': 'x', 'b': True})
    TypeError: these are not: ... mask['w']: 'x'...mask=None to decay all
update(prodigy(lambda count: None), PARAMS, ..., PARAMS)
    TypeError: prodigy got learning_rate(count)=None: return a number, such as 1e-3
update(prodigy(lambda count: jnp.ones(3)), PARAMS, ..., PARAMS)
    TypeError: prodigy got learning_rate(count)=Array([1.
prodigy(eps=-1)
    ValueError: got eps=-1: write a number from
prodigy(estim_lr0=1e-38)
    ValueError: got estim_lr0=1e-38: write a small number above 0
prodigy(weight_decay=None)
    TypeError: got weight_decay=None: write a finite number
prodigy(seed=0.5)
    TypeError: prodigy got seed=0.5: write an int from 0 to 2**32 - 1
prodigy(seed=-1)
    ValueError: prodigy got seed=-1: write an int from 0
prodigy(slice_p=0)
    ValueError: write slice_p=1 or above
prodigy(slice_p=1.5)
    TypeError: =1.5, ... write an int
prodigy().init(INTS)
    TypeError: these are not: ... params['n']: int32...optax.masked
update(prodigy(), PARAMS, ...)
    ValueError: needs the params: write update(updates, state, params)
update(prodigy(), ..., PARAMS, PARAMS)
    TypeError: got a state of type dict, not ...State. Write update(updates, state, params)
update(prodigy(), PARAMS, STATE, PARAMS)
    TypeError: got a state of type tuple, not ...State. Write update(updates, state, params)
update(prodigy(), FEWER, ..., PARAMS)
    ValueError: got updates in another tree than the params: ...
    updates['b']  float32[2] -> (
update(prodigy(), OTHER_SHAPE, ..., PARAMS)
    ValueError: in other shapes than the params: ...
    updates['w']  float32[3] -> float32[4]  give it
fromage(PARAMS)
    TypeError: fromage got learning_rate=...: write a number, such as 1e-3, or a
    function of the number of updates
fromage(math.nan)
    ValueError: fromage got learning_rate=nan: write a number, such as 1e-3
fromage(-math.inf)
    ValueError: fromage got learning_rate=-inf: write a number, such as 1e-3
fromage(0.1, math.inf)
    ValueError: got min_norm=inf: write a number from 0 up
fromage(0.1, p_bound=1e39)
    ValueError: got p_bound=1e+39: write a number from 0 up, or None for no bound
update(fromage(lambda count: math.nan), PARAMS, ..., PARAMS)
    ValueError: fromage got learning_rate(count)=nan: return a number, such as 1e-3
fromage(0.1).init(INTS)
    TypeError: these are not: ... params['n']: int32...optax.masked
update(fromage(0.1), PARAMS, ...)
    ValueError: needs the params: write update(updates, state, params)
update(fromage(0.1), ..., PARAMS, PARAMS)
    TypeError: got a state of type dict, not ...State. Write update(updates, state, params)
multi_steps(ADAM, 0)
    ValueError: =0: write 1 or more
multi_steps(ADAM, 2.5)
    TypeError: every_k_schedule=2.5: write an int from 1 up, or a function
update(multi_steps(ADAM, lambda step: None), PARAMS, ..., PARAMS)
    TypeError: multi_steps got every_k_schedule(gradient_step)=None: return a number from 1
update(multi_steps(ADAM, lambda step: '4'), PARAMS, ..., PARAMS)
    TypeError: got every_k_schedule(gradient_step)='4': return a number from 1 up
update(multi_steps(ADAM, lambda step: jnp.ones(2)), PARAMS, ..., PARAMS)
    TypeError: got every_k_schedule(gradient_step)=Array([1.
update(multi_steps(ADAM, lambda step: jnp.complex64(3)), PARAMS, ..., PARAMS)
    TypeError: got every_k_schedule(gradient_step)=Array(3.
update(multi_steps(ADAM, lambda step: True), PARAMS, ..., PARAMS)
    TypeError: got every_k_schedule(gradient_step)=True: return
update(multi_steps(ADAM, lambda step: 0), PARAMS, ..., PARAMS)
    ValueError: got every_k_schedule(gradient_step)=0: return a number from 1 up
multi_steps(4, ADAM)
    TypeError: got 4. Give it a gradient transformation
multi_steps(optax.adam, 4)
    TypeError: Call it first, as in optax.adam(1e-3)
multi_steps(ADAM, 4, accumulator_dtype=jnp.int32)
    TypeError: accumulator_dtype=...int32...: write a floating dtype, such as
    jnp.float32, or None
multi_steps(ADAM, 4, should_skip_update_fn=True)
    TypeError: =True: write a function, such as optax.skip_not_finite, or None
update(multi_steps(ADAM, 4), ..., PARAMS, PARAMS)
    TypeError: got a state of type dict, not ...State. Write update(updates, state, params)
update(multi_steps(ADAM, 4), FEWER, ..., PARAMS)
    ValueError: got updates in another tree than the params: ...
    updates['b']  float32[2] -> (
apply_updates(None, PARAMS)
    ValueError: another tree than the params: ... updates['b']  (absent) -> float32[2]
apply_updates(PARAMS, FEWER)
    ValueError: got updates in another tree than the params: ...
    updates['b']  float32[2] -> (
apply_updates(PARAMS, update(guard(ADAM), PARAMS, ..., PARAMS))
    ValueError: updates[0]['b']...(absent)   -> float32[2]  give one for each param
apply_updates(PARAMS, OTHER_SHAPE)
    TypeError: updates['w']  float32[3] -> float32[4]  give it in shape (3,)
apply_updates({'w': jnp.ones(())}, FEWER)
    TypeError: updates['w']  float32[] -> float32[3]  give it in shape ()
apply_updates(FEWER, {'w': jnp.ones(3, jnp.complex64)})
    TypeError: float32[3] -> complex64[3]  give jnp.real(x)
apply_updates(FEWER, {'w': 'x'})
    TypeError: updates['w']  float32[3] -> str  give an array or None
apply_updates({'w': 'x'}, FEWER)
    TypeError: updates['w']  str -> float32[3]  give None
apply_updates({'w': KEY}, {'w': jnp.ones(())})
    TypeError: key<fry>[] -> float32[]  give None
apply_updates(PARAMS, PARAMS, key=0)
    TypeError: apply_updates got key=...Write one new key for every step, such as key=
record(PARAMS, ADAM)
    TypeError: record got {... as the optimizer. Write record(opt, params)
record(optax.adam, PARAMS)
    TypeError: Call it first, as in optax.adam(1e-3)
restore(record(ADAM, PARAMS), STATE)
    DtypeDriftError: state[0].count...int32[] ... load its values, not only its dtype
restore(STATE, None)
    DtypeDriftError: another tree than the record: ... state[0].count...(absent) -> int32[]
restore(STATE, ADAM)
    DtypeDriftError: state.init...function -> ScaleByAdamState...load what was recorded
audit(PARAMS, ADAM)
    TypeError: audit got {...Give it a gradient
audit(optax.adam, PARAMS)
    TypeError: not the function that makes it
audit(ADAM, {'w': 'x'})
    TypeError: params['w']: 'x'...Write eqx.filter(params, eqx.is_array) or None
audit(ADAM, PARAMS, updates=ADAM)
    TypeError: for updates; these are not: ... updates.init: <function
audit(ADAM, PARAMS, extra_args=['value'])
    TypeError: extra_args=['value']. Write a dict of keyword arguments of update
audit(ADAM, PARAMS, x64='on')
    TypeError: audit got x64='on'. Write True, False or None
check_contract(3)
    TypeError: got 3. Give it a gradient transformation
check_contract(PARAMS, ADAM)
    TypeError: for params; these are not: ... params.init: <function
check_contract(optax.adam)
    TypeError: adam, which needs learning_rate. Write check_contract(lambda: adam(...))
check_contract(lambda: 3)
    TypeError: returned 3. Give it a function that returns an optimizer
check_contract(ADAM, rules=['scna'])
    ValueError: no rule is called 'scna'; there are ...scan
check_contract(ADAM, configurations=['float32'])
    ValueError: no configuration is called 'float32'; there are bf16,
check_contract(ADAM, configurations=16)
    TypeError: got configurations=16. Write a list, such as configurations=['bf16']
check_contract(ADAM, extra_args=['value'])
    TypeError: Write a dict of keyword arguments of update
check_contract(ADAM, 'x')
    TypeError: these are not: ... params: 'x'
parametrize_with_checks(ADAM)
    TypeError: Write a list, parametrize_with_checks([my_optimizer])
parametrize_with_checks(3)
    TypeError: got 3. Write a list
parametrize_with_checks([3])
    TypeError: got 3. Give it a gradient transformation
parametrize_with_checks([ADAM], confgurations=['bf16'])
    TypeError: takes no confgurations; it takes params, updates, extra_args,
    configurations, rules
parametrize_with_checks([ADAM], rules=['scna'])
    ValueError: no rule is called 'scna'
guard_step(3)
    TypeError: guard_step got 3. Give it a step: a function that takes its carry
guard_step(step, policy='error')
    TypeError: guard_step got policy='error'. Write a dtypeguard
guard_step(step, policy=Policy(compute_dtype=jnp.float32, on_drift='warn'))
    ValueError: Write policy=Policy(on_drift='warn'), and give the rest
guard_step(step, policy=Policy(state_dtype=jnp.bfloat16))
    ValueError: A step computes in the precision
guard_step(step, policy=Policy(seed=3))
    ValueError: seed=3
guard_step(lambda state, x=1.0: state, carry=2)
    ValueError: carry=2, but ... takes (state, x=1.0). Write one
guard_step(step, returned=(0, 1))
    ValueError: one is 1 long and the other 2
guard_step(step)()
    TypeError: step was called with 0 arguments by position
guard_step(lambda state: None)(PARAMS)
    TypeError: step returned None. Write return state
guard_step(ADAM)
    TypeError: which is an optimizer. Write dtypeguard.guard(optimizer)
guard_step(step, carry=[0])
    TypeError: got carry=[0]. Write the position or the name of the argument
guard_step(step, policy=Policy(rounding='stochastic'))
    ValueError: rounding='stochastic'...Write policy=Policy(), and give the rest to
    dtypeguard.guard(
strong({'n': 5 * 10**9})
    OverflowError: strong: tree['n'] is 5000000000, which does not fit into int32:
    turn on jax_enable_x64
explain(3)
    TypeError: explain got 3. Write `with dtypeguard.explain():` around the loop
audit(step, PARAMS, carry='c')
    ValueError: but step takes (carry). Write carry=0 or "carry"
check_step(ADAM, PARAMS)
    TypeError: Write dtypeguard.testing.check_contract(optimizer)
check_step(step, PARAMS, rules=['scna'])
    ValueError: no rule is called 'scna'; there are types, scan
check_lock(jnp.sin, jnp.ones(2), path='none.lock')
    AssertionError: found no none.lock. To write it, run the test with DTYPEGUARD_UPDATE=1
check_lock(jnp.sin, jnp.ones(2), path='none.lock', x64=1)
    TypeError: check_lock got x64=1. Write True, False or None
check_lock(jnp.sin, path='none.lock', kwargs=[1])
    TypeError: check_lock got kwargs=[1]
check_precision(jnp.sin, jnp.ones(2), plan='no.plan')
    PlanError: no.plan does not exist. `dtypeguard precision FILE.py:FUNCTION --out no.plan`
check_precision(jnp.sin, jnp.ones(2), plan='no.plan', max_error=-1)
    ValueError: write a relative error from 0 up, such as 0.02
check_precision(jnp.sin, jnp.ones(2), max_error='1e-3')
    TypeError: Write the relative error that is allowed, such as max_error=0.01
check_precision(jnp.sin, jnp.ones(2), max_wide_work='10%')
    TypeError: Write the share of work that may be wide, such as max_wide_work=0.1
check_precision(jnp.sin, jnp.ones(2))
    TypeError: got nothing to check. Write max_error=1e-2
check_precision(jnp.sin, jax.ShapeDtypeStruct((2,), jnp.bfloat16), max_error=1e-2)
    TypeError: have no values. Give it arrays, or max_wide_work alone
audit_precision(3)
    TypeError: audit_precision got 3. Write audit_precision(f, *args)
audit_precision(lambda x: x + 1, jnp.arange(2))
    TypeError: which returns no floating array, and nothing that floats decide: give it
audit_precision(jnp.sin, jnp.ones(2), narrow=jnp.int8)
    TypeError: Write a floating dtype, such as narrow=jnp.bfloat16
audit_precision(jnp.sin, jnp.ones(2), wide=jnp.bfloat16)
    ValueError: got wide=bfloat16, which rounds. Write wide=jnp.float32 or wide=jnp.float64
audit_precision(jnp.sin, jnp.ones(2, jnp.bfloat16), narrow=jnp.float32)
    ValueError: got narrow=float32, which is not narrower than the float32 that it compares
    with. Write a narrower dtype for narrow, such as narrow=jnp.bfloat16, or
    wide=jnp.float64
audit_precision(jnp.sin, jnp.ones(2), narrow=jnp.float32, wide=jnp.float32)
    ValueError: narrower than wide=float32. Write a narrower dtype for narrow
audit_precision(jnp.sin, jnp.ones(2), tolerance='1e-3')
    TypeError: write a relative error from 0 up, such as 1e-3
audit_precision(jnp.sin, jnp.ones(2), tolerance=-1.0)
    ValueError: write a relative error from 0 up, such as 1e-3
audit_precision(jnp.sin, jnp.ones(2), kwargs=[1])
    TypeError: audit_precision got kwargs=[1]. Write a dict of arguments by name
audit_precision(jnp.sin, jnp.array([jnp.nan]))
    ValueError: First the input args[0] is not. Give it arguments for which all are finite
audit_precision(jnp.sin, jnp.ones(2), matmul_precision='tpuv4')
    ValueError: got matmul_precision='tpuv4', which is not simulated. Write
    matmul_precision="tpu", or one of tpu, a100, h100, bfloat16
audit_precision(jnp.sin, jnp.ones(2), matmul_precision='tf32')
    ValueError: Write matmul_precision="TF32_TF32_F32", or
audit_precision(jnp.sin, jnp.ones(2), matmul_precision='BF16_BF16_BF16')
    ValueError: got matmul_precision='BF16_BF16_BF16', which is not simulated. Write
    matmul_precision="BF16_BF16_F32", or
audit_precision(jnp.sin, jnp.ones(2), matmul_precision=3)
    TypeError: got matmul_precision=3. Write a device or a precision, such as
    matmul_precision="tpu"
audit_precision(jnp.sin, jnp.ones(2), matmul_precision='tpu', wide=jnp.float64)
    ValueError: got wide=... and matmul_precision='tpu', which compares the program in its
    own dtypes with itself, and rounds products alone. Leave out wide, or audit twice
audit_precision(jnp.sin, jnp.ones(2), matmul_precision='tpu', narrow=jnp.bfloat16)
    ValueError: got narrow=... Leave out narrow, or audit twice
audit_precision(jnp.sin, jax.ShapeDtypeStruct((2,), jnp.float32), matmul_precision='tpu')
    TypeError: got matmul_precision and a jax.ShapeDtypeStruct, which has no values to
    round. Give it arrays
autocast(jnp.sin)
    TypeError: autocast got neither a plan nor a dtype. Write one of them:
    autocast(step, jnp.bfloat16)
autocast(jnp.sin, jnp.bfloat16, dtype=jnp.bfloat16)
    TypeError: autocast got a plan and a dtype. Write one of them
autocast(jnp.sin, jnp.int8)
    TypeError: which is no narrow floating dtype. Write jnp.bfloat16, jnp.float16
autocast(3, jnp.bfloat16)
    TypeError: autocast got 3. Give it a function of arrays first, and then a plan
autocast(jnp.sin, 'no.plan')
    PlanError: no.plan does not exist. `dtypeguard precision FILE.py:FUNCTION --out no.plan`
autocast(jnp.sin, jnp.bfloat16)(jnp.ones(2))
    PlanError: found no product in sin, so nothing of it is narrow. Give it the function
    that multiplies
Plan(jnp.float32)
    TypeError: which is no narrow floating dtype
Plan(jnp.bfloat16, 'some')
    PlanError: got default='some'. Write one of products, flow, all
audit_precision(lambda x: {'a': jnp.log(x)}, -jnp.ones(2, jnp.bfloat16))
    ValueError: ['a'] of ... is not finite in float32 either. First ... is not. Give it
    arguments for which all are finite
"""
EXPORTED = {name: getattr(dtypeguard, name) for name in dtypeguard.__all__}
CASES = dict(re.findall(r"^(\S.*)\n((?:    .*\n)+)", TABLE, flags=re.MULTILINE))


@pytest.mark.parametrize("call", CASES)
def test_the_message_says_what_to_write(call):
    name, _, message = CASES[call].strip().replace("\n    ", " ").partition(": ")
    match = "(.|\n)*".join(re.escape(part.strip()) for part in message.split("..."))
    with pytest.raises(Exception, match=match) as raised:
        eval(call, EXPORTED | vars(testing) | globals())
    assert type(raised.value).__name__ == name


def test_everything_public_is_in_the_table():
    """Classes that are only returned, and the errors, take no arguments of a user's."""
    made = {"AuditReport", "RoundingState", "FromageState", "ProdigyState"}
    made |= {"PrecisionReport"}
    here = lambda member: getattr(member, "__module__", "") == testing.__name__
    exported = [*EXPORTED.items()]
    exported += [(name, member) for name, member in vars(testing).items() if here(member)]
    is_error = lambda member: inspect.isclass(member) and issubclass(member, Exception)
    public = {
        name
        for name, member in exported
        if callable(member) and not name.startswith("_") and not is_error(member)
    }
    called = {name for call in CASES for name in re.findall(r"(\w+)\(", call)}
    assert public - made <= called
    assert {"guard", "apply_updates", "check_contract", "Policy"} <= public


@pytest.mark.parametrize(
    "make",
    [
        lambda: prodigy(jnp.float32(1.0), eps=np.float32(1e-8)),
        lambda: prodigy(optax.constant_schedule(1.0), beta3=0),
        lambda: fromage(np.float64(0.1), 0, p_bound=2),
        lambda: optax.inject_hyperparams(prodigy, static_args="slice_p")(1.0),
        lambda: optax.inject_hyperparams(fromage)(0.1),
        lambda: multi_steps(ADAM, np.int64(2)),
        lambda: multi_steps(ADAM, lambda step: 2.0),
        lambda: multi_steps(ADAM, lambda step: jnp.where(step < 2, 1, 2)),
        lambda: fromage(lambda count: 1),
        lambda: prodigy(growth_rate=math.inf, mask={"b": True, "w": np.bool_(False)}),
        lambda: prodigy(mask=lambda params: jax.tree_util.tree_map(lambda _: True, params)),
        lambda: multi_steps(ADAM, 2, accumulator_dtype=None),
    ],
)
def test_what_is_right_is_not_refused(make):
    opt = make()
    updates, _ = jax.jit(opt.update)(PARAMS, opt.init(PARAMS), PARAMS)
    assert jax.tree_util.tree_structure(updates) == jax.tree_util.tree_structure(PARAMS)
