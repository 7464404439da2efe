"""check_contract passes for everything guarded, and names a broken rule."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from dtypeguard import Policy, audit, guard
from dtypeguard.testing import check_contract, parametrize_with_checks
from tests.support.dtypes import BF16, F32, F64, I32
from tests.support.helpers import HAS_X64_SCOPE, needs_x64_scope, set_x64
from tests.support.one_leaf import struct
from tests.support.optimizer_sweep.catalog import by_id

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types"),
]


@needs_x64_scope
@pytest.mark.parametrize("name", ["adamw[mask]", "contrib.sam", "polyak_sgd", "noisy_sgd"])
def test_guarded_optimizers_pass(name):
    """`test_contract.py` and the sweep of .ci/run keep what matters most for all."""
    entry = by_id()[f"optax.{name}"]
    params, updates, _ = entry.inputs((BF16, F32), F32)
    make, configurations = lambda: guard(entry.build()), ["bf16/f32", "mixed"]
    check_contract(make, params, updates=updates, configurations=configurations)


def _checks(optimizers, **options):
    """The parameters of a test of some optimizers, one for each rule of the contract."""
    return parametrize_with_checks(optimizers, **options).args[1]


RULES = [param.id.partition("-")[2] for param in _checks({"adam": optax.adam(1)})]


class Named:
    """A leaf that is neither an array nor a pytree."""


def _optimizer(
    leaf=lambda params: jnp.zeros(()), change=lambda leaf: leaf, out=lambda u, p: u
):
    def update(updates, state, params=None):
        return out(updates, params), change(state)

    return optax.GradientTransformation(lambda params: leaf(params), update)


def _size_by_value(params):
    is_set = jnp.any(params["b"])
    return jnp.zeros(1 if isinstance(is_set, jax.core.Tracer) or is_set else 2)


def _in_float64(leaf):
    wide = leaf.astype(jax.dtypes.canonicalize_dtype(F64))
    return (wide * 2).astype(F32)


def _on_arrays_only(updates, params):
    if isinstance(updates["w"], jax.core.Tracer):
        raise TypeError("this one runs on arrays only")
    return updates


def _with_table():
    table = jnp.arange(3.0)  # gone once the first state is donated
    return _optimizer(lambda p: table)


# The optimizer, and rules that the report must name.
COUNTER = "state_types", "scan", "cond", "while_loop", "one_compilation"
BROKEN = {
    "int counter becomes float": (
        lambda: _optimizer(lambda p: jnp.zeros((), I32), lambda n: n + 0.5),
        {*COUNTER},
    ),
    "weak first state": (
        lambda: _optimizer(lambda p: jnp.asarray(0.0), lambda m: m + jnp.ones((), m.dtype)),
        {"state_types", "one_compilation"},
    ),
    "state grows": (
        lambda: _optimizer(lambda p: jnp.zeros(1), lambda m: jnp.concatenate([m, m])),
        {*COUNTER},
    ),
    "random keys of another kind": (
        lambda: _optimizer(
            lambda p: jax.random.key(0, impl="threefry2x32"),
            lambda key: jax.random.key(1, impl="rbg"),
        ),
        {*COUNTER[1:]},
    ),
    "a size by the params' values": (lambda: _optimizer(_size_by_value), {"init"}),
    "wide updates": (
        lambda: _optimizer(
            out=lambda u, p: jax.tree_util.tree_map(lambda g: g * np.float32(2), u)
        ),
        {"update_types"},
    ),
    "params in the state": (lambda: _optimizer(lambda p: p), {"donation"}),
    "a table of its own in the state": (_with_table, {"donation"}),
    "a leaf that is not an array": (lambda: _optimizer(lambda p: Named()), {"checkpoint"}),
    "computes in float64": (lambda: _optimizer(change=_in_float64), {"blind_to_x64"}),
    "arrays only": (lambda: _optimizer(out=_on_arrays_only), {*COUNTER[:4]}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_optimizer_fails_naming_the_rule(name):
    make, rules = BROKEN[name]
    if rules == {"blind_to_x64"} and not HAS_X64_SCOPE:
        pytest.skip("the flag is not hidden before JAX 0.7")
    with pytest.raises(AssertionError, match="of the contract:\n") as error:
        check_contract(make(), configurations=["bf16", "bf16/f32"])
    named = {line.split()[0] for line in str(error.value).splitlines()[1:-1]}
    assert rules <= named <= set(RULES)


def test_every_rule_is_broken_by_something():
    assert set().union(*(rules for _, rules in BROKEN.values())) == set(RULES)


def test_the_report_says_where_and_how():
    with pytest.raises(AssertionError) as error:
        check_contract(optax.trace(0.9), configurations=["bf16/f32"], rules=["state_types"])
    first, line, last = str(error.value).splitlines()
    assert first == "trace(...) breaks 1 rule of the contract:"
    assert line.startswith("  state_types  bf16/f32, x64 off (and in 1 more)  trace['b']")
    assert "bfloat16 -> float32  optax/" in line
    assert last.startswith("Wrap it: dtypeguard.guard(trace(...)).")
    # pytest shows the line of the test, and no frame of a check.
    assert error.traceback[-1].locals["__tracebackhide__"]


def test_an_error_of_the_guard_takes_one_line():
    counter = BROKEN["int counter becomes float"][0]()
    with pytest.raises(AssertionError, match=r"brought back: state  int32\[\] -> float32"):
        check_contract(guard(counter), configurations=["f32"], rules=["state_types"])


ASKED = [
    Policy(
        compute_dtype=F32,  # of bfloat16.md
        state_dtype=BF16,
        updates_dtype=F32,
        rounding="stochastic",
    ),
    Policy(state_dtype="params", updates_dtype="grads"),  # which refuses float16
    Policy(compute_dtype=F64, updates_dtype=F64),  # which needs x64
    Policy(state_dtype={"*": F64}),
]


@needs_x64_scope
@pytest.mark.parametrize("policy", ASKED, ids=str)
def test_what_a_policy_asks_for_breaks_no_rule(policy):
    opt = guard(optax.adam(1e-3), policy=policy)
    check_contract(opt, configurations=["bf16", "f16", "bf16/f32"])
    report = audit(opt, struct(BF16), x64=True)
    assert str(report) == "audit: no leaf changed its type in one update."
    assert not report.wide_operations


def test_a_policy_that_refuses_all_that_is_checked_breaks_the_rules():
    opt = guard(optax.adam(1e-3), policy=Policy(state_dtype="params"))
    with pytest.raises(AssertionError, match=r"f16, .*Policy\(state_dtype='params'\)"):
        check_contract(opt, configurations=["f16"], rules=["scan"])


@pytest.mark.parametrize("x64", [False, True])
def test_the_flag_is_restored(x64):
    with set_x64(x64):
        check_contract(guard(optax.sgd(0.1)), configurations=["f32"])
        assert jax.config.jax_enable_x64 is x64


@pytest.mark.parametrize("how", [True, "mean"])
def test_params_and_extra_args_of_the_callers(how):
    dtypes = lambda tree: {name: leaf.dtype for name, leaf in tree.items()}

    def update(updates, state, params=None, *, reduce):
        assert params["a"].shape == updates["a"].shape == (2, 5)
        seen.append((reduce, dtypes(params), dtypes(updates)))
        return params, state

    seen = []
    opt = optax.GradientTransformationExtraArgs(lambda p: optax.EmptyState(), update)
    params = {"a": jax.ShapeDtypeStruct((2, 5), F32), "n": jnp.ones((), I32)}
    check_contract(opt, params, extra_args={"reduce": how}, configurations="bf16/f32")
    wide = dtypes(params)
    assert all(x == (how, wide | {"a": BF16}, wide) for x in seen)


def test_a_chain_of_which_a_part_takes_value_alone_is_given_that():
    def update(updates, state, params=None, *, value):
        scaled = lambda g: (g * jnp.tanh(value)).astype(g.dtype)
        return jax.tree_util.tree_map(scaled, updates), state

    part = optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
    check_contract(
        guard(optax.chain(part, optax.sgd(0.1))), configurations="f32", rules="state_types"
    )


@parametrize_with_checks(
    [guard(optax.trace(0.9)), lambda: guard(optax.sgd(0.1))], configurations=["bf16/f32"]
)
def test_parametrized(optimizer, check):
    check(optimizer)


def _my_optimizer():
    return guard(optax.adam(1e-3))


def test_readable_ids():
    """Of chains, and of what is guarded as well; pytest numbers those that are alike."""
    ids = lambda optimizers: [param.id for param in _checks(optimizers, rules="scan")]
    optimizers = [guard(optax.trace(0.9)), optax.adam(1), _my_optimizer]
    assert ids(optimizers) == ["trace-scan", "opt-scan", "_my_optimizer-scan"]
    assert ids({"adam": optax.adam(1)}) == ["adam-scan"]
    (param,) = _checks([optax.trace(0.9)], configurations="bf16/f32", rules="state_types")
    optimizer, check = param.values
    with pytest.raises(AssertionError, match="state_types"):
        check(optimizer)


def test_a_single_factory_is_refused():
    with pytest.raises(TypeError, match=r"Write a list, .*\[my_optimizer\]"):
        parametrize_with_checks(_my_optimizer)


_WRAP = "Wrap it: dtypeguard.guard(_optimizer(...))."
_MORE = "dtypeguard.audit names the lines of source."


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (BROKEN["wide updates"][0], f"{_WRAP} {_MORE}"),
        (
            BROKEN["int counter becomes float"][0],
            f"{_WRAP} What it does not fix: {', '.join(COUNTER)}. {_MORE}",
        ),
        (
            lambda: _optimizer(lambda p: 0, lambda n: n + 1),
            f"{_WRAP} {_MORE}",
        ),
        (
            lambda: _optimizer(lambda p: 1 / 0),
            f"dtypeguard.guard does not fix this. {_MORE}",
        ),
        (  # an `init` for float32 alone
            lambda: _optimizer(lambda p: lax.add(p["b"], jnp.ones(3))),
            f"{_WRAP[:-2]}, policy=dtypeguard.Policy(compute_dtype=jnp.float32)). {_MORE}",
        ),
    ],
)
def test_the_advice_is_one_that_helps(make, advice):
    with pytest.raises(AssertionError) as error:
        check_contract(make(), configurations="bf16")
    assert str(error.value).splitlines()[-1] == advice
