"""What holds for every command: flags of a file, closed pipes, forms, silence."""

import io
import os
import sys

import pytest

from dtypeguard import testing
from dtypeguard._cli import options
from dtypeguard._cli.main import main
from dtypeguard._leaves.compat import set_x64

pytestmark = pytest.mark.third_party

WIDE = """
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)

def step(c, x):
    return c * jnp.sum(jnp.ones(3, jnp.float64)) + x

def opt():
    import optax
    update = lambda u, s, p=None: (u, s * jnp.ones(3, jnp.float64))
    return optax.GradientTransformation(lambda p: jnp.ones(3, jnp.float32), update)

def loss(c, x):
    return jnp.sum(c.astype(jnp.bfloat16).astype(c.dtype) * x)

def none():
    return 3.0

inputs = lambda: (jnp.ones(3, jnp.float32), jnp.ones(3, jnp.float32))
"""


@pytest.fixture(autouse=True)
def wide(folder, script):
    """A script that sets a flag."""
    script(WIDE, "wide.py")


STEP = ["--inputs", "wide.py:inputs"]


@pytest.mark.parametrize("words", [["wide.py:step", *STEP], ["wide.py:opt"]])
def test_an_audit_runs_under_the_flags_that_a_file_sets(words, capsys):
    assert main(["audit", *words]) == 1
    assert "float32 -> float64" in capsys.readouterr().out


def test_an_audit_runs_under_the_flags_of_the_environment(script):
    script(WIDE.replace("jax.config", "# jax.config"), "wide.py")
    words = ["audit", "wide.py:step", *STEP]
    with set_x64(True):  # as JAX_ENABLE_X64 does
        assert main(words) == 1
    assert main(words) == 0


def test_a_lock_holds_the_flags_that_a_file_sets(capsys):
    assert main(["lock", "wide.py:step", *STEP]) == 0
    assert "float64" in capsys.readouterr().out


def test_a_reference_that_takes_other_arguments(capsys):
    words = ["precision", "wide.py:loss", *STEP, "--reference", "wide.py:none"]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "wide.py:none does not take what wide.py:inputs gives: too many" in err


@pytest.mark.parametrize("words", [["audit", "wide.py:opt"], ["docs", "api"], ["docs"]])
def test_a_reader_may_close_the_pipe(words, monkeypatch):
    """As `| head` does; the status is that of the command."""
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(words) == (words[0] == "audit")


@pytest.mark.parametrize(
    ("value", "is_set"),
    [("true", True), ("1", True), ("", False), ("0", False), ("false", False)],
)
def test_annotations_where_github_is_set(value, is_set, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_ACTIONS", value)
    assert main(["audit", "wide.py:opt"]) == 1
    assert ("\n::error file=wide.py" in capsys.readouterr().out) is is_set


def test_long_work_speaks_now_and_then_in_a_pipe(monkeypatch):
    words = ["precision", "wide.py:loss", *STEP]
    told = []
    for silence in (0.0, 1e6):
        monkeypatch.setattr(options, "SILENCE", silence)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", io.StringIO())
            assert main(words) == 0
            told.append(sys.stderr.getvalue())
    assert "\n" in told[0]
    assert told[1] == ""


def test_the_names_of_testing_are_its_own():
    shown = [name for name in dir(testing) if not name.startswith("__")]
    assert shown == sorted(testing.__all__)
    assert {"check_contract", "check_step"} <= {*shown}


@pytest.mark.parametrize("name", testing._DEPRECATED)
def test_a_name_of_testing_that_goes_says_what_serves_in_its_place(name):
    with pytest.warns(DeprecationWarning, match=f"testing.{name} is deprecated. Use"):
        assert getattr(testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = testing.chekc
