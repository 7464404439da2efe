"""Before JAX 0.8, what needs it says so in one sentence, and guards work."""

import jax.numpy as jnp
import optax
import pytest

import dtypeguard
from dtypeguard import testing
from tests.support.pages import main

pytestmark = pytest.mark.third_party
X = jnp.ones(3, jnp.bfloat16)
NEEDS = "needs JAX 0.8 or later, and this is 0.7.2: write pip install -U jax."


@pytest.fixture
def _old(monkeypatch):
    monkeypatch.setattr("dtypeguard._leaves.compat.HAS_NUMBERS", False)
    monkeypatch.setattr("jax.__version__", "0.7.2")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.7.2")


CALLS = {
    "audit": lambda: dtypeguard.audit(lambda x: x, X),
    "audit of an optimizer": lambda: dtypeguard.audit(optax.sgd(1), X),
    "explain": dtypeguard.explain,
    "audit_precision": lambda: dtypeguard.audit_precision(jnp.sin, X),
    "check_lock": lambda: testing.check_lock(lambda x: x, X, path=__file__),
    "autocast": lambda: dtypeguard.autocast(jnp.sin, jnp.bfloat16),
}


@pytest.mark.usefixtures("_old")
@pytest.mark.parametrize("name", CALLS)
def test_what_needs_a_newer_jax_says_so(name):
    with pytest.raises(NotImplementedError, match=f"{name.partition(' ')[0]} {NEEDS}"):
        CALLS[name]()


@pytest.mark.usefixtures("_old")
@pytest.mark.parametrize("command", ["run", "audit", "precision", "lock"])
def test_a_command_as_well(command, capsys):
    assert main([command, "train.py", "--inputs=train.py:inputs"]) == 2
    assert " ".join(capsys.readouterr().err.split()) == f"dtypeguard {command}: {NEEDS}"


@pytest.mark.usefixtures("_old")
def test_guards_optimizers_and_contracts_work():
    opt = dtypeguard.guard(dtypeguard.multi_steps(optax.adam(1e-3), 2))
    updates, state = opt.update(X, opt.init(X), X)
    assert updates.dtype == X.dtype
    assert dtypeguard.restore(state, dtypeguard.record(opt, X)) is not None
    assert dtypeguard.guard_step(lambda x: x.astype("float32"))(X).dtype == X.dtype
    testing.check_contract(
        dtypeguard.guard(optax.adam(1e-3)), X, rules=("state_types", "blind_to_x64")
    )
