"""check_step passes for guarded steps, and names every broken rule."""

import collections
import re
from types import MappingProxyType
from typing import Any

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import optax
import pytest

from dtypeguard import audit, guard_step, strong
from dtypeguard.testing import check_step
from tests.support.dtypes import BF16, F32, I32
from tests.support.helpers import set_x64

pytestmark = pytest.mark.third_party


def train(params, opt_state, average, x, *, decay=0.9):
    grads = jax.grad(lambda p: jnp.sum(p["w"].astype(F32) * x))(params)
    updates, opt_state = optax.adam(1e-3).update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    average = {"w": decay * average["w"] + 0.1 * params["w"].astype(F32)}
    return params, opt_state, average, x.sum()


def first_carry(dtype):
    params = {"w": jnp.ones(8, dtype)}
    return params, optax.adam(1e-3).init(params), params


STEP_RULES = "types", "scan", "cond", "while_loop", "one_compilation", "donation"
CARRY, X = ("params", "opt_state", "average"), jnp.ones(8)
TWO, THREE = jnp.ones(2), jnp.ones(3)


def broken(step, *args, **options):
    """The rules that `check_step` names, and its text."""
    with pytest.raises(AssertionError) as error:
        check_step(step, *args, **options)
    return re.findall(r"^  (\w+) ", str(error.value), re.MULTILINE), str(error.value)


@pytest.mark.parametrize("x64", [False, True])
def test_a_guarded_step_passes(x64):
    with set_x64(x64):
        first, x = strong(first_carry(BF16)), jnp.ones(8, F32)
        check_step(guard_step(train, carry=CARRY), *first, x, carry=CARRY)
        check_step(
            guard_step(train, carry=CARRY), *jax.eval_shape(lambda: first), x, carry=CARRY
        )


def test_a_stable_step_passes_bare():
    check_step(train, *strong(first_carry(F32)), X, carry=CARRY)
    check_step(lambda state: state * 2, 1.0)  # weak, and stays so
    check_step(lambda state, x: state, THREE, kwargs=MappingProxyType({"x": 2}))
    check_step(lambda done: False, jnp.zeros((), bool))  # in JAX no bool is weak
    check_step(
        lambda c: (jax.random.split(c[0])[0], None, c[2]),
        (jax.random.key(0), None, jnp.tanh),
    )


def test_every_broken_rule_is_named():
    args = *first_carry(BF16), X
    rules, text = broken(train, *args, carry=CARRY, kwargs={"decay": 0.5})
    assert text.startswith("train breaks 6 rules of a step's contract:\n")
    assert rules == [*STEP_RULES]
    assert "types            average['w']: bfloat16 -> float32" in text
    assert "params['w'] and average['w'] are one buffer" in text
    carry = "carry=('params', 'opt_state', 'average')"
    assert f"dtypeguard.guard_step(train, {carry})" in text
    assert "dtypeguard.strong((params, opt_state, average))" in text


def test_a_rule_by_itself():
    step = lambda c: c * jnp.ones((), F32)
    jitted, carry = jax.jit(step), 1.0  # weak at first
    jitted(jitted(carry))
    assert (jitted._cache_size(), broken(step, carry)[0]) == (2, ["one_compilation"])
    check_step(
        step, carry, rules=[rule for rule in STEP_RULES if rule != "one_compilation"]
    )
    x = jnp.ones(4)
    check_step(lambda c, x: c + x, x, jnp.ones(4))
    assert "c and another argument are one buffer" in broken(lambda c, x: c + x, x, x)[1]
    key = jax.random.key(0)
    assert broken(lambda c, key: c, key, key)[0] == ["donation"]


def test_a_report_says_what_a_guard_does_not_mend():
    _, text = broken(lambda state: state + 0.5, jnp.ones(2, I32))
    assert "guard_step does not fix this: DtypeDriftError" in text

    def raises(state):
        raise RuntimeError("no such thing")

    assert "  traces  RuntimeError: no such thing\n" in broken(raises, TWO)[1]


def test_a_guarded_step_with_a_weak_first_carry_should_begin_strongly():
    step = guard_step(lambda state, x: (state[0] + x, state[1] + jnp.ones((), I32)))
    _, text = broken(step, (jnp.zeros(3, BF16), 0), THREE)
    assert "\nBegin with dtypeguard.strong(state). " in text
    assert "Guard it" not in text


