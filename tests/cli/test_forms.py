"""What is found, in every form: printed, for programs, for GitHub, and in colors."""

import json
import re
import sys

import pytest

from dtypeguard._cli.forms import annotations
from dtypeguard._cli.main import main

TRAIN = """
import jax, jax.numpy as jnp

def step(params, x):
    return params * jnp.asarray(0.9, jnp.float32) + x

def rounded(params, x):
    return params * 0.9 + x

params, xs = jnp.ones(3, jnp.bfloat16), jnp.ones((4, 3), jnp.bfloat16)

def inputs():
    return params, xs[0]

if __name__ == "__main__":
    f = jax.jit(step)
    f(f(params, xs[0]), xs[0])
    jax.lax.scan(lambda c, x: (step(c, x), None), params, xs)
"""
INPUTS = "train.py:step", "--inputs", "train.py:inputs"
pytestmark = pytest.mark.third_party


@pytest.fixture
def locked(script, folder, monkeypatch):
    """The folder, with a step that is locked before it changes."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    script(TRAIN.replace("jnp.asarray(0.9, jnp.float32)", "0.9"), "train.py")
    assert main(["lock", *INPUTS, "--out", "step.lock"]) == 0
    script(TRAIN, "train.py")
    return folder


COMMANDS = {
    "audit": ["audit", *INPUTS],
    "precision": ["precision", "train.py:rounded", *INPUTS[1:]],
    "lock": ["lock", *INPUTS, "--check", "step.lock"],
    "run": ["run", "train.py"],
}
every = pytest.mark.parametrize("command", COMMANDS)


def told(run, capsys, command, *options):
    """What a command prints on standard output, and for `run` below it the errors."""
    capsys.readouterr()
    if command == "run":
        code, out, err = run(*options, "train.py")
        assert code == 1
        return out + err if options == () or "github" in options else out
    main([*COMMANDS[command], *options])
    return capsys.readouterr().out


@every
def test_github_has_the_line(run, capsys, locked, command, monkeypatch):
    asked = told(run, capsys, command, "--format", "github")
    first = next(x for x in asked.splitlines() if x.startswith("::"))
    line = 8 if command == "precision" else 5
    title = "title=dtypeguard%3A "
    assert re.match(rf"::(error|warning) file=train\.py,line={line},{title}", first)
    assert "\n::" not in told(run, capsys, command)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert told(run, capsys, command).count("\n::") == asked.count("\n::")


@every
def test_json_is_json_alone(run, capsys, locked, command, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    read = json.loads(told(run, capsys, command, "--format", "json"))
    keys = {"audit": "drifts", "precision": "losses", "lock": "causes"}
    assert read[keys.get(command, "compiled_again")]
    assert "train.py" in json.dumps(read)


def test_a_run_that_ends_well_has_nothing_to_note(run, script, tmp_path):
    file = script("import jax\n")
    assert run("--format=json", file) == (
        0,
        '{\n "error": null,\n "compiled_again": []\n}\n',
        "",
    )
    assert run("--format", "github", file) == (0, "", "")


def test_the_json_of_a_lock(capsys, locked):
    assert main(["lock", *INPUTS, "--json"]) == 0
    lock = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert lock["train.py"]["step"]["arithmetic"]
    assert main(["lock", *INPUTS, "--check", "step.lock", "--json", "found.json"]) == 1
    found = json.loads((locked / "found.json").read_text())
    (cause,) = found["causes"]
    assert cause["lines"][0]["code"].startswith("return params * jnp.asarray(0.9")
    assert cause["changes"][0]["what"] == "arithmetic"
    assert cause["changes"][0]["locked"] == "bfloat16"


def test_what_github_reads_is_escaped(folder, monkeypatch):
    """All of a report stands at its first line of the user's, at others what names them."""
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder))
    (folder / "a").mkdir()
    (folder / "a" / "b.py").touch()
    monkeypatch.chdir(folder / "a")
    text = "audit: 50%, f: x\n  one  b.py:3  forced by b.py:7\n  two  pytest/x.py:4"
    first, second = annotations(text, "error")
    title = "title=dtypeguard%3A 50%25%2C f%3A x"
    whole = text.replace("%", "%25").replace("\n", "%0A")
    assert first == f"::error file=a/b.py,line=3,{title}::{whole}"
    assert second == (
        f"::error file=a/b.py,line=7,{title}::  one  b.py:3  forced by b.py:7"
    )
    installed = "audit: t\n  x  pytest/x.py:4"
    assert [*annotations(installed, "error")] == [
        "::error title=dtypeguard%3A t::audit: t%0A  x  pytest/x.py:4"
    ]
    assert [*annotations("audit: fine", "warning")] == []


def test_a_note_has_colors_on_a_terminal(run, locked, terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal)
    run("train.py")
    text = terminal.getvalue()
    assert "\033[1;31mdtypeguard\033[0m: 1 leaf of the carry" in text
    assert "\033[36mtrain.py:5\033[0m" in text
    assert "\033[33mbfloat16[3]\033[0m -> \033[33mfloat32[3]\033[0m" in text


def test_no_color_is_kept_and_a_pipe_has_none(run, locked, terminal, monkeypatch):
    plain = run("train.py")[2]
    assert "\033" not in plain
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    run("train.py")
    assert not re.search(r"\033\[[\d;]*3\dm", terminal.getvalue())


@pytest.mark.parametrize(
    ("options", "style"),
    [((), "1"), (("--max-error", "1e-6"), "1;31"), (("--tolerance", "0.1"), "1;32")],
)
def test_an_error_without_a_bound_is_neither_green_nor_red(
    options, style, locked, terminal, monkeypatch
):
    monkeypatch.setattr(sys, "stdout", terminal)
    main([*COMMANDS["precision"], *options])
    assert terminal.getvalue().startswith(f"\033[{style}mprecision: the outputs are")
