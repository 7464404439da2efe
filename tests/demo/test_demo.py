"""`dtypeguard demo`: ten scenes on one screen or two, and what its exit status says."""

import io
import os
import re
import sys

import jax
import pytest

from dtypeguard._cli import demo
from dtypeguard._cli.main import main
from dtypeguard._demo import NAMES
from dtypeguard._demo.scene import FOLDER, PlayedHalf, Scene, play

RECORDED = sys.version_info >= (3, 12)  # where lines of values are
FAILED = PlayedHalf("TypeError: no", "", "TypeError: no", True)


@pytest.fixture(scope="module")
def scenes():
    return [play(name) for name in NAMES]


@pytest.fixture
def played(monkeypatch, scenes):
    """The demo as if it ran what has run."""
    monkeypatch.setattr(demo, "play", lambda name: scenes[NAMES.index(name)])


def test_every_file_is_a_scene():
    files = [name for name in os.listdir(FOLDER) if name.endswith(".py")]
    assert sorted(files) == sorted(f"{name}.py" for name in NAMES)


def test_it_fits_and_ends_with_what_to_type(played, capsys):
    assert main(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100
    assert lines[-1].startswith("  dtypeguard docs ")
    for number, name in enumerate(NAMES, 1):
        (title,) = (n for n, line in enumerate(lines) if line.endswith(f" {name}.py"))
        bare, line, guarded = lines[title + 1 : title + 4]
        assert lines[title].startswith(f"{number:2}  ")
        assert (bare[:10], guarded[:10]) == ("    as is ", "    with  ")
        if RECORDED or name != "compiles_again":
            assert re.match(r"    line  [\w/.]+\.py:\d+", line), line
        assert "FAILED" not in guarded


@pytest.mark.parametrize(
    ("name", "bare", "file"),
    [
        ("prodigy", "2 leaves of the carry of scan", "optax/contrib/_prodigy.py"),
        ("zero_nans", "1 leaf of the carry of scan", "zero_nans.py"),
        ("failing_scan", "1 leaf of the carry of scan", "failing_scan.py:13"),
        ("compiles_again", "compiled 2 times in 3 calls", "compiles_again.py"),
        ("stalled_loss", "loss from 1 to 1 in 2000 steps", "stalled_loss.py"),
        ("as_on_a_tpu", "% off", "as_on_a_tpu.py:13"),
        ("lost_cast", "not as locked in step.lock", "lost_cast.py:18"),
    ],
)
def test_bare_it_fails_on_the_line(name, bare, file, scenes):
    scene = scenes[NAMES.index(name)]
    assert bare in scene.bare.text
    assert file in scene.bare.line or not (RECORDED or name != "compiles_again")
    assert not scene.guarded.is_error


def test_one_in_full(played, capsys):
    assert main(["demo", "failing_scan"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(os.path.join(FOLDER, "failing_scan.py"))
    assert "    decay = jnp.asarray(0.9, jnp.float32)\n" in out
    forced = r"because of \w+ +dtypeguard/_demo/scenes/failing_scan.py:12 "
    assert (re.search(forced, out) is not None) is RECORDED


@pytest.mark.parametrize(("guarded", "code"), [(FAILED, 1), (PlayedHalf("runs"), 0)])
def test_a_failure_with_the_call_exits_1(monkeypatch, capsys, guarded, code):
    scene = Scene("prodigy", "Prodigy", "prodigy.py", "guard(opt)", FAILED, guarded)
    monkeypatch.setattr(demo, "play", lambda name: scene)
    assert main(["demo"]) == main(["demo", "prodigy"]) == code
    out = capsys.readouterr().out
    assert ("with  guard(opt): FAILED: TypeError: no" in out) is bool(code)


def test_what_a_release_lacks_is_no_failure(monkeypatch):
    monkeypatch.delattr("optax.contrib.prodigy")
    scene = play("prodigy")
    assert scene.guarded.is_missing
    assert scene.guarded.text.startswith("AttributeError: not in optax ")
    assert scene.is_ok


def test_flags_are_as_before(scenes):
    assert not jax.config.jax_enable_x64
    assert "DTYPEGUARD_UPDATE" not in os.environ


def test_a_scene_that_does_not_exist(capsys):
    assert main(["demo", "prodigi"]) == 2
    assert "Write for example: dtypeguard demo prodigy" in capsys.readouterr().err


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("no_color", [False, True])
def test_in_a_terminal(monkeypatch, played, no_color):
    pytest.importorskip("rich")
    out = _Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    assert main(["demo"]) == 0
    assert ("\033[32m    with" in out.getvalue()) is not no_color
