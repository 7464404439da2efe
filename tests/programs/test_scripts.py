"""Scripts of public repositories (`benchmarks/public_scripts.py`), over one of our own."""

import importlib
import pathlib
import sys

import pytest

import dtypeguard

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
programs = importlib.import_module("programs")
public_scripts = importlib.import_module("public_scripts")
sys.path.pop(0)

pytestmark = pytest.mark.third_party

SCRIPT = """
from functools import partial
import jax, jax.numpy as jnp, matplotlib.pyplot as plt, tensorflow_datasets as tfds

digits = tfds.load("mnist", split="train").batch(1_000)

@partial(jax.jit, static_argnums=2)
def update(average, image, scale):
    return average + jnp.float32(scale) * image.mean(), image.sum()  # widens

if __name__ == "__main__":
    average = jnp.zeros((), jnp.bfloat16)
    for digit in digits:
        average, total = update(average, digit["image"], 2)
plt.show()
raise RuntimeError("after the plot")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(public_scripts, "SOURCES", tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return public_scripts.Script(
        "train.py", {"update": {}}, changes=(("1_000", "8"),), end="raise"
    )


@pytest.mark.parametrize(
    ("side", "dtype"),
    [
        (programs.BARE, "float32"),
        (programs.BY_HAND, "bfloat16"),
        (programs.INSIDE, "bfloat16"),
        (programs.EXPLAINED, "float32"),
    ],
)
def test_a_script_is_run_with_its_step_guarded(script, side, dtype):
    guards = programs.Guards()
    run = programs._run(lambda guards: public_scripts.run(script, guards), guards, side)
    assert run.error is None
    types = [kind for path, kind, _ in run.leaves if path.endswith("[0]")]
    assert types == [f"{dtype}[]"] * 4
    call = guards.calls["update"]
    assert call.args[0].dtype == "bfloat16"
    assert not dtypeguard.audit_step(call.step, *call.args).ok


def test_a_script_whose_text_has_changed_is_refused(script):
    other = script._replace(changes=(("2_000", "8"),))
    with pytest.raises(ValueError, match=r"not in train\.py: 2_000"):
        public_scripts.run(other, programs.Guards())
