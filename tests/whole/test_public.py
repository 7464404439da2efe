"""Every public name: where it comes from, pickles, examples, errors for wrong arguments.

Of a wrong argument the message tells what was given, and what to write.
"""

import doctest
import inspect
import math
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dtypeguard
from dtypeguard import fromage, guard, prodigy, testing
from tests.support.helpers import assert_same
from tests.support.one_leaf import NARROW

# Examples show third-party optimizers under JAX's own promotion, as their readers have it.
pytestmark = pytest.mark.third_party

NAMES = {
    f"{module.__name__}.{name}": (module, getattr(module, name))
    for module in (dtypeguard, testing)
    for name in module.__all__
}


def _documented(name, thing):
    """The thing, and if it is a class what it defines itself, each by its name."""
    yield name, thing
    for attribute, member in vars(thing).items() if inspect.isclass(thing) else ():
        if not attribute.startswith("_") and (inspect.getdoc(member) or "").strip():
            yield f"{name}.{attribute}", member


# By name, since doctest's own finder looks for what says that it belongs to a module.
EXAMPLES = {
    inner: doctest.DocTestParser().get_doctest(
        inspect.getdoc(member), vars(module).copy(), inner, None, None
    )
    for name, (module, thing) in NAMES.items()
    for inner, member in _documented(name, thing)
    if ">>>" in (inspect.getdoc(member) or "")
}


@pytest.mark.parametrize("name", NAMES)
def test_it_says_where_it_is_imported_from_and_is_documented(name):
    module, thing = NAMES[name]
    assert f"{thing.__module__}.{thing.__qualname__}" == name
    assert thing is getattr(module, thing.__name__)
    first, _, rest = inspect.getdoc(thing).partition("\n")
    assert first.endswith(".")
    assert not rest or rest.startswith("\n")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name):
    """Docstring examples print what they say."""
    lines = []
    result = doctest.DocTestRunner().run(EXAMPLES[name], out=lines.append)
    assert result.failed == 0, "".join(lines)
    assert result.attempted > 0


def test_what_is_called_shows_an_example():
    """Functions and `Policy`, that is; a state, an error or a report need not."""
    called = {name for name, (_, thing) in NAMES.items() if inspect.isfunction(thing)}
    assert {*called, "dtypeguard.Policy"} <= set(EXAMPLES)


def _pickled(thing):
    """What comes back from its pickle, in which no class names a room."""
    data = pickle.dumps(thing)
    assert b"dtypeguard" in data
    assert b"dtypeguard._" not in data
    return pickle.loads(data)


def test_pickles_name_no_room():
    for name, (_, thing) in NAMES.items():
        assert not inspect.isclass(thing) or _pickled(thing) is thing, name
    rounding = dtypeguard.Policy(rounding="stochastic")
    for opt in (
        dtypeguard.multi_steps(dtypeguard.prodigy(), 2),
        dtypeguard.fromage(1e-3),
        dtypeguard.guard(optax.adam(1e-3), policy=rounding),
    ):
        state = opt.init(NARROW)
        assert_same(_pickled(state), state)
    drifting = optax.GradientTransformation(
        lambda params: jnp.zeros((), jnp.int32), lambda u, s, p=None: (u, s + 0.5)
    )
    with pytest.raises(dtypeguard.DtypeDriftError, match="int32") as raised:
        jax.eval_shape(dtypeguard.guard(drifting).update, NARROW, jnp.int32(0))
    for thing in (
        raised.value,
        dtypeguard.DtypeGuardWarning("said"),
        dtypeguard.Policy(compute_dtype=jnp.float32, state_dtype="params"),
        dtypeguard.audit(dtypeguard.guard(optax.adam(1e-3)), NARROW),
    ):
        again = _pickled(thing)
        assert (type(again), repr(again)) == (type(thing), repr(thing))


PARAMS = {"b": jnp.zeros(2), "w": jnp.ones(3)}
FEWER = {"w": jnp.ones(3)}
INTS = {"n": jnp.ones(2, jnp.int32)}
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
guard(lambda: 3)()
    TypeError: which returned 3. A guarded function must return a gradient transformation
guard(ADAM, policy=Policy(rounding='stochastic')).update(PARAMS, STATE, PARAMS)
    TypeError: opt.init(params)._replace(inner_state=state)
