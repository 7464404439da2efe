"""The command line on the precision of a function, and on plans: reports, exit codes."""

import json

import jax
import numpy as np
import pytest

from dtypeguard import Plan
from tests.support.trained import written

pytestmark = pytest.mark.third_party

SCRIPT = """
import jax, jax.numpy as jnp

print("what a script prints is no report")

def average(mean, xs):
    for x in xs:
        mean = 0.999 * mean  # loses
    return mean

def loss(x, scale):
    return x * scale

def both(x):
    return {"sin": jnp.sin(x), "cos": jnp.cos(x)}

def other(x):
    return {"sin": jnp.sin(x), "cos": 1.01 * jnp.cos(x)}

angles = jnp.linspace(0, 1, 8)
of_mean = jnp.ones(3, jnp.bfloat16), jnp.zeros((9, 3), jnp.bfloat16)
wide = angles, 1.1
large = 1e3 * jnp.ones(3, jnp.float16), 1e3
"""
AVERAGE = "precision :average --inputs :of_mean"


def test_it_prints_the_report(command):
    code, out, err = command(AVERAGE)
    assert (code, err) == (0, "what a script prints is no report\n")  # and no progress
    assert out.startswith("precision: the outputs are ")
    assert "mine.py:8" in out
    assert "0.999 -> 1" in out


def test_ctrl_c_prints_what_there_is(command, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dtypeguard._numbers.measure.Measures.alone", interrupt)
    code, out, _ = command(AVERAGE)
    assert (code, out.startswith("precision: the outputs are ")) == (1, True)
    assert "Interrupted. Lines not measured: 1;" in out


def test_a_reference_from_a_file_or_a_function(command):
    both, angles = "precision :both --inputs :angles", np.linspace(0, 1, 8, dtype="f4")
    of_cosine = lambda cosine: {"['sin']": np.sin(angles), "['cos']": cosine}
    for reference, code, text in (
        (of_cosine(np.cos(angles)), 0, "rounding explains it in 2 of 2 outputs"),
        (of_cosine(1.01 * np.cos(angles)), 1, "differs by 0.99% in ['cos']"),
        (":other", 1, "there the reference has"),
        ({"out": np.array([0.0])}, 2, "['sin']  missing"),
    ):
        if isinstance(reference, dict):
            np.savez("out.npz", **reference)
            reference = "out.npz"
        found, out, err = command(f"{both} --reference {reference}")
        assert (found, text in (err if code == 2 else out)) == (code, True)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (f"{AVERAGE} --max-error 1e-3", 1, ""),
        (f"{AVERAGE} --max-error 0.5", 0, ""),
        (f"{AVERAGE} --max-error 0", 1, ""),
        (f"{AVERAGE} --seconds 0", 0, "Ended after 0 s. Lines not measured: 1;"),
        (f"{AVERAGE} --seconds none", 0, "mine.py:8"),
        ("precision :loss --inputs :large", 1, "the outputs are not finite"),
    ],
)
def test_what_it_exits_with(command, words, code, text):
    found, out, _ = command(words)
    assert (found, text in out) == (code, True)


def test_dtypes_in_short_and_in_full(command):
    found = []
    for narrow, wide in (("bf16", "f32"), ("bfloat16", "float32"), ("f16", "f64")):
        dtypes = f"--narrow {narrow} --wide {wide} --tolerance 1e-4 --json"
        code, out, _ = command(f"precision :loss --inputs :wide {dtypes}")
        assert code == 0
        found.append(json.loads(out))
    assert found[0] == found[1]
    assert (found[0]["run"]["narrow"], found[0]["run"]["wide"]) == ("bfloat16", "float32")
    assert (found[2]["run"]["narrow"], found[2]["run"]["wide"]) == ("float16", "float64")
    assert found[0]["run"]["tolerance"] == 1e-4
    assert not jax.config.jax_enable_x64


TRAIN = "precision train.py:step --inputs train.py:inputs"
SEARCH = f"{TRAIN} --narrow bfloat16 --out train.plan --tolerance"
CHECK = f"{TRAIN} --check train.plan"


def test_a_plan_is_written_and_checked(command, folder):
    written(folder, ("keys[:3]", "keys[:2]"))
    unseen = "--held-out train.py:unseen"
    code, out, _ = command(f"{SEARCH} 0.008 {unseen}")
    assert code == 0
    assert out.startswith("plan: 100% of the work in bfloat16, ")
    assert "train.plan is written." in out
    found = Plan.load("train.plan")
    assert found.measured == "autocast(step), with the gradient inside"
    assert found.error <= found.tolerance == 0.008
    assert found.held_out is not None
    code, out, _ = command(f"{CHECK} {unseen}")
    assert (code, "within 0.8%" in out.splitlines()[0]) == (0, True)
    assert "In the plan" in out
    code, out, _ = command(f"{CHECK} --tolerance 1e-4")
    assert (code, "not within 0.01%" in out) == (1, True)
    code, out, _ = command(f"{CHECK} --tolerance 1e-4 --json")
    data = json.loads(out)
    assert (code, data["ok"]) == (1, False)
    assert any("lose most alone" in note for note in data["notes"])
    file = folder / "train.plan"
    entries = "" if "[entries]" in file.read_text() else "\n[entries]"
    file.write_text(f'{file.read_text()}{entries}\n"train.py:normed" = "float32"\n')
    code, _, err = command(CHECK)
    assert (code, "train.py:normed: the nearest there is" in err) == (2, True)
    assert "train.py:norm" in err


def test_a_plan_that_reaches_no_tolerance_exits_1(command, folder):
    own = "(norm(x) @ params[-1]).astype(jnp.bfloat16).astype(jnp.float32)"
    written(folder, ("norm(x) @ params[-1]", own))
    code, out, _ = command(f"{SEARCH} 1e-5")
    assert code == 1
    assert "plan: 0% of the work" in out or "not within 0.001%" in out