def test_the_item_that_the_carry_comes_back_as():
    def step(state, x):
        return x.sum(), state + x

    state, x = jnp.zeros(3, BF16), jnp.ones(3, F32)
    _, text = broken(step, state, x, returned=1)
    assert "state: bfloat16 -> float32" in text
    assert "Guard it, dtypeguard.guard_step(step, returned=1), and " in text
    check_step(guard_step(step, returned=1), state, x, returned=1)


Pair, Other = (collections.namedtuple(name, "a b") for name in ("Pair", "Other"))


@flax.struct.dataclass
class Counting:
    x: Any
    count: int = flax.struct.field(pytree_node=False, default=0)


@pytest.mark.parametrize(
    ("step", "carry", "named"),
    [
        (lambda c: {"a": c["a"]}, {"a": TWO, "b": THREE}, r"\(absent\)"),
        (lambda c: {"w": list(c["w"])}, {"w": (TWO, THREE)}, r"\[\*, \*\]"),
        (lambda c: (collections.OrderedDict(c[0]),), ({"a": TWO},), "OrderedDict"),
        (lambda c: {"s": Other(*c["s"])}, {"s": Pair(TWO, THREE)}, "Other"),
        (lambda c: c.replace(count=c.count + 1), Counting(TWO), r"\(1,\)"),
        (lambda c: {**c, "b": ()}, {"a": TWO, "b": None}, r"'b': \(\)"),
    ],
    ids=["absent", "list", "OrderedDict", "NamedTuple", "static", "empty"],
)
def test_another_tree_even_with_the_same_paths_breaks_a_rule(step, carry, named):
    """`lax.scan` refuses it, and so does the rule."""
    with pytest.raises(TypeError, match="same pytree structure"):
        jax.lax.scan(lambda c, _: (step(c), None), carry, None, length=2)
    rules, text = broken(step, carry)
    assert re.search(f" c.*: .* -> .*{named}", text)
    assert rules == ["types", "scan", "cond", "while_loop", "one_compilation"]
    assert not audit(step, carry).ok


class Model(eqx.Module):
    weight: Any
    temperature: Any = 2.0


def anneal(model):
    return Model(model.weight * 2, model.temperature * 0.9)


@pytest.mark.parametrize(
    ("step", "first", "count"),
    [
        (anneal, 2.0, 4),
        (anneal, jnp.asarray(2.0), 1),  # as the report says
        (lambda m: Model(m.weight * 2, 1), 1.0, 1),
        (lambda m: Model(m.weight * 2, lambda x: x), jnp.tanh, 4),
        (lambda m: Model(m.weight * 2, m.temperature), jnp.tanh, 1),
        (lambda m: Model(m.weight * 2, not m.temperature), False, 2),
    ],
)
def test_a_constant_that_a_step_changes_is_compiled_again(step, first, count):
    calls = []
    jitted = eqx.filter_jit(lambda model: calls.append(1) or step(model))
    trained = Model(THREE, first)
    for _ in range(4):
        trained = jitted(trained)
    assert len(calls) == count
    model = Model(THREE, first)
    report = audit(step, model)
    assert (report.ok, report.compilations) == (True, min(count, 2))
    changed = [constant.path for constant in report.changed_constants]
    if count == 1:
        assert (changed, report.summaries) == ([], ("", ""))
        return check_step(step, model)
    assert [path.partition(".")[2] for path in changed] == ["temperature"]
    assert "constant of the program, which compiles anew for each value" in str(report)
    assert "Begin a number with jnp.asarray." in str(report)
    rules, text = broken(step, model)
    assert rules == ["one_compilation"]
    assert re.search(r"temperature: .* -> .*, a constant", text)
    assert "dtypeguard.guard_step does not fix this. " in text


def test_a_constant_that_becomes_an_array_is_named():
    """The tree is the same, but not what is data in it."""
    step = lambda model: Model(model.weight * 2, model.temperature * F32(0.9))
    model = Model(THREE, 2.0)
    (drift,) = audit(step, model).drifts
    assert (drift.path, drift.kind) == ("model.temperature", "structure")
    assert (drift.before, drift.after) == ("(a constant)", "float32[]")
    assert " model.temperature: " in broken(step, model)[1]