Policy('f99')
    ValueError: Policy(compute_dtype='f99'): write compute_dtype=jnp.float32
Policy(state_dtype='grads')
    ValueError: state_dtype='grads'...: write state_dtype="params", a floating dtype
Policy(seed=-1)
    ValueError: write a seed from 0 to 2**32 - 1
prodigy(betas=0.9)
    TypeError: prodigy got betas=0.9: write two numbers, such as (0.9, 0.999)
update(prodigy(lambda count: None), PARAMS, ..., PARAMS)
    TypeError: prodigy got learning_rate(count)=None: return a number, such as 1e-3
prodigy().init(INTS)
    TypeError: these are not: ... params['n']: int32...optax.masked
fromage(PARAMS)
    TypeError: fromage got learning_rate=...: write a number, such as 1e-3, or a
    function of the number of updates
update(fromage(0.1), PARAMS, ...)
    ValueError: needs the params: write update(updates, state, params)
multi_steps(ADAM, 0)
    ValueError: =0: write 1 or more
multi_steps(ADAM, 2, should_skip_update_fn=lambda *_: True).init(PARAMS)
    ValueError: should_skip_update_fn returned True. Return a scalar bool and a tree
update(multi_steps(ADAM, lambda step: 0), PARAMS, ..., PARAMS)
    ValueError: got every_k_schedule(gradient_step)=0: return a number from 1 up
