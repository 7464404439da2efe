"""The command line on plans: the file, the check, exit codes, wrong usage."""

import json

import pytest
from trained import written

from dtypeguard import Plan
from dtypeguard._cli.main import main
from dtypeguard._leaves.compat import CAN_AUTOCAST

pytestmark = pytest.mark.skipif(not CAN_AUTOCAST, reason="needs JAX >= 0.7.2")
SEARCH = "--narrow", "bfloat16", "--tolerance"


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Runs the command on the script, in its folder."""
    written(tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(*options, target="train.py:step", inputs="train.py:inputs"):
        return main(["plan", target, "--inputs", inputs, *map(str, options)])

    return run


def test_a_plan_is_written_and_checked(plan, capsys):
    unseen = "--held-out", "train.py:unseen"
    assert plan(*SEARCH, 0.008, *unseen, "--out", "train.plan") == 0
    out = capsys.readouterr().out
    assert out.startswith("plan: 100% of the multiply-adds in bfloat16, ")
    assert "train.plan is written." in out
    assert " runs in " in out
    found = Plan.load("train.plan")
    assert found.measured == "autocast(step), with the gradient inside"
    assert found.error <= found.tolerance == 0.008
    assert found.held_out is not None
    assert plan("--check", "train.plan", *unseen) == 0
    out = capsys.readouterr().out
    assert "within 0.8%" in out.splitlines()[0]
    assert "in the plan" in out
    assert plan("--check", "train.plan", "--tolerance", 1e-4) == 1
    out = capsys.readouterr().out
    assert "not within 0.01%" in out
    assert "these lines lose most alone" in out


def test_without_a_file_the_plan_is_printed(plan, capsys):
    assert plan(*SEARCH, 0.05) == 0
    text = capsys.readouterr().out
    assert '\nnarrow = "bfloat16"\n' in text
    assert "version = 1" in text


def test_a_plan_that_reaches_no_tolerance_exits_1(plan, capsys, tmp_path):
    own = "(norm(x) @ params[-1]).astype(jnp.bfloat16).astype(jnp.float32)"
    written(tmp_path, ("norm(x) @ params[-1]", own))
    assert plan(*SEARCH, 1e-5) == 1
    out = capsys.readouterr().out
    assert "not within 0.001%" in out
    assert "rounds by casts of its own" in out


def test_the_budget_is_printed(plan, capsys):
    plan(*SEARCH, 0.001, "--budget", 4)
    assert "The runs were spent" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["json", "markdown", "html", "github"])
def test_forms(plan, capsys, form):
    assert plan(*SEARCH, 0.05, "--format", form) == 0
    out = capsys.readouterr().out
    if form == "json":
        data = json.loads(out)
        assert data["ok"] is True
        assert data["narrow"] == "bfloat16"
        assert data["runs"] > 0
    elif form == "github":
        assert "::notice title=dtypeguard%3A plan::plan: 100%25 of the" in out
    else:
        assert "multiply-adds in bfloat16" in out


def test_a_check_as_json(plan, capsys):
    plan(*SEARCH, 0.05, "--out", "train.plan")
    capsys.readouterr()
    assert plan("--check", "train.plan", "--tolerance", 1e-4, "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is False
    assert data["worst"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "a search needs --narrow. Write for example: --narrow bfloat16"),
        (
            ["--narrow", "bf16"],
            "a search needs --tolerance. Write for example: --tolerance",
        ),
        ([*SEARCH, "x"], "'x' is not a relative error"),
        (["--narrow", "int8", "--tolerance", "1"], "--narrow 'int8' is not a floating"),
        (["--narrow", "float8_e5m2", "--tolerance", "1"], "a plan has no other"),
        (["--check", "none.plan"], "none.plan does not exist"),
        (["--check", "train.py"], "train.py is no TOML"),
        (["--check", "a", "--narrow", "bf16"], "--narrow is for a search: a says"),
        (["--check", "a", "--out", "b"], "not allowed with argument --check"),
        ([*SEARCH, "1", "--also", "train.py:step"], "train.py:step cannot be called"),
        ([*SEARCH, "1", "--also", "train.py:keys"], "of the same types and shapes"),
        ([*SEARCH, "1", "--out", "no/such/folder.plan"], "cannot be written"),
        ([*SEARCH, "1", "--budget", "0"], "'0' is not 1, 2, 3"),
    ],
)
def test_wrong_usage(plan, options, message, capsys):
    assert plan(*options) == 2
    assert message in capsys.readouterr().err


def test_an_entry_that_matches_nothing_is_wrong_usage(plan, capsys):
    plan(*SEARCH, 0.008, "--out", "train.plan")
    with open("train.plan") as file:
        text = file.read()
    with open("train.plan", "w") as file:
        file.write(text + '\n"train.py:normed" = "float32"\n')
    capsys.readouterr()
    assert plan("--check", "train.plan") == 2
    error = capsys.readouterr().err
    assert "train.py:normed: no such function computes anything; the nearest is" in error
    assert "train.py:norm" in error


def test_help_says_what_exit_codes_mean(capsys):
    assert main(["plan", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Exits 1 if it is not within the tolerance, 2 if it cannot run, else 0." in out
    assert "--held-out" in out


@pytest.mark.parametrize(
    ("own", "messages"),
    [
        (
            "norm(x).T @ params[-1]",
            [
                "train.py:step raises TypeError: dot_general",
                "an error of the program itself",
            ],
        ),
        (
            "jax.errors.JaxRuntimeError.throw()",
            ["train.py:step raises AttributeError", "an error of the program itself"],
        ),
        (
            "oom(x)",
            [
                "XLA raises an error as it compiles or runs train.py:step: JaxRuntimeErr",
                "It is one of XLA, and not of train.py:inputs.",
            ],
        ),
    ],
)
def test_whose_error_it_is(plan, capsys, tmp_path, own, messages):
    oom = '\n\ndef oom(x):\n    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")\n'
    written(tmp_path, ("norm(x) @ params[-1]", own), ("\n\ndef norm", f"{oom}\n\ndef norm"))
    assert plan(*SEARCH, 0.05) == 2
    error = capsys.readouterr().err
    for message in messages:
        assert message in error
    assert "train.py:" in error.splitlines()[-2]
    assert "Let --inputs name" not in error


def test_inputs_that_do_not_fit(plan, capsys):
    assert plan(*SEARCH, 0.05, inputs="train.py:keys") == 2
    error = capsys.readouterr().err
    assert "train.py:step does not run with what train.py:keys gives: TypeError" in error
    assert "Let --inputs name a tuple of the arguments" in error
