"""The command line on the precision of a function: report, exit codes, wrong usage."""

import json

import jax
import numpy as np
import pytest

from dtypeguard._cli.main import main
from dtypeguard._leaves.compat import HAS_NUMBERS

pytestmark = [
    pytest.mark.third_party,
    pytest.mark.skipif(not HAS_NUMBERS, reason="needs JAX >= 0.8"),
]

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

mean, xs = jnp.ones(3, jnp.bfloat16), jnp.zeros((9, 3), jnp.bfloat16)
by_tuple = mean, xs
by_name = {"xs": xs, "mean": mean}
wide = jnp.linspace(0, 1, 8), 1.1
large = 1e3 * jnp.ones(3, jnp.float16), 1e3

def made():
    return by_tuple
"""
LINE = 1 + next(n for n, x in enumerate(SCRIPT.splitlines()) if "# loses" in x)


@pytest.fixture
def command(folder, script):
    """Runs the command on names of the script."""
    file = script(SCRIPT, "a_program.py")

    def run(target, inputs, *options):
        argv = ["precision", f"{file}:{target}", "--inputs", f"{file}:{inputs}"]
        return main([*argv, *options])

    return run


@pytest.mark.parametrize("inputs", ["by_tuple", "by_name", "made"])
def test_it_prints_the_report(command, inputs, capsys):
    assert command("average", inputs) == 0
    out, err = capsys.readouterr()
    assert err == "what a script prints is no report\n"  # and no progress in a pipe
    assert out.startswith("precision: the outputs are ")
    assert f"a_program.py:{LINE}" in out
    assert "0.999 -> 1" in out


def test_a_reference_from_a_file_or_a_function(command, capsys, tmp_path):
    angles, file = np.linspace(0, 1, 8, dtype=np.float32), tmp_path / "out.npz"
    np.savez(file, **{"['sin']": np.sin(angles), "['cos']": np.cos(angles)})
    assert command("both", "angles", "--reference", str(file)) == 0
    assert "rounding explains it in 2 of 2 outputs" in capsys.readouterr().out
    np.savez(file, **{"['sin']": np.sin(angles), "['cos']": 1.01 * np.cos(angles)})
    assert command("both", "angles", "--reference", str(file)) == 1
    assert "differs by 0.99% in ['cos']" in capsys.readouterr().out
    program = tmp_path / "a_program.py"
    assert command("both", "angles", "--reference", f"{program}:other") == 1
    assert "there the reference has" in capsys.readouterr().out
    np.savez(file, out=np.array([0.0]))
    assert command("both", "angles", "--reference", str(file)) == 2
    assert "['sin']  missing" in capsys.readouterr().err
    assert command("both", "angles", "--reference", str(tmp_path / "no.npz")) == 2
    assert "numpy.savez(file, **{" in capsys.readouterr().err


def test_what_it_exits_with(command, capsys):
    assert command("average", "made", "--max-error", "1e-3") == 1
    assert command("average", "made", "--max-error", "0.5") == 0
    assert command("average", "made", "--max-error", "0") == 1
    assert "1 of" not in capsys.readouterr().err
    assert command("loss", "large") == 1
    assert "not finite as written" in capsys.readouterr().out


def test_dtypes_in_short_and_in_full(command, capsys):
    found = []
    for narrow, wide in (("bf16", "f32"), ("bfloat16", "float32"), ("f16", "f64")):
        options = "--narrow", narrow, "--wide", wide, "--tolerance", "1e-4", "--json"
        assert command("loss", "wide", *options) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert (found[0]["run"]["narrow"], found[0]["run"]["wide"]) == ("bfloat16", "float32")
    assert (found[2]["run"]["narrow"], found[2]["run"]["wide"]) == ("float16", "float64")
    assert found[0]["run"]["tolerance"] == 1e-4
    assert not jax.config.jax_enable_x64
