"""The command line: exit codes, the table, JSON, with rich and without."""

import dataclasses
import html.parser
import io
import json
import re
import subprocess
import sys

import pytest

from dtypeguard._cli import display, sweep as cli_sweep
from dtypeguard._cli.arguments import check_options, parser
from dtypeguard._cli.main import main
from dtypeguard._explain import colors
from dtypeguard._leaves.compat import HAS_EXPLICIT_X64
from dtypeguard._sweep import catalog, sweep
from dtypeguard._sweep.report import Report
from dtypeguard._sweep.sweep import CONFIGURATIONS, Outcome


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
        code = main(["sweep", "--filter", "OPTAX.EMA", "--json", str(file)])
    return code, out.getvalue(), err.getvalue(), json.loads(file.read_text())


def test_clean_exits_0_and_prints_a_table_and_totals(ema):
    code, out, err, _ = ema
    assert code == 0
    assert re.search(r"^optimizer +bare +guarded +rescued +checks that failed$", out, re.M)
    drifts = 5 if HAS_EXPLICIT_X64 else 3
    counts = f"eval_shape {drifts}, scan {drifts}, cond {drifts}, "
    assert re.search(rf"^optax\.ema +{drifts} +0 +0 +{counts}", out, re.M)
    assert re.search(r"^optax\.ema\[accumulator_dtype=bf16\] +\d+ +0 +0 ", out, re.M)
    assert re.search(
        rf"^{2 * len(CONFIGURATIONS)} configurations: bare \d+ failed, guarded 0 failed "
        r"\(\d+ s; optax ",
        out,
        re.M,
    )
    assert "Failures although guarded" not in out
    assert err == ""  # no progress where nobody looks
    assert "Columns:\n  bare     configurations of dtypes" in out
    assert "A bare failure is no fault of the installation" in out.splitlines()[-2]
    assert max(map(len, out.splitlines())) <= 100


