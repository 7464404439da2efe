"""What a target does to the process does not change what the status says of the check."""

import io
import json
import os
import sys
import tomllib

import pytest

from tests.support.helpers import run_python
from tests.support.pages import main

pytestmark = pytest.mark.third_party

SCRIPT = """
import os
import jax.numpy as jnp, optax

def interrupts():
    raise KeyboardInterrupt(1)

def at_once():
    os._exit(0)

def forks():
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return optax.sgd(0.1)

inputs = lambda: (jnp.ones(3), jnp.ones(3))
"""


def test_interrupting_a_command_ends_it(command):
    with pytest.raises(KeyboardInterrupt, match="1"):
        command("audit :interrupts")


def test_an_exit_that_nothing_catches_is_as_before_then(command):
    before = os._exit
    assert command("audit :at_once")[0] == 2
    assert os._exit is before


@pytest.mark.parametrize(
    ("words", "code"),
    [("audit at_exit.py:step --inputs at_exit.py:inputs", 1), ("run at_exit.py", 0)],
)
def test_an_exit_at_exit_does_not_change_the_status(folder, words, code):
    """That of a script which is run is its own: it ends as under `python`."""
    fails = "raise ValueError" if words.startswith("run") else ""
    (folder / "at_exit.py").write_text(
        f"import atexit, os\natexit.register(lambda: os._exit(0))\n{fails}\n"
        "import jax.numpy as jnp\n"
        "step = lambda c: c + jnp.float32(1)\n"
        "inputs = lambda: (jnp.ones(3, jnp.bfloat16),)\n"
    )
    run = run_python("-m", "dtypeguard", *words.split())
    assert run.returncode == code, run.stderr
    assert ("in one step." in run.stdout) == (code == 1)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")
def test_a_fork_of_the_target_ends_as_it_does(command):
    code, out, err = command("audit :forks --params float32")
    assert (code, "no leaf changed" in out, err) == (0, True, "")


LOUD = """
import atexit, os, subprocess, sys
import jax.numpy as jnp

print("at import")
os.write(1, b"below Python\\n")
subprocess.run([sys.executable, "-c", "print('of a child')"])
atexit.register(print, "at exit")
atexit.register(subprocess.run, [sys.executable, "-c", "print('of a late child')"])
step = lambda c: c * 2
inputs = lambda: (jnp.ones(3, jnp.bfloat16),)
"""


@pytest.mark.parametrize("words", ["audit --json /dev/stdout", "lock", "lock --json"])
def test_a_report_is_alone_on_standard_output(folder, words):
    """Whoever prints: the target, its children, code below Python; at exit as well."""
    (folder / "loud.py").write_text(LOUD)
    name, *form = words.split()
    words = [name, "loud.py:step", "--inputs", "loud.py:inputs", *form]
    run = run_python("-m", "dtypeguard", *words)
    assert run.returncode == 0, run.stderr
    assert (json.loads if form else tomllib.loads)(run.stdout)
    printed = ["at import", "below Python", "of a child", "of a late child", "at exit"]
    assert sorted(run.stderr.splitlines()) == sorted(printed)


def test_where_a_stream_has_no_descriptor_the_stream_alone_is_kept(folder, monkeypatch):
    (folder / "loud.py").write_text(
        'print("at import")\nimport optax\nopt = optax.sgd(1.0)'
    )
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert main(["audit", "loud.py:opt", "--json"], owns_process=True) == 0
    print("at exit")
    assert json.loads(out.getvalue())["drifts"] == []
    assert err.getvalue() == "at import\nat exit\n"
