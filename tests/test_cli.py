"""The command line: exit codes, the table, JSON, with rich and without."""

import dataclasses
import io
import json
import re
import subprocess
import sys

import pytest

from dtypeguard import _catalog as catalog, _cli, _display, _sweep
from dtypeguard._cli import main
from dtypeguard._sweep import Outcome
from dtypeguard._sweep_report import Report, plain_table


def _outcome(entry_id="optax.a", *, guarded=False, failures=None, rescues=0):
    return Outcome(entry_id, "bf16", True, guarded, failures or {}, {}, rescues)


@pytest.fixture(scope="module")
def ema(tmp_path_factory):
    """What one filtered sweep prints and writes."""
    file = tmp_path_factory.mktemp("audit") / "ema.json"
    with pytest.MonkeyPatch.context() as patch:
        out, err = io.StringIO(), io.StringIO()
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        code = main(["audit", "--filter", "OPTAX.EMA", "--json", str(file)])
    return code, out.getvalue(), err.getvalue(), json.loads(file.read_text())


def test_clean_exits_0_and_prints_a_table_and_totals(ema):
    code, out, err, _ = ema
    assert code == 0
    assert re.search(r"^optimizer +bare +guarded +rescued +checks that failed$", out, re.M)
    assert re.search(r"^optax\.ema +3 +0 +0 +eval_shape 3, scan 3, cond 3, ", out, re.M)
    assert re.search(r"^optax\.ema\[accumulator_dtype=bf16\] +\d+ +0 +0 ", out, re.M)
    assert re.search(
        r"^30 configurations: bare \d+ failed, guarded 0 failed \(\d+ s; optax ", out, re.M
    )
    assert "Failures although guarded" not in out
    assert err.endswith("Swept 2/2\n")


def test_json_holds_every_outcome(ema):
    _, out, _, read = ema
    assert read["configurations"] == 30
    assert read["guarded_failed"] == 0
    outcomes = [Outcome(**outcome) for outcome in read["outcomes"]]
    assert len(outcomes) == 60
    report = Report(outcomes, [], read["seconds"])
    assert report.bare_failed == read["bare_failed"] > 0
    assert plain_table(report.rows()) in out
    assert [dataclasses.asdict(outcome) for outcome in outcomes] == read["outcomes"]


def test_a_guarded_failure_exits_1_and_is_told(monkeypatch, capsys):
    monkeypatch.setattr(_sweep, "guard", lambda opt: opt)
    assert main(["audit", "--filter", "scale_by_lion", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    line = "optax.scale_by_lion  bf16/f32, x64 off  eval_shape: state.mu['b']: bfloat16"
    assert line in out[out.index("Failures although guarded:") :]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["audit", "--filter", "no such"], "dtypeguard audit --filter adam"),
        (["audit", "--jobs", "0"], "'0' is not 1, 2, 3, ..."),
        (["audit", "--json", "no/such/directory/a.json"], "dtypeguard audit --json audit"),
        (["audit", "optax:adam"], "unrecognized arguments: optax:adam"),
        ([], "required: command"),
    ],
)
def test_wrong_usage_exits_2_with_the_right_form(argv, message, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_filter_on_what_is_not_swept_says_why(monkeypatch, capsys):
    unbuilt = (catalog.Unbuilt("optax.odd", "it is odd"),)
    monkeypatch.setattr(
        _cli._catalog, "entries", lambda: ((catalog.find("optax.sgd"),), unbuilt)
    )
    assert main(["audit", "--filter", "odd"]) == 2
    assert "optax.odd is not swept: it is odd" in capsys.readouterr().err


def test_help_and_version_exit_0(capsys):
    assert main(["audit", "--help"]) == 0
    assert "--filter PATTERN" in capsys.readouterr().out
    assert main(["--version"]) == 0


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("adam[", ["optax.adam[schedule]"]),
        ("contrib.*dam", ["optax.contrib.acme.adam"]),
        ("ADAM", ["optax.adam", "optax.adam[schedule]", "optax.contrib.acme.adam"]),
    ],
)
def test_filters(pattern, names):
    everything = ["optax.adam", "optax.adam[schedule]", "optax.contrib.acme.adam"]
    assert [name for name in everything if _cli._matches(name, pattern)] == names


def test_counts_and_rows():
    outcomes = [
        _outcome(failures={"scan": "no", "cond": "no"}),
        _outcome(failures={"scan": "no"}),
        _outcome(guarded=True, rescues=1),
        _outcome(guarded=True, failures={"cond": "still no"}),
        _outcome("optax.b"),
    ]
    report = Report(outcomes, [catalog.Unbuilt("optax.c", "too odd")], 2.0)
    assert (report.configurations, report.bare_failed, report.guarded_failed) == (3, 2, 1)
    table = plain_table(report.rows()).splitlines()[1:]
    assert [line.split(maxsplit=4) for line in table] == [
        ["optax.a", "2", "1", "1", "scan 2, cond 1; guarded: cond 1"],
        ["optax.b", "0", "0", "0"],
    ]
    assert report.guarded_failures() == ["optax.a  bf16, x64 on  cond: still no"]


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("rich", [True, False])
def test_in_a_terminal(monkeypatch, rich):
    pytest.importorskip("rich")
    out, err = _Terminal(), _Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    if not rich:
        monkeypatch.setattr(_display.importlib.util, "find_spec", lambda name: None)
    left = catalog.Unbuilt("optax.c", "too odd")
    report = Report([_outcome("optax.b[x]", failures={"scan": "no"})], [left], 0.1)
    assert list(_display.progress([1, 2], total=2)) == [1, 2]
    _display.show(report)
    assert ("\033[1m" in out.getvalue()) is rich
    assert "optax.b[x]" in out.getvalue()
    assert "optax.c: too odd" in out.getvalue()
    assert "1 configurations: bare 1 failed" in out.getvalue()
    assert "Sweeping" in err.getvalue()


def test_runs_where_rich_is_not_installed():
    code = (
        "import sys; sys.modules['rich'] = None; from dtypeguard._cli import main; "
        "sys.exit(main(['audit', '--filter', 'optax.set_to_zero']))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "Swept 1/1\n")
    assert "15 configurations" in done.stdout
