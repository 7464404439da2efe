"""`dtypeguard demo`: ten scenes on one screen or two, and what its exit status says."""

import os
import re
import sys
import types

import jax
import pytest

from dtypeguard._cli import demo
from dtypeguard._cli.demo import FOLDER, SCENES, Played, play
from dtypeguard._cli.main import main
from tests.support.helpers import IS_RECORDED

# What happens unguarded, and the file of the line that is named.
BARE = {
    "prodigy": ("2 leaves of the carry of scan", "optax/contrib/_prodigy.py"),
    "zero_nans": ("1 leaf of the carry of scan", "zero_nans.py"),
    "failing_scan": (
        "1 leaf of the carry of scan",
        f"failing_scan.py:{12 if IS_RECORDED else 13}",
    ),
    "compiles_again": ("compilations in 3 calls: 2", "compiles_again.py"),
    "stalled_loss": ("loss from 1 to 1 in 2000 steps", "stalled_loss.py"),
    "as_on_a_tpu": ("% off", "as_on_a_tpu.py:16"),
    "lost_cast": ("not as locked in step.lock", "lost_cast.py:18"),
}


@pytest.fixture(scope="module")
def scenes():
    return {name: play(name) for name in SCENES}


@pytest.fixture
def played(monkeypatch, scenes):
    """The demo as if it ran what has run."""
    monkeypatch.setattr(demo, "play", scenes.__getitem__)


def test_each_fails_on_its_line_and_runs_with_the_call(scenes, played, capsys):
    files = {name for name in os.listdir(FOLDER) if name.endswith(".py")}
    assert files == {f"{name}.py" for name in SCENES}
    assert not any(guarded.is_error for _, _, guarded in scenes.values())
    assert not jax.config.jax_enable_x64
    assert "DTYPEGUARD_UPDATE" not in os.environ
    assert main(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100
    assert lines[-1].startswith("  dtypeguard docs ")
    for number, name in enumerate(SCENES, 1):
        (title,) = (n for n, line in enumerate(lines) if line.endswith(f" {name}.py"))
        bare, *line, guarded = lines[title + 1 : lines.index("", title)]
        text, file = BARE.get(name, ("", ""))
        assert lines[title].startswith(f"{number:2}  ")
        assert bare.startswith("    as is ")
        assert text in bare
        if IS_RECORDED or name != "compiles_again":
            assert re.match(r"    line  [\w/.]+\.py:\d+", line[0]), line
            assert file in line[0]
        assert guarded.startswith("    with  ")
        assert "FAILED" not in guarded


def test_one_in_full(played, capsys):
    assert main(["demo", "failing_scan"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(os.path.join(FOLDER, "failing_scan.py"))
    assert "    decay = jnp.asarray(0.9, jnp.float32)\n" in out
    forced = r"because of \w+ +dtypeguard/_cli/scenes/failing_scan.py:12 "
    assert (re.search(forced, out) is not None) is IS_RECORDED


@pytest.mark.parametrize("code", [0, 1])
def test_a_failure_with_the_call_exits_1(monkeypatch, capsys, code):
    scene = types.SimpleNamespace(__doc__="Prodigy", CALL="guard(opt)")
    failed = Played("TypeError: no", True)
    guarded = failed if code else Played("runs")
    monkeypatch.setattr(demo, "play", lambda name: (scene, failed, guarded))
    assert main(["demo"]) == main(["demo", "prodigy"]) == code
    out = capsys.readouterr().out
    assert ("with  guard(opt): FAILED: TypeError: no" in out) is bool(code)


def test_in_a_terminal(monkeypatch, played, terminal):
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["demo"]) == 0
    assert "\033[36mzero_nans.py" in terminal.getvalue()
