"""The line of every planted drift, the line that forced it, and one beyond its trace."""

import importlib
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtypeguard import audit, explain
from tests.support import planted, planted_steps
from tests.support.advice import note_on, raised
from tests.support.dtypes import BF16, F32
from tests.support.helpers import needs_record
from tests.support.planted_steps import struct

pytestmark = pytest.mark.third_party


@pytest.mark.parametrize("name", planted.CASES)
def test_an_optimizer(name):
    case = planted.CASES[name]
    report = audit(
        case.opt, {"w": struct(BF16)}, updates={"w": struct(case.grads)}, x64=case.x64
    )
    if name == "multi_steps_inside" and report.error:
        # Before Optax 0.2.5 the branches of its own cond differ then.
        assert sorted(report.error.types) == ["bfloat16[3]", "float32[3]"]
        return
    assert report.error is None
    of_case = ".leaf" if case.where == "state" else "['w']"
    # Up to Optax 0.2.6 the accumulator of MultiSteps drifts by itself.
    drifts = [d for d in report.drifts if d.where == case.where]
    (drift,) = [d for d in drifts if d.path.endswith(of_case)]
    planted.assert_told(drift, case, name)


@pytest.mark.parametrize("name", planted_steps.CASES)
def test_a_step(name):
    case = planted_steps.CASES[name]
    report = audit(case.step, *case.args, **case.options)
    assert (report.error, report.compilations) == (None, 2)
    (drift,) = report.drifts
    assert (drift.path, drift.where) == (case.path, "carry")
    planted_steps.assert_told(drift, case, name)


def test_a_trace_that_jax_kept_is_not_taken_for_the_callers():
    """`jnp.where` is jitted in JAX: its equations are those of who called it first."""
    choose = lambda c, x, y: jnp.where(c > 2, x, y)
    jax.make_jaxpr(choose)(jnp.int32(0), jnp.zeros(3, BF16), jnp.zeros(3, F32))
    test_an_optimizer("where_made_from_nothing")


@jax.jit
def kept(x):
    rate = jnp.asarray(0.5, F32)  # the maker
    moved = x + x
    return moved * rate  # the user


@needs_record
def test_a_trace_that_jax_kept_hides_no_maker():
    pytest.importorskip("jax.experimental.xla_metadata")
    for _ in range(3):
        (drift,) = audit(lambda x: kept(x), struct(BF16)).drifts
        assert drift.origin.code.endswith("# the user")
        assert drift.cause.code.endswith("# the maker")
    x = np.ones(3, BF16)
    note = note_on(lambda: jax.lax.scan(lambda x, _: (kept(x), _), x, None, 2))
    assert "# the maker" in note


@needs_record
def test_a_module_that_was_edited_and_reloaded(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "edited_and_reloaded.py"
    source = "import numpy as np\nRATE = np.float32(2)\ndef step(x):\n    return x * RATE\n"
    path.write_text(source)
    with explain():
        module = importlib.import_module(path.stem)
    path.write_text(f"# A comment.\n\n{source}# More.\n")
    os.utime(path, (1, 1))  # the bytecode is that of the source of another time
    with explain():
        importlib.reload(module)
    (drift,) = audit(sys.modules[path.stem].step, struct(BF16)).drifts
    assert drift.origin.code == "return x * RATE"
    assert (drift.cause.code, drift.cause.line) == ("RATE = np.float32(2)", 4)


def test_of_a_conversion_that_a_function_makes_alone_later_values_are_no_cause():
    @jax.jit
    def step(count):
        grown = jnp.exp(count)  # of itself
        return grown * 2.0 + np.float32(0.9)

    (drift,) = audit(step, struct(jnp.int32)).drifts
    assert drift.origin.code.endswith("# of itself")
    assert drift.cause is None


def test_a_mask_of_a_leaf_is_to_blame_only_if_nothing_else_is():
    def step(x):
        y = x * np.ones(3, np.float32)  # widened
        return y * (x > 0).astype(y.dtype)

    (drift,) = audit(step, struct(BF16)).drifts
    assert drift.origin.code.endswith("# widened")


HALF = jnp.ones(3, BF16)
add_half = jax.jit(lambda x: lax.add(x, HALF))


def looped(x):
    return lax.fori_loop(0, 2, lambda n, carry: add_half(carry), x)


@pytest.mark.parametrize("call", [add_half, jax.jit(add_half), looped, jax.jit(looped)])
def test_an_argument_of_an_inner_function_is_followed_outside(call):
    """By the equations of the outer traces, so that no record is needed."""

    def step(x):
        wide = x.astype(F32)  # the line
        return call(wide * 2)

    rows = raised(lambda: jax.jit(step)(HALF)).dtypeguard_rows
    codes = [row.origin.code for row in rows if row.origin]
    assert "wide = x.astype(F32)  # the line" in codes