update(multi_steps(ADAM, 4), FEWER, ..., PARAMS)
    ValueError: got updates in another tree than the params: ...
    updates['b']  float32[2] -> (
apply_updates(PARAMS, FEWER)
    ValueError: got updates in another tree than the params: ...
    updates['b']  float32[2] -> (
apply_updates(PARAMS, PARAMS, key=0)
    TypeError: apply_updates got key=...Write one new key for every step, such as key=
apply_updates(jnp.ones(2, jnp.int4), jnp.ones(2))
    TypeError: int4[2] -> float32[2]  give it in int4: JAX does not promote 4-bit integers
record(PARAMS, ADAM)
    TypeError: got {...Give it a gradient transformation
restore(record(ADAM, PARAMS), STATE)
    DtypeDriftError: state[0].count...int32[] ... load its values, not only its dtype
restore(STATE, None)
    DtypeDriftError: another tree than the record: ... state[0].count...(absent) -> int32[]
audit(PARAMS, ADAM)
    TypeError: audit got {...Give it a gradient
audit(optax.adam, PARAMS)
    TypeError: not the function that makes it; or a step
audit(ADAM, {'w': 'x'})
    TypeError: params['w']: 'x'...Write eqx.filter(params, eqx.is_array) or None
audit(ADAM, PARAMS, updates='text')
    TypeError: updates: 'text'
audit(step, 1, carry=7)
    ValueError: Write the position or the name
audit(step, 1, returned=(0, 1))
    ValueError: as many of both
audit(step, (1,), returned=4)
    TypeError: another item
audit(step, 1, kwargs=[1])
    TypeError: Write a dict of arguments
check_contract(3)
    TypeError: got 3. Give it a gradient transformation
check_contract(ADAM, rules=['scna'])
    ValueError: no rule is called 'scna'; there are ...scan
parametrize_with_checks(step)
    TypeError: Write a list
parametrize_with_checks([ADAM], confgurations=['bf16'])
    TypeError: unexpected keyword argument 'confgurations'
guard_step(3)
    TypeError: guard_step got 3. Give it a step: a function that takes its carry
guard_step(step, policy=Policy(state_dtype=jnp.bfloat16))
    ValueError: A step computes in the precision
guard_step(lambda state, x=1.0: state, carry=2)
    ValueError: carry=2, but ... takes (state, x=1.0). Write the position
guard_step(lambda x: (x, x), returned=[0])(PARAMS)
    TypeError: returned=[0] names another item. Say which of them the new x is:
    guard_step(..., returned=0)
guard_step(lambda state: None)(PARAMS)
    TypeError: step returned None, and not the new state. Write return state
strong({'n': 5 * 10**9})
    OverflowError: strong: tree['n'] is 5000000000, which does not fit into int32:
    turn on jax_enable_x64
explain(3)
    TypeError: explain got 3. Write `with dtypeguard.explain():` around the loop
audit(step, PARAMS, carry='c')
    ValueError: but step takes (carry). Write the position or the name
check_step(ADAM, PARAMS)
    TypeError: For an optimizer there are ...dtypeguard.testing.check_contract
check_step(step, 1, kwargs=[1])
    TypeError: check_step got kwargs=[1]. Write a dict of arguments
check_lock(jnp.sin, jnp.ones(2), path='none.lock')
    AssertionError: found no none.lock. To write it, run the test with DTYPEGUARD_UPDATE=1
check_precision(jnp.sin, jnp.ones(2), plan='no.plan')
    PlanError: no.plan does not exist. `dtypeguard precision FILE.py:FUNCTION --out no.plan`
audit_precision(3)
    TypeError: audit_precision got 3. Write audit_precision(f, *args)
audit_precision(lambda x: x + 1, jnp.arange(2))
    TypeError: which returns no floating array, and nothing that floats decide: give it
audit_precision(jnp.sin, jnp.ones(2), wide=jnp.bfloat16)
    ValueError: got wide=bfloat16, which rounds. Write wide=jnp.float32 or wide=jnp.float64
audit_precision(jnp.sin, jnp.array([jnp.nan]))
    ValueError: First the input x is not. Give it arguments for which all are finite
audit_precision(lambda n: 1 / 256**n, jnp.arange(1, 5))
    ValueError: makes (div), ... is not. Give it arguments for which all are finite, and
    floats in place of ints that overflow
audit_precision(jnp.sin, jnp.ones(2), matmul_precision='tpuv4')
    ValueError: got matmul_precision='tpuv4', which is not simulated. Write
    matmul_precision="tpu", or one of tpu, bfloat16, a100, h100
audit_precision(jnp.sin, jnp.ones(2), matmul_precision='tpu', wide=jnp.float64)
    ValueError: got matmul_precision='tpu' with wide or narrow. It compares the program in
    its own dtypes with itself, and rounds products alone. Leave out the others
autocast(jnp.sin)
    TypeError: autocast got neither a plan nor a dtype. Write one of them:
    autocast(step, jnp.bfloat16)
autocast(jnp.sin, jnp.bfloat16)(jnp.ones(2))
    PlanError: found no product in sin, so nothing of it is narrow. Give it the function
    that multiplies
Plan(jnp.float32)
    TypeError: which is no narrow floating dtype
"""
EXPORTED = {thing.__name__: thing for _, thing in NAMES.values()}
CASES = dict(re.findall(r"^(\S.*)\n((?:    .*\n)+)", TABLE, flags=re.MULTILINE))


@pytest.mark.parametrize("call", CASES)
def test_the_message_says_what_to_write(call):
    name, _, message = CASES[call].strip().replace("\n    ", " ").partition(": ")
    match = "(.|\n)*".join(re.escape(part.strip()) for part in message.split("..."))
    with pytest.raises(Exception, match=match) as raised:
        eval(call, EXPORTED | globals())
    assert type(raised.value).__name__ == name


def test_everything_public_is_in_the_table():
    """Classes that are only returned, and the errors, take no arguments of a user's."""
    states = {"RoundingState", "FromageState", "ProdigyState"}
    made = {"AuditReport", "PrecisionReport", *states}
    is_error = lambda member: inspect.isclass(member) and issubclass(member, Exception)
    public = {name for name, member in EXPORTED.items() if not is_error(member)}
    called = {name for call in CASES for name in re.findall(r"(\w+)\(", call)}
    assert public - made <= called
    assert {"guard", "apply_updates", "check_contract", "Policy"} <= public


@pytest.mark.parametrize(
    "make",
    [
        lambda: prodigy(jnp.float32(1.0), eps=np.float32(1e-8)),
        lambda: prodigy(optax.constant_schedule(1.0), beta3=0),
        lambda: fromage(np.float64(0.1), 0, p_bound=2),
        lambda: prodigy(growth_rate=math.inf, mask={"b": True, "w": np.bool_(False)}),
    ],
)
def test_what_is_right_is_not_refused(make):
    opt = make()
    updates, _ = jax.jit(opt.update)(PARAMS, opt.init(PARAMS), PARAMS)
    assert jax.tree_util.tree_structure(updates) == jax.tree_util.tree_structure(PARAMS)
