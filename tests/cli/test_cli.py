"""The command line: exit codes, the table, JSON, with rich and without."""

import dataclasses
import html.parser
import inspect
import io
import json
import re
import subprocess
import sys

import optax.contrib
import pytest

from dtypeguard._cli import display, main as cli
from dtypeguard._cli.main import main
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
        code = main(["audit", "--filter", "OPTAX.EMA", "--json", str(file)])
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
    assert err.endswith("Swept 2/2\n")


def test_json_holds_every_outcome(ema):
    _, out, _, read = ema
    assert read["configurations"] == 2 * len(CONFIGURATIONS)
    assert read["guarded_failed"] == 0
    outcomes = [Outcome(**outcome) for outcome in read["outcomes"]]
    assert len(outcomes) == 4 * len(CONFIGURATIONS)
    report = Report(outcomes, [], read["seconds"])
    assert report.bare_failed == read["bare_failed"] > 0
    assert "\n".join(report.table()) in out
    assert [dataclasses.asdict(outcome) for outcome in outcomes] == read["outcomes"]


def test_a_guarded_failure_exits_1_and_is_told(monkeypatch, capsys):
    monkeypatch.setattr(sweep, "guard", lambda opt: opt)
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
        (["audit", "optax:adam", "--filter", "a"], "Write: dtypeguard audit optax:adam"),
        (["audit", "optax.adam"], "'optax.adam' is not MODULE:NAME or FILE.py:NAME. Write"),
        (["audit", "optax:adm"], "optax has no adm. Did you mean adam? Write for example"),
        (["audit", "no_such_module:opt"], "no_such_module cannot be imported: ModuleNot"),
        (["audit", "no_such_file.py:opt"], "cannot be imported: FileNotFoundError"),
        (["audit", "optax:adam"], "dtypeguard audit optax:adam --set learning_rate=VALUE"),
        (["audit", "optax:sgd", "--set", "1"], "Write for example: --set learning_rate="),
        (["audit", "optax:sgd", "--set", "nesterov=false"], "Write: --set nesterov=False"),
        (["audit", "optax:sgd", "--params", "f99"], "Write for example: --params bfloat16"),
        (["audit", "optax:sgd", "--grads", "int32"], "int32 is not floating or complex"),
        (["audit", "optax:sgd", "--params", "float64"], "float64 needs --x64 as well"),
        (["audit", "optax:constant_schedule", "--set", "value=1"], "which is no optimizer"),
        (["audit", "optax:__version__"], "neither an optimizer nor a function"),
        (["audit", "--markdown"], "dtypeguard audit optax:adam --set learning_rate=1e-3"),
        (["audit", "optax:adam", "--html", "no/such/a.html"], "audit --html audit.html"),
        (["audit", "optax:sgd", "--params", ""], "'' is no dtype"),
        (["audit", "--params", "bfloat16"], "are for one optimizer. Write for example"),
        (["audit", "--filter", "sgd", "--grads", "bfloat16"], "are for one optimizer."),
        (["audit", "--json", "optax:sgd"], "first: dtypeguard audit optax:sgd --json"),
        (["audit", "optax:sgd", "--json", "--markdown"], "--json --markdown audit.md"),
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


@pytest.mark.third_party
def test_what_stands_in_a_file_outlasts_wrong_usage(tmp_path):
    old, new = tmp_path / "old.html", tmp_path / "new.md"
    old.write_text("old")
    argv = ["audit", "optax:adam", "--html", str(old), "--markdown", str(new)]
    assert main(argv) == 2
    assert old.read_text() == "old"
    assert not new.exists()
    assert main([*argv, "--set", "learning_rate=1"]) == 0
    assert old.read_text().startswith("<!doctype html>")
    assert new.read_text().startswith("**audit:")


@pytest.mark.parametrize("code", [0, 3])
def test_a_script_that_ends_by_itself_is_not_taken_for_clean(tmp_path, capsys, code):
    (tmp_path / "ends.py").write_text(f"import sys\nsys.exit({code})\n")
    assert main(["audit", f"{tmp_path / 'ends.py'}:opt"]) == 2
    assert f"cannot be imported: SystemExit: {code}. Write" in capsys.readouterr().err


@pytest.mark.third_party
def test_a_target_that_takes_other_gradients_than_most(capsys):
    privately = optax.contrib.differentially_private_aggregate
    seed = "key" if "key" in inspect.signature(privately).parameters else "seed"
    argv = ["audit", "optax.contrib:differentially_private_aggregate"]
    for setting in ("l2_norm_clip=1.0", "noise_multiplier=0.1", f"{seed}=0"):
        argv += ["--set", setting]
    assert main(argv) == 0, capsys.readouterr().out


