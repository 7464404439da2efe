"""The command line on one optimizer or step: how it reads them, its report, its status."""

import json
import re
import sys

import pytest

from tests.support.helpers import needs_record, set_x64

pytestmark = pytest.mark.third_party

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np, optax
from typing import NamedTuple

print("what a script prints is no report")

def make_optimizer(rate=np.float32(0.1)):
    def update(updates, state, params=None):
        return updates, state * rate
    return optax.GradientTransformation(lambda p: jnp.zeros((), p["b"].dtype), update)

opt, clean = make_optimizer(), optax.sgd(0.1)

class State(NamedTuple):
    time: object
    leaf: object

def inputs():
    time = jnp.asarray(0.0)  # weak
    return State(time, jnp.zeros(3, jnp.bfloat16)), jnp.ones(3)  # x

def by_name():
    state, x = inputs()
    return {"state": state, "x": x}

def one():
    return State(jnp.float32(0), jnp.zeros(3, jnp.bfloat16))

def eager():
    return State(time=float(jnp.float32(0.3125)), leaf=jnp.zeros(3, jnp.bfloat16))  # run

def step(state, x=1.0):
    assert type(state) is State
    return State(state.time + jnp.float32(1), state.leaf * x)  # widened

class Env:
    def step(self, key, state):
        return key, {"state": state + jnp.float32(1)}

env = Env()
of_env = 0, jnp.zeros(3, jnp.bfloat16)
"""
LINES = {x.partition("  # ")[2]: n for n, x in enumerate(SCRIPT.splitlines(), 1)}


@pytest.mark.parametrize(
    ("target", "name"), [(":opt", "opt"), ("mine:make_optimizer", "make_optimizer(...)")]
)
def test_a_target_that_drifts_exits_1(command, target, name):
    code, out, err = command(f"audit {target} --params bfloat16")
    headline, line, *advice = out.splitlines()
    assert (code, err) == (1, "what a script prints is no report\n")
    assert headline == "audit: 1 state leaf changed dtype in one update."
    at = r"  state  bfloat16 -> float32  mine\.py:9(  forced by mine\.py:\d+)?"
    assert re.fullmatch(at, line)
    assert advice[0] == f"Wrap the optimizer: dtypeguard.guard({name})."


def test_a_clean_target_exits_0(command):
    done = command("audit :clean --params bfloat16,float32")
    assert done[:2] == (0, "audit: no leaf changed its type in one update.\n")


def test_a_part_of_a_package_is_named_as_one(command, script):
    script("RATE = 0.1\n", "parcel/rate.py")
    script("import optax\nfrom .rate import RATE\nopt = optax.sgd(RATE)\n", "parcel/opt.py")
    assert command("audit parcel/opt.py:opt")[0] == 2
    assert command("audit parcel.opt:opt")[0] == 0


def test_a_script_is_loaded_as_python_runs_it(command, script, monkeypatch):
    """With --x64, the modules beside it, a name and a command line of its own."""
    script("import jax.numpy as jnp\nRATE = jnp.ones(())\n", "other/beside.py")
    text = """
        from __future__ import annotations
        import argparse, dataclasses, jax, optax
        from beside import RATE

        @dataclasses.dataclass
        class Settings:
            rate: jax.Array

        print(argparse.ArgumentParser().parse_args())
        rate = Settings(RATE).rate
        scale = lambda u, p: jax.tree_util.tree_map(lambda g: g * rate, u)
        opt = optax.stateless(scale)
    """
    script(text, "other/a_script.py")
    words = "audit other/a_script.py:opt --x64 --json"
    monkeypatch.setattr(sys, "argv", ["dtypeguard", *words.split()])
    code, out, err = command(words)
    assert (code, err) == (1, "Namespace()\n")
    assert sys.argv[0] == "dtypeguard"
    (drift, *_) = json.loads(out)["drifts"]
    assert (drift["path"], drift["after"]) == ("['b']", "float64")


@pytest.mark.parametrize("name", ["inputs", "by_name"])
def test_a_step(command, name):
    code, out, _ = command(f"audit :step --inputs :{name}")
    headline, weak, widened, advice, *_ = out.splitlines()
    assert code == 1
    assert headline == (
        "audit: 1 leaf of the carry changed weak type, 1 leaf of the carry changed dtype "
        "in one step."
    )
    at = rf".* float32 \(weak\) -> float32( +mine.py:{LINES['weak']})?"
    assert re.fullmatch(at, weak.rstrip())
    # The line of the input is known where lines are recorded.
    place = rf"mine.py:{LINES['widened']}(  forced by mine.py:{LINES['x']})?"
    assert re.fullmatch(rf"  state.leaf  bfloat16 -> float32 +{place}", widened)
    assert advice == (
        "Wrap the step: dtypeguard.guard_step(step). "
        "Begin with a strongly typed carry: dtypeguard.strong(state)."
    )


def test_a_step_that_is_clean(command):
    done = command("audit :step --inputs :one")
    assert done[:2] == (0, "audit: no leaf changed its type in one step.\n")


@needs_record
def test_inputs_are_run_where_lines_are_recorded(command):
    code, out, _ = command("audit :step --inputs :eager --json")
    (drift,) = json.loads(out)["drifts"]
    assert (code, drift["path"], drift["where"]) == (1, "state.time", "carry")
    assert drift["origin"]["code"].endswith("# run")


@pytest.mark.parametrize(
    ("places", "found"),
    [
        ("--carry key,state --returned 0,1", "changed structure"),
        ("--carry 1 --returned 1", "state['state']"),
    ],
)
def test_the_carry_of_a_step(command, places, found):
    code, out, _ = command(f"audit :env.step --inputs :of_env {places}")
    assert (code, found in out) == (1, True)


def test_an_audit_tries_the_types_that_tell(command):
    """Adam keeps its types for float32 params, and not for wider gradients."""
    adam = "audit optax:adam --set learning_rate=1e-3"
    code, out, _ = command(f"{adam} --params float32")
    assert (code, "Tried" in out) == (0, False)
    code, out, _ = command(adam)
    assert code == 1
    assert "Found with --params bfloat16 --grads float32." in out
    code, out, _ = command("audit optax:sgd --set learning_rate=1e-3")
    tried = "--params bfloat16 --grads float32, --params float32 --x64."
    assert (code, out.splitlines()[1].endswith(tried)) == (0, True)


WIDE = """
import jax, jax.numpy as jnp, optax
jax.config.update("jax_enable_x64", True)

def step(c, x):
    return c * jnp.sum(jnp.ones(3, jnp.float64)) + x

update = lambda u, s, p=None: (u, s * jnp.ones(3, jnp.float64))
opt = optax.GradientTransformation(lambda p: jnp.ones(3, jnp.float32), update)
inputs = lambda: (jnp.ones(3, jnp.float32), jnp.ones(3, jnp.float32))
"""
OF_STEP = ":step --inputs :inputs"


@pytest.mark.parametrize(
    ("words", "code"), [(f"audit {OF_STEP}", 1), ("audit :opt", 1), (f"lock {OF_STEP}", 0)]
)
def test_a_command_runs_under_the_flags_that_a_file_sets(command, script, words, code):
    script(WIDE, "mine.py")
    found, out, _ = command(words)
    assert (found, "float64" in out) == (code, True)


def test_an_audit_runs_under_the_flags_of_the_environment(command, script):
    script(WIDE.replace("jax.config", "# jax.config"), "mine.py")
    with set_x64(True):  # as JAX_ENABLE_X64 does
        assert command(f"audit {OF_STEP}")[0] == 1
    assert command(f"audit {OF_STEP}")[0] == 0
