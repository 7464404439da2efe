"""The survey of public steps (`benchmarks/steps.py`), over a package of four of our own."""

import importlib
import pathlib

import jax
import jax.numpy as jnp
from helpers import needs_x64_scope
from jax import lax

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


def recipes():
    """Steps of which one is stable, one drifts, one raises and one minds x64."""
    steps = {
        "stable": lambda x: x * 2,
        "drifting": lambda x: (x * 2).astype(jnp.float16),
        "raising": lambda x: x + jnp.ones(7),
        "minding": lambda x: lax.add(x, jnp.ones(3)),
    }

    for name, step in steps.items():
        yield name, lambda step=step: survey().Step(step, (jnp.ones(3),))


def survey():
    return importlib.import_module("steps")


@needs_x64_scope
def test_the_table_counts_what_fails(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(survey(), "PACKAGES", {"jax": recipes})
    monkeypatch.setattr("sys.argv", ["steps.py"])
    assert survey().main() == 0
    out = capsys.readouterr().out
    # Failing, bare and guarded: with x64 off, on throughout, on for a carry made off.
    assert f"| jax {jax.__version__} | 4 | 2 | 1 | 2 | 1 | 3 | 1 |" in out
    assert "Stable bare on strong(carry), x64 off: 2, of which 2 compile to the same" in out
    assert f"fails bare and guarded: jax {jax.__version__} raising, x64 off: raises" in out
