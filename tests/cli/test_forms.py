"""What is found, in every form: printed, for programs, for GitHub, and in colors."""

import json
import os
import re
import sys

import pytest

from dtypeguard._cli.forms import annotations
from dtypeguard._cli.main import main
from dtypeguard._source.origin import origin_at

SCRIPT = """
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
INPUTS = "--inputs :inputs"
pytestmark = pytest.mark.third_party


@pytest.fixture(autouse=True)
def locked(command, script):
    """A step that is locked before it changes."""
    script(SCRIPT.replace("jnp.asarray(0.9, jnp.float32)", "0.9"), "mine.py")
    assert command(f"lock :step {INPUTS} --out step.lock")[0] == 0
    script(SCRIPT, "mine.py")


COMMANDS = {
    "audit": f"audit :step {INPUTS}",
    "precision": f"precision :rounded {INPUTS}",
    "lock": f"lock :step {INPUTS} --check step.lock",
    "run": "run {} mine.py",
}
every = pytest.mark.parametrize("name", COMMANDS)


@pytest.fixture
def told(run, command):
    """What a command prints on standard output, and `run` on that of errors."""

    def call(name, options=""):
        if name == "run":
            code, out, err = run(*options.split(), "mine.py")
            assert code == 1
            return out if "json" in options else out + err
        return command(f"{COMMANDS[name]} {options}")[1]

    return call


@every
def test_github_has_the_line(told, name, monkeypatch):
    asked = told(name, "--format github")
    first = next(x for x in asked.splitlines() if x.startswith("::"))
    line = 8 if name == "precision" else 5
    title = "title=dtypeguard%3A "
    assert re.match(rf"::(error|warning) file=mine\.py,line={line},{title}", first)
    assert "\n::" not in told(name)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert told(name).count("\n::") == asked.count("\n::")


@every
def test_json_is_json_alone(told, name, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    read = json.loads(told(name, "--format json"))
    keys = {"audit": "drifts", "precision": "losses", "lock": "causes"}
    assert read[keys.get(name, "compiled_again")]
    assert "mine.py" in json.dumps(read)


@pytest.mark.parametrize("value", ["1", "", "0", "false"])
def test_annotations_where_github_is_set(value, monkeypatch, told):
    monkeypatch.setenv("GITHUB_ACTIONS", value)
    assert ("\n::error file=mine.py" in told("audit")) is (value == "1")


def test_a_run_that_ends_well_has_nothing_to_note(run, script):
    file = script("import jax\n")
    nothing = '{\n "error": null,\n "compiled_again": []\n}\n'
    assert run("--format=json", file) == (0, nothing, "")
    assert run("--format", "github", file) == (0, "", "")


def test_the_json_of_a_lock(command, folder):
    _, out, _ = command(f"lock :step {INPUTS} --json")
    assert json.loads(out)["mine.py"]["step"]["arithmetic"]
    assert command(f"{COMMANDS['lock']} --json found.json")[0] == 1
    (cause,) = json.loads((folder / "found.json").read_text())["causes"]
    assert cause["lines"][0]["code"].startswith("return params * jnp.asarray(0.9")
    assert cause["changes"][0]["what"] == "arithmetic"
    assert cause["changes"][0]["locked"] == "bfloat16"


def test_what_github_reads_is_escaped(folder, monkeypatch):
    """All of a report stands at its first line of the user's, its headline at others."""
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder))
    (folder / "a").mkdir()
    (folder / "a" / "b c.py").touch()
    monkeypatch.chdir(folder / "a")
    text = "audit: 50%, f: x\n  one  b c.py:7\n  forced by b c.py:3\n  two  pytest/x.py:4"
    title = "title=dtypeguard%3A 50%25%2C f%3A x"
    whole = text.replace("%", "%25").replace("\n", "%0A")
    lines = [origin_at(str(folder / "a" / "b c.py"), line, "f") for line in (7, 3, 7)]
    installed = origin_at(pytest.__file__, 4, "f")
    assert [*annotations(text, "error", [*lines, installed])] == [
        f"::error file=a/b c.py,line=7,{title}::{whole}",
        f"::error file=a/b c.py,line=3,{title}::audit: 50%25, f: x",
    ]
    assert [*annotations("audit: t\n  x", "error", [installed])] == [
        "::error title=dtypeguard%3A t::audit: t%0A  x"
    ]
    assert [*annotations("audit: fine", "warning", [])] == []


def test_a_note_has_colors_on_a_terminal(run, terminal, monkeypatch):
    assert "\033" not in run("mine.py")[2]
    monkeypatch.setattr(sys, "stderr", terminal)
    run("mine.py")
    text = terminal.getvalue()
    assert "\033[1;31mdtypeguard\033[0m: 1 leaf of the carry" in text
    assert "\033[36mmine.py:5\033[0m" in text
    assert "\033[33mbfloat16[3]\033[0m -> \033[33mfloat32[3]\033[0m" in text


def test_no_color_is_kept(run, terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    run("mine.py")
    assert "1 leaf of the carry" in terminal.getvalue()
    assert not re.search(r"\033\[[\d;]*3\dm", terminal.getvalue())


@pytest.mark.parametrize(
    "words", ["audit mine.py:step --inputs mine.py:inputs", "docs api"]
)
def test_a_reader_may_close_the_pipe(words, monkeypatch):
    """As `| head` does; the status is that of the command."""
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(words.split()) == words.startswith("audit")
