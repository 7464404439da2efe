"""The command line on one optimizer or step: its inputs, its report, wrong usage."""

import json
import re
import sys

import pytest
from helpers import needs_record

from dtypeguard._cli.main import main
from dtypeguard._source.files import short_path

pytestmark = pytest.mark.third_party

SCRIPT = """
import jax.numpy as jnp, numpy as np, optax

def make_optimizer(rate=np.float32(0.1)):
    def update(updates, state, params=None):
        return updates, state * rate
    return optax.GradientTransformation(lambda p: jnp.zeros((), p["b"].dtype), update)

opt = make_optimizer()
clean = optax.sgd(0.1)
"""


@pytest.fixture
def mine(folder):
    (folder / "my_script.py").write_text(SCRIPT)
    return folder


@needs_record
@pytest.mark.parametrize(
    ("target", "name"),
    [("my_script.py:opt", "opt"), ("my_script:make_optimizer", "make_optimizer(...)")],
)
def test_a_target_that_drifts_exits_1(mine, capsys, target, name):
    assert main(["audit", target, "--params", "bfloat16"]) == 1
    headline, line, *advice = capsys.readouterr().out.splitlines()
    assert headline == "audit: 1 state leaf changed dtype in one update."
    at = r"  state  bfloat16 -> float32  my_script\.py:6  forced by my_script\.py:\d"
    assert re.fullmatch(at, line)
    assert advice[0] == f"Wrap the optimizer: dtypeguard.guard({name})."


def test_a_clean_target_exits_0(mine, capsys):
    assert main(["audit", "my_script.py:clean", "--params", "bfloat16,float32"]) == 0
    out = capsys.readouterr().out
    assert out == "audit: no leaf changed its type in one update.\n"


def test_a_part_of_a_package_is_named_as_one(mine, capsys):
    package = mine / "my_package"
    package.mkdir()
    (package / "my_rate.py").write_text("RATE = 0.1\n")
    lines = "import optax\nfrom .my_rate import RATE\nopt = optax.sgd(RATE)\n"
    (package / "my_optim.py").write_text(lines)
    assert main(["audit", "my_package/my_optim.py:opt"]) == 2
    assert capsys.readouterr().err.endswith("write PACKAGE.MODULE:opt.\n")
    assert main(["audit", "my_package.my_optim:opt"]) == 0


def test_a_script_is_loaded_as_python_runs_it(folder, script, capsys):
    """Under the flag, with the modules beside it, and known by its name."""
    script("import jax.numpy as jnp\nRATE = jnp.ones(())\n", "other/beside.py")
    text = """
        from __future__ import annotations
        import dataclasses, jax, optax
        from beside import RATE

        @dataclasses.dataclass
        class Settings:
            rate: jax.Array

        rate = Settings(RATE).rate
        scale = lambda u, p: jax.tree_util.tree_map(lambda g: g * rate, u)
        opt = optax.stateless(scale)
    """
    assert main(["audit", f"{script(text, 'other/a_script.py')}:opt", "--x64"]) == 1
    assert "updates['b']  float32 -> float64  " in capsys.readouterr().out