def test_audit_without_a_target_is_the_sweep_and_says_so(capsys):
    assert main(["audit", "--filter", "optax.set_to_zero", "--jobs", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "audit without a TARGET is `dtypeguard sweep`: write that.\n"
    assert captured.out.endswith("Guarded, it does not.\n")


def test_json_holds_every_outcome(ema):
    _, out, _, read = ema
    assert read["configurations"] == 2 * len(CONFIGURATIONS)
    assert read["guarded_failed"] == 0
    outcomes = [Outcome(**outcome) for outcome in read["outcomes"]]
    assert len(outcomes) == 4 * len(CONFIGURATIONS)
    report = Report(outcomes, [], read["seconds"])
    assert report.bare_failed == read["bare_failed"] > 0
    assert all(line[:70] in out for line in report.table())
    assert [dataclasses.asdict(outcome) for outcome in outcomes] == read["outcomes"]
    assert [(o.id, o.configuration, o.x64, o.guarded) for o in outcomes] == [
        (entry_id, c.name, c.x64, guarded)
        for entry_id in ("optax.ema", "optax.ema[accumulator_dtype=bf16]")
        for c in CONFIGURATIONS
        for guarded in (False, True)
    ]


def test_a_guarded_failure_exits_1_and_is_told(monkeypatch, capsys):
    monkeypatch.setattr(sweep, "guard", lambda opt: opt)
    assert main(["sweep", "--filter", "scale_by_lion", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    line = "optax.scale_by_lion  bf16/f32, x64 off  eval_shape: state.mu['b']: bfloat16"
    assert line in out[out.index("Failures although guarded:") :]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["sweep", "--filter", "no such"], "dtypeguard sweep --filter adam"),
        (
            ["sweep", "optax:adam"],
            "arguments: optax:adam. Write for example: dtypeguard sweep",
        ),
        (["audit", "--jobs", "0"], "'0' is not 1, 2, 3, ..."),
        (["audit", "--json", "no/such/directory/a.json"], "dtypeguard sweep --json sweep"),
        (["audit", "optax:adam", "--filter", "a"], "Write: dtypeguard audit optax:adam"),
        (["audit", "optax.adam"], "or FILE.py:NAME. Did you mean optax:adam? Write"),
        (["audit", "optax:prodigy"], "Did you mean optax.contrib:prodigy? Write for"),
        (
            ["audit", "math:sqrt", "--step", "--inputs", "inputs"],
            "Did you mean --inputs math:inputs?",
        ),
        (["sweeep"], "Did you mean dtypeguard sweep?"),
        (["check", "optax:adam"], "Did you mean dtypeguard audit?"),
        (["explain", "train.py"], "Did you mean dtypeguard run?"),
        (["train.py"], "Did you mean dtypeguard run train.py?"),
        (["audti"], "Did you mean dtypeguard audit?"),
        (["audit", "--x65"], "dtypeguard audit: error: unrecognized arguments: --x65."),
        (["audit", "--x65"], "usage: dtypeguard audit [-h] [--x64]"),
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
        (["audit", "--markdown"], "dtypeguard audit optax:adam --set learning_rate=1e-3"),
        (["audit", "optax:adam", "--html", "no/such/a.html"], "audit --html audit.html"),
        (["audit", "optax:sgd", "--params", ""], "'' is not a dtype"),
        (
            ["audit", "--params", "bfloat16"],
            "--params is for one optimizer. Write: dtypeguard audit optax",
        ),
        (
            ["audit", "--filter", "sgd", "--grads", "bfloat16"],
            "--grads is for one optimizer.",
        ),
        (["audit", "--json", "optax:sgd"], "first: dtypeguard audit optax:sgd --json"),
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
    check_options(parser().parse_args(["audit", "--json", "/reports/of:today.json"]))


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


def test_a_filter_on_what_is_not_swept_says_why(monkeypatch, capsys):
    unbuilt = (catalog.Unbuilt("optax.odd", "it is odd"),)
    monkeypatch.setattr(catalog, "entries", lambda: ((catalog.find("optax.sgd"),), unbuilt))
    assert main(["sweep", "--filter", "odd"]) == 2
    assert "optax.odd is not swept: it is odd" in capsys.readouterr().err


def test_help_and_version_exit_0(capsys):
    assert main(["sweep", "--help"]) == 0
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
    assert [name for name in everything if cli_sweep._matches(name, pattern)] == names


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
    assert [line.split(maxsplit=4) for line in report.table()[1:]] == [
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
        monkeypatch.setattr(colors.importlib.util, "find_spec", lambda name: None)
    left = catalog.Unbuilt("optax.c", "too odd")
    report = Report([_outcome("optax.b[x]", failures={"scan": "no"})], [left], 0.1)
    assert list(display.progress([1, 2], total=2)) == [1, 2]
    display.show(report)
    assert ("\033[1m" in out.getvalue()) is rich
    assert "optax.b[x]" in out.getvalue()
    assert "optax.c: too odd" in out.getvalue()
    assert "1 configurations: bare 1 failed" in out.getvalue()
    assert ("Sweeping" if rich else "Swept 2/2") in err.getvalue()
    assert "A bare failure is no fault" in out.getvalue()


def test_runs_where_rich_is_not_installed():
    code = (
        "import sys; sys.modules['rich'] = None; from dtypeguard._cli.main import main; "
        "sys.exit(main(['sweep', '--filter', 'optax.set_to_zero']))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    n = len(CONFIGURATIONS)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{n} configurations" in done.stdout


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


class _Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.labels = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "button" and "aria-label" in dict(attrs):
            self.labels.append(dict(attrs)["aria-label"])


def test_the_heat_map(tmp_path, capsys):
    file = tmp_path / "sweep.html"
    argv = ["sweep", "--filter", "optax.trace", "--jobs", "1", "--html", str(file)]
    assert main(argv) == 0
    text = file.read_text()
    page = _Page(text)
    cells = [a for tag, a in page.tags if tag == "button" and "aria-label" in a]
    trace = [label for label in page.labels if label.startswith("optax.trace,")]
    assert len(trace) == 2 * len(CONFIGURATIONS)
    assert len(cells) == len(page.labels)
    assert all("tabindex" not in cell for cell in cells)  # each in the order of Tab
    (bare,) = [x for x in trace if x.startswith("optax.trace, bare, bf16/f32, x64 off:")]
    assert re.search(r"state\.trace\['b'\]: bfloat16 -> float32", bare)
    assert re.search(r"  \.trace\['b'\] +bfloat16 -> float32  optax/\S+\.py:\d+", bare)
    guarded = bare.splitlines()[0].replace("bare", "guarded")
    assert f"{guarded}\n  every check passes" in trace
    (details,) = [a for tag, a in page.tags if a.get("id") == "details"]
    assert details["tabindex"] == "0"  # the keyboard scrolls to what does not fit
    # One file: nothing is fetched, and both colour schemes are in it.
    assert not re.search(r"https?://|src=|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    links = [a["href"] for tag, a in page.tags if tag == "link"]
    assert links == ["data:,"]
