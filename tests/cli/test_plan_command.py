"""The command line on plans: the file, the check, exit codes, whose error it is."""

import json

import pytest
from trained import written

from dtypeguard import Plan
from dtypeguard._cli.main import main
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8")
SEARCH = "--narrow", "bfloat16", "--tolerance"


@pytest.fixture
def plan(folder):
    """Runs the command on the script, in its folder."""
    written(folder)

    def run(*options, target="train.py:step", inputs="train.py:inputs"):
        return main(["precision", target, "--inputs", inputs, *map(str, options)])

    return run


def test_a_plan_is_written_and_checked(plan, capsys):
    unseen = "--held-out", "train.py:unseen"
    assert plan(*SEARCH, 0.008, *unseen, "--out", "train.plan") == 0
    out = capsys.readouterr().out
    assert out.startswith("plan: 100% of the multiply-adds in bfloat16, ")
    assert "train.plan is written." in out
    found = Plan.load("train.plan")
    assert found.measured == "autocast(step), with the gradient inside"
    assert found.error <= found.tolerance == 0.008
    assert found.held_out is not None
    assert plan("--check", "train.plan", *unseen) == 0
    out = capsys.readouterr().out
    assert "within 0.8%" in out.splitlines()[0]
    assert "In the plan" in out
    assert plan("--check", "train.plan", "--tolerance", 1e-4) == 1
    out = capsys.readouterr().out
    assert "not within 0.01%" in out
    assert "these lines lose most alone" in out


def test_the_old_name_searches_as_well(plan, capsys):
    old = ["plan", "train.py:step", "--inputs", "train.py:inputs", *SEARCH, "0.05"]
    assert main([*old, "--out", "train.plan"]) == 0
    assert "plan is replaced: write dtypeguard precision" in capsys.readouterr().err
    assert Plan.load("train.plan").narrow == "bfloat16"


def test_a_plan_that_reaches_no_tolerance_exits_1(plan, capsys, tmp_path):
    own = "(norm(x) @ params[-1]).astype(jnp.bfloat16).astype(jnp.float32)"
    written(tmp_path, ("norm(x) @ params[-1]", own))
    assert plan(*SEARCH, 1e-5, "--out", "train.plan") == 1
    out = capsys.readouterr().out
    assert "nothing to gain" in out or "not within 0.001%" in out


def test_a_check_as_json(plan, capsys):
    plan(*SEARCH, 0.05, "--out", "train.plan")
    capsys.readouterr()
    assert plan("--check", "train.plan", "--tolerance", 1e-4, "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is False
    assert any("lose most alone" in note for note in data["notes"])


def test_an_entry_that_matches_nothing_is_wrong_usage(plan, capsys):
    plan(*SEARCH, 0.008, "--out", "train.plan")
    with open("train.plan") as file:
        text = file.read()
    with open("train.plan", "w") as file:
        table = "" if "[entries]" in text else "\n[entries]"
        file.write(f'{text}{table}\n"train.py:normed" = "float32"\n')
    capsys.readouterr()
    assert plan("--check", "train.plan") == 2
    error = capsys.readouterr().err
    assert "train.py:normed: the nearest there is" in error
    assert "train.py:norm" in error