def test_a_script_with_a_command_line_of_its_own_that_prints(mine, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["dtypeguard", "audit", "my_script.py:opt"])
    (mine / "my_script.py").write_text(
        "import argparse, optax\n"
        "print(argparse.ArgumentParser().parse_args())\n"
        "opt = optax.sgd(0.1)\n"
    )
    assert main(["audit", "my_script.py:opt", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ok"]
    assert captured.err == "Namespace()\n"
    assert sys.argv[0] == "dtypeguard"


STEP = """
import jax.numpy as jnp
from typing import NamedTuple

print("what a script prints is no report")


class State(NamedTuple):
    time: object
    leaf: object


def inputs():
    time = jnp.asarray(0.0)  # weak
    return State(time, jnp.zeros(3, jnp.bfloat16)), jnp.ones(3)


def by_name():
    state, x = inputs()
    return {"state": state, "x": x}


def one():
    return State(jnp.float32(0), jnp.zeros(3, jnp.bfloat16))


def eager():
    return State(time=float(jnp.float32(0.3125)), leaf=jnp.zeros(3, jnp.bfloat16))  # run


def raises():
    raise KeyError("data")


def step(state, x=1.0):
    assert type(state) is State
    return State(state.time + jnp.float32(1), state.leaf * x)  # widened


class Env:
    def step(self, key, state):
        return key, {"state": state + jnp.float32(1)}


env = Env()
of_env = 0, jnp.zeros(3, jnp.bfloat16)
"""


@pytest.fixture
def step_file(script, folder):
    return str(script(STEP, "a_step.py"))


@needs_record
@pytest.mark.parametrize("name", ["inputs", "by_name"])
def test_a_step(step_file, name, capsys):
    inputs = f"{step_file}:{name}"
    assert main(["audit", f"{step_file}:step", "--inputs", inputs]) == 1
    out, err = capsys.readouterr()
    assert "what a script prints is no report" in err
    lines = out.splitlines()
    assert lines[0] == (
        "audit: 1 leaf of the carry changed weak type, 1 leaf of the carry changed dtype "
        "in one step."
    )
    number = lambda text: 1 + next(n for n, x in enumerate(STEP.splitlines()) if text in x)
    assert lines[1].endswith(
        f"float32 (weak) -> float32  {short_path(step_file)}:{number('# weak')}"
    )
    widened = f"bfloat16       -> float32  {short_path(step_file)}:{number('# widened')}"
    assert lines[2] == f"  state.leaf  {widened}"
    assert lines[3] == (
        "Wrap the step: dtypeguard.guard_step(step). "
        "Begin with a strongly typed carry: dtypeguard.strong(state)."
    )


@needs_record
def test_a_step_that_is_clean_and_inputs_that_are_run(step_file, capsys):
    audit = ["audit", f"{step_file}:step", "--inputs"]
    assert main([*audit, f"{step_file}:one"]) == 0
    assert capsys.readouterr().out == "audit: no leaf changed its type in one step.\n"
    assert main([*audit, f"{step_file}:eager", "--json"]) == 1
    (drift,) = json.loads(capsys.readouterr().out)["drifts"]
    assert (drift["path"], drift["where"]) == ("state.time", "carry")
    assert drift["origin"]["code"].endswith("# run")


def test_the_carry_of_a_step(step_file, capsys):
    audit = ["audit", f"{step_file}:env.step", "--inputs", f"{step_file}:of_env"]
    places = "--carry", "key,state", "--returned", "0,1"
    assert main([*audit, *places]) == 1
    assert "changed structure" in capsys.readouterr().out
    assert main([*audit, "--carry", "1", "--returned", "1"]) == 1
    assert "state['state']" in capsys.readouterr().out
    assert main([*audit, "--carry", "stat"]) == 2
    assert main([*audit, "--carry", "1", "--returned", "loss"]) == 2
    err = capsys.readouterr().err
    assert "step takes (key, state). Write the position or the name" in err
    assert "Here these are --carry and --returned" in err


def test_an_audit_tries_the_types_that_tell(capsys):
    """Adam keeps its types for float32 params, and not for wider gradients."""
    argv = ["audit", "optax:adam", "--set", "learning_rate=1e-3"]
    assert main([*argv, "--params", "float32"]) == 0
    assert "Tried" not in capsys.readouterr().out
    assert main(argv) == 1
    assert "Found with --params bfloat16 --grads float32." in capsys.readouterr().out
    assert main(["audit", "optax:sgd", "--set", "learning_rate=1e-3"]) == 0
    tried = "--params bfloat16 --grads float32, --params float32 --x64."
    assert capsys.readouterr().out.splitlines()[1].endswith(tried)
