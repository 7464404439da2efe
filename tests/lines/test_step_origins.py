"""Audits of a step name the line of every planted drift, and the line that forced it."""

import importlib
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import planted_steps
import pytest
from helpers import needs_record

from dtypeguard import audit, explain

pytestmark = pytest.mark.third_party


@pytest.mark.parametrize("name", planted_steps.CASES)
def test_planted(name):
    case = planted_steps.CASES[name]
    report = audit(case.step, *case.args, **case.options)
    assert report.error is None
    (drift,) = report.drifts
    assert (drift.path, drift.where) == (case.path, "carry")
    assert report.compilations == 2
    planted_steps.assert_told(drift, case, name)


def test_every_case_is_marked():
    assert all(planted_steps.marked(name, "promotion") for name in planted_steps.CASES)
    unforced = [n for n in planted_steps.CASES if not planted_steps.marked(n, "operand")]
    assert len(unforced) == 3


@jax.jit
def kept(x):
    rate = jnp.asarray(0.5, jnp.float32)  # the maker
    moved = x + x
    return moved * rate  # the user


@needs_record
def test_a_trace_that_jax_kept_hides_no_maker():
    pytest.importorskip("jax.experimental.xla_metadata")
    x = planted_steps.struct(jnp.bfloat16)
    for _ in range(3):
        (drift,) = audit(lambda x: kept(x), x).drifts
        assert drift.origin.code.endswith("# the user")
        assert drift.cause.code.endswith("# the maker")
    scan = lambda: jax.lax.scan(lambda x, _: (kept(x), _), np.ones(3, x.dtype), None, 2)
    with pytest.raises(TypeError, match="carry") as raised, explain():
        scan()
    (note,) = raised.value.__notes__
    assert "# the maker" in note


@needs_record
def test_a_module_that_was_edited_and_reloaded(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "edited_and_reloaded.py"
    source = "import numpy as np\nRATE = np.float32(2)\ndef step(x):\n    return x * RATE\n"
    for n, text in enumerate([source, f"# A comment.\n\n{source}# More.\n"]):
        path.write_text(text)
        os.utime(path, (n, n))  # the bytecode is that of the source of this time
        with explain():
            if n == 0:
                module = importlib.import_module(path.stem)
            else:
                module = importlib.reload(sys.modules[path.stem])
        x = planted_steps.struct(jnp.bfloat16)
        (drift,) = audit(module.step, x).drifts
        assert drift.origin.code == "return x * RATE"
        assert drift.cause.code == "RATE = np.float32(2)"
        assert drift.cause.line == 2 + 2 * n


def make_factor():
    return np.float32(0.9)  # the factor


@needs_record
def test_code_without_a_module_hides_no_maker():
    names = {}
    exec("def same(x): return x + 1", names)
    del names["__builtins__"]

    def step(x):
        factor = make_factor()
        return names["same"](x) * factor

    (drift,) = audit(step, planted_steps.struct(jnp.bfloat16)).drifts
    assert drift.cause.code.endswith("# the factor")


def test_of_a_conversion_that_a_function_makes_alone_later_values_are_no_cause():
    @jax.jit
    def step(count):
        grown = jnp.exp(count)  # of itself
        return grown * 2.0 + make_factor()

    (drift,) = audit(step, planted_steps.struct(jnp.int32)).drifts
    assert drift.origin.code.endswith("# of itself")
    assert drift.cause is None
