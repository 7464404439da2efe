"""The command line on a step: what it is fed, what is told, what is wrong usage."""

import json
import re

import pytest
from pages import DOCS

from dtypeguard._cli.main import main

pytestmark = pytest.mark.third_party

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
    return State(time=float(jnp.float32(0)), leaf=jnp.zeros(3, jnp.bfloat16))  # run


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
def step_file(tmp_path):
    file = tmp_path / "a_step.py"
    file.write_text(STEP)
    return str(file)


@pytest.mark.parametrize("name", ["inputs", "by_name"])
def test_a_step(step_file, name, capsys):
    inputs = f"{step_file}:{name}"
    assert main(["audit", f"{step_file}:step", "--step", "--inputs", inputs]) == 1
    out, err = capsys.readouterr()
    assert "what a script prints is no report" in err
    lines = out.splitlines()
    assert lines[0] == (
        "audit: 1 leaf of the carry changed weak type, 1 leaf of the carry changed dtype "
        "in one step."
    )
    number = lambda text: 1 + next(n for n, x in enumerate(STEP.splitlines()) if text in x)
    assert lines[1].endswith(f"float32 (weak) -> float32  {step_file}:{number('# weak')}")
    widened = f"bfloat16       -> float32  {step_file}:{number('# widened')}"
    assert lines[2] == f"  state.leaf  {widened}"
    assert lines[3] == (
        "Wrap the step: dtypeguard.guard_step(step). "
        "Begin with a strongly typed carry: dtypeguard.strong(state)."
    )


def test_a_step_that_is_clean_and_inputs_that_are_run(step_file, capsys):
    audit = ["audit", f"{step_file}:step", "--step", "--inputs"]
    assert main([*audit, f"{step_file}:one"]) == 0
    assert capsys.readouterr().out == "audit: no leaf changed its type in one step.\n"
    assert main([*audit, f"{step_file}:eager", "--json"]) == 1
    (drift,) = json.loads(capsys.readouterr().out)["drifts"]
    assert (drift["path"], drift["where"]) == ("state.time", "carry")
    assert drift["origin"]["code"].endswith("# run")


def test_the_carry_of_a_step(step_file, capsys, tmp_path):
    audit = ["audit", f"{step_file}:env.step", "--step", "--inputs", f"{step_file}:of_env"]
    places = "--carry", "key,state", "--returned", "0,1"
    assert main([*audit, *places]) == 1
    assert "changed structure" in capsys.readouterr().out
    page = tmp_path / "page.html"
    one = "--carry", "1", "--returned", "1", "--html", str(page)
    assert main([*audit, *one]) == 1
    assert "state[&#x27;state&#x27;]" in page.read_text()
    assert main([*audit, "--carry", "stat"]) == 2
    assert main([*audit, "--carry", "1", "--returned", "loss"]) == 2
    err = capsys.readouterr().err
    assert 'carry=0 or "key", carry=1 or "state"' in err
    assert "Here these are --carry and --returned" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step"], "a step needs a function that gives its arguments"),
        (["--step", "--inputs", "{}:inputs", "--params", "bf16"], "--params is for an opt"),
        (["--step", "--inputs", "{}:inputs", "--jobs", "2"], "--jobs is for the sweep"),
        (["--inputs", "{}:inputs"], "are for a step"),
        (["--carry", "1"], "are for a step"),
        (["--step", "--inputs", "{}:nothing"], "has no nothing"),
        (["--step", "--inputs", "{}:raises"], "raises cannot be called: KeyError: 'data'"),
        (["--step", "--inputs", "{}:raises"], "a dict of them by name, or the only one"),
    ],
)
def test_wrong_usage_of_a_step(options, message, step_file, capsys):
    options = [option.format(step_file) for option in options]
    assert main(["audit", f"{step_file}:step", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_step_without_a_target(capsys):
    assert main(["audit", "--step"]) == 2
    assert "dtypeguard audit FILE.py:step --step --inputs" in capsys.readouterr().err


def test_the_page_that_finds_the_line(tmp_path, monkeypatch, capsys):
    page = (DOCS / "find-the-line.md").read_text()
    code = re.search(r"```python\n(# train\.py\n.*?)```", page, flags=re.DOTALL)[1]
    shown = re.search(r"<!-- step: train\.py -->\n```text\n(.*?)```", page, re.DOTALL)[1]
    command = re.search(r"dtypeguard (audit train\.py:.*)", page)[1]
    (tmp_path / "train.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 1
    assert capsys.readouterr().out == shown
