"""The command line on locks: what it prints and writes, exit status, wrong usage."""

import inspect
import pathlib
import re

import locked_step
import pytest

from dtypeguard._cli.main import main
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8"),
]
SOURCE = inspect.getsource(locked_step)
LOCK = pathlib.Path(__file__).parents[1] / "lock" / "step.lock"
TARGET = ["lock", "train.py:step", "--inputs", "train.py:inputs"]
LEFT_OUT = SOURCE.replace("h = x.astype(F32)", "h = x")


@pytest.fixture(autouse=True)
def train(script):
    script(SOURCE, "train.py")


def body(text):
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_it_prints_writes_checks_and_updates(folder, capsys):
    assert main(TARGET) == 0
    printed = capsys.readouterr().out
    assert body(printed) == body(LOCK.read_text())
    assert main([*TARGET, "--out", "step.lock"]) == 0
    written = (folder / "step.lock").read_text()
    assert written == printed
    assert main([*TARGET, "--check", "step.lock"]) == 0
    assert main([*TARGET, "--update", "step.lock"]) == 0
    assert "step.lock is up to date." in capsys.readouterr().out
    assert main([*TARGET, "--out", "step.lock"]) == 2
    assert "To write it anew, use --update" in capsys.readouterr().err
    (folder / "train.py").write_text(LEFT_OUT)
    assert main([*TARGET, "--check", "step.lock"]) == 1
    assert "h = x" in capsys.readouterr().out
    assert (folder / "step.lock").read_text() == written
    assert main([*TARGET, "--update", "step.lock"]) == 0
    assert (folder / "step.lock").read_text() != written
    assert "h = x" in capsys.readouterr().out
    assert main([*TARGET, "--check", "step.lock"]) == 0
    assert not [x for x in folder.iterdir() if x.name.startswith("tmp")]


def test_other_files_are_named_from_the_folder_of_the_lock(folder, capsys):
    (folder / "locks").mkdir()
    assert main([*TARGET, "--out", "locks/step.lock"]) == 0
    assert '["../train.py".rms_norm]' in (folder / "locks" / "step.lock").read_text()
    (folder / "train.py").rename(folder / "other.py")
    target = [x.replace("train.py", "other.py") for x in TARGET]
    assert main([*target, "--check", "locks/step.lock"]) == 1
    out = capsys.readouterr().out
    assert "../train.py:mlp moved to ../other.py:mlp" in out
    assert "cause" not in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--check", "none.lock"],
            r"none.lock cannot be read: No such file or directory\. Write it with --out",
        ),
        (["--out", "none/step.lock"], "cannot be written"),
        (["--check", "conflict.lock"], "in a merge conflict take either side"),
        (["--update", "conflict.lock"], "in a merge conflict take either side"),
        (["--update", "short.lock"], "cannot be used"),
    ],
)
def test_wrong_usage_exits_2_and_writes_nothing(folder, capsys, options, message):
    text = LOCK.read_text()
    (folder / "step.lock").write_text(text)
    (folder / "conflict.lock").write_text("format = 2\n<<<<<<< HEAD\n")
    (folder / "short.lock").write_text(text[:900])
    before = {x: x.read_bytes() for x in folder.glob("*.lock")}
    assert main([*TARGET, *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dtypeguard lock:")
    assert re.search(message, error), error
    assert {x: x.read_bytes() for x in folder.glob("*.lock")} == before


def test_a_step_that_raises_names_its_line(folder, capsys):
    (folder / "train.py").write_text(SOURCE.replace('p["up"]) @', 'p["up"].T) @'))
    assert main(TARGET) == 2
    error = capsys.readouterr().err
    assert "train.py:step raises TypeError: " in error
    assert "of the program itself, called with what train.py:inputs gives" in error
    assert 'train.py:29  return jax.nn.gelu(x @ p["up"].T)' in error
