"""The command line on locks: what it prints, checks, updates, and leaves as it is."""

import inspect
import pathlib

import pytest

from tests.support import locked_step
from tests.support.locks import body

pytestmark = pytest.mark.third_party
SCRIPT = inspect.getsource(locked_step)
LOCK = pathlib.Path(__file__).parents[1] / "lock" / "step.lock"
STEP = "lock :step --inputs :inputs"


def test_it_prints_writes_checks_and_updates(folder, command):
    code, printed, _ = command(STEP)
    assert (code, body(printed)) == (0, body(LOCK.read_text().replace("train", "mine")))
    assert command(f"{STEP} --out step.lock")[0] == 0
    written = (folder / "step.lock").read_text()
    assert written == printed
    assert command(f"{STEP} --check step.lock")[0] == 0
    code, out, _ = command(f"{STEP} --update step.lock")
    assert (code, out) == (0, "step.lock is written.\n")
    code, _, err = command(f"{STEP} --out step.lock")
    assert (code, "To write it anew, use --update" in err) == (2, True)
    (folder / "mine.py").write_text(SCRIPT.replace("h = x.astype(F32)", "h = x"))
    code, out, _ = command(f"{STEP} --check step.lock")
    assert (code, "h = x\n" in out) == (1, True)
    assert (folder / "step.lock").read_text() == written
    code, out, _ = command(f"{STEP} --update step.lock")
    assert (code, "h = x\n" in out) == (0, True)
    assert (folder / "step.lock").read_text() != written
    assert command(f"{STEP} --check step.lock")[0] == 0
    assert {x.name for x in folder.iterdir()} <= {"mine.py", "step.lock", "__pycache__"}


def test_other_files_are_named_from_the_folder_of_the_lock(folder, command):
    (folder / "locks").mkdir()
    assert command(f"{STEP} --out locks/step.lock")[0] == 0
    assert '["../mine.py".rms_norm]' in (folder / "locks" / "step.lock").read_text()
    (folder / "mine.py").rename(folder / "other.py")
    other = STEP.replace(":", "other.py:")
    code, out, _ = command(f"{other} --check locks/step.lock")
    assert code == 1
    assert "../mine.py:mlp moved to ../other.py:mlp" in out
    assert "cause" not in out


@pytest.mark.parametrize("option", ["--check", "--update"])
def test_a_lock_that_cannot_be_used_stays_as_it_is(folder, command, option):
    text = "format = 2\n<<<<<<< HEAD\n"
    (folder / "step.lock").write_text(text)
    code, out, err = command(f"{STEP} {option} step.lock")
    assert (code, out) == (2, "")
    assert "in a merge conflict take either side" in err
    assert (folder / "step.lock").read_text() == text