@pytest.mark.third_party
def test_a_script_is_loaded_as_python_runs_it(tmp_path, capsys):
    """Under the flag, with the modules beside it, and known by its name."""
    (tmp_path / "beside_a_script.py").write_text(
        "import jax.numpy as jnp\nRATE = jnp.ones(())\n"
    )
    (tmp_path / "a_script.py").write_text(
        "from __future__ import annotations\n"
        "import dataclasses, jax, optax\n"
        "from beside_a_script import RATE\n"
        "@dataclasses.dataclass\n"
        "class Settings:\n"
        "    rate: jax.Array\n"
        "rate = Settings(RATE).rate\n"
        "scale = lambda u, p: jax.tree_util.tree_map(lambda g: g * rate, u)\n"
        "opt = optax.stateless(scale)\n"
    )
    try:
        assert main(["audit", f"{tmp_path / 'a_script.py'}:opt", "--x64"]) == 1
    finally:
        sys.modules.pop("a_script", None)
        sys.modules.pop("beside_a_script", None)
        if str(tmp_path) in sys.path:
            sys.path.remove(str(tmp_path))
    assert "updates['b']  float32 -> float64  " in capsys.readouterr().out


def test_a_filter_on_what_is_not_swept_says_why(monkeypatch, capsys):
    unbuilt = (catalog.Unbuilt("optax.odd", "it is odd"),)
    monkeypatch.setattr(catalog, "entries", lambda: ((catalog.find("optax.sgd"),), unbuilt))
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
    assert [name for name in everything if cli._matches(name, pattern)] == names


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
        monkeypatch.setattr(display.importlib.util, "find_spec", lambda name: None)
    left = catalog.Unbuilt("optax.c", "too odd")
    report = Report([_outcome("optax.b[x]", failures={"scan": "no"})], [left], 0.1)
    assert list(display.progress([1, 2], total=2)) == [1, 2]
    display.show(report)
    assert ("\033[1m" in out.getvalue()) is rich
    assert "optax.b[x]" in out.getvalue()
    assert "optax.c: too odd" in out.getvalue()
    assert "1 configurations: bare 1 failed" in out.getvalue()
    assert ("Sweeping" if rich else "Swept 2/2") in err.getvalue()


