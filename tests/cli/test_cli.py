"""The command line: exit codes, the table, JSON, with rich and without."""

import io
import sys

import pytest

from dtypeguard._cli.arguments import check_options, parser
from dtypeguard._cli.main import main


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["audit", "optax.adam"], "or FILE.py:NAME. Did you mean optax:adam? Write"),
        (["audit", "optax:prodigy"], "Did you mean optax.contrib:prodigy? Write for"),
        (
            ["audit", "math:sqrt", "--step", "--inputs", "inputs"],
            "Did you mean --inputs math:inputs?",
        ),
        (["sweep"], "is part of dtypeguard's own tests now. For your own optimizer write"),
        (["check", "optax:adam"], "Did you mean dtypeguard audit?"),
        (["explain", "train.py"], "Did you mean dtypeguard run?"),
        (["train.py"], "Did you mean dtypeguard run train.py?"),
        (["audti"], "Did you mean dtypeguard audit?"),
        (
            ["audit", "a:b", "--x65"],
            "dtypeguard audit: error: unrecognized arguments: --x65.",
        ),
        (["audit", "a:b", "--x65"], "usage: dtypeguard audit [-h] [--x64]"),
        (
            ["precision", "a.py:f", "--inputs", "a.py:x", "--markdown"],
            "--markdown. Write for example: dtypeguard precision my_script.py:loss",
        ),
        (
            ["precision", "a.py:f", "--inputs", "a.py:x", "--tolerance", "foo"],
            "'foo' is not a relative error: write a number from 0 up, such as 1e-3.",
        ),
        (["precision", "a.py:f", "--inputs", "a.py:x", "--max-error", "-1"], "'-1' is not"),
        (["docs", "explan"], "no page 'explan'. Did you mean dtypeguard docs explain?"),
        (["docs", "nowhere"], "no page 'nowhere'. To list them: dtypeguard docs"),
        (["audit", "optax:adm"], "optax has no adm. Did you mean adam? Write for example"),
        (["audit", "no_such_module:opt"], "no_such_module cannot be imported: ModuleNot"),
        (["audit", "no_such_file.py:opt"], "cannot be imported: FileNotFoundError"),
        (["audit", "optax:adam"], "dtypeguard audit optax:adam --set learning_rate=VALUE"),
        (["audit", "optax:sgd", "--set", "1"], "Write for example: --set learning_rate="),
        (["audit", "optax:sgd", "--set", "nesterov=false"], "Write: --set nesterov=False"),
        (
            ["audit", "optax:sgd", "--params", "f99"],
            "'f99' is not a dtype. Write for example",
        ),
        (["audit", "optax:sgd", "--grads", "int32"], "int32 is not floating or complex"),
        (["audit", "optax:sgd", "--params", "float64"], "float64 needs --x64 as well"),
        (["audit", "optax:sgd", "--params", "f64"], "f64 needs --x64 as well"),
        (
            ["audit", "optax:constant_schedule", "--set", "value=1"],
            "which is not an optimizer",
        ),
        (["audit", "optax:__version__"], "neither an optimizer nor a function"),
        (["audit", "optax:adam", "--html", "no/such/a.html"], "audit --html audit.html"),
        (["audit", "optax:sgd", "--params", ""], "'' is not a dtype"),
        (
            ["audit", "optax:sgd", "--json", "--markdown"],
            "--json --markdown audit.markdown",
        ),
        (
            ["audit", "optax:sgd", "--set", "rate=1"],
            "It takes learning_rate, momentum, nesterov, accumulator_dtype. "
            "Write: dtypeguard audit optax:sgd --set learning_rate=VALUE\n",
        ),
        (
            ["audit", "optax:sgd", "rate=1"],
            "Write for example: dtypeguard audit optax:adam",
        ),
        ([], "required: command. Write for example: dtypeguard audit optax:adam"),
    ],
)
def test_wrong_usage_exits_2_with_the_right_form(argv, message, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_full_path_may_have_a_colon():
    check_options(parser().parse_args(["audit", "a:b", "--json", "/reports/of:today.json"]))


@pytest.mark.third_party
def test_what_stands_in_a_file_outlasts_wrong_usage(tmp_path):
    old, new = tmp_path / "old.html", tmp_path / "new.md"
    old.write_text("old")
    argv = ["audit", "optax:adam", "--html", str(old), "--markdown", str(new)]
    assert main(argv) == 2
    assert old.read_text() == "old"
    assert not new.exists()
    assert main([*argv, "--set", "learning_rate=1", "--params", "float32"]) == 0
    assert old.read_text().startswith("<!doctype html>")
    assert new.read_text().startswith("**audit:")


def test_help_and_version_exit_0(capsys):
    assert main(["audit", "--help"]) == 0
    assert "--params DTYPES" in capsys.readouterr().out
    assert main(["--version"]) == 0


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.third_party
def test_an_audit_in_a_terminal(monkeypatch):
    pytest.importorskip("rich")
    out = _Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    argv = ["audit", "optax:trace", "--set", "decay=0.9", "--params", "bfloat16"]
    assert main([*argv, "--grads", "float32"]) == 1
    assert "\033[1;31maudit: 2 state leaves" in out.getvalue()
    assert ".trace['b']" in out.getvalue()