def test_runs_where_rich_is_not_installed():
    code = (
        "import sys; sys.modules['rich'] = None; from dtypeguard._cli.main import main; "
        "sys.exit(main(['audit', '--filter', 'optax.set_to_zero']))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "Swept 1/1\n")
    assert f"{len(CONFIGURATIONS)} configurations" in done.stdout


SCRIPT = """
import jax.numpy as jnp, numpy as np, optax

def make_optimizer(rate=np.float32(0.1)):
    def update(updates, state, params=None):
        return updates, state * rate
    return optax.GradientTransformation(lambda p: jnp.zeros((), p["b"].dtype), update)

opt = make_optimizer()
clean = optax.sgd(0.1)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "my_script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


@pytest.mark.third_party
@pytest.mark.parametrize(
    ("target", "name"),
    [("my_script.py:opt", "opt"), ("my_script:make_optimizer", "make_optimizer(...)")],
)
def test_a_target_that_drifts_exits_1(script, capsys, target, name):
    assert main(["audit", target, "--params", "bfloat16"]) == 1
    assert capsys.readouterr().out == (
        "audit: 1 state leaf changed dtype in one update.\n"
        "  state  bfloat16 -> float32  my_script.py:6  forced by my_script.py:4\n"
        f"Wrap the optimizer: dtypeguard.guard({name}).\n"
    )


@pytest.mark.third_party
def test_a_part_of_a_package_is_named_as_one(script, capsys):
    package = script / "my_package"
    package.mkdir()
    (package / "my_rate.py").write_text("RATE = 0.1\n")
    lines = "import optax\nfrom .my_rate import RATE\nopt = optax.sgd(RATE)\n"
    (package / "my_optim.py").write_text(lines)
    assert main(["audit", "my_package/my_optim.py:opt"]) == 2
    assert capsys.readouterr().err.endswith("write PACKAGE.MODULE:opt.\n")
    assert main(["audit", "my_package.my_optim:opt"]) == 0


def test_a_factory_that_fails_says_how_and_what_it_could_be_given(script, capsys):
    (script / "my_script.py").write_text(
        "def takes_none():\n    raise KeyError('data')\n"
        "def takes_some(rate, nesterov=None):\n    assert nesterov is None\n"
    )
    argv = ["audit", "my_script.py:takes_some", "--set", "nesterov=1", "--set", "rate=1"]
    assert main(argv) == 2
    given = "--set nesterov=VALUE --set rate=VALUE\n"
    told = capsys.readouterr().err
    assert "cannot be called: AssertionError. Write" in told
    assert told.endswith(f"Write: dtypeguard audit my_script.py:takes_some {given}")
    assert main(["audit", "optax:apply_if_finite"]) == 2  # wraps what no literal is
    told = capsys.readouterr().err
    assert told.endswith("=VALUE, or audit FILE.py:NAME where a VALUE is no literal\n")
    assert main(["audit", "my_script.py:takes_none"]) == 2
    assert capsys.readouterr().err.endswith("cannot be called: KeyError: 'data'.\n")


@pytest.mark.third_party
def test_a_script_with_a_command_line_of_its_own_that_prints(script, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["dtypeguard", "audit", "my_script.py:opt"])
    (script / "my_script.py").write_text(
        "import argparse, optax\n"
        "print(argparse.ArgumentParser().parse_args())\n"
        "opt = optax.sgd(0.1)\n"
    )
    assert main(["audit", "my_script.py:opt", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ok"]
    assert captured.err == "Namespace()\n"
    assert sys.argv[0] == "dtypeguard"


@pytest.mark.third_party
def test_a_clean_target_exits_0(script, capsys):
    assert main(["audit", "my_script.py:clean", "--params", "bfloat16,float32"]) == 0
    out = capsys.readouterr().out
    assert out == "audit: no leaf changed its type in one update.\n"
    assert main(["audit", "my_script.py:opt", "--set", "rate=1"]) == 2
    assert "my_script.py:opt is an optimizer already" in capsys.readouterr().err


@pytest.mark.third_party
def test_a_target_in_every_form(script, capsys):
    argv = ["audit", "optax:trace", "--set", "decay=0.9", "--params", "bfloat16"]
    argv += ["--grads", "float32"]
    assert main([*argv, "--json"]) == 1
    read = json.loads(capsys.readouterr().out)
    assert (read["ok"], read["name"]) == (False, "trace(...)")
    assert {drift["where"] for drift in read["drifts"]} == {"state", "updates"}
    assert main([*argv, "--markdown"]) == 1
    assert "| `.trace['b']` | bfloat16 | float32 | optax" in capsys.readouterr().out
    assert main([*argv, "--html", "a.html", "--markdown", "a.md"]) == 1
    assert "audit: 2 state leaves changed dtype, 2 updates" in capsys.readouterr().out
    assert ".trace[&#x27;b&#x27;]" in (script / "a.html").read_text()
    assert "| `.trace['b']` |" in (script / "a.md").read_text()


@pytest.mark.third_party
def test_x64_reaches_the_target(capsys):
    argv = ["audit", "optax:scale_by_learning_rate", "--set", "learning_rate=0.5"]
    assert main([*argv, "--x64", "--params", "float32", "--grads", "float64"]) == 1
    assert "updates['b']  float32 -> float64" in capsys.readouterr().out


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
    argv = ["audit", "--filter", "optax.trace", "--jobs", "1", "--html", str(file)]
    assert main(argv) == 0
    text = file.read_text()
    page = _Page(text)
    cells = [a for tag, a in page.tags if tag == "button" and "aria-label" in a]
    trace = [label for label in page.labels if label.startswith("optax.trace,")]
    assert len(trace) == 2 * len(CONFIGURATIONS)
    assert len(cells) == len(page.labels)
    assert all("tabindex" not in cell for cell in cells)  # each in the order of Tab
    (told,) = [t for t in trace if t.startswith("optax.trace, bare, bf16/f32, x64 off:")]
    assert re.search(r"state\.trace\['b'\]: bfloat16 -> float32", told)
    assert re.search(r"  \.trace\['b'\] +bfloat16 -> float32  optax/\S+\.py:\d+", told)
    (told,) = [t for t in trace if t.startswith("optax.trace, guarded, bf16/f32, x64 off:")]
    assert "  every check passes" in told
    (told,) = [a for tag, a in page.tags if a.get("id") == "details"]
    assert told["tabindex"] == "0"  # what does not fit in it is scrolled to by keyboard
    # One file: nothing is fetched, and both colour schemes are in it.
    assert not re.search(r"https?://|src=|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    links = [a["href"] for tag, a in page.tags if tag == "link"]
    assert links == ["data:,"]


def test_short_names_of_dtypes(capsys):
    adam = ["audit", "optax:adam", "--set", "learning_rate=1e-3", "--json"]
    assert main([*adam, "--params", "bf16,f32", "--grads", "f32"]) == 1
    short = json.loads(capsys.readouterr().out)
    assert main([*adam, "--params", "bfloat16,float32", "--grads", "float32"]) == 1
    assert json.loads(capsys.readouterr().out) == short
    assert main([*adam, "--params", "f64"]) == 2
    assert "f64 needs --x64" in capsys.readouterr().err
    assert main([*adam, "--params", "f33"]) == 2
    assert "'f33' is no dtype" in capsys.readouterr().err
